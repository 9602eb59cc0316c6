"""Keywords, patterns and gates that can never speak, always speak, or take each other's word.

In: a policy. Out: findings. What a text looks like when it is read (case and letter
width folded) is the classifier's; neutral texts go through its own matchers.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from router.classify.features import fold
from router.classify.words import Words
from router.policy import Match, Policy, Range, Scenario, Structure
from router.policy import Words as ThinkingWords
from router.policycheck.finding import Finding, cut, fault, note
from router.policycheck.needs import every_way_needs
from router.tomlfile import Key

#: about nothing in particular, and with little in common: no job's word stands in most of them
NEUTRAL: Mapping[str, tuple[str, ...]] = {
    "English": (
        "The sky is blue.",
        "I saw the rain fall all night, and it was cold",
        "Two dogs ran past the house; nobody was there to see them",
        "Grandfather’s old clock stopped at noon, just as the snow began to fall",
        "Hm, no, that is not it",
    ),
    "Chinese": (
        "天是蓝色的。",
        "昨晚下了一夜的雨，很冷",
        "两只狗跑过门口，没人看见它们",
        "爷爷那座老钟正午停了，恰好开始下雪",
        "嗯，不是那样的",
    ),
}
_TEXTS = tuple(text for texts in NEUTRAL.values() for text in texts)
#: so large a part of them is no accident: all texts for a pattern, one language's for a keyword
_MOST, _LOUD = 0.7, 0.6
#: scripts whose sentences have no spaces, though the matcher looks for word boundaries in them
_UNSPACED = re.compile("[\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff]")
#: a group in which capitals are told from small letters
_CASED = re.compile(r"\(\?[a-zA-Z]*-[a-zA-Z]*i")
_ESCAPED = re.compile(r"\\(?:p[A-Z]|[pPx]\{[^}]*\}|x[0-9A-Fa-f]{2}|.)", re.S)
_NAMED = re.compile(r"\(\?P<\w+>")
_CAPITALS = re.compile(r"[A-Z]|\\p\{?Lu|\[:upper:\]")


class _Listed(NamedTuple):
    """A table with words: a scenario's, or [thinking], which has no name and no gate."""

    scenario: str
    key: Key
    words: Match | ThinkingWords
    gate: Structure


def findings(policy: Policy) -> Iterator[Finding]:
    listed = [_Listed("", ("thinking",), policy.file.thinking, Structure())]
    for name, scenario in policy.scenarios.items():
        match = scenario.match
        listed.append(_Listed(name, ("scenarios", name, "match"), match, match.require))
    yield from _repetitions(policy, listed, "keywords", read_as, "once")
    yield from _repetitions(policy, listed, "patterns", str, "twice")
    yield from _waiting(policy, listed)
    yield from _odd_patterns(policy, listed)
    loud = _loudness(policy)
    for table in listed:
        for index, written in enumerate(table.words.keywords):
            said = _odd_keyword(written, table.gate)
            if message := said or loud.get((table.scenario, f"keyword {read_as(written)}")):
                key = (*table.key, "keywords", index)
                yield note(policy, key, f"{cut(written)} {message}", table.words.keywords)
    yield from _dead_shapes(policy)
    yield from _unreachable(policy)


# --- said twice ---------------------------------------------------------------------------


def read_as(keyword: str) -> str:
    """The text that a keyword is looked for as."""
    return fold(keyword.strip()).rstrip("*")


def _repetitions(
    policy: Policy,
    listed: Sequence[_Listed],
    what: str,
    as_read: Callable[[str], str],
    counts: str,
) -> Iterator[Finding]:
    """`what`: which list of a table; `counts`: how often an entry does that is there twice."""
    places: dict[str, list[_Listed]] = defaultdict(list)
    for table in listed:
        entries: tuple[str, ...] = getattr(table.words, what)
        first: dict[str, str] = {}
        repeats: dict[int, str] = {}  # by place, in words
        for index, written in enumerate(entries):
            if (same := first.get(as_read(written))) is not None:
                other = "" if same == written else f" as {cut(same)}"
                repeats[index] = cut(written) + other
                continue
            first[as_read(written)] = written
            if not table.scenario:
                continue  # a word may call for thinking and for a scenario
            earlier = places[as_read(written)]
            rivals = [other.scenario for other in earlier if not _never_meet(other, table)]
            earlier.append(table)
            if rivals:
                message = (
                    f"{cut(written)} votes for {' and '.join(rivals)} too, so they cancel out: "
                    "leave it to the one it speaks for most"
                )
                yield note(policy, (*table.key, what, index), message, entries)
        if repeats:
            message = (
                f"in this list already and counted {counts}, so drop: {', '.join(repeats.values())}"
            )
            yield note(policy, (*table.key, what, min(repeats)), message, entries)


