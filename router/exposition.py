"""The page of /metrics: the Prometheus text format 0.0.4. Pure.

In: metrics of the catalogue with their values. Out: lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import msgspec

from router.catalogue import Labels, Metric


class Histogram(msgspec.Struct, array_like=True):
    """How many values fell between two bounds, the last one open, and their sum."""

    counts: list[int]
    total: float = 0.0


def lines(metric: Metric, values: Mapping[Labels, float]) -> list[str]:
    """A counter or a gauge."""
    name = metric.public
    return _head(metric) + [
        f"{name}{_braced(_pairs(metric.labels, labels))} {_number(value)}"
        for labels, value in values.items()
    ]


def histogram_lines(metric: Metric, values: Mapping[Labels, Histogram]) -> list[str]:
    told = _head(metric)
    edges = [*(f"{bound:g}" for bound in metric.buckets), "+Inf"]
    for labels, histogram in values.items():
        if any(histogram.counts):
            told += _one(metric.public, _pairs(metric.labels, labels), histogram, edges)
    return told


def page(families: Iterable[Sequence[str]]) -> str:
    return "\n".join(line for family in families for line in family) + "\n"


def _one(name: str, pairs: str, histogram: Histogram, edges: Sequence[str]) -> list[str]:
    before = f'{name}_bucket{{{pairs + "," if pairs else ""}le="'
    below = list(accumulate(histogram.counts))
    told = [f'{before}{edge}"}} {count}' for edge, count in zip(edges, below, strict=True)]
    told.append(f"{name}_sum{_braced(pairs)} {histogram.total:.6f}")
    told.append(f"{name}_count{_braced(pairs)} {below[-1]}")
    return told


def _head(metric: Metric) -> list[str]:
    return [f"# HELP {metric.public} {metric.text}", f"# TYPE {metric.public} {metric.kind}"]


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
