"""How well labelled prompts are told apart: rows in, figures out.

Each row goes through `decide_for`, the code that serves. What is measured is the same
for the same rows, in whatever order they come; only the times are not.
"""

from __future__ import annotations

import codecs
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from router.chat import Classification, Endpoint
from router.errors import RouterError
from router.verdict import Live, decide_for

#: parts of equal size that rows are cut into by confidence
BINS = 10
#: what share of the prompts worth a thought must be found, where precision is asked for
RECALL = 0.80
#: a language is held to a bound from so many rows on: below, chance speaks
LANGUAGE_ROWS = 30
#: the prompts that people mostly type, in characters
TYPICAL_CHARS = (100, 300)
#: 97.5 % quantile of the normal distribution, for an interval of 95 %
_Z = 1.959963984540054
_SHOWN_CHARS = 160


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation, and which scenarios are right for its last turn."""

    line: int  # of the file, from 1
    id: str
    labels: tuple[str, ...]  # any is right; the first stands for them in tables
    messages: tuple[Mapping[str, Any], ...]
    lang: str | None = None
    think: bool | None = None  # whether thinking pays, where the row says
    source: str | None = None  # where the row is from


class Outcome(msgspec.Struct, frozen=True):
    """What the serving code made of a row."""

    row: Row
    found: Classification
    text: str  # of the last turn
    us: float  # the shortest time it took
    first_us: float  # and the first


class Answer(msgspec.Struct, frozen=True):
    """A row beside what it got, to be looked at."""

    id: str
    label: str
    got: str
    confidence: float
    stage: str  # which part of the classifier decided
    lang: str
    signals: tuple[str, ...]
    text: str  # its beginning, on one line


class Share(msgspec.Struct, frozen=True):
    """How many of some rows were right; an accuracy of 0 where there are none."""

    rows: int
    accuracy: float


class LabelFigures(msgspec.Struct, frozen=True):
    """One scenario against the others."""

    rows: int
    precision: float  # 0 where it was never the answer
    recall: float
    f1: float


class LanguageFigures(msgspec.Struct, frozen=True):
    rows: int
    accuracy: float
    macro_f1: float


class Bin(msgspec.Struct, frozen=True):
    """Rows of neighbouring confidence: what was promised and what came of it."""

    low: float
    high: float
    rows: int
    confidence: float
    accuracy: float


class OperatingPoint(msgspec.Struct, frozen=True):
    """Thinking from a threshold on: how good that would be."""

    threshold: float
    precision: float
    recall: float


class Thinking(msgspec.Struct, frozen=True):
    """Whether those prompts are given a thought that are worth one."""

    rows: int  # that say whether
    worth: int  # and say yes
    precision: float
    recall: float
    f1: float
    best: OperatingPoint | None  # the most precise with enough recall; None: none is worth one


class Times(msgspec.Struct, frozen=True):
    """Microseconds from bytes to decision."""

    p50_us: float
    p99_us: float
    first_p50_us: float  # in the first run, to which every text was new
    typical_p50_us: float | None  # of prompts of TYPICAL_CHARS; None: there are none


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that was measured."""

    rows: int
    accuracy: float
    accuracy_interval: tuple[float, float]  # 95 %, Wilson
    macro_f1: float
    ece: float  # expected calibration error
    abstain_rate: float  # nothing spoke for any scenario, the default was taken
    answered: Share  # the others
    labels: dict[str, LabelFigures]
    languages: dict[str, LanguageFigures]
    sources: dict[str, Share]
    stages: dict[str, Share]
    confusion: dict[str, dict[str, int]]  # label → answer → rows
    bins: tuple[Bin, ...]
    thinking: Thinking | None  # None: no row says
    times: Times
    mistakes: tuple[Answer, ...]  # the most confident first


class Gates(msgspec.Struct, frozen=True, kw_only=True):
    """What a report must reach; None asks for nothing."""

    min_accuracy: float | None = None
    min_macro_f1: float | None = None
    max_ece: float | None = None
    min_think_precision: float | None = None
    min_lang_accuracy: float | None = None


class BadRows(Exception):
    """Rows that cannot be used, with all that is wrong."""

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(faults))


class _Line(msgspec.Struct):
    """A row as it is written; members of other names are left alone."""

    label: str | tuple[str, ...]
    text: str | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    id: str | int | None = None
    lang: str | None = None
    think: bool | None = None
    source: str | None = None


