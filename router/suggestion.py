"""What would make a policy right about prompts that it gets wrong: keywords and examples.

In: labelled rows, the policy with its examples, what it serves by, and a way to build anew.
Out: proposals, each with what it really changes, and all of them together. Pure, and the
same for the same rows in whatever order they come.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import comb
from typing import NamedTuple

import msgspec

from router import evaluation
from router.classify import Classifier, features
from router.evaluation import Row
from router.policy import Examples, Policy
from router.verdict import Live

#: keywords that are tried; each takes a classifier of its own
CANDIDATES = 200
#: keywords that are proposed, and examples of one label
KEYWORDS = 20
EXAMPLES = 20
#: a longer prompt is no example: of its middle the classifier sees nothing
EXAMPLE_CHARS = 300

#: a word must stand in so many mistakes of its label, and be the cure of as many
_SEVERAL = 2
#: for one text of another label that holds a word, so many of its own must
_RARE = 4
#: how likely chance alone may put a word into so many mistakes and so few other texts
_CHANCE = 0.05
#: sets of examples that are learned at most, to find those that do no harm
_ROUNDS = 3

_NO_SPACES = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"  # scripts without, as keywords are matched
_RUN = re.compile(f"[{_NO_SPACES}]+")
_LETTERS = f"[^\\W{_NO_SPACES}]+"
_WORD = re.compile(f"{_LETTERS}(?:['-]{_LETTERS})*")

#: a policy, learned from anew, as it would serve
Rebuild = Callable[[Policy], Live]


class Effect(msgspec.Struct, frozen=True):
    """The prompts that a change makes right, and those that it makes wrong."""

    fixed: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()

    @property
    def helps(self) -> bool:
        return len(self.fixed) > len(self.broken)


class Keyword(msgspec.Struct, frozen=True, kw_only=True):
    """A word for one scenario's list, measured on top of those before it, weights as they are."""

    label: str
    text: str  # folded, as the classifier compares it
    mistakes: int  # of this label, that hold it
    others: int  # texts of other labels that hold it
    effect: Effect
    check: Effect | None = None  # on rows that nothing was learned from