# --- never said, always said ---------------------------------------------------------------


def _odd_keyword(written: str, gate: Structure) -> str | None:
    """Why this keyword is hardly ever found, and what to write instead."""
    text = read_as(written)
    if "*" in text:
        return "is looked for with its *, which allows any ending only at the end: use a pattern"
    if text != text.strip():
        return "asks for white space at its edge: take the space beside the * away"
    if re.search(r"[^\S ]| {2}", text):
        return "holds more than single spaces, and texts are read as they are: use a pattern, \\s+"
    if text != unicodedata.normalize("NFC", text):
        return "is written with combining marks, people type whole letters: write it in NFC"
    if _UNSPACED.search(text):
        return (
            "asks for word boundaries in a script without spaces, which hardly ever stand there: "
            "use a pattern"
        )
    if gate.chars is not None and gate.chars.max is not None and len(text) > gate.chars.max:
        return (
            f"is longer than the {gate.chars.max} characters that require.chars lets in: it is "
            "never read"
        )
    if not any(unicodedata.category(letter)[0] in "LNSM" for letter in text):
        return "is punctuation, which is found inside any text: use a pattern"
    return None


def _loudness(policy: Policy) -> Mapping[tuple[str, str], str]:
    """The keywords, by scenario and signal, that the matcher itself finds in neutral texts."""
    matcher = Words(policy)
    loud = {}
    for name, texts in NEUTRAL.items():
        heard = Counter(
            (scenario, signal)
            for text in texts
            for scenario, _, _, signal in matcher.found(fold(text)).evidence
        )
        for found, count in heard.items():
            if count >= _LOUD * len(texts):
                loud[found] = (
                    f"stands in {count} of {len(texts)} {name} texts about nothing in particular: "
                    "it tells nothing, drop it"
                )
    return loud


def _odd_patterns(policy: Policy, listed: Sequence[_Listed]) -> Iterator[Finding]:
    search = _searching(policy, (text for table in listed for text in table.words.patterns))
    matched = {text: search(text) for texts in (("",), *NEUTRAL.values()) for text in texts}
    for table in listed:
        yield from _odd_patterns_of(policy, table, matched)


def _odd_patterns_of(
    policy: Policy, table: _Listed, matched: Mapping[str, Collection[str]]
) -> Iterator[Finding]:
    """`matched`: the patterns by neutral text; the empty text is one."""
    entries = table.words.patterns
    for index, pattern in enumerate(entries):
        key = (*table.key, "patterns", index)
        hits = {
            name: sum(pattern in matched[text] for text in texts) for name, texts in NEUTRAL.items()
        }
        count, takes_nothing = sum(hits.values()), pattern in matched[""]
        whole = [name for name, texts in NEUTRAL.items() if hits[name] == len(texts)]
        if count >= _MOST * len(_TEXTS) or (takes_nothing and count):
            empty = ", the empty one too" if takes_nothing else ""
            yield fault(
                policy,
                key,
                f"{cut(pattern)} matches {count} of {len(_TEXTS)} texts about nothing in "
                f"particular{empty}: ask for something that only this job has",
                entries,
            )
        elif takes_nothing:
            message = "matches an empty text alone: was something meant to stand in it?"
            yield note(policy, key, f"{cut(pattern)} {message}", entries)
        elif whole:
            message = f"matches any {whole[0]} text: say that with `lang`, or ask for more"
            yield note(policy, key, f"{cut(pattern)} {message}", entries)
        if _wants_capitals(pattern):
            message = (
                "wants capitals by its (?-i), and the text it sees has none: take the (?-i) away"
            )
            yield note(policy, key, f"{cut(pattern)} {message}", entries)


