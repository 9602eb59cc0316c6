"""Evidence from words: all keywords of a policy in one pass, all patterns in another.

Keywords go through an Aho-Corasick automaton. Patterns go through RE2's filter: the
words that a pattern cannot do without are looked for first, and only the patterns
that may match are run. (One RE2 set over all patterns is faster on a text seen
before, but on new text its automaton outgrows any memory: 560 against 55 µs a prompt
with 150 patterns.) RE2 is linear in the text, so no operator's pattern can stall.
"""

from __future__ import annotations

from typing import NamedTuple

import ahocorasick_rs
import re2

from router.classify.features import fold, fold_pattern
from router.classify.structure import Evidence
from router.policy import Match, Policy
from router.policy import Words as ThinkingWords

#: stands for the [thinking] table among the scenarios
_THOUGHT = ""


class Found(NamedTuple):
    evidence: tuple[Evidence, ...]
    thought: int  # how many of the policy's words for thinking stand there

    @property
    def wants_thought(self) -> bool:
        return self.thought > 0


class _Keyword(NamedTuple):
    text: str
    left: bool  # a word boundary must stand before it
    right: bool
    evidence: Evidence


class Words:
    """The keywords and patterns of a policy, compiled."""

    def __init__(self, policy: Policy) -> None:
        worth = policy.file.classify
        listed: list[tuple[str, Match | ThinkingWords]] = [(_THOUGHT, policy.file.thinking)]
        listed += [(name, entry.match) for name, entry in policy.scenarios.items()]
        self._keywords = [
            _keyword(scenario, text, worth.keyword)
            for scenario, match in listed
            for text in match.keywords
        ]
        self._automaton = ahocorasick_rs.AhoCorasick(
            [keyword.text for keyword in self._keywords],
            # As fast as the DFA on text not seen before, in a tenth of its memory.
            implementation=ahocorasick_rs.Implementation.ContiguousNFA,
            store_patterns=False,
        )
        patterns = [(scenario, text) for scenario, match in listed for text in match.patterns]
        self._patterns: list[Evidence] = [
            (scenario, "pattern", worth.pattern, _signal(number, text))
            for scenario, match in listed
            for number, text in enumerate(match.patterns, start=1)
        ]
        self._filter = _pattern_filter([text for _, text in patterns])

    def found(self, text: str) -> Found:
        """Evidence in a folded text; a word counts once, however often it stands there."""
        evidence: dict[Evidence, None] = {}
        thought: set[int] = set()
        for index, start, end in self._automaton.find_matches_as_indexes(text, overlapping=True):
            keyword = self._keywords[index]
            if keyword.left and start and _is_word(text[start - 1]):
                continue
            if keyword.right and end < len(text) and _is_word(text[end]):
                continue
            if keyword.evidence[0] == _THOUGHT:
                thought.add(index)
            else:
                evidence[keyword.evidence] = None
        if self._filter is not None:
            for index in self._filter.Match(text) or ():
                pattern = self._patterns[index]
                if pattern[0] == _THOUGHT:
                    thought.add(-1 - index)
                else:
                    evidence[pattern] = None
        return Found(tuple(evidence), len(thought))


def _signal(number: int, pattern: str) -> str:
    """Which pattern of its scenario it was, short enough for a log line and a header."""
    shown = pattern if len(pattern) <= 40 else pattern[:39] + "…"
    return f"pattern #{number} {shown}"


def _keyword(scenario: str, written: str, worth: float) -> _Keyword:
    text = fold(written.strip())
    any_ending = text.endswith("*")
    text = text.rstrip("*")
    return _Keyword(
        text,
        _is_word(text[0]),
        not any_ending and _is_word(text[-1]),
        (scenario, "keyword", worth, f"keyword {text}"),
    )


def _is_word(character: str) -> bool:
    """A letter or digit of a script that writes spaces between words."""
    return character == "_" or (
        character.isalnum() and not "\u3040" <= character <= "\u9fff" and character < "\uac00"
    )


def _pattern_filter(patterns: list[str]) -> re2.Filter | None:
    if not patterns:
        return None
    options = re2.Options()
    options.case_sensitive = False
    options.log_errors = False
    compiled = re2.Filter()
    for pattern in patterns:
        compiled.Add(fold_pattern(pattern), options)
    compiled.Compile()
    return compiled