class NewExamples(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts for one scenario to learn from.

    All sets are learned at once. To a set is put down what it fixes of its label, and what
    is now wrongly taken for its label.
    """

    label: str
    direct: tuple[str, ...]
    thinking: tuple[str, ...]
    unsaid: int  # of the direct ones, whose rows do not say whether thinking pays
    effect: Effect = Effect()
    check: Effect | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        return self.direct + self.thinking


class Total(msgspec.Struct, frozen=True):
    """All proposals together, learned anew: nothing in it is approximate."""

    rows: int
    before: int  # rows that are right
    after: int
    fixed: int
    broken: int


class CrossCheck(msgspec.Struct, frozen=True):
    """Proposals from one half of the rows, counted on the other; both ways, added up."""

    mistakes: int
    fixed: int
    right: int
    broken: int


class Suggestions(msgspec.Struct, frozen=True, kw_only=True):
    """All that was found."""

    rows: int
    mistakes: int
    confusions: tuple[tuple[str, str, int], ...]  # label, answer, rows; the commonest first
    unknown: int  # mistakes whose labels the policy has no scenario for
    keywords: tuple[Keyword, ...]
    examples: tuple[NewExamples, ...]
    total: Total
    check: Total | None  # None: no held-out rows
    shared: int  # held-out rows whose prompts were learned from, and that are left out therefore
    cross_check: CrossCheck | None  # None: nothing to check, or too few rows
    notes: tuple[str, ...]  # where a limit was reached


def of(
    rows: Sequence[Row],
    policy: Policy,
    live: Live,
    *,
    rebuild: Rebuild,
    held_out: Sequence[Row] = (),
    examples: int = EXAMPLES,
) -> Suggestions:
    """Proposals for the rows that `live`, built of `policy`, gets wrong; raises BadRows.

    `examples`: of each label at most.
    """
    cases = _cases(rows, live)
    seen = {_plain(case.text) for case in cases}
    unseen = _cases(held_out, live)
    fresh = [case for case in unseen if _plain(case.text) not in seen]
    wrong = [case for case in cases if not case.is_right]
    search = _Search(policy, live, rebuild, _Corpus.of(cases, policy), examples)
    change = search.change_for(cases)
    after = _again(cases, change.live)
    return Suggestions(
        rows=len(cases),
        mistakes=len(wrong),
        confusions=_confusions(wrong),
        unknown=sum(not policy.scenarios.keys() & set(case.row.labels) for case in wrong),
        keywords=_checked_keywords(change, search, fresh) if held_out else change.keywords,
        examples=_checked_examples(change, search, fresh) if held_out else change.examples,
        total=_total(cases, after),
        check=_total(fresh, _again(fresh, change.live)) if held_out else None,
        shared=len(unseen) - len(fresh),
        cross_check=_cross_check(search, cases) if change else None,
        notes=change.notes,
    )


def with_keywords(policy: Policy, keywords: Iterable[tuple[str, str]]) -> Policy:
    """The policy with these (scenario, keyword) at the ends of its lists."""
    added: dict[str, list[str]] = defaultdict(list)
    for label, text in keywords:
        added[label].append(text)
    scenarios = dict(policy.scenarios)
    for label, texts in added.items():
        match = scenarios[label].match
        changed = match.model_copy(update={"keywords": (*match.keywords, *texts)})
        scenarios[label] = scenarios[label].model_copy(update={"match": changed})
    file = policy.file.model_copy(update={"scenarios": scenarios})
    return msgspec.structs.replace(policy, file=file)


def with_examples(policy: Policy, added: Iterable[NewExamples]) -> Policy:
    """The policy as if it named a file with these examples."""
    examples = dict(policy.file.examples)
    for new in added:
        own = examples.get(new.label, Examples())
        examples[new.label] = Examples(
            direct=own.direct + new.direct, thinking=own.thinking + new.thinking
        )
    return msgspec.structs.replace(
        policy, file=policy.file.model_copy(update={"examples": examples})
    )


def examples_toml(added: Iterable[NewExamples]) -> str:
    """A file for the policy's `examples_files`."""
    lines: list[str] = []
    for new in added:
        lines += ["", f"[examples.{new.label}]"]
        for name, texts in (("direct", new.direct), ("thinking", new.thinking)):
            if texts:
                lines += [f"{name} = [", *(f"  {quoted(text)}," for text in texts), "]"]
    return "\n".join(lines[1:]) + "\n"


def quoted(text: str) -> str:
    """A basic string of TOML: JSON's, and nothing bare in it that a terminal would obey."""
    written = json.dumps(text, ensure_ascii=False)
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in written)


def _escaped(letter: str) -> str:
    code = ord(letter)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


# ------------------------------------------------------------------------------ rows and texts


class _Case(NamedTuple):
    """A row and what it got."""

    row: Row
    text: str  # of the last turn
    read: str  # of this, what the classifier reads
    whole: str  # the conversation, folded: a keyword that is not in it changes nothing
    got: str
    is_right: bool


def _cases(rows: Sequence[Row], live: Live) -> list[_Case]:
    """In an order that does not depend on the file's."""
    read = live.policy.file.classify
    cases = [
        _Case(
            outcome.row,
            outcome.text,
            features.fold_sampled(outcome.text, read.head_chars, read.tail_chars),
            features.fold(_written(outcome.row)),
            outcome.found.scenario,
            outcome.found.scenario in outcome.row.labels,
        )
        for outcome in evaluation.outcomes(rows, live, ticks=_no_clock, repeat=1)
    ]
    return sorted(
        cases, key=lambda case: (_written(case.row), case.row.labels, str(case.row.think))
    )


def _again(cases: Sequence[_Case], live: Live) -> list[str]:
    """What the cases get from something else."""
    rows = [case.row for case in cases]
    found = evaluation.outcomes(rows, live, ticks=_no_clock, repeat=1)
    return [outcome.found.scenario for outcome in found]


def _no_clock() -> float:
    return 0.0


def _written(row: Row) -> str:
    return json.dumps(row.messages, ensure_ascii=False)


def _plain(text: str) -> str:
    return " ".join(features.fold(text).split())