def _waiting(policy: Policy, listed: Sequence[_Listed]) -> Iterator[Finding]:
    """Patterns with letters that no folded text holds.

    Capitals are none of them by themselves: patterns are matched whatever the case.
    """
    dead = _dead_letters(policy, listed)
    for table in listed:
        entries, half = table.words.patterns, []
        for index, pattern in enumerate(entries):
            if dead.isdisjoint(pattern):
                continue
            if not every_way_needs(pattern, dead):
                half.append(index)
                continue
            message = (
                f"{cut(pattern)} never matches, as letters are folded in the text it sees: write "
                f"{_folded(dead, pattern)}"
            )
            yield note(policy, (*table.key, "patterns", index), message, entries)
        if half:
            letters = _folded(dead, "".join(entries[index] for index in half))
            message = (
                f"{len(half)} patterns of this list have ways through them that nothing can take, "
                f"as letters are folded in the text they see: {letters}"
            )
            yield note(policy, (*table.key, "patterns", half[0]), message, entries)


def _folded(dead: Collection[str], text: str) -> str:
    return ", ".join(f"{each} as {fold(each)}" for each in dict.fromkeys(text) if each in dead)


def _wants_capitals(pattern: str) -> bool:
    cased = _CASED.search(pattern)
    if cased is None:
        return False
    after = _NAMED.sub("(", pattern[cased.end() :])
    # Of escapes, only classes of capitals say anything here: \S and \pP have a capital by accident.
    rest = _ESCAPED.sub(lambda found: found[0] if found[0].startswith(r"\p{Lu") else "", after)
    return _CAPITALS.search(rest) is not None


def _dead_letters(policy: Policy, listed: Sequence[_Listed]) -> frozenset[str]:
    """Letters of patterns that are not found in a text that is that letter."""
    letters = {
        letter
        for table in listed
        for pattern in table.words.patterns
        for letter in pattern
        if not letter.isascii() and fold(letter) != letter
    }
    search = _searching(policy, letters)
    return frozenset(letter for letter in letters if letter not in search(letter))


def _searching(policy: Policy, patterns: Iterable[str]) -> Callable[[str], Collection[str]]:
    """The matcher itself, asked which of these patterns it finds in a text."""
    alone = {pattern: Scenario(match=Match(patterns=(pattern,))) for pattern in patterns}
    sample = policy.file.model_copy(update={"scenarios": alone, "thinking": ThinkingWords()})
    matcher = Words(msgspec.structs.replace(policy, file=sample))
    return lambda text: {scenario for scenario, *_ in matcher.found(fold(text)).evidence}


# --- shapes and gates ----------------------------------------------------------------------


def _dead_shapes(policy: Policy) -> Iterator[Finding]:
    """Conditions on the shape that the scenario's own gate rules out."""
    for name, scenario in policy.scenarios.items():
        match, gate = scenario.match, scenario.match.require
        at = ("scenarios", name, "match")
        for what in ("turns", "chars"):
            own, let_in = getattr(match, what), getattr(gate, what)
            if _apart(own, let_in):
                yield fault(
                    policy,
                    (*at, what),
                    f"{what} {_said(own)} and require.{what} {_said(let_in)} exclude each other, "
                    "so this shape never counts: change one of them",
                )
        if match.lang and gate.lang and not set(match.lang) & set(gate.lang):
            yield fault(
                policy,
                (*at, "lang"),
                f"lang {'/'.join(match.lang)} and require.lang {'/'.join(gate.lang)} exclude each "
                "other, so this shape never counts: change one of them",
            )


def _unreachable(policy: Policy) -> Iterator[Finding]:
    for name, scenario in policy.scenarios.items():
        match, examples = scenario.match, policy.file.examples.get(name)
        if name == policy.default_scenario or match.says_something:
            continue
        if match.keywords or match.patterns or match.examples:
            continue
        if examples is not None and (examples.direct or examples.thinking):
            continue
        yield note(
            policy,
            ("scenarios", name),
            f"nothing leads here but the client's own word (x-router-scenario: {name}, or the "
            f"model name auto:{name}): give it keywords, patterns, a shape or examples",
        )


def _never_meet(one_table: _Listed, other_table: _Listed) -> bool:
    """Whether no request passes the gates of both."""
    one, other = one_table.gate, other_table.gate
    return (
        _apart(one.turns, other.turns)
        or _apart(one.chars, other.chars)
        or bool(one.lang and other.lang and not set(one.lang) & set(other.lang))
    )


def _apart(one: Range | None, other: Range | None) -> bool:
    if one is None or other is None:
        return False
    low = max(one.min or 0, other.min or 0)
    return any(bounds.max is not None and bounds.max < low for bounds in (one, other))


def _said(bounds: Range) -> str:
    parts = []
    if bounds.min is not None:
        parts.append(f">= {bounds.min}")
    if bounds.max is not None:
        parts.append(f"<= {bounds.max}")
    return " and ".join(parts)
