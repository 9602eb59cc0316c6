"""Does the server do what it is told? A verdict and its evidence, knob by knob.

honoured  seen to work, or nonsense is turned down where sense is accepted
ignored   nonsense is accepted, and nothing changes
refused   turned down with the knob's name
unknown   none of these could be seen
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from router import params
from router.dialects import Dialect
from router.doctor import reply as replies
from router.doctor.asking import Asker, DoctorError, NoAnswer
from router.doctor.probing import CAP, REPEAT, Prober
from router.doctor.reply import Reply

_SEED, _OTHER_SEED = 11, 12
_NEVER = "qzxjvkwq"
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
_JUNK = "scenario_router_probe"
#: their effect is no business of the answer's, so being read is all that can be seen
_UNSEEN: Mapping[str, Any] = {
    "session_id": "doctor",
    "skip_special_tokens": True,
    "clean_up_tokenization_spaces": False,
    "priority": 0,
}
#: at temperature 2, each of these leaves only the likeliest token
_NARROWEST: Mapping[str, Any] = {"top_k": 1, "top_p": 0.01, "min_p": 1.0}
_PENALTIES: Mapping[str, Any] = {
    "repetition_penalty": 1.9,
    "presence_penalty": 2.0,
    "frequency_penalty": 2.0,
}


class Knob(msgspec.Struct, frozen=True):
    name: str
    said_as: str | None  # the member it is said in; None: the dialect has no word for it
    verdict: str  # honoured ignored refused unknown
    evidence: str
    by_itself: bool | None = None  # what the server does anyway, where that was seen


class _Open(msgspec.Struct, frozen=True):
    """Accepted, and nothing seen yet: nonsense decides."""

    told: str  # what was seen
    is_unchanged: bool  # nothing changes; False: it could not be compared
    if_read: str = "honoured"  # what being read comes to


class Examination:
    """One pass over all knobs of a dialect."""

    def __init__(self, asker: Asker, dialect: Dialect, model: str) -> None:
        self._by_itself: dict[str, bool] = {}
        self._dialect = dialect
        self._p = Prober(asker, dialect, model)
        self._found: dict[str, tuple[str, str]] = {}
        self._open: dict[str, _Open] = {}

    @property
    def count(self) -> int:
        return self._p.count

    def run(self) -> tuple[Knob, ...]:
        first = self._first()
        self._limit(first)
        greedy, again = self._greedy()
        self._sampling(greedy, is_steady=greedy.is_ok and greedy.said == again.said)
        self._penalties(greedy.is_ok and greedy.said == again.said)
        self._stop(greedy)
        self._thinking(greedy)
        self._cache(greedy, again)
        self._unseen()
        self._structure(greedy)
        self._shapes()
        self._stream()
        self._nonsense()
        return self._table()

    # --- the base that all other probes stand on ---

    def _first(self) -> Reply:
        """The richest request that is accepted; what had to be left out was refused."""
        wanted = {"max_new_tokens": 4, "temperature": 0, "thinking": False}
        wanted = {name: value for name, value in wanted.items() if self._p.can_say(name, value)}
        dropped, why = "", ""
        while True:
            self._p.base = wanted
            reply = self._p.ask()
            if reply.is_ok:
                break
            if not reply.is_rejected and self._may_be_endless(reply):
                self._p.always = {"max_tokens": CAP}
                continue
            if not reply.is_rejected:
                raise DoctorError(self._no_chat(reply.told))
            if not wanted:
                raise DoctorError(f"refuses a plain chat request: {reply.told}")
            # What the server names goes first, else the most special one.
            named = [name for name in wanted if self._p.names(reply.told, name)]
            dropped, why = (named or list(wanted))[-1], reply.told
            wanted = {name: value for name, value in wanted.items() if name != dropped}
            if named:
                self._found[dropped] = ("refused", why)
        if dropped and dropped not in self._found:
            self._found[dropped] = ("unknown", f"not accepted, without its name: {why}")
        self._p.base = {**wanted, **({"max_new_tokens": CAP} if "max_new_tokens" in wanted else {})}
        return reply

    def _may_be_endless(self, reply: Reply) -> bool:
        """Whether the silence may be a limit that is ignored, and another word may be heard."""
        has_other_word = self._p.spelling("max_new_tokens") not in (None, "max_tokens")
        return reply.is_silence and has_other_word and not self._p.always

    def _no_chat(self, told: str) -> str:
        if told.startswith(("401", "403")):
            return f"wants a key (--key-env): {told}"
        return f"does not answer a chat request: {told}"

    def _limit(self, first: Reply) -> None:
        if "max_new_tokens" not in self._p.base:
            # Without a limit each probe runs to the end of the context: any other word is tried.
            self._guard()
            return
        one = self._p.ask(max_new_tokens=1)
        if not one.is_ok:
            self._settle("max_new_tokens", "unknown", f"4 is accepted, 1 is not: {one.told}")
            return
        counts = f"asked for 4 and 1: {_tokens(first)} and {_tokens(one)}"
        if first.completion is not None and one.completion is not None:
            is_held = one.completion <= 1 and first.completion <= 4
        else:
            is_held = one.finish == "length" and len(one.content) < len(first.content)
        if is_held and one.finish == "length":
            self._settle("max_new_tokens", "honoured", counts)
        elif is_held:
            self._settle("max_new_tokens", "unknown", f"{counts}; nothing says it was cut")
        elif first.said == one.said or (one.completion or 0) > 1:
            self._settle("max_new_tokens", "ignored", counts)
            self._guard()
        else:
            self._settle("max_new_tokens", "unknown", counts)

    def _guard(self) -> None:
        if self._p.spelling("max_new_tokens") != "max_tokens" and not self._p.always:
            self._p.always = {"max_tokens": CAP}
            if not self._p.ask().is_ok:
                self._p.always = {}

    def _greedy(self) -> tuple[Reply, Reply]:
        """The same request twice; the second time with a member that no server knows."""
        greedy = self._p.ask()
        again = self._p.ask(members={_JUNK: 1})
        if again.is_ok:
            is_same = "the same text" if again.said == greedy.said else "another text"
            self._settle("unknown_members", "ignored", f"{_JUNK}: 1 is accepted, {is_same}")
        elif again.is_rejected:
            self._settle("unknown_members", "refused", again.told)
            again = self._p.ask()
        else:
            self._settle("unknown_members", "unknown", again.told)
        return greedy, again

    # --- sampling ---

    def _sampling(self, greedy: Reply, *, is_steady: bool) -> None:
        draw, hot = self._draw()
        if not draw.is_ok:
            return
        seeded: dict[str, Any] = (
            {"seed": _SEED} if "seed" not in self._found and self._can("seed") else {}
        )
        differently: dict[str, Any] = {"seed": _OTHER_SEED} if seeded else {}
        again = self._p.ask(temperature=hot, **seeded)
        other = self._p.ask(temperature=hot, **differently)
        draws = [reply.said for reply in (draw, again, other) if reply.is_ok]
        is_repeated = again.is_ok and draw.said == again.said
        if hot is not None and "temperature" not in self._found:
            if is_steady and any(said != greedy.said for said in draws):
                told = f"0 twice gives one text, {hot:g} gives {len(set(draws))} others"
                self._settle("temperature", "honoured", told)
            else:
                told = (
                    f"0 and {hot:g} give the same text"
                    if is_steady
                    else "0 twice gives two texts, so it is not greedy"
                )
                self._open["temperature"] = _Open(told, True)
        if seeded:
            self._seed(is_repeated, is_steady, draw, other)
        # One draw may be the likeliest by chance, two hardly.
        is_spread = is_steady and greedy.said not in (draw.said, other.said)
        for name, value in _NARROWEST.items():
            if not self._can(name):
                continue
            reply = self._p.ask(temperature=hot, **seeded, **{name: value})
            if not self._accepted(name, reply):
                continue
            if is_spread and reply.said == greedy.said:
                told = f"{value:g} at temperature {hot or 1:g} gives the greedy text"
                self._settle(name, "honoured", told)
            elif is_spread and is_repeated and reply.said == draw.said:
                self._open[name] = _Open(f"{value:g} changes no draw", True, "unknown")
            else:
                is_same = reply.said == draw.said and is_repeated
                told = f"{value:g} changes nothing" if is_same else f"{value:g}: no telling by text"
                self._open[name] = _Open(told, is_same)

    def _draw(self) -> tuple[Reply, float | None]:
        """A random answer: as hot as it is accepted, with a seed if it is."""
        seeds: list[dict[str, Any]] = [{"seed": _SEED}] if self._can("seed") else []
        heats: list[float | None] = [2.0, 1.0] if self._can("temperature") else [None]
        reply = Reply(is_ok=False)
        for heat in heats:
            for seed in [*seeds, {}]:
                reply = self._p.ask(temperature=heat, **seed)
                if reply.is_ok:
                    return reply, heat
                if seed and self._p.names(reply.told, "seed"):
                    self._settle("seed", "refused", reply.told)
                    seeds = []
                elif seed:
                    break
        for name in ("temperature", "seed"):
            if self._can(name):
                self._accepted(name, reply)
        return reply, None

    def _seed(self, is_repeated: bool, is_steady: bool, draw: Reply, other: Reply) -> None:
        if is_repeated and other.is_ok and other.said != draw.said:
            told = f"{_SEED} twice gives one text, {_OTHER_SEED} another"
            self._settle("seed", "honoured", told)
        elif not is_repeated and is_steady:
            self._settle(
                "seed", "ignored", f"{_SEED} twice gives two texts, where greedy gives one"
            )
        else:
            told = "changes nothing" if is_repeated else "not even greedy text repeats"
            self._open["seed"] = _Open(f"{_SEED} and {_OTHER_SEED}: {told}", is_repeated)

    def _penalties(self, is_steady: bool) -> None:
        wanted = {name: value for name, value in _PENALTIES.items() if self._can(name)}
        if not wanted:
            return
        plain = self._p.ask(REPEAT)
        for name, value in wanted.items():
            reply = self._p.ask(REPEAT, **{name: value})
            if not self._accepted(name, reply):
                continue
            if is_steady and plain.is_ok and reply.said != plain.said:
                self._settle(name, "honoured", f"{value:g} changes a greedy text that repeats")
            else:
                is_same = plain.is_ok and reply.said == plain.said
                told = "changes nothing" if is_same else "cannot be compared"
                self._open[name] = _Open(f"{value:g} {told}", is_same)

    def _stop(self, greedy: Reply) -> None:
        if not self._can("stop"):
            return
        never = self._p.ask(stop=[_NEVER])
        if not self._accepted("stop", never):
            return
        text = greedy.content
        certain = _certain(text)
        if not certain:
            self._open["stop"] = _Open("the answer has no text to stop at", False)
            return
        reply = self._p.ask(stop=[certain])
        if not self._accepted("stop", reply):
            return
        cut = text[: text.index(certain)]
        if reply.content in (cut, cut + certain, cut.rstrip()) and never.content == text:
            kept = " (and keeps it)" if reply.content.endswith(certain) else ""
            self._settle("stop", "honoured", f"{certain!r} ends the text there{kept}; {_NEVER} not")
        else:
            is_same = reply.said == greedy.said
            told = f"{certain!r} does not end the text" if is_same else "no text to compare"
            self._open["stop"] = _Open(told, is_same, "unknown")

    # --- thinking ---

    def _thinking(self, greedy: Reply) -> None:
        can_switch = self._can("thinking")
        off = greedy
        if can_switch and "thinking" not in self._p.base:
            off = self._p.ask(thinking=False)
        on = self._p.ask(thinking=True) if can_switch else greedy
        if can_switch and self._accepted("thinking", off) and self._accepted("thinking", on):
            self._switch(on, off)
        if not on.is_ok:
            on = greedy
        if not (greedy.thinks or on.thinks):
            self._by_itself["thinking"] = False
        said = {"thinking": True} if can_switch else {}
        self._budget(on, said)
        for value in ("drop", "inline", "field"):
            if self._p.can_say("reasoning_output", value):
                self._reasoning(value, on, said)
                break

    def _switch(self, on: Reply, off: Reply) -> None:
        prompts = f"prompt of {on.prompt} tokens on, {off.prompt} off"
        shown = f"a thought {_shows(on)} on and {_shows(off)} off"
        is_same_prompt = on.prompt == off.prompt
        if on.thinks and not off.thinks:
            self._settle("thinking", "honoured", f"{shown}; {prompts}")
        elif off.thinks and is_same_prompt:
            self._settle("thinking", "ignored", f"{shown}; {prompts}")
        elif not is_same_prompt and None not in (on.prompt, off.prompt):
            self._settle("thinking", "honoured", prompts)
        else:
            told = f"the same prompt ({on.prompt} tokens) on and off, and no thought"
            self._open["thinking"] = _Open(told, on.said == off.said, "unknown")

    def _budget(self, on: Reply, said: Mapping[str, Any]) -> None:
        if not self._can("thinking_budget"):
            return
        reply = self._p.ask(thinking_budget=0, **said)
        if not self._accepted("thinking_budget", reply):
            return
        if on.thinks and reply.said != on.said:
            self._settle("thinking_budget", "honoured", "0 changes the thought")
        else:
            told = "0 changes nothing" if on.thinks else "no thought to cut"
            self._open["thinking_budget"] = _Open(told, on.thinks, "unknown")

    def _reasoning(self, value: str, on: Reply, said: Mapping[str, Any]) -> None:
        reply = self._p.ask(reasoning_output=value, **said)
        if not self._accepted("reasoning_output", reply):
            return
        if on.reasoning and reply.said != on.said:
            self._settle("reasoning_output", "honoured", f"{value} moves the thought")
        elif on.reasoning and value != "field":
            self._settle("reasoning_output", "ignored", f"{value} leaves the thought where it was")
        else:
            self._settle("reasoning_output", "unknown", f"{value} is accepted; no thought to move")

    # --- cache, structure, shapes ---

    def _cache(self, greedy: Reply, again: Reply) -> None:
        told = f"cached_tokens {again.cached} the second time"
        if again.cached:
            self._by_itself["use_cache"] = True
        if self._can("use_cache"):
            off = self._p.ask(use_cache=False)
            if not self._accepted("use_cache", off):
                return
            if again.cached and off.cached == 0:
                self._settle("use_cache", "honoured", f"{told}, 0 with false")
            else:
                is_same = bool(again.cached) and off.cached == again.cached
                self._open["use_cache"] = _Open(f"{told}, {off.cached} with false", is_same)
        elif again.cached is None:
            self._settle("use_cache", "unknown", "the server tells no cached_tokens")
        elif again.cached:
            self._settle("use_cache", "honoured", f"by itself: {told}")
        else:
            self._settle("use_cache", "unknown", f"{told}; short prompts may not be cached")

    def _unseen(self) -> None:
        """All in one request; one by one where that is refused."""
        wanted = {name: value for name, value in _UNSEEN.items() if self._p.can_say(name, value)}
        together = self._p.ask(**wanted) if len(wanted) > 1 else None
        for name, value in wanted.items():
            is_enough = together is not None and together.is_ok
            if is_enough or self._accepted(name, self._p.ask(**{name: value})):
                self._open[name] = _Open("no effect shows", True, "unknown")

    def _structure(self, greedy: Reply) -> None:
        reply = self._p.ask(members={"response_format": _FORMAT})
        if not self._accepted("structured_output", reply, "response_format"):
            return
        begins = reply.content.lstrip()
        if _begins_object(begins) and not greedy.content.lstrip().startswith("{"):
            self._settle("structured_output", "honoured", f"a schema makes it {begins[:24]!r}")
        elif reply.said == greedy.said:
            self._settle("structured_output", "ignored", "a schema changes nothing of a story")
        else:
            self._settle("structured_output", "unknown", f"a schema makes it {begins[:24]!r}")

    def _shapes(self) -> None:
        """What changes the shape of an answer shows by itself."""
        one: dict[str, Any] = {"max_new_tokens": 1 if "max_new_tokens" in self._p.base else None}
        heat: dict[str, Any] = {"temperature": 1.0 if "temperature" in self._p.base else None}
        logprobs, choices = {"logprobs": True, "top_logprobs": 2}, {"n": 2}
        both = self._p.ask(members={**logprobs, **choices}, **heat, **one)
        reply = both if both.is_ok else self._p.ask(members=logprobs, **heat, **one)
        if self._accepted("logprobs", reply):
            verdict = "honoured" if reply.has_logprobs else "ignored"
            told = "there" if reply.has_logprobs else "not there"
            self._settle("logprobs", verdict, f"asked for two a token: {told}")
        reply = both if both.is_ok else self._p.ask(members=choices, **heat, **one)
        if self._accepted("n", reply):
            verdict = "honoured" if reply.choices == 2 else "ignored"
            self._settle("n", verdict, f"asked for 2: {reply.choices}")

    def _stream(self) -> None:
        asked = {"stream_options": {"include_usage": True}}
        members: dict[str, Any] = {"stream": True}
        if self._dialect.takes_stream_options:
            members |= asked
        try:
            answer = self._p.post(members=members)
        except NoAnswer as silence:
            for name in ("stream_usage", "stream_done"):
                self._settle(name, "unknown", str(silence))
            return
        events = replies.events(answer)
        chunks = [event for event in events if isinstance(event, dict)]
        if answer.status != 200 or not any("choices" in chunk for chunk in chunks):
            refusal = replies.read(answer)
            named = refusal.is_refused and "stream" in refusal.told
            for name in ("stream_usage", "stream_done"):
                self._settle(name, "refused" if named else "unknown", f"no stream: {refusal.told}")
            return
        has_usage = any(isinstance(chunk.get("usage"), dict) for chunk in chunks)
        how = "asked for" if self._dialect.takes_stream_options else "not asked for"
        self._settle(
            "stream_usage",
            "honoured" if has_usage else "ignored",
            f"{how}: {'there' if has_usage else 'not there'} in {len(chunks)} chunks",
        )
        is_done = bool(events) and events[-1] == "[DONE]"
        told = "the last event" if is_done else "missing"
        if not is_done and not self._dialect.ends_with_done:
            told += ", which this dialect knows and the router adds"
        self._settle("stream_done", "honoured" if is_done else "ignored", f"[DONE] is {told}")

    # --- nonsense ---

    def _nonsense(self) -> None:
        """What showed nothing is sent as nonsense: all at once, and apart where that is refused."""
        for if_read in ("honoured", "unknown"):
            self._nonsense_of_group(
                {
                    name: _nonsense_for(name)
                    for name, seen in self._open.items()
                    if name not in self._found and seen.if_read == if_read
                }
            )

    def _nonsense_of_group(self, bad: Mapping[str, Any]) -> None:
        together = self._p.ask(**bad) if len(bad) > 1 else None
        for name, value in bad.items():
            is_enough = together is not None and together.is_ok
            reply = together if together and is_enough else self._p.ask(**{name: value})
            seen = self._open[name]
            if reply.is_ok and seen.is_unchanged:
                self._settle(name, "ignored", f"{seen.told}, nor is {value!r} refused")
            elif reply.is_rejected:
                told = f"{seen.told}; {value!r} is refused ({reply.told})"
                self._settle(name, seen.if_read, told)
            else:
                also = f"{value!r} is accepted" if reply.is_ok else reply.told
                self._settle(name, "unknown", f"{seen.told}; {also}")

    # --- verdicts ---

    def _can(self, name: str) -> bool:
        return name not in self._found and self._p.spelling(name) is not None

    def _accepted(self, name: str, reply: Reply, word: str = "") -> bool:
        """Whether a probe was answered; else the verdict is settled."""
        if reply.is_ok:
            return True
        is_named = self._p.names(reply.told, name) or bool(word and word in reply.told)
        verdict = "refused" if reply.is_refused and is_named else "unknown"
        self._settle(name, verdict, reply.told)
        return False

    def _settle(self, name: str, verdict: str, evidence: str) -> None:
        self._found.setdefault(name, (verdict, evidence))

    def _table(self) -> tuple[Knob, ...]:
        """All parameters in the order of their table, then the shapes of answers."""
        shapes = [name for name in self._found if name not in params.PARAMS]
        return tuple(self._knob(name) for name in [*params.PARAMS, *shapes])

    def _knob(self, name: str) -> Knob:
        spelling = self._p.spelling(name)
        if name not in params.PARAMS:
            spelling = name
        verdict, evidence = self._found.get(name, ("unknown", "nothing was found out"))
        if name not in self._found and spelling is None:
            is_quiet = name in self._dialect.quiet
            evidence = (
                "nothing is said of it to this server"
                if is_quiet
                else f"cannot be said to {self._dialect.title}"
            )
        return Knob(name, spelling, verdict, evidence, self._by_itself.get(name))


def _tokens(reply: Reply) -> str:
    counted = "untold" if reply.completion is None else str(reply.completion)
    return f"{counted} tokens ({reply.finish or 'no finish_reason'})"


def _shows(reply: Reply) -> str:
    return "shows" if reply.thinks else "does not show"


def _certain(text: str) -> str:
    """A piece of the text to stop at: its third word, or what is there."""
    words = text.split()
    if len(words) >= 3 and text.find(words[2]) > 0:
        return words[2]
    return text[len(text) // 2 :][:1].strip() if len(text) > 1 else ""


def _begins_object(text: str) -> bool:
    """Whether a text can be the beginning of an object of our schema."""
    tight = "".join(text.split())
    return tight.startswith("{") and ('{"z":'.startswith(tight) or tight.startswith('{"z":'))


def _nonsense_for(name: str) -> Any:
    match params.PARAMS[name].kind:
        case "text" | "texts":
            return 5
        case _:
            return "x"