def _effect(cases: Sequence[_Case], before: Sequence[str], after: Sequence[str]) -> Effect:
    fixed: list[str] = []
    broken: list[str] = []
    for case, was, now in zip(cases, before, after, strict=True):
        was_right, is_right = was in case.row.labels, now in case.row.labels
        if is_right and not was_right:
            fixed.append(case.text)
        elif was_right and not is_right:
            broken.append(case.text)
    return Effect(tuple(fixed), tuple(broken))


def _total(cases: Sequence[_Case], after: Sequence[str]) -> Total:
    effect = _effect(cases, [case.got for case in cases], after)
    before = sum(case.is_right for case in cases)
    fixed, broken = len(effect.fixed), len(effect.broken)
    return Total(len(cases), before, before + fixed - broken, fixed, broken)


def _confusions(wrong: Sequence[_Case]) -> tuple[tuple[str, str, int], ...]:
    counts = Counter((case.row.labels[0], case.got) for case in wrong)
    return tuple(
        (*pair, count) for pair, count in sorted(counts.items(), key=lambda e: (-e[1], e[0]))
    )


# ------------------------------------------------------------------------------ words


def terms(folded: str) -> Iterator[str]:
    """What could be a keyword: words, pairs of them, and 2 to 4 characters that stand unspaced."""
    for run in _RUN.findall(folded):
        for length in (2, 3, 4):
            for start in range(len(run) - length + 1):
                yield run[start : start + length]
    words = list(_WORD.finditer(folded))
    for word in words:
        if len(word[0]) > 1 and not word[0].isdigit():
            yield word[0]
    for first, second in itertools.pairwise(words):
        if folded[first.end() : second.start()] == " ":
            yield f"{first[0]} {second[0]}"


class _Text(NamedTuple):
    text: str  # folded
    labels: frozenset[str]
    terms: frozenset[str]


class _Corpus:
    """Texts and which of the words in question stand in them.

    Those are the words of several mistakes; all others would be kept for nothing.
    """

    def __init__(self, asked: frozenset[str], background: Sequence[tuple[str, str]]) -> None:
        self._asked = asked
        self.background = [self.text(text, frozenset((label,))) for text, label in background]

    @classmethod
    def of(cls, cases: Sequence[_Case], policy: Policy) -> _Corpus:
        own: dict[str, set[str]] = defaultdict(set)
        for case in cases:
            if not case.is_right:
                own[_label(case.row, policy)].add(case.read)
        asked: set[str] = set()
        for texts in own.values():
            held = Counter(term for text in sorted(texts) for term in set(terms(text)))
            asked.update(term for term, count in held.items() if count >= _SEVERAL)
        read = policy.file.classify
        background = {
            (features.fold_sampled(text, read.head_chars, read.tail_chars), label)
            for text, label in _examples_of(policy)
        }
        return cls(frozenset(asked), sorted(background))

    def text(self, folded: str, labels: frozenset[str]) -> _Text:
        return _Text(folded, labels, self._asked.intersection(terms(folded)))


def _label(row: Row, policy: Policy) -> str:
    """The label that a row speaks for: the first that the policy knows; "" for none."""
    return next((label for label in row.labels if label in policy.scenarios), "")


def _examples_of(policy: Policy) -> Iterator[tuple[str, str]]:
    for label, own in policy.file.examples.items():
        yield from ((text, label) for text in own.direct + own.thinking)
    for label, scenario in policy.scenarios.items():
        yield from ((text, label) for text in scenario.match.examples)


class _Candidate(NamedTuple):
    chance: float  # how likely its texts are what they are by chance
    free: int  # of its two ends, those where a word may end
    label: str
    text: str
    mistakes: int
    others: int

    @property
    def order(self) -> tuple[float, int, int, str, str]:
        return self.chance, -self.free, len(self.text), self.label, self.text


