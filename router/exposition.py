"""The page of /metrics: the Prometheus text format 0.0.4. Pure.

In: metrics of the catalogue with their values. Out: lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from router.catalogue import Labels, Metric


class Histogram(msgspec.Struct, array_like=True):
    """How many values fell between two bounds, the last one open, and their sum."""

    counts: list[int]
    total: float = 0.0


def lines(metric: Metric, values: Mapping[Labels, float]) -> list[str]:
    """A counter or a gauge."""
    return _head(metric) + [
        f"{metric.public}{_labels(metric.labels, labels)} {_number(value)}"
        for labels, value in values.items()
    ]


def histogram_lines(metric: Metric, values: Mapping[Labels, Histogram]) -> list[str]:
    told = _head(metric)
    edges = [*(f"{bound:g}" for bound in metric.buckets), "+Inf"]
    for labels, histogram in values.items():
        if any(histogram.counts):
            told += _one(metric, labels, histogram, edges)
    return told


def page(families: Iterable[Sequence[str]]) -> str:
    return "\n".join(line for family in families for line in family) + "\n"


def _one(
    metric: Metric, values: Labels, histogram: Histogram, edges: Sequence[str]
) -> Iterable[str]:
    below = 0
    names = (*metric.labels, "le")
    for edge, count in zip(edges, histogram.counts, strict=True):
        below += count
        yield f"{metric.public}_bucket{_labels(names, (*values, edge))} {below}"
    labels = _labels(metric.labels, values)
    yield f"{metric.public}_sum{labels} {histogram.total:.6f}"
    yield f"{metric.public}_count{labels} {below}"


def _head(metric: Metric) -> list[str]:
    return [f"# HELP {metric.public} {metric.text}", f"# TYPE {metric.public} {metric.kind}"]


def _labels(names: Labels, values: Labels) -> str:
    if not names:
        return ""
    pairs = zip(names, values, strict=True)
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs) + "}"


def _number(value: float) -> str:
    """A value in full: a time stamp keeps its seconds."""
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
