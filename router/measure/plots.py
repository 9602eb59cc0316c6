"""Drawings for reports: shares of requests, requests over time, effects with their intervals.

Numbers in, SVG out. Pure; all text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from router.htmlpage import BLUE, GREEN, RED

_WIDE, _HIGH = 420, 220
_LEFT, _BELOW = 46, 34
_COLOURS = (BLUE, GREEN, RED)
#: from there on, an axis of times counts in multiples
_STRETCH = 20
#: points that a step line or a scatter is drawn with at most
_POINTS = 600


class _Axis:
    """Values to places along an axis; logarithmic where they differ much."""

    def __init__(self, values: Sequence[float], length: float, *, may_be_log: bool = True) -> None:
        positive = [value for value in values if value > 0]
        self._low, self._high = min(values, default=0.0), max(values, default=1.0)
        self.is_log = (
            may_be_log and len(positive) == len(values) and self._high > _STRETCH * self._low
        )
        if not self.is_log:
            self._low = min(0.0, self._low)
        if self._high <= self._low:
            self._high = self._low + 1
        self._length = length

    def at(self, value: float) -> float:
        low, high = self._scaled(self._low), self._scaled(self._high)
        return self._length * (self._scaled(value) - low) / (high - low)

    def ticks(self) -> list[float]:
        if self.is_log:
            first = math.ceil(math.log10(self._low))
            tens = [10.0**power for power in range(first, math.floor(math.log10(self._high)) + 1)]
            return tens if len(tens) > 1 else [self._low, self._high]
        step = 10.0 ** math.floor(math.log10((self._high - self._low) / 2))
        while (self._high - self._low) / step > 5:
            step *= 2
        first = math.ceil(self._low / step)
        return [number * step for number in range(first, math.floor(self._high / step) + 1)]

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.is_log else value


def shares(title: str, unit: str, arms: Mapping[str, Sequence[float]]) -> str:
    """For each arm, the share of its requests that took at most so much; values are ordered."""
    axis = _Axis([value for values in arms.values() for value in values], _WIDE)
    lines = []
    for colour, (name, values) in zip(_COLOURS, arms.items(), strict=False):
        step = max(1, len(values) // _POINTS)
        ends = [(rank, value) for rank, value in enumerate(values, 1) if rank % step == 0]
        path, before = [], 0.0
        for rank, value in ends:
            x, y = _LEFT + axis.at(value), _HIGH * (1 - rank / len(values))
            path.append(f"{x:.1f},{_HIGH * (1 - before):.1f} {x:.1f},{y:.1f}")
            before = rank / len(values)
        title_of = f"<title>{escape(name)}</title>"
        lines.append(
            f'<polyline points="{" ".join(path)}" stroke="{colour}" stroke-width="2" '
            f'fill="none">{title_of}</polyline>'
        )
    heights = "".join(
        f'<text x="{_LEFT - 6}" y="{_HIGH * (1 - share) + 4:.0f}" text-anchor="end">{share:.0%}'
        "</text>"
        for share in (0, 0.5, 0.95)
    )
    guide = "".join(
        f'<path d="M{_LEFT} {_HIGH * (1 - share):.1f}h{_WIDE}" stroke="currentColor" '
        'stroke-opacity=".25" stroke-dasharray="3 4"/>'
        for share in (0.5, 0.95)
    )
    return _drawing(title, guide + "\n".join(lines) + heights + _below(axis, unit), arms)


def over_time(title: str, unit: str, arms: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Requests as points: (second of the run, value)."""
    points = [point for own in arms.values() for point in own]
    across = _Axis([at for at, _ in points], _WIDE, may_be_log=False)
    up = _Axis([value for _, value in points], _HIGH)
    marks = []
    for colour, own in zip(_COLOURS, arms.values(), strict=False):
        step = max(1, len(own) // _POINTS)
        dots = "".join(
            f'<circle cx="{_LEFT + across.at(at):.1f}" cy="{_HIGH - up.at(value):.1f}" r="2.5"/>'
            for at, value in own[::step]
        )
        marks.append(f'<g fill="{colour}" fill-opacity=".6">{dots}</g>')
    heights = "".join(
        f'<text x="{_LEFT - 6}" y="{_HIGH - up.at(value) + 4:.0f}" text-anchor="end">'
        f"{value:g}</text>"
        for value in up.ticks()
    )
    where = f"{unit}, over seconds of the run"
    return _drawing(title, "\n".join(marks) + heights + _below(across, where), arms)


class Bar:
    """One row of `intervals`: an estimate between its ends; None is not known."""

    def __init__(self, name: str, low: float | None, value: float, high: float | None) -> None:
        self.name, self.value = name, value
        self.low = value if low is None else low
        self.high = value if high is None else high
        self.is_known = low is not None and high is not None


def intervals(title: str, unit: str, bars: Sequence[Bar], *, none: float) -> str:
    """Estimates with their intervals, beside the line of no effect."""
    ends = [end for bar in bars for end in (bar.low, bar.high, none) if math.isfinite(end)]
    margin = 0.05 * (max(ends) - min(ends) or 1)
    axis = _Axis([min(ends) - margin, max(ends) + margin, 0.0], _WIDE)
    rows, height = [], 30 * len(bars)
    for number, bar in enumerate(bars):
        y = 15 + 30 * number
        low, high = (max(min(ends), bar.low), min(max(ends), bar.high))
        x, left, right = (_LEFT + axis.at(value) for value in (bar.value, low, high))
        rows.append(f'<text x="{_LEFT}" y="{y - 5}" fill-opacity=".8">{escape(bar.name)}</text>')
        if bar.is_known:
            rows.append(
                f'<path d="M{left:.1f} {y + 4}H{right:.1f}" stroke="{BLUE}" stroke-width="3"/>'
            )
        rows.append(f'<circle cx="{x:.1f}" cy="{y + 4}" r="5" fill="{BLUE}"/>')
    zero = _LEFT + axis.at(none)
    guide = f'<path d="M{zero:.1f} 0V{height}" stroke="currentColor" stroke-dasharray="4 4"/>'
    return _drawing(title, guide + "".join(rows) + _below(axis, unit, height), {}, height)


def _below(axis: _Axis, unit: str, height: float = _HIGH) -> str:
    texts = "".join(
        f'<text x="{_LEFT + axis.at(value):.0f}" y="{height + 15:.0f}" text-anchor="middle">'
        f"{value:g}</text>"
        for value in axis.ticks()
    )
    middle = _LEFT + _WIDE / 2
    name = f'<text x="{middle}" y="{height + 30:.0f}" text-anchor="middle">{escape(unit)}</text>'
    line = f'<path d="M{_LEFT} {height}h{_WIDE}" stroke="currentColor"/>'
    return line + texts + name


def _drawing(title: str, inside: str, arms: Mapping[str, object], height: float = _HIGH) -> str:
    legend = "".join(
        f'<tspan fill="{colour}"> ■ {escape(name)}</tspan>'
        for colour, name in zip(_COLOURS, arms, strict=False)
    )
    return (
        f'<svg viewBox="0 -24 {_LEFT + _WIDE + 16} {height + _BELOW + 24}" role="img" '
        f'aria-label="{escape(title)}" font-size="11" fill="currentColor">\n'
        f'<text x="{_LEFT}" y="-10" font-size="13">{escape(title)}{legend}</text>\n{inside}\n</svg>'
    )