def _candidates(
    wrong: Mapping[str, Sequence[_Text]], texts: Sequence[_Text], known: frozenset[str]
) -> list[_Candidate]:
    """Words that are common in a label's mistakes and rare in what is of other labels.

    `wrong`: the mistakes by label; `texts`: all there are, the mistakes among them.
    """
    holding: dict[str, list[_Text]] = defaultdict(list)
    for text in texts:
        for term in text.terms:
            holding[term].append(text)
    best: dict[object, _Candidate] = {}
    for label, mistakes in wrong.items():
        foreign = sum(label not in text.labels for text in texts)
        held = Counter(term for text in mistakes for term in text.terms)
        for term, count in held.items():
            if count < _SEVERAL or term in known:
                continue
            holders = holding[term]
            others = sum(label not in text.labels for text in holders)
            chance = _chance(count, len(mistakes), others, foreign)
            free = _free_ends(term, holders)
            if others * _RARE > len(holders) - others or chance > _CHANCE:
                continue
            found = _Candidate(chance, free, label, term, count, others)
            # Of words that always stand together, one is enough.
            same = (label, tuple(map(id, holders)))
            best[same] = min(found, best.get(same, found), key=lambda each: each.order)
    return sorted(best.values(), key=lambda each: each.order)


def _chance(own: int, own_texts: int, others: int, other_texts: int) -> float:
    """Fisher's exact test: how likely so many of the texts that hold a word are own ones."""
    texts, holding = own_texts + other_texts, own + others
    ways = sum(
        comb(own_texts, count) * comb(other_texts, holding - count)
        for count in range(own, min(holding, own_texts) + 1)
    )
    return ways / comb(texts, holding)


def _free_ends(term: str, holders: Sequence[_Text]) -> int:
    """At how many of its two ends different things stand: a piece of a word has always the same."""
    if not _RUN.match(term):
        return 2
    neighbours: tuple[set[str], set[str]] = set(), set()
    for number, (text, _, _) in enumerate(holders):
        start = text.find(term)
        while start >= 0:
            end = start + len(term)
            for side, beside in zip(
                neighbours, (text[start - 1 : start], text[end : end + 1]), strict=True
            ):
                side.add(beside if _RUN.match(beside) else f"edge {number}")
            start = text.find(term, start + 1)
    return sum(len(side) > 1 for side in neighbours)


# ------------------------------------------------------------------------------ the search


class _Change(NamedTuple):
    """Proposals, and what would serve with them."""

    keywords: tuple[Keyword, ...]
    examples: tuple[NewExamples, ...]
    live: Live
    notes: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.keywords or self.examples)