_line = msgspec.json.Decoder(_Line).decode


def rows_of(raw: bytes) -> list[Row]:
    """The rows of a JSON Lines file; raises BadRows."""
    rows: list[Row] = []
    faults: list[str] = []
    for number, line in enumerate(raw.removeprefix(codecs.BOM_UTF8).split(b"\n"), 1):
        if line.strip():
            try:
                rows.append(_row(number, _line(line)))
            except (ValueError, RecursionError) as error:
                faults.append(f"line {number}: {error}")
    if not rows and not faults:
        faults.append("there are no rows")
    if faults:
        raise BadRows(faults)
    return rows


def _row(number: int, line: _Line) -> Row:
    labels = (line.label,) if isinstance(line.label, str) else line.label
    if not labels or not all(labels):
        raise ValueError("label is empty")
    if (line.text is None) == (line.messages is None):
        raise ValueError("a row has either text or messages")
    messages = line.messages
    if messages is None:
        messages = ({"role": "user", "content": line.text},)
    if not messages or messages[-1].get("role") != "user":
        raise ValueError("the last of messages must be the user's")
    return Row(
        line=number,
        id=f"line {number}" if line.id is None else str(line.id),
        labels=labels,
        messages=messages,
        lang=line.lang or None,
        think=line.think,
        source=line.source or None,
    )


def outcomes(
    rows: Sequence[Row], live: Live, *, ticks: Callable[[], float], repeat: int = 3
) -> list[Outcome]:
    """Each row through the serving code, so many times; raises BadRows for what it refuses.

    All rows take their turn before the first comes again: a moment's disturbance then
    spoils one time of many rows and not all times of one.
    """
    first = _pass(rows, live, ticks, 0)
    best = [outcome.us for outcome in first]
    for nth in range(1, repeat):
        again = _pass(rows, live, ticks, nth)
        best = [min(us, other.us) for us, other in zip(best, again, strict=True)]
    return [
        msgspec.structs.replace(outcome, us=us) for outcome, us in zip(first, best, strict=True)
    ]


def _pass(rows: Sequence[Row], live: Live, ticks: Callable[[], float], nth: int) -> list[Outcome]:
    passed: list[Outcome] = []
    faults: list[str] = []
    for row in rows:
        try:
            raw = _body(row, nth)
            began = ticks()
            verdict = decide_for(Endpoint.CHAT, raw, {}, live)
        except (RouterError, RecursionError) as error:
            faults.append(f"line {row.line}: {error}")
            continue
        us = (ticks() - began) * 1e6
        passed.append(Outcome(row, verdict.found, verdict.request.text, us, us))
    if faults:
        raise BadRows(faults)
    return passed


def _body(row: Row, nth: int) -> bytes:
    """The request's bytes. Serving remembers short turns, and a repeat would time its
    memory: so each time the last turn ends in one more space."""
    *before, last = row.messages
    if nth:
        content = last.get("content")
        space = " " * nth
        if isinstance(content, str):
            last = {**last, "content": content + space}
        elif isinstance(content, list):
            last = {**last, "content": [*content, {"type": "text", "text": space}]}
    body = {"model": "auto", "messages": [*before, last]}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


class _Judged(msgspec.Struct, frozen=True):
    outcome: Outcome
    label: str
    got: str  # the label itself where another of the row's labels was right
    is_right: bool


def _judged(outcomes: Iterable[Outcome], aliases: Mapping[str, str]) -> list[_Judged]:
    judged: list[_Judged] = []
    for outcome in outcomes:
        labels, scenario = outcome.row.labels, outcome.found.scenario
        got = aliases.get(scenario, scenario)
        is_right = got in labels
        judged.append(_Judged(outcome, labels[0], labels[0] if is_right else got, is_right))
    return judged


