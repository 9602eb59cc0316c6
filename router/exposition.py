"""The page of /metrics: the Prometheus text format 0.0.4. Pure.

In: metrics of the catalogue with their values. Out: text, in pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, islice

import msgspec

from router.catalogue import Labels, Metric

#: series in a piece
_TOGETHER = 100


class Histogram(msgspec.Struct, array_like=True):
    """How many values fell between two bounds, the last one open, and their sum."""

    counts: list[int]
    total: float = 0.0


def pieces(metric: Metric, values: Mapping[Labels, float | Histogram]) -> Iterator[str]:
    """A family's part of the page, each piece a good millisecond of work at most."""
    yield _text([f"# HELP {metric.public} {metric.text}", f"# TYPE {metric.public} {metric.kind}"])
    edges = [*(f"{bound:g}" for bound in metric.buckets), "+Inf"]
    series = iter(values.items())
    while some := list(islice(series, _TOGETHER)):
        told: list[str] = []
        for labels, value in some:
            pairs = _pairs(metric.labels, labels)
            if not isinstance(value, Histogram):
                told.append(f"{metric.public}{_braced(pairs)} {_number(value)}")
            elif any(value.counts):
                told += _one(metric.public, pairs, value, edges)
        yield _text(told)


def _text(lines: Sequence[str]) -> str:
    return "\n".join([*lines, ""])


def _one(name: str, pairs: str, histogram: Histogram, edges: Sequence[str]) -> list[str]:
    before = f'{name}_bucket{{{pairs + "," if pairs else ""}le="'
    below = list(accumulate(histogram.counts))
    told = [f'{before}{edge}"}} {count}' for edge, count in zip(edges, below, strict=True)]
    told.append(f"{name}_sum{_braced(pairs)} {histogram.total:.6f}")
    told.append(f"{name}_count{_braced(pairs)} {below[-1]}")
    return told


def _pairs(names: Labels, values: Labels) -> str:
    """Labels without their braces; escaped once for all lines of a histogram."""
    return ",".join([f'{n}="{_escaped(v)}"' for n, v in zip(names, values, strict=True)])


def _braced(pairs: str) -> str:
    return f"{{{pairs}}}" if pairs else ""


def _number(value: float) -> str:
    """A value in full: a time stamp keeps its seconds."""
    if isinstance(value, int):
        return str(value)
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