class _Search:
    """Finds proposals for some rows."""

    def __init__(
        self, policy: Policy, live: Live, rebuild: Rebuild, corpus: _Corpus, examples: int
    ) -> None:
        self.live = live
        self._policy = policy
        self._rebuild = rebuild
        self._corpus = corpus
        # A learned stage that a handful of mistakes is all there is to would be a bad one.
        self._most_examples = examples if live.classifier.learned is not None else 0
        self._known = frozenset(
            features.fold(keyword.strip()).rstrip("*")
            for scenario in policy.scenarios.values()
            for keyword in scenario.match.keywords
        )

    def change_for(self, cases: Sequence[_Case]) -> _Change:
        notes: list[str] = []
        keywords, now = self._keywords(cases, notes)
        policy = with_keywords(self._policy, [(each.label, each.text) for each in keywords])
        examples = self._new_examples(cases, now, notes)
        for _ in range(_ROUNDS):
            change = self._learned(policy, keywords, examples, cases, now, notes)
            helping = tuple(new for new in change.examples if new.effect.helps)
            if len(helping) == len(examples):
                break
            examples = helping
        else:
            change = self._learned(policy, keywords, (), cases, now, notes)
        after = _again(cases, change.live)
        if _effect(cases, [case.got for case in cases], after).helps:
            return change
        return _Change((), (), self.live, tuple(notes))

    def _learned(
        self,
        policy: Policy,
        keywords: tuple[Keyword, ...],
        examples: Sequence[NewExamples],
        cases: Sequence[_Case],
        now: Sequence[str],
        notes: Sequence[str],
    ) -> _Change:
        """The policy with its new keywords learns these examples too, and they are measured."""
        if not keywords and not examples:
            return _Change((), (), self.live, tuple(notes))
        live = self._rebuild(with_examples(policy, examples))
        after = _again(cases, live)
        measured = [
            msgspec.structs.replace(new, effect=_share_of(new, cases, now, after))
            for new in examples
        ]
        return _Change(keywords, tuple(measured), live, tuple(notes))

    def with_words(self, keywords: Sequence[tuple[str, str]]) -> Live:
        """What would serve with these keywords and the weights as they are."""
        policy = with_keywords(self.live.policy, keywords)
        classifier = Classifier(policy, self.live.classifier.learned)
        return msgspec.structs.replace(self.live, policy=policy, classifier=classifier, plans={})

    def _keywords(
        self, cases: Sequence[_Case], notes: list[str]
    ) -> tuple[tuple[Keyword, ...], list[str]]:
        """The best first, each on top of those before it; and what the cases get with them."""
        now = [case.got for case in cases]
        candidates = self._candidates(cases)
        if len(candidates) > CANDIDATES:
            notes.append(f"{len(candidates)} words came into question, {CANDIDATES} were tried")
        tried = [(self._tried(each, (), cases, now)[0], each) for each in candidates[:CANDIDATES]]
        tried = [(effect, each) for effect, each in tried if _is_worth_it(effect)]
        tried.sort(key=lambda pair: (_loss(pair[0]), pair[1].order))
        kept: list[Keyword] = []
        for _, each in tried:
            if any(_overlap(each, keyword) for keyword in kept):
                continue
            before = [(keyword.label, keyword.text) for keyword in kept]
            effect, after = self._tried(each, before, cases, now)
            if not _is_worth_it(effect):
                continue
            if len(kept) == KEYWORDS:
                notes.append(f"more than {KEYWORDS} keywords would help; add these and ask again")
                break
            kept.append(
                Keyword(
                    label=each.label,
                    text=each.text,
                    mistakes=each.mistakes,
                    others=each.others,
                    effect=effect,
                )
            )
            now = after
        return tuple(kept), now

    def _candidates(self, cases: Sequence[_Case]) -> list[_Candidate]:
        texts: dict[tuple[str, frozenset[str]], _Text] = {}
        wrong: dict[str, dict[str, _Text]] = defaultdict(dict)
        for case in cases:
            labels = frozenset(case.row.labels)
            text = texts.setdefault((case.read, labels), self._corpus.text(case.read, labels))
            label = _label(case.row, self._policy)
            if not case.is_right and label:
                wrong[label].setdefault(case.read, text)
        mistakes = {label: list(own.values()) for label, own in wrong.items()}
        return _candidates(mistakes, [*texts.values(), *self._corpus.background], self._known)

    def _tried(
        self,
        candidate: _Candidate,
        before: Sequence[tuple[str, str]],
        cases: Sequence[_Case],
        now: Sequence[str],
    ) -> tuple[Effect, list[str]]:
        """What a keyword changes, and what the cases get then."""
        live = self.with_words([*before, (candidate.label, candidate.text)])
        return self.effect_of(candidate.text, live, cases, now)

    def effect_of(
        self, text: str, live: Live, cases: Sequence[_Case], now: Sequence[str]
    ) -> tuple[Effect, list[str]]:
        """Only rows that hold the keyword are asked again: others get what they got."""
        at = [number for number, case in enumerate(cases) if text in case.whole]
        touched = [cases[number] for number in at]
        found = _again(touched, live)
        after = list(now)
        for number, got in zip(at, found, strict=True):
            after[number] = got
        return _effect(touched, [now[number] for number in at], found), after

    def _new_examples(
        self, cases: Sequence[_Case], now: Sequence[str], notes: list[str]
    ) -> tuple[NewExamples, ...]:
        """The mistakes that are left, where one of them alone says what it is."""
        said: dict[str, set[tuple[tuple[str, ...], bool]]] = defaultdict(set)
        for case in cases:
            said[_plain(case.text)].add((case.row.labels, bool(case.row.think)))
        taken = {_plain(text) for text, _ in _examples_of(self._policy)}
        taken.update(map(_plain, self._policy.file.conversation.follow_ups))
        clear: dict[str, list[_Case]] = {}
        # Which come first is chance, and always the same.
        for case, got in sorted(zip(cases, now, strict=True), key=lambda e: _digest(e[0].text)):
            plain, labels = _plain(case.text), case.row.labels
            is_clear = (
                len(labels) == len(said[plain]) == len(case.row.messages) == 1
                and labels[0] in self._policy.scenarios
                and plain != ""
                and len(case.text) <= EXAMPLE_CHARS
            )
            if is_clear and got not in labels and plain not in taken:
                taken.add(plain)
                clear.setdefault(labels[0], []).append(case)
        clear = dict(sorted(clear.items()))
        most = self._most_examples
        for label, own in clear.items():
            if 0 < most < len(own):
                notes.append(
                    f"{len(own)} prompts of {label} would do as examples, {most} were taken"
                )
        return tuple(_example_set(label, own[:most]) for label, own in clear.items() if most)


