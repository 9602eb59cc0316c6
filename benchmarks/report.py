"""Measured cells in, medians and Markdown tables out. Pure: no clock, no files."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from load import CASES, PlainCase


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One case on one peer in one round. A unit is a request, or an event of a stream."""

    round: int
    case: str
    peer: str
    units: int
    units_per_s: float
    p50_ms: float
    p99_ms: float
    gap_p99_ms: float | None
    cpu_us_per_unit: float
    cpu_percent: float
    peak_rss_mb: float
    foreign: float
    errors: int
    note: str


@dataclass(frozen=True, slots=True)
class Spread:
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        return cls(statistics.median(values), min(values), max(values)) if values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A peer in a case over all rounds. What is compared was compared inside a round."""

    case: str
    peer: str
    rounds: int
    units_per_s: Spread
    p50_ms: float
    p99_ms: float
    gap_p99_ms: float | None
    added_p50_ms: float | None
    cpu_us_per_unit: float
    cpu_x_nginx: Spread | None
    cpu_percent: float
    peak_rss_mb: float
    foreign: float
    foreign_max: float
    errors: int


def summarise(cells: Sequence[Cell]) -> list[Row]:
    """Rows by case, then by peer in the order of the first case of the first round."""
    peers = dict.fromkeys(cell.peer for cell in cells)
    grouped = {
        (case, peer): [cell for cell in cells if (cell.case, cell.peer) == (case, peer)]
        for case in CASES
        for peer in peers
    }
    return [_row(own, cells) for own in grouped.values() if own]


def _row(own: Sequence[Cell], cells: Sequence[Cell]) -> Row:
    def median(read: Callable[[Cell], float]) -> float:
        return statistics.median(map(read, own))

    gaps = [cell.gap_p99_ms for cell in own if cell.gap_p99_ms is not None]
    added = [cell.p50_ms - base.p50_ms for cell, base in _beside("direct", own, cells)]
    ratios = [
        cell.cpu_us_per_unit / base.cpu_us_per_unit
        for cell, base in _beside("nginx", own, cells)
        if cell.cpu_us_per_unit and base.cpu_us_per_unit
    ]
    speeds = [cell.units_per_s for cell in own]
    return Row(
        case=own[0].case,
        peer=own[0].peer,
        rounds=len(own),
        units_per_s=Spread(statistics.median(speeds), min(speeds), max(speeds)),
        p50_ms=median(lambda c: c.p50_ms),
        p99_ms=median(lambda c: c.p99_ms),
        gap_p99_ms=statistics.median(gaps) if gaps else None,
        added_p50_ms=statistics.median(added) if added else None,
        cpu_us_per_unit=median(lambda c: c.cpu_us_per_unit),
        cpu_x_nginx=Spread.of(ratios),
        cpu_percent=median(lambda c: c.cpu_percent),
        peak_rss_mb=max(cell.peak_rss_mb for cell in own),
        foreign=median(lambda c: c.foreign),
        foreign_max=max(cell.foreign for cell in own),
        errors=sum(cell.errors for cell in own),
    )


def _beside(yardstick: str, own: Iterable[Cell], cells: Sequence[Cell]) -> list[tuple[Cell, Cell]]:
    """Each cell with the yardstick's cell of the same case and round, where there is one."""
    bases = {(c.case, c.round): c for c in cells if c.peer == yardstick}
    return [(c, bases[c.case, c.round]) for c in own if (c.case, c.round) in bases]


def tables(rows: Sequence[Row]) -> str:
    """One table a case."""
    parts = []
    for case in dict.fromkeys(row.case for row in rows):
        columns = PLAIN_COLUMNS if isinstance(CASES[case], PlainCase) else STREAM_COLUMNS
        lines = [f"### {case}: {CASES[case].title}", ""]
        lines.append(_line(title for title, _ in columns))
        lines.append("|---|" + "---:|" * (len(columns) - 1))
        lines += [_line(show(row) for _, show in columns) for row in rows if row.case == case]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _line(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _ratio(row: Row) -> str:
    return _number(row.cpu_x_nginx.median if row.cpu_x_nginx else None, 2)


def _ratio_range(row: Row) -> str:
    spread = row.cpu_x_nginx
    return f"{spread.low:.2f}..{spread.high:.2f}" if spread else "-"


def _of_proxy(show: Callable[[Row], str]) -> Callable[[Row], str]:
    """`direct` has no process of its own, so nothing to say about CPU and memory."""
    return lambda row: "-" if row.peer == "direct" else show(row)


Column = tuple[str, Callable[[Row], str]]

_PEER: Column = ("peer", lambda r: r.peer)
_RATIO: tuple[Column, ...] = (("x nginx", _ratio), ("min..max", _ratio_range))
_TAIL: tuple[Column, ...] = (
    ("foreign % (max)", lambda r: f"{r.foreign * 100:.0f} ({r.foreign_max * 100:.0f})"),
    ("errors", lambda r: str(r.errors)),
)
PLAIN_COLUMNS: tuple[Column, ...] = (
    _PEER,
    ("rps", lambda r: _number(r.units_per_s.median, 0)),
    ("p50 ms", lambda r: _number(r.p50_ms, 2)),
    ("p99 ms", lambda r: _number(r.p99_ms, 2)),
    ("+p50 ms", lambda r: _number(r.added_p50_ms, 2)),
    ("CPU us/request", _of_proxy(lambda r: _number(r.cpu_us_per_unit, 0))),
    *_RATIO,
    *_TAIL,
)
STREAM_COLUMNS: tuple[Column, ...] = (
    _PEER,
    ("chunks/s", lambda r: _number(r.units_per_s.median, 0)),
    ("TTFT p50 ms", lambda r: _number(r.p50_ms, 2)),
    ("TTFT p99 ms", lambda r: _number(r.p99_ms, 2)),
    ("+TTFT p50 ms", lambda r: _number(r.added_p50_ms, 2)),
    ("gap p99 ms", lambda r: _number(r.gap_p99_ms, 1)),
    ("CPU us/chunk", _of_proxy(lambda r: _number(r.cpu_us_per_unit, 1))),
    *_RATIO,
    ("CPU %", _of_proxy(lambda r: _number(r.cpu_percent, 0))),
    ("peak RSS MB", _of_proxy(lambda r: _number(r.peak_rss_mb, 0))),
    *_TAIL,
)