def report(
    outcomes: Sequence[Outcome], aliases: Mapping[str, str] | None = None, *, mistakes: int = 20
) -> Report:
    """All figures of at least one outcome. `aliases`: this answer counts as that."""
    judged = _judged(outcomes, aliases or {})
    is_default = [outcome.found.source == "default" for outcome in outcomes]
    answered = [entry for entry, alone in zip(judged, is_default, strict=True) if not alone]
    wrong = [entry for entry in judged if not entry.is_right]
    labels = _labels(judged)
    bins = _bins([(entry.outcome.found.confidence, entry.is_right) for entry in judged])
    whole = _share(judged)
    return Report(
        rows=whole.rows,
        accuracy=whole.accuracy,
        accuracy_interval=_wilson(whole.rows - len(wrong), whole.rows),
        macro_f1=_macro_f1(labels),
        ece=_mean(abs(b.accuracy - b.confidence) for b in bins for _ in range(b.rows)),
        abstain_rate=_mean(is_default),
        answered=_share(answered),
        labels=labels,
        languages={lang: _language(own) for lang, own in _by(judged, _lang).items()},
        sources={source: _share(own) for source, own in _by(judged, _source).items()},
        stages={stage: _share(own) for stage, own in _by(judged, _stage).items()},
        confusion=_confusion(judged),
        bins=bins,
        thinking=_thinking(outcomes),
        times=_times(outcomes),
        mistakes=tuple(sorted(map(_answer, wrong), key=_most_confident)[:mistakes]),
    )


def cell(
    outcomes: Sequence[Outcome], label: str, got: str, aliases: Mapping[str, str] | None = None
) -> tuple[Answer, ...]:
    """The rows of one cell of the confusion matrix."""
    judged = _judged(outcomes, aliases or {})
    inside = [entry for entry in judged if (entry.label, entry.got) == (label, got)]
    return tuple(sorted(map(_answer, inside), key=_most_confident))


def missed(found: Report, gates: Gates) -> list[str]:
    """One line for each bound that the report does not keep."""
    lines: list[str] = []

    def hold(name: str, got: float | None, wanted: float | None, *, most: bool = False) -> None:
        if wanted is None:
            return
        if got is None:
            lines.append(f"{name}: wanted at least {wanted:.4f}, got no row to measure it by")
        elif (got > wanted) if most else (got < wanted):
            bound = "most" if most else "least"
            lines.append(f"{name}: wanted at {bound} {wanted:.4f}, got {got:.4f}")

    hold("accuracy", found.accuracy, gates.min_accuracy)
    hold("macro-F1", found.macro_f1, gates.min_macro_f1)
    hold("calibration error", found.ece, gates.max_ece, most=True)
    best = found.thinking.best if found.thinking else None
    hold(
        f"precision of thinking at recall {RECALL:.2f}",
        best.precision if best else None,
        gates.min_think_precision,
    )
    large = {lang: own for lang, own in found.languages.items() if own.rows >= LANGUAGE_ROWS}
    for lang, own in large.items():
        hold(f"accuracy of {lang}", own.accuracy, gates.min_lang_accuracy)
    if not large:
        hold(f"accuracy of languages with {LANGUAGE_ROWS} rows", None, gates.min_lang_accuracy)
    return lines


def _by(
    judged: Sequence[_Judged], key: Callable[[_Judged], str | None]
) -> dict[str, list[_Judged]]:
    groups: dict[str, list[_Judged]] = defaultdict(list)
    for entry in judged:
        if (name := key(entry)) is not None:
            groups[name].append(entry)
    return dict(sorted(groups.items()))


def _lang(entry: _Judged) -> str:
    return entry.outcome.row.lang or entry.outcome.found.lang


def _source(entry: _Judged) -> str | None:
    return entry.outcome.row.source


def _stage(entry: _Judged) -> str:
    return entry.outcome.found.source


def _share(judged: Sequence[_Judged]) -> Share:
    return Share(len(judged), _mean(entry.is_right for entry in judged))


def _language(judged: Sequence[_Judged]) -> LanguageFigures:
    own = _share(judged)
    return LanguageFigures(own.rows, own.accuracy, _macro_f1(_labels(judged)))


def _labels(judged: Sequence[_Judged]) -> dict[str, LabelFigures]:
    """The labels that rows have, by name."""
    rows = Counter(entry.label for entry in judged)
    got = Counter(entry.got for entry in judged)
    right = Counter(entry.label for entry in judged if entry.is_right)
    return {
        label: LabelFigures(
            rows[label],
            _ratio(right[label], got[label]),
            _ratio(right[label], rows[label]),
            _ratio(2 * right[label], rows[label] + got[label]),
        )
        for label in sorted(rows)
    }


