"""Examples that contradict each other, or that teach the classifier something else.

In: a policy and the files it names. Out: findings. Texts are compared as the classifier
reads them, with runs of white space as one space.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from router import tomlfile
from router.classify.features import fold, language
from router.policy import Policy
from router.policycheck.finding import Finding, cut, note, placed
from router.tomlfile import Key

_NAMES = {"zh": "Chinese", "en": "English", "ja": "Japanese", "ko": "Korean"}


class _Example(NamedTuple):
    text: str
    scenario: str  # "" for a follow-up, which is of none
    thinking: bool | None  # None: nothing is said of it
    source: _Source
    key: Key
    among: Sequence[str]

    @property
    def label(self) -> str:
        mode = {None: "", True: " with thinking", False: " without thinking"}[self.thinking]
        return self.scenario + mode if self.scenario else "a follow-up"

    def contradicts(self, other: _Example) -> bool:
        if self.scenario != other.scenario:
            return True
        return None not in (self.thinking, other.thinking) and self.thinking != other.thinking

    def finding(self, severity: Literal["fault", "note"], message: str) -> Finding:
        mistake = placed(self.source.text, self.key, message, self.among)
        return Finding(severity, mistake, self.source.file)


class _Source(NamedTuple):
    """A text that holds examples."""

    file: str | None  # None: the policy itself
    text: str


def findings(policy: Policy, beside: Mapping[str, str]) -> Iterator[Finding]:
    """`beside`: the texts of the files with examples that the policy names."""
    sources = [_Source(None, policy.text), *itertools.starmap(_Source, beside.items())]
    examples = [example for source in sources for example in _listed(source)]
    yield from _same(examples)
    yield from _nearly_same(examples)
    yield from _one_language(examples)
    known = {plain(example.text): example for example in examples}
    for number, test in enumerate(policy.file.tests):
        if (example := known.get(plain(test.prompt))) is not None:
            message = (
                f"{cut(test.prompt)} is an example of {example.label} as well, and proves "
                "nothing: the classifier has seen it. Say it in other words"
            )
            yield note(policy, ("tests", number, "prompt"), message)


def _listed(source: _Source) -> Iterator[_Example]:
    written = tomlfile.table(source.text, source.file or "")
    lists: list[tuple[str, bool | None, Key, Sequence[str]]] = []
    for name, scenario in written.get("scenarios", {}).items():
        texts = scenario.get("match", {}).get("examples", ())
        lists.append((name, None, ("scenarios", name, "match", "examples"), texts))
    for name, own in written.get("examples", {}).items():
        lists.append((name, False, ("examples", name, "direct"), own.get("direct", ())))
        lists.append((name, True, ("examples", name, "thinking"), own.get("thinking", ())))
    follow_ups = written.get("conversation", {}).get("follow_ups", ())
    lists.append(("", None, ("conversation", "follow_ups"), follow_ups))
    for name, thinking, key, texts in lists:
        for index, text in enumerate(texts):
            yield _Example(text, name, thinking, source, (*key, index), texts)


def plain(text: str) -> str:
    """As it is read, white space aside."""
    return " ".join(fold(text).split())


def bare(text: str) -> str:
    """The letters alone: no punctuation, no digits, no space."""
    return "".join(filter(str.isalpha, fold(text)))


def _same(examples: Sequence[_Example]) -> Iterator[Finding]:
    for group in _grouped(examples, plain):
        for number, example in enumerate(group):
            if not plain(example.text):
                yield example.finding("note", "an empty example teaches nothing: drop it")
                continue
            rival = next((other for other in group[:number] if example.contradicts(other)), None)
            if rival is not None:
                message = (
                    f"{cut(example.text)} is an example of {rival.label} and of {example.label}: "
                    "it can be one of them"
                )
                yield example.finding("fault", message)
            elif number:
                message = f"{cut(example.text)} is one of {example.label} already: drop it"
                yield example.finding("note", message)


def _nearly_same(examples: Sequence[_Example]) -> Iterator[Finding]:
    for group in _grouped(examples, bare):
        for number, example in enumerate(group):
            rival = next(
                (
                    other
                    for other in group[:number]
                    if example.contradicts(other) and plain(other.text) != plain(example.text)
                ),
                None,
            )
            if rival is not None and bare(example.text):
                message = (
                    f"{cut(example.text)} ({example.label}) has the letters of {cut(rival.text)} "
                    f"({rival.label}): the classifier can hardly tell them apart"
                )
                yield example.finding("note", message)


def _grouped(
    examples: Sequence[_Example], by: Callable[[str], str]
) -> Iterator[Sequence[_Example]]:
    groups: dict[str, list[_Example]] = defaultdict(list)
    for example in examples:
        groups[by(example.text)].append(example)
    yield from groups.values()


def _one_language(examples: Sequence[_Example]) -> Iterator[Finding]:
    """Scenarios without examples in a language that most of the others have examples in."""
    spoken: dict[str, Counter[str]] = defaultdict(Counter)
    first: dict[str, _Example] = {}
    for example in examples:
        if example.scenario:
            spoken[example.scenario][language(fold(example.text))] += 1
            first.setdefault(example.scenario, example)
    for scenario, own in spoken.items():
        others = [languages for name, languages in spoken.items() if name != scenario]
        lacking = [
            name
            for code, name in _NAMES.items()
            if code not in own and sum(code in languages for languages in others) * 2 > len(others)
        ]
        if lacking:
            message = (
                f"no example of {scenario} is {' or '.join(lacking)}, and most other scenarios "
                "have some: the classifier would take the language itself for a sign, so add some"
            )
            example = first[scenario]
            yield example._replace(key=example.key[:-1], among=()).finding("note", message)