def _example_set(label: str, own: Sequence[_Case]) -> NewExamples:
    return NewExamples(
        label=label,
        direct=tuple(sorted(case.text for case in own if not case.row.think)),
        thinking=tuple(sorted(case.text for case in own if case.row.think)),
        unsaid=sum(case.row.think is None for case in own),
    )


def _is_worth_it(effect: Effect) -> bool:
    return len(effect.fixed) - len(effect.broken) >= _SEVERAL


def _overlap(candidate: _Candidate, kept: Keyword) -> bool:
    """Two keywords in one place would count twice."""
    texts = candidate.text, kept.text
    return candidate.label == kept.label and min(texts, key=len) in max(texts, key=len)


def _loss(effect: Effect) -> int:
    return len(effect.broken) - len(effect.fixed)


def _share_of(
    new: NewExamples, cases: Sequence[_Case], before: Sequence[str], after: Sequence[str]
) -> Effect:
    """Of what changed, what is put down to these examples."""
    own = [number for number, got in enumerate(after) if got == new.label]
    return _effect(
        [cases[number] for number in own],
        [before[number] for number in own],
        [after[number] for number in own],
    )


# ------------------------------------------------------------------------------ unseen rows


def _checked_keywords(
    change: _Change, search: _Search, fresh: Sequence[_Case]
) -> tuple[Keyword, ...]:
    now = [case.got for case in fresh]
    checked: list[Keyword] = []
    words: list[tuple[str, str]] = []
    for keyword in change.keywords:
        words.append((keyword.label, keyword.text))
        effect, now = search.effect_of(keyword.text, search.with_words(words), fresh, now)
        checked.append(msgspec.structs.replace(keyword, check=effect))
    return tuple(checked)


def _checked_examples(
    change: _Change, search: _Search, fresh: Sequence[_Case]
) -> tuple[NewExamples, ...]:
    words = [(keyword.label, keyword.text) for keyword in change.keywords]
    before = _again(fresh, search.with_words(words))
    after = _again(fresh, change.live)
    return tuple(
        msgspec.structs.replace(new, check=_share_of(new, fresh, before, after))
        for new in change.examples
    )


def _cross_check(search: _Search, cases: Sequence[_Case]) -> CrossCheck | None:
    """How proposals do on prompts that they are not made from."""
    halves = _halves(cases)
    if not all(any(not case.is_right for case in half) for half in halves):
        return None
    fixed = broken = 0
    for taught, asked in (halves, halves[::-1]):
        total = _total(asked, _again(asked, search.change_for(taught).live))
        fixed, broken = fixed + total.fixed, broken + total.broken
    right = sum(case.is_right for case in cases)
    return CrossCheck(len(cases) - right, fixed, right, broken)


def _halves(cases: Sequence[_Case]) -> tuple[list[_Case], list[_Case]]:
    """Two halves by a stable hash, mistakes and each label evenly shared; equal texts together."""
    same: dict[str, list[_Case]] = defaultdict(list)
    for case in cases:
        same[_plain(case.text)].append(case)
    ordered = sorted(
        same.items(),
        key=lambda entry: (
            all(case.is_right for case in entry[1]),
            entry[1][0].row.labels,
            _digest(entry[0]),
        ),
    )
    halves: tuple[list[_Case], list[_Case]] = [], []
    for number, (_, own) in enumerate(ordered):
        halves[number % 2].extend(own)
    return halves


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