def _macro_f1(labels: Mapping[str, LabelFigures]) -> float:
    return _mean(figures.f1 for figures in labels.values())


def _confusion(judged: Sequence[_Judged]) -> dict[str, dict[str, int]]:
    """A row for each label; a column for each, and then for other answers that were given."""
    labels = sorted({entry.label for entry in judged})
    others = sorted({entry.got for entry in judged}.difference(labels))
    counts = Counter((entry.label, entry.got) for entry in judged)
    return {label: {got: counts[label, got] for got in [*labels, *others]} for label in labels}


def _bins(pairs: Iterable[tuple[float, bool]]) -> tuple[Bin, ...]:
    """Bins of about equal size. Rows of the same confidence stay together, since nothing
    says which of them should go where: so there may be fewer and larger ones."""
    ordered = sorted(pairs)
    total = len(ordered)
    bins: list[Bin] = []
    start = 0
    for end in range(1, total + 1):
        is_edge = end == total or ordered[end][0] != ordered[end - 1][0]
        if is_edge and end * BINS // total > start * BINS // total:
            inside = ordered[start:end]
            bins.append(
                Bin(
                    inside[0][0],
                    inside[-1][0],
                    len(inside),
                    _mean(confidence for confidence, _ in inside),
                    _mean(is_right for _, is_right in inside),
                )
            )
            start = end
    return tuple(bins)


def _thinking(outcomes: Sequence[Outcome]) -> Thinking | None:
    told = [outcome for outcome in outcomes if outcome.row.think is not None]
    if not told:
        return None
    worth = sum(outcome.row.think is True for outcome in told)
    given = sum(outcome.found.wants_thought for outcome in told)
    both = sum(outcome.row.think is True and outcome.found.wants_thought for outcome in told)
    return Thinking(
        len(told),
        worth,
        _ratio(both, given),
        _ratio(both, worth),
        _ratio(2 * both, given + worth),
        _best_point([(outcome.found.thought, outcome.row.think is True) for outcome in told]),
    )


def _best_point(pairs: Iterable[tuple[float, bool]]) -> OperatingPoint | None:
    """The most precise threshold that finds enough; of equals, the one that finds most."""
    ordered = sorted(pairs, reverse=True)
    worth = sum(is_worth for _, is_worth in ordered)
    points: list[OperatingPoint] = []
    both = 0
    for given, (thought, is_worth) in enumerate(ordered, 1):
        both += is_worth
        is_edge = given == len(ordered) or ordered[given][0] != thought
        if is_edge and worth and both / worth >= RECALL:
            points.append(OperatingPoint(thought, both / given, both / worth))
    return max(points, key=lambda point: (point.precision, point.recall), default=None)


def _times(outcomes: Sequence[Outcome]) -> Times:
    low, high = TYPICAL_CHARS
    every = [outcome.us for outcome in outcomes]
    first = [outcome.first_us for outcome in outcomes]
    typical = [outcome.us for outcome in outcomes if low <= outcome.found.chars <= high]
    return Times(
        _quantile(every, 0.50),
        _quantile(every, 0.99),
        _quantile(first, 0.50),
        _quantile(typical, 0.50) if typical else None,
    )


def _answer(entry: _Judged) -> Answer:
    found = entry.outcome.found
    return Answer(
        entry.outcome.row.id,
        entry.label,
        entry.got,
        found.confidence,
        found.source,
        _lang(entry),
        found.signals,
        _cut(" ".join(entry.outcome.text.split())),
    )


def _most_confident(answer: Answer) -> tuple[float, str, str, str]:
    return -answer.confidence, answer.text, answer.label, answer.id


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _mean(values: Iterable[float]) -> float:
    """The mean, the same in whatever order the values come; 0 of none."""
    listed = list(values)
    return math.fsum(listed) / len(listed) if listed else 0.0


def _wilson(right: int, rows: int) -> tuple[float, float]:
    """An interval that is right 95 times in 100, also for few rows and for shares of 0 and 1."""
    share, square = right / rows, _Z * _Z
    middle = share + square / (2 * rows)
    reach = _Z * math.sqrt(share * (1 - share) / rows + square / (4 * rows * rows))
    low, high = ((middle + side) / (1 + square / rows) for side in (-reach, reach))
    return max(0.0, min(share, low)), min(1.0, max(share, high))  # rounding goes past either


def _quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that so many of them do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
