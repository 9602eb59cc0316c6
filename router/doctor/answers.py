"""What shows in the answer itself: its shape, its form, the tools it calls, what was cached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from router.capabilities import Verdict
from router.doctor import reply as replies
from router.doctor.asking import NoAnswer
from router.doctor.knobs import Findings, Open
from router.doctor.reply import Reply

_SCHEMA = {
    "type": "object",
    "properties": {"z": {"type": "integer"}},
    "required": ["z"],
    "additionalProperties": False,
}
_FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "probe", "strict": True, "schema": _SCHEMA},
}
_TOOL = {"name": "probe", "description": "Measures a thing.", "parameters": _SCHEMA}
_TOOLS: Mapping[str, Any] = {"tools": [{"type": "function", "function": _TOOL}]}
_FORCED: Mapping[str, Any] = {
    **_TOOLS,
    "tool_choice": {"type": "function", "function": {"name": "probe"}},
}
_CALLS = ("<", "[", "{")  # how a call begins in every format
#: longer than the largest block that is cached as one (128 tokens, vLLM on a CPU)
_LONG = "Say which word comes first. " + "cat dog sun moon tree house river stone " * 24
#: their effect is no business of the answer's, so being read is all that can be seen
_UNSEEN: Mapping[str, Any] = {
    "session_id": "doctor",
    "skip_special_tokens": True,
    "clean_up_tokenization_spaces": False,
    "priority": 0,
}


def cache(f: Findings, again: Reply) -> None:
    """`again` was the second of two requests with one prompt."""
    if again.cached == 0 and "max_new_tokens" in f.p.base:
        f.p.ask(_LONG, max_new_tokens=1)
        again = f.p.ask(_LONG, max_new_tokens=1)
    told = f"cached_tokens {again.cached} of {again.prompt} the second time"
    if again.cached:
        f.by_itself["use_cache"] = True
    if f.can("use_cache"):
        off = f.p.ask(use_cache=False)
        if not f.accepted("use_cache", off):
            return
        if again.cached and off.cached == 0:
            f.settle("use_cache", "honoured", f"{told}, 0 with false")
        else:
            is_same = bool(again.cached) and off.cached == again.cached
            f.open["use_cache"] = Open(f"{told}, {off.cached} with false", is_same)
    elif again.cached is None:
        f.settle("use_cache", "unknown", "the server tells no cached_tokens")
    elif again.cached:
        f.settle("use_cache", "honoured", f"by itself: {told}")
    else:
        f.settle("use_cache", "unknown", f"{told}: nothing is reused")


def unseen(f: Findings) -> None:
    """All in one request; one by one where that is refused."""
    wanted = {name: value for name, value in _UNSEEN.items() if f.p.can_say(name, value)}
    together = f.p.ask(**wanted) if len(wanted) > 1 else None
    for name, value in wanted.items():
        is_enough = together is not None and together.is_ok
        if is_enough or f.accepted(name, f.p.ask(**{name: value})):
            f.open[name] = Open("no effect shows", True, "unknown")


# --- form and tools --------------------------------------------------------------------------


def structure(f: Findings, greedy: Reply) -> None:
    reply = f.p.ask(members={"response_format": _FORMAT})
    if not f.accepted("structured_output", reply, "response_format"):
        return
    begins = reply.content.lstrip()
    if _begins_object(begins) and not greedy.content.lstrip().startswith("{"):
        f.settle("structured_output", "honoured", f"a schema makes it {begins[:24]!r}")
    elif reply.said == greedy.said:
        f.settle("structured_output", "ignored", "a schema changes nothing of a story")
    else:
        f.settle("structured_output", "unknown", f"a schema makes it {begins[:24]!r}")


def _begins_object(text: str) -> bool:
    """Whether a text can be the beginning of an object of our schema."""
    tight = "".join(text.split())
    return tight.startswith("{") and ('{"z":'.startswith(tight) or tight.startswith('{"z":'))


def tools(f: Findings, greedy: Reply) -> None:
    """Whether the model hears of a tool at all, and whether it can be made to call it."""
    forced = f.p.ask(members=_FORCED)
    if f.accepted("tool_choice", forced, "tool"):
        begins = forced.content.lstrip()
        if forced.has_tool_calls:
            f.settle("tool_choice", "honoured", "a story comes as the call that was asked for")
        elif begins.startswith(_CALLS) and not greedy.content.lstrip().startswith(_CALLS):
            # Cut off before its end, a call is only text.
            f.settle("tool_choice", "honoured", f"a call makes it {begins[:24]!r}")
        else:
            f.settle("tool_choice", "ignored", "a call was asked for, and text came")
    offered = forced if forced.is_ok else f.p.ask(members=_TOOLS)
    if not f.accepted("tools", offered, "tool"):
        return
    prompts = f"prompt of {greedy.prompt} tokens without a tool, {offered.prompt} with one"
    if None in (greedy.prompt, offered.prompt):
        f.settle("tools", "unknown", "accepted; no prompt_tokens to tell by")
    elif offered.prompt == greedy.prompt:
        f.settle("tools", "ignored", f"{prompts}: the template leaves it out")
    else:
        f.settle("tools", "honoured", prompts)


# --- shapes ----------------------------------------------------------------------------------


def shapes(f: Findings) -> None:
    """What changes the shape of an answer shows by itself."""
    one: dict[str, Any] = {"max_new_tokens": 1 if "max_new_tokens" in f.p.base else None}
    heat: dict[str, Any] = {"temperature": 1.0 if "temperature" in f.p.base else None}
    logprobs, choices = {"logprobs": True, "top_logprobs": 2}, {"n": 2}
    both = f.p.ask(members={**logprobs, **choices}, **heat, **one)
    reply = both if both.is_ok else f.p.ask(members=logprobs, **heat, **one)
    if f.accepted("logprobs", reply, "logprobs"):
        told = "there" if reply.has_logprobs else "not there"
        f.settle("logprobs", _verdict(reply.has_logprobs), f"asked for two a token: {told}")
    reply = both if both.is_ok else f.p.ask(members=choices, **heat, **one)
    if f.accepted("n", reply):
        f.settle("n", _verdict(reply.choices == 2), f"asked for 2: {reply.choices}")


def stream(f: Findings) -> None:
    members: dict[str, Any] = {"stream": True}
    takes_options = f.p.dialect.takes_stream_options
    if takes_options:
        members["stream_options"] = {"include_usage": True}
    try:
        answer = f.p.post(members=members)
    except NoAnswer as silence:
        for name in ("stream_usage", "stream_done"):
            f.settle(name, "unknown", str(silence))
        return
    events = replies.events(answer)
    chunks = [event for event in events if isinstance(event, dict)]
    if answer.status != 200 or not any("choices" in chunk for chunk in chunks):
        refusal = replies.read(answer)
        is_named = refusal.is_refused and "stream" in refusal.whole
        for name in ("stream_usage", "stream_done"):
            f.settle(name, "refused" if is_named else "unknown", f"no stream: {refusal.told}")
        return
    has_usage = any(isinstance(chunk.get("usage"), dict) for chunk in chunks)
    how = "asked for" if takes_options else "not asked for"
    there = "there" if has_usage else "not there"
    f.settle("stream_usage", _verdict(has_usage), f"{how}: {there} in {len(chunks)} chunks")
    is_done = bool(events) and events[-1] == "[DONE]"
    told = "[DONE] is the last event" if is_done else "no [DONE]: the router adds it"
    f.settle("stream_done", _verdict(is_done), told)


def _verdict(is_there: bool) -> Verdict:
    return "honoured" if is_there else "ignored"
