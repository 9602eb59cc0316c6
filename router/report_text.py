"""A report on labelled prompts as plain tables for a terminal, 100 columns wide.

Rows are other people's text: no control character of theirs reaches the terminal, and
a Chinese character counts as the two columns that it takes.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence

from router.evaluation import RECALL, TYPICAL_CHARS, Answer, Report, Thinking, Times

WIDTH = 100
_NAME_WIDTH = 24
_LEAST_CELL = 4
_PAIRS = 20


def lines(report: Report) -> Iterator[str]:
    """The whole report."""
    yield from _headline(report)
    yield ""
    yield from _table(
        ("label", "rows", "precision", "recall", "F1"),
        (
            (label, str(own.rows), _share(own.precision), _share(own.recall), _share(own.f1))
            for label, own in report.labels.items()
        ),
    )
    yield ""
    yield from _table(
        ("language", "rows", "accuracy", "macro-F1"),
        (
            (lang, str(own.rows), _share(own.accuracy), _share(own.macro_f1))
            for lang, own in report.languages.items()
        ),
    )
    for title, shares in (("decided by", report.stages), ("rows from", report.sources)):
        if shares:
            yield ""
            yield from _table(
                (title, "rows", "accuracy"),
                ((name, str(own.rows), _share(own.accuracy)) for name, own in shares.items()),
            )
    yield ""
    yield from _confusion(report.confusion)
    yield ""
    yield from _table(
        ("confidence", "rows", "mean", "accuracy"),
        (
            (
                f"{_share(own.low)} to {_share(own.high)}",
                str(own.rows),
                _share(own.confidence),
                _share(own.accuracy),
            )
            for own in report.bins
        ),
    )
    if report.mistakes:
        yield ""
        yield from answers("the most confident mistakes", report.mistakes)


def answers(title: str, listed: Sequence[Answer]) -> Iterator[str]:
    """Single rows: what each is, what it got and why."""
    yield f"{plain(title)} ({len(listed)})"
    for answer in listed:
        yield from _wrapped(
            f"{answer.id}: {answer.label} > {answer.got}, {answer.confidence:.2f} by "
            f"{answer.stage}, {answer.lang}: {'; '.join(answer.signals)}",
            "  ",
        )
        yield from _wrapped(answer.text, "      ")


def _headline(report: Report) -> Iterator[str]:
    low, high = report.accuracy_interval
    yield f"rows        {report.rows}"
    yield f"accuracy    {_share(report.accuracy)}  (95 % interval {_share(low)} to {_share(high)})"
    yield f"macro-F1    {_share(report.macro_f1)}"
    yield f"calibration {_share(report.ece)}  (expected error of the confidence)"
    yield (
        f"abstained   {_share(report.abstain_rate)}  of rows; accuracy of the others "
        f"{_share(report.answered.accuracy)}"
    )
    if report.thinking is not None:
        yield from _thinking(report.thinking)
    yield from _times(report.times)


def _thinking(found: Thinking) -> Iterator[str]:
    yield (
        f"thinking    precision {_share(found.precision)}, recall {_share(found.recall)}, "
        f"F1 {_share(found.f1)}  ({found.worth} of {found.rows} rows are worth it)"
    )
    if found.best is not None:
        yield (
            f"            precision {_share(found.best.precision)} at recall ≥ {RECALL:.2f}, "
            f"from {_share(found.best.threshold)} on"
        )


def _times(found: Times) -> Iterator[str]:
    yield (
        f"time        p50 {found.p50_us:.0f} µs, p99 {found.p99_us:.0f} µs; "
        f"p50 in the first run {found.first_p50_us:.0f} µs"
    )
    if found.typical_p50_us is not None:
        low, high = TYPICAL_CHARS
        yield f"            p50 {found.typical_p50_us:.0f} µs for {low} to {high} characters"


def _confusion(confusion: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """The matrix, or where it is too wide the commonest mistakes."""
    columns = list(next(iter(confusion.values())))
    first = min(_NAME_WIDTH, max(_columns("label \\ got"), *map(_columns, confusion)))
    room = (WIDTH - first) // len(columns) - 1
    if room >= _LEAST_CELL:
        width = min(room, max(_LEAST_CELL, *map(_columns, columns)))
        yield from _table(
            ("label \\ got", *(_fit(name, width) for name in columns)),
            (
                (label, *(str(count) if count else "·" for count in own.values()))
                for label, own in confusion.items()
            ),
            gap=1,
            least=width,
        )
        return
    pairs = [
        (-count, label, got)
        for label, own in confusion.items()
        for got, count in own.items()
        if count and label != got
    ]
    yield from _table(
        ("label > got", "rows"),
        ((f"{label} > {got}", str(-count)) for count, label, got in sorted(pairs)[:_PAIRS]),
        most=WIDTH - 10,
    )


def _table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    most: int = _NAME_WIDTH,
    gap: int = 2,
    least: int = 0,
) -> Iterator[str]:
    """Columns that align: names to the left, figures to the right.

    Names take `most` columns at most, figures `least` at least.
    """
    listed = [[_fit(row[0], most), *row[1:]] for row in (head, *rows)]
    columns = zip(*listed, strict=True)
    widths = [max(least if at else 0, *map(_columns, own)) for at, own in enumerate(columns)]
    for name, *figures in listed:
        padded = (_room(cell, to) + cell for cell, to in zip(figures, widths[1:], strict=True))
        yield (" " * gap).join([name + _room(name, widths[0]), *padded])


def _share(value: float) -> str:
    return f"{value:.3f}"


def plain(text: str) -> str:
    """On one line, and nothing in it that a terminal would obey."""
    return "".join(letter for letter in " ".join(text.split()) if letter.isprintable())


def _columns(text: str) -> int:
    return sum(map(_letter_columns, text))


def _letter_columns(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def _room(text: str, width: int) -> str:
    return " " * (width - _columns(text))


def _fit(text: str, width: int) -> str:
    """The text, or as much of it as so many columns hold."""
    text = plain(text)
    if _columns(text) <= width:
        return text
    while _columns(text) >= width:
        text = text[:-1]
    return text + "…"


def _wrapped(text: str, indent: str) -> Iterator[str]:
    """Lines of at most WIDTH columns, broken at a space where one is near."""
    line, room = "", WIDTH - len(indent)
    for letter in plain(text):
        if _columns(line) + _letter_columns(letter) > room:
            head, space, tail = line.rpartition(" ")
            if space and _columns(tail) < room // 3 and letter != " ":
                yield indent + head
                line = tail
            else:
                yield indent + line.rstrip()
                line = ""
        if line or letter != " ":
            line += letter
    if line:
        yield indent + line.rstrip()
