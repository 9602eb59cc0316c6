"""The sums of what has happened, as workers tell each other of them and pages show them.

What is counted when is telemetry.py's matter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import add
from typing import TypeVar

import msgspec

from router.catalogue import BACKEND, CONVENTIONS, METRICS, Labels, Metric
from router.chat import OTHER
from router.exposition import Histogram

Value = TypeVar("Value")
#: known beforehand, and told from the start: a rate needs to see a first one come
REJECTIONS = ("queue_full", "queue_timeout", "no_backend", "backend_busy", OTHER)
#: settings that say how much of something there may be, at the edge
LIMITS = (
    *("header_limit_kb", "header_count", "header_line_kb", "target_limit_kb"),
    *("body_limit_mb", "inflate_ratio", "json_depth", "messages"),
    *("head_timeout_s", "body_timeout_s", "request_timeout_s", "write_timeout_s"),
    *("connections", "connections_per_address", "answer_limit_mb"),
)
_FIRST: Mapping[str, Sequence[Labels]] = {
    "rejected_total": [(reason,) for reason in REJECTIONS],
    "limited_total": [(setting,) for setting in LIMITS],
    "session_affinity_total": [("hit",), ("new",), ("moved",), ("none",)],
    "policy_reload_total": [("ok",), ("failed",)],
    "keys_reload_total": [("ok",), ("failed",)],
    "log_written_total": [()],
    "log_dropped_total": [()],
    "log_bodies_dropped_total": [()],
    "worker_restarts_total": [()],
}


class Counted(msgspec.Struct):
    """Counts by metric and labels: what one worker, or all of them, have seen."""

    counters: dict[str, dict[Labels, int]]
    histograms: dict[str, dict[Labels, Histogram]]
    gone: dict[str, float]  # backends that are no longer in use: since when
    since: float = 0.0  # when counting began, since the epoch
    #: by the conventions' names: each worker tells its own, so that nobody adds them up
    conventions: dict[str, dict[Labels, Histogram]] = {}

    @classmethod
    def nothing(cls, since: float = 0.0) -> Counted:
        kinds = {name: metric.kind for name, metric in METRICS.items()}
        return cls(
            {
                name: dict.fromkeys(_FIRST.get(name, ()), 0)
                for name, kind in kinds.items()
                if kind == "counter"
            },
            {name: {} for name, kind in kinds.items() if kind == "histogram"},
            {},
            since,
        )

    def add(self, name: str, labels: Labels, by: int = 1) -> None:
        values = self.counters[name]
        values[labels] = values.get(labels, 0) + by

    def histogram(self, name: str, labels: Labels = ()) -> Histogram:
        """The one of these labels, made when missing."""
        values = self.histograms[name]
        found = values.get(labels)
        if found is None:
            size = len(METRICS[name].buckets) + 1
            found = values[labels] = Histogram([0] * size)
        return found

    def convention(self, name: str, labels: Labels) -> Histogram:
        """Likewise, by the conventions."""
        values = self.conventions.setdefault(name, {})
        found = values.get(labels)
        if found is None:
            found = values[labels] = Histogram([0] * (len(CONVENTIONS[name].buckets) + 1))
        return found

    def take(self, other: Counted) -> None:
        """Add what another one has counted, the conventions left out."""
        for name, counts in other.counters.items():
            for labels, count in counts.items():
                self.add(name, labels, count)
        for name, histograms in other.histograms.items():
            so_far = self.histograms[name]
            for labels, histogram in histograms.items():
                mine = so_far.get(labels)
                if mine is None:
                    so_far[labels] = Histogram(histogram.counts.copy(), histogram.total)
                else:
                    mine.total += histogram.total
                    mine.counts = list(map(add, mine.counts, histogram.counts))
        for backend, since in other.gone.items():
            self.gone[backend] = min(since, self.gone.get(backend, since))

    def without(self, backends: Collection[str]) -> Counted:
        """The same less all that names one of these backends."""
        if not backends:
            return self
        return Counted(
            {n: _kept(METRICS[n], values, backends) for n, values in self.counters.items()},
            {n: _kept(METRICS[n], values, backends) for n, values in self.histograms.items()},
            self.gone,
            self.since,
            {n: _kept(CONVENTIONS[n], values, backends) for n, values in self.conventions.items()},
        )

    def finished(self) -> int:
        """Requests in all."""
        return sum(self.counters["requests_total"].values())

    def prefix(self, backend: str) -> dict[str, object]:
        """What prefix caching on a backend is worth: shares of tokens, misses by cause."""
        tokens = {"input": 0, "cached_input": 0}
        for (_, name, kind), count in self.counters["tokens_total"].items():
            if name == backend and kind in tokens:
                tokens[kind] += count
        asked = tokens["input"]
        return {
            "cached_share": round(tokens["cached_input"] / asked, 3) if asked else None,
            "misses": {
                cause: count
                for (name, cause), count in self.counters["prefix_miss_total"].items()
                if name == backend
            },
        }


def _kept(
    metric: Metric, values: dict[Labels, Value], backends: Collection[str]
) -> dict[Labels, Value]:
    at = next((n for n, label in enumerate(metric.labels) if label in ("backend", BACKEND)), None)
    if at is None:
        return values
    return {key: value for key, value in values.items() if key[at] not in backends}


def merged(parts: Iterable[Counted]) -> Counted:
    """What all workers have counted."""
    whole = Counted.nothing()
    for part in parts:
        whole.take(part)
    return whole
