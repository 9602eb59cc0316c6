"""How the next token is drawn, how many are, and where they end: seen by the text that comes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from router.doctor.knobs import Findings, Open
from router.doctor.probing import CAP, REPEAT, STORY
from router.doctor.reply import Reply

_SEEDS = (11, 12, 13, 14)
#: at temperature 2, each of these leaves only the likeliest token
_NARROWEST: Mapping[str, Any] = {"top_k": 1, "top_p": 0.01, "min_p": 1.0}
_PENALTIES: Mapping[str, Any] = {
    "repetition_penalty": 10.0,
    "presence_penalty": 2.0,
    "frequency_penalty": 2.0,
}
_SPREAD = 2  # draws that are not the likeliest text
_LONGER = 16  # tokens until a story's words come again
_FROZEN = (
    "no sampling value changes anything, nor does stop end a text: it may have been started with "
    "continuous batching, which keeps the first request's values for all that follow"
)


class Texts(NamedTuple):
    """What temperature 0 gave, to which the rest is compared."""

    greedy: Reply
    is_steady: bool  # twice the same


def limit(f: Findings, eight: Reply, four: Reply) -> None:
    """What came where eight tokens were asked for, and four."""
    if "max_new_tokens" not in f.p.base:
        # Without a limit each probe runs to the end of the context: any other word is tried.
        _guard(f)
        return
    if not eight.is_ok:
        f.settle("max_new_tokens", "unknown", f"4 is accepted, 8 is not: {eight.told}")
        return
    counts = f"asked for 8 and 4: {_tokens(eight)} and {_tokens(four)}"
    if four.completion is not None and eight.completion is not None:
        is_held = four.completion <= 4 and eight.completion <= CAP
    else:
        is_held = four.finish == "length" and len("".join(four.said)) < len("".join(eight.said))
    if is_held and four.finish == "length":
        f.settle("max_new_tokens", "honoured", counts)
    elif is_held:
        f.settle("max_new_tokens", "unknown", f"{counts}; nothing says it was cut")
    elif eight.said == four.said or (four.completion or 0) > 4:
        f.settle("max_new_tokens", "ignored", counts)
        _guard(f)
    else:
        f.settle("max_new_tokens", "unknown", counts)


def _guard(f: Findings) -> None:
    if f.p.spelling("max_new_tokens") != "max_tokens" and not f.p.always:
        f.p.always = {"max_tokens": CAP}
        if not f.p.ask().is_ok:
            f.p.always = {}


def _tokens(reply: Reply) -> str:
    counted = "untold" if reply.completion is None else str(reply.completion)
    return f"{counted} tokens ({reply.finish or 'no finish_reason'})"


# --- drawing ---------------------------------------------------------------------------------


def draws(f: Findings, seen: Texts) -> Texts:
    """Temperature and seed, and what narrows the draw down to the likeliest again.

    Gives what the rest is to be compared to: where temperature 0 gives no steady text but a
    seed does, that is said with everything from now on.
    """
    draw, hot = _hot(f)
    if not draw.is_ok:
        return seen
    is_seeded = f.can("seed")
    seed: dict[str, Any] = {"seed": _SEEDS[0]} if is_seeded else {}
    again = f.p.ask(temperature=hot, **seed)
    is_repeated = again.is_ok and draw.said == again.said
    drawn = [(_SEEDS[0], draw)]
    for number in _SEEDS[1:]:
        differently: dict[str, Any] = {"seed": number} if is_seeded else {}
        drawn.append((number, f.p.ask(temperature=hot, **differently)))
        if len(_differing(drawn, seen)) >= _SPREAD:
            break
    texts = {reply.said for reply in (again, *(reply for _, reply in drawn)) if reply.is_ok}
    _temperature(f, seen, hot, texts)
    if is_seeded:
        _seed(f, seen, is_repeated, texts - {draw.said})
    _narrow(f, seen, hot, is_seeded and is_repeated, _differing(drawn, seen))
    if seen.is_steady or f.verdict("seed") != "honoured":
        return seen
    one, other = (f.p.ask(seed=number) for number in _SEEDS[:2])
    if not (one.is_ok and other.is_ok):
        return seen
    if one.said != other.said and "temperature" in f.open:
        f.settle("temperature", "ignored", "0 is not greedy: another seed gives another text")
    f.p.base["seed"] = _SEEDS[0]
    return Texts(one, is_steady=True)


def _differing(drawn: list[tuple[int, Reply]], seen: Texts) -> dict[int, tuple[str, str]]:
    """By their seeds, texts that differ from each other and from the likeliest."""
    found: dict[int, tuple[str, str]] = {}
    for number, reply in drawn:
        if reply.is_ok and reply.said not in (seen.greedy.said, *found.values()):
            found[number] = reply.said
    return found


def _temperature(f: Findings, seen: Texts, hot: float | None, texts: set[tuple[str, str]]) -> None:
    if hot is None or "temperature" in f.found:
        return
    hotter = texts - {seen.greedy.said}
    if seen.is_steady and hotter:
        others = f"{len(hotter)} other{'s' if len(hotter) > 1 else ''}"
        f.shows("temperature", f"0 twice gives one text, {hot:g} gives {others}")
    elif seen.is_steady:
        f.open["temperature"] = Open(f"0 and {hot:g} give the same text", True)
    else:
        told = "0 twice gives two texts, so it is not greedy"
        f.open["temperature"] = Open(told, True, "unknown")


def _hot(f: Findings) -> tuple[Reply, float | None]:
    """A random answer: as hot as it is accepted, with a seed if it is."""
    seeds: list[dict[str, Any]] = [{"seed": _SEEDS[0]}] if f.can("seed") else []
    heats: list[float | None] = [2.0, 1.0] if f.can("temperature") else [None]
    reply = Reply(is_ok=False)
    for heat in heats:
        for seed in [*seeds, {}]:
            reply = f.p.ask(temperature=heat, **seed)
            if reply.is_ok:
                return reply, heat
            if seed and f.p.names(reply, "seed"):
                f.settle("seed", "refused", reply.told)
                seeds = []
            elif seed:
                break
    for name in ("temperature", "seed"):
        if f.can(name):
            f.accepted(name, reply)
    return reply, None


def _seed(f: Findings, seen: Texts, is_repeated: bool, others: set[tuple[str, str]]) -> None:
    first, second = _SEEDS[:2]
    if is_repeated and others:
        f.shows("seed", f"{first} twice gives one text, another seed another")
    elif not is_repeated and seen.is_steady:
        told = f"{first} twice gives two texts, where greedy gives one"
        f.settle("seed", "ignored", told)
    else:
        told = "changes nothing" if is_repeated else "not even greedy text repeats"
        f.open["seed"] = Open(f"{first} and {second}: {told}", is_repeated)


def _narrow(
    f: Findings,
    seen: Texts,
    hot: float | None,
    is_repeatable: bool,
    differing: Mapping[int, tuple[str, str]],
) -> None:
    """What leaves only the likeliest token must give another text than was drawn without it.

    Not always the greedy one, where two tokens are equally likely; and then one of the draws
    may have been of these by chance, so there is a second.
    """
    is_spread = len(differing) >= (1 if is_repeatable else _SPREAD)
    is_heard = "seed" in f.p.dialect.places and f.verdict("seed") != "refused"
    seeds = list(differing)[::-1] if is_spread and is_repeatable else list(_SEEDS[:1])
    for name, value in _NARROWEST.items():
        for number in seeds:
            if not f.can(name):
                break
            seed: dict[str, Any] = {"seed": number} if is_heard else {}
            reply = f.p.ask(temperature=hot, **{**seed, name: value})
            if not f.accepted(name, reply):
                break
            at = f"{value:g} at temperature {hot or 1:g}"
            if is_spread and seen.is_steady and reply.said == seen.greedy.said:
                f.shows(name, f"{at} gives the greedy text")
            elif is_spread and is_repeatable and reply.said != differing[number]:
                f.shows(name, f"{at} changes what a seed draws")
            elif is_spread and is_repeatable:
                f.open[name] = Open(f"{value:g} changes no draw", True, "unknown")
            else:
                is_same = seen.is_steady and not differing and reply.said == seen.greedy.said
                told = f"{value:g} changes nothing" if is_same else f"{value:g}: no telling by text"
                f.open[name] = Open(told, is_same)


# --- penalties -------------------------------------------------------------------------------


def penalties(f: Findings, seen: Texts) -> None:
    wanted = {name: value for name, value in _PENALTIES.items() if f.can(name)}
    if not wanted:
        return
    text = REPEAT
    longer: dict[str, Any] = {}
    plain = f.p.ask(text)
    if plain.is_ok and not _repeats(plain):
        text = STORY
        longer = {"max_new_tokens": _LONGER} if "max_new_tokens" in f.p.base else {}
        plain = f.p.ask(text, **longer)
    for name, value in wanted.items():
        reply = f.p.ask(text, **longer, **{name: value})
        if not f.accepted(name, reply):
            continue
        if seen.is_steady and plain.is_ok and reply.said != plain.said:
            f.shows(name, f"{value:g} changes a greedy text that repeats")
        else:
            is_same = plain.is_ok and reply.said == plain.said
            told = "changes nothing" if is_same else "cannot be compared"
            f.open[name] = Open(f"{value:g} {told}", is_same)


def _repeats(reply: Reply) -> bool:
    """Whether a word comes three times, so that a penalty on it must show."""
    words = Counter("".join(reply.said).lower().split())
    return any(count >= 3 for count in words.values())


# --- stop ------------------------------------------------------------------------------------


def stop(f: Findings, seen: Texts) -> None:
    if not f.can("stop"):
        return
    text = seen.greedy.content
    certain = _certain(text)
    if not certain:
        reply = f.p.ask(stop=["qzxjvkwq"])
        if f.accepted("stop", reply):
            f.open["stop"] = Open("the answer has no text to stop at", False)
        return
    reply = f.p.ask(stop=[certain])
    if not f.accepted("stop", reply):
        return
    cut = text[: text.index(certain)]
    _, _, beyond = reply.content.partition(certain)
    if reply.content in (cut, cut + certain, cut.rstrip()):
        kept = " (and keeps it)" if reply.content.endswith(certain) else ""
        f.settle("stop", "honoured", f"{certain!r} ends the text there{kept}")
    elif beyond.strip():
        f.open["stop"] = Open(f"{certain!r} does not end the text", True, "unknown")
    else:
        f.open["stop"] = Open("no text to compare", False, "unknown")


def _certain(text: str) -> str:
    """A piece of the text to stop at: its third word, or what is there."""
    words = text.split()
    if len(words) >= 3 and text.find(words[2]) > 0:
        return words[2]
    return text[len(text) // 2 :][:1].strip() if len(text) > 1 else ""


# --- a server that listens once --------------------------------------------------------------


def frozen(f: Findings) -> tuple[str, ...]:
    """Where nothing of all this has an effect, being read is no proof of anything."""
    asked = {name for name in ("temperature", "seed", *_NARROWEST, *_PENALTIES) if name in f.open}
    if f.has_effect - {"seed"} or not asked:
        return ()
    is_deaf = "stop" in f.open and f.open["stop"].is_unchanged
    for name in asked:
        told = f.open[name].told
        if is_deaf:
            f.settle(name, "ignored", f"{told}, like all of sampling")
        else:
            f.open[name] = Open(told, f.open[name].is_unchanged, "unknown")
    if is_deaf:
        f.settle("stop", "ignored", f.open["stop"].told)
    return (_FROZEN,) if is_deaf else ()
