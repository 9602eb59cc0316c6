"""Samples in, medians, ratios and Markdown tables out. Pure: no clock, no files.

A ratio is taken inside a round, where both sides met the same neighbours on the machine. A
comparison that busy neighbours disturbed is left out, where enough others remain.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: share of the machine from which on neighbours disturb: engines wait for their slowest thread
BUSY = 0.1
#: fewer quiet rounds than this make no median: then all count
ENOUGH = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One comparison: how long `before` takes for each time that `after` does."""

    name: str
    title: str
    measure: str
    before: str
    after: str


FIGURES = (
    Figure(
        name="thinking",
        title="thinking on -> off: 192 tokens of thought and 64 of answer -> 64 of answer",
        measure="whole answer",
        before="thinking on",
        after="thinking off",
    ),
    Figure(
        name="cap",
        title="no cap -> cap 64: an answer that would be 256 tokens long -> its first 64",
        measure="whole answer",
        before="no cap",
        after="cap 64",
    ),
    Figure(
        name="first",
        title="first request, engine just started -> started and warmed up",
        measure="first token",
        before="cold",
        after="warmed up",
    ),
    Figure(
        name="engine",
        title="the same without the router between: what `up` saw while it warmed up",
        measure="first token",
        before="first request",
        after="a later one",
    ),
    Figure(
        name="prefix",
        title="second turn, prefix not in the cache -> in the cache",
        measure="first token",
        before="new prefix",
        after="same prefix",
    ),
    Figure(
        name="together",
        title="4 requests of 32 tokens one after another -> at once",
        measure="all four",
        before="serial",
        after="concurrent",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One side of one comparison in one round."""

    figure: str
    arm: str
    round: int
    seconds: float
    tokens: int | None = None
    thought_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    token_ms: float | None = None
    foreign: float | None = None  # share of the machine that others used meanwhile


@dataclass(frozen=True, slots=True)
class Spread:
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side over all rounds."""

    arm: str
    seconds: Spread
    tokens: float | None
    thought_tokens: float | None
    prompt_tokens: float | None
    cached_tokens: float | None
    token_ms: float | None
    foreign: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    figure: str
    rounds: int  # that count
    measured: int
    before: Side
    after: Side
    ratio: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A set of questions to the model that thinks: what became of the answers."""

    arm: str
    asked: int
    empty: int
    right: int
    rescued: int
    tokens: int
    thought_chars: int
    seconds: float


def summarise(samples: Sequence[Sample]) -> list[Row]:
    """A row for each figure of which some round has both sides."""
    return [row for figure in FIGURES if (row := _row(figure, samples)) is not None]


def _row(figure: Figure, samples: Sequence[Sample]) -> Row | None:
    before, after = (
        {each.round: each for each in samples if (each.figure, each.arm) == (figure.name, arm)}
        for arm in (figure.before, figure.after)
    )
    measured = sorted(before.keys() & after.keys())
    if not measured:
        return None
    quiet = [number for number in measured if not _is_busy(before[number], after[number])]
    rounds = quiet if len(quiet) >= ENOUGH else measured
    return Row(
        figure=figure.name,
        rounds=len(rounds),
        measured=len(measured),
        before=_side(figure.before, [before[number] for number in rounds]),
        after=_side(figure.after, [after[number] for number in rounds]),
        ratio=Spread.of([before[number].seconds / after[number].seconds for number in rounds]),
    )


def _is_busy(*sides: Sample) -> bool:
    return any(side.foreign is not None and side.foreign > BUSY for side in sides)


def _side(arm: str, samples: Sequence[Sample]) -> Side:
    return Side(
        arm=arm,
        seconds=Spread.of([each.seconds for each in samples]),
        tokens=_median(each.tokens for each in samples),
        thought_tokens=_median(each.thought_tokens for each in samples),
        prompt_tokens=_median(each.prompt_tokens for each in samples),
        cached_tokens=_median(each.cached_tokens for each in samples),
        token_ms=_median(each.token_ms for each in samples),
        foreign=_median(each.foreign for each in samples),
    )


def _median(values: Iterable[float | None]) -> float | None:
    """Of what was told; None where nothing was."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def tables(rows: Sequence[Row]) -> str:
    """One table a figure."""
    titles = {figure.name: figure for figure in FIGURES}
    return "\n\n".join(_table(titles[row.figure], row) for row in rows)


def _table(figure: Figure, row: Row) -> str:
    lines = [
        f"### {figure.title} ({row.rounds} of {row.measured} rounds)",
        "",
        f"| | {figure.measure}, s | min..max | tokens out | of them thought | ms a token "
        "| prompt | of it cached | foreign % |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for side in (row.before, row.after):
        spread = side.seconds
        cells = [side.arm, f"{spread.median:.2f}", f"{spread.low:.2f}..{spread.high:.2f}"]
        counts = [side.tokens, side.thought_tokens, side.token_ms]
        counts += [side.prompt_tokens, side.cached_tokens]
        counts.append(None if side.foreign is None else 100 * side.foreign)
        cells += map(_number, counts)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def tried_table(tried: Sequence[Tried]) -> str:
    lines = [
        "| | asked | empty | right | rescued | tokens out | thought, characters | s in all |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for each in tried:
        counts = [each.asked, each.empty, each.right, each.rescued]
        counts += [each.tokens, each.thought_chars]
        cells = [each.arm, *map(str, counts), f"{each.seconds:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def ratio_lines(rows: Sequence[Row], tried: Sequence[Tried]) -> str:
    """A line for each comparison, the short form of it all."""
    measures = {figure.name: figure.measure for figure in FIGURES}
    lines = [
        f"{row.figure}: {row.before.arm} / {row.after.arm} = {row.ratio.median:.1f} "
        f"({row.ratio.low:.1f}..{row.ratio.high:.1f}), {measures[row.figure]}, random weights"
        for row in rows
    ]
    lines += [
        f"answers: {each.arm}: {each.empty} of {each.asked} empty, {each.right} right, "
        f"{each.tokens} tokens, tiny trained model"
        for each in tried
    ]
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"
