"""The thought: whether it can be switched and bounded, and where it arrives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from router.capabilities import Thought
from router.doctor.knobs import Findings, Open
from router.doctor.reply import Reply
from router.thought import CLOSE, OPEN

_BRIEF = "Reply with the single word: yes"
_ENOUGH = 128  # tokens for a brief thought to end


class Place(NamedTuple):
    where: Thought | None
    opens_in_prompt: bool


def look(f: Findings, plain: Reply, greedy: Reply) -> Place:
    """`plain` was asked without a word about thinking; `greedy` with the thought off, where
    that can be said."""
    can_switch = f.can("thinking")
    # vLLM tells the prompt that it made, and no other server minds being asked.
    told = {"return_prompt_text": True} if f.p.dialect.name == "vllm" else {}
    off = greedy
    if can_switch and "thinking" not in f.p.base:
        off = f.p.ask(thinking=False)
    on = f.p.ask(members=told, thinking=True) if can_switch else greedy
    if can_switch and f.accepted("thinking", off) and f.accepted("thinking", on):
        _switch(f, on, off)
    if not on.is_ok:
        on = greedy
    said = {"thinking": True} if can_switch else {}
    place = _place(f, (on, plain, greedy), said, has_switch=on.prompt != off.prompt)
    if place.where == "none":
        f.by_itself["thinking"] = False
    _budget(f, on, said)
    return place


def _switch(f: Findings, on: Reply, off: Reply) -> None:
    prompts = f"prompt of {on.prompt} tokens on, {off.prompt} off"
    shown = f"a thought {_shows(on)} on and {_shows(off)} off"
    is_same_prompt = on.prompt == off.prompt
    if on.thinks and not off.thinks:
        f.settle("thinking", "honoured", f"{shown}; {prompts}")
    elif off.thinks and is_same_prompt:
        f.settle("thinking", "ignored", f"{shown}; {prompts}")
    elif not is_same_prompt and None not in (on.prompt, off.prompt):
        f.settle("thinking", "honoured", prompts)
    else:
        told = f"the same prompt ({on.prompt} tokens) on and off, and no thought"
        f.open["thinking"] = Open(told, on.said == off.said, "unknown")


def _shows(reply: Reply) -> str:
    return "shows" if reply.thinks else "does not show"


# --- where it arrives ------------------------------------------------------------------------


def _place(
    f: Findings, replies: tuple[Reply, ...], said: Mapping[str, Any], *, has_switch: bool
) -> Place:
    for reply in replies:
        if reply.thinks:
            return Place(_arrival(reply), False)
    prompt = replies[0].prompt_text or f.p.rendered(**said)
    if prompt:
        opens = prompt.rstrip().endswith(OPEN)
        # A template with a switch that goes unused says nothing of where a thought would be.
        return Place("inline" if opens else None if has_switch else "none", opens)
    return _at_length(f, said, has_switch=has_switch)


def _at_length(f: Findings, said: Mapping[str, Any], *, has_switch: bool) -> Place:
    """A thought that no tag begins shows where it ends: an answer as long as that takes."""
    if "max_new_tokens" not in f.p.base:
        return Place(None, False)
    reply = f.p.ask(_BRIEF, max_new_tokens=_ENOUGH, **said)
    if reply.thinks:
        return Place(_arrival(reply), False)
    if CLOSE in reply.content and not reply.content.lstrip().startswith(OPEN):
        return Place("inline", True)
    is_whole = reply.is_ok and reply.finish == "stop"
    return Place("none" if is_whole and not has_switch else None, False)


def _arrival(reply: Reply) -> Thought:
    match reply.field:
        case "reasoning" | "reasoning_content" as member:
            return member
        case _:
            return "inline"


# --- bounding it -----------------------------------------------------------------------------


def _budget(f: Findings, on: Reply, said: Mapping[str, Any]) -> None:
    if not f.can("thinking_budget"):
        return
    reply = f.p.ask(thinking_budget=0, **said)
    if not f.accepted("thinking_budget", reply):
        return
    if on.thinks and reply.said != on.said:
        f.settle("thinking_budget", "honoured", "0 changes the thought")
    else:
        told = "0 changes nothing" if on.thinks else "no thought to cut"
        f.open["thinking_budget"] = Open(told, on.thinks, "unknown")
