"""Counters and histograms over records, and their Prometheus text.

In: Records. Out: the text of /metrics. Labels come from configuration alone (scenario,
backend, parameter, outcome), so no client can grow them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from router.record import Record

PREFIX = "scenario_router_"
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_OVERHEAD = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25, 1.0)
_SHARE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)

Labels = tuple[str, ...]


class _Histogram:
    __slots__ = ("buckets", "counts", "total")

    def __init__(self, buckets: Sequence[float]) -> None:
        self.buckets = buckets
        self.counts = [0] * (len(buckets) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.buckets, value)] += 1
        self.total += value


class _Family:
    """One metric: its help, its label names and a value for each set of labels."""

    def __init__(self, name: str, kind: str, text: str, labels: Labels) -> None:
        self.name, self.kind, self.text, self.labels = PREFIX + name, kind, text, labels

    def head(self) -> list[str]:
        return [f"# HELP {self.name} {self.text}", f"# TYPE {self.name} {self.kind}"]


class _Counter(_Family):
    def __init__(self, name: str, text: str, labels: Labels = ()) -> None:
        super().__init__(name, "counter", text, labels)
        self.values: dict[Labels, int] = {}

    def add(self, labels: Labels, by: int = 1) -> None:
        self.values[labels] = self.values.get(labels, 0) + by

    def lines(self) -> list[str]:
        return self.head() + [
            f"{self.name}{_labels(self.labels, values)} {count}"
            for values, count in self.values.items()
        ]


class _Histograms(_Family):
    def __init__(self, name: str, text: str, labels: Labels, buckets: Sequence[float]) -> None:
        super().__init__(name, "histogram", text, labels)
        self.buckets = buckets
        self.values: dict[Labels, _Histogram] = {}

    def at(self, labels: Labels) -> _Histogram:
        found = self.values.get(labels)
        if found is None:
            found = self.values[labels] = _Histogram(self.buckets)
        return found

    def lines(self) -> list[str]:
        lines = self.head()
        for values, histogram in self.values.items():
            if not any(histogram.counts):
                continue
            below = 0
            for bound, count in zip((*self.buckets, None), histogram.counts, strict=True):
                below += count
                edge = "+Inf" if bound is None else f"{bound:g}"
                labels = _labels((*self.labels, "le"), (*values, edge))
                lines.append(f"{self.name}_bucket{labels} {below}")
            labels = _labels(self.labels, values)
            lines.append(f"{self.name}_sum{labels} {histogram.total:.6f}")
            lines.append(f"{self.name}_count{labels} {below}")
        return lines


class Gauge(_Family):
    """A value that is read when the page is asked for."""

    def __init__(
        self, name: str, text: str, labels: Labels, values: Iterable[tuple[Labels, float]]
    ) -> None:
        super().__init__(name, "gauge", text, labels)
        self.values = values

    def lines(self) -> list[str]:
        return self.head() + [
            f"{self.name}{_labels(self.labels, values)} {value:g}" for values, value in self.values
        ]


class _Series:
    """The histograms of one scenario on one backend, looked up once."""

    __slots__ = ("confidence", "duration", "overhead", "tpot", "ttft")

    def __init__(self, metrics: Metrics, key: Labels) -> None:
        self.duration = metrics.duration.at(key)
        self.ttft = metrics.ttft.at(key)
        self.tpot = metrics.tpot.at(key)
        self.overhead = metrics.overhead.at(())
        self.confidence = metrics.confidence.at(key[:1])


class Metrics:
    """All that is counted over finished requests."""

    def __init__(self) -> None:
        self._series: dict[Labels, _Series] = {}
        where = ("scenario", "backend")
        self.requests = _Counter(
            "requests_total",
            "Finished requests.",
            ("scenario", "backend", "endpoint", "stream", "status", "outcome"),
        )
        self.duration = _Histograms("request_duration_seconds", "Arrival to end.", where, _SECONDS)
        self.ttft = _Histograms(
            "time_to_first_token_seconds", "Arrival to the first token.", where, _SECONDS
        )
        self.tpot = _Histograms(
            "time_per_output_token_seconds", "Between two tokens.", where, _TOKEN_SECONDS
        )
        self.overhead = _Histograms(
            "overhead_seconds", "Our own time until the request went out.", (), _OVERHEAD
        )
        self.tokens = _Counter("tokens_total", "Tokens, from usage.", ("scenario", "type"))
        self.classified = _Counter(
            "classification_total", "Requests by how they were told apart.", ("scenario", "source")
        )
        self.confidence = _Histograms(
            "classification_confidence", "Share of the evidence.", ("scenario",), _SHARE
        )
        self.actions = _Counter(
            "param_actions_total", "What presets did.", ("scenario", "param", "origin")
        )
        self.thinking = _Counter("thinking_total", "Requests with thinking on.", ("scenario",))
        self.empty = _Counter("empty_answer_total", "Answers without content.", ("scenario",))
        self.retries = _Counter("retries_total", "Further attempts.", ("backend",))
        self.policy_reloads = _Counter("policy_reload_total", "Policy loads.", ("result",))

    def observe(self, record: Record, actions: Sequence[Labels]) -> None:
        """Count one finished request. `actions`: what its preset did, as labels."""
        scenario, backend = record.scenario or "", record.backend or ""
        key = (scenario, backend)
        where = self._series.get(key)
        if where is None:
            where = self._series[key] = _Series(self, key)
        self.requests.add(
            (
                scenario,
                backend,
                record.endpoint,
                "true" if record.stream else "false",
                str(record.status or ""),
                record.outcome,
            )
        )
        if record.total_ms is not None:
            where.duration.add(record.total_ms / 1e3)
        if record.ttft_ms is not None:
            where.ttft.add(record.ttft_ms / 1e3)
        if record.tpot_ms is not None:
            where.tpot.add(record.tpot_ms / 1e3)
        if record.overhead_ms is not None:
            where.overhead.add(record.overhead_ms / 1e3)
        tokens = self.tokens
        if record.input_tokens:
            tokens.add((scenario, "input"), record.input_tokens)
        if record.cached_tokens:
            tokens.add((scenario, "cached_input"), record.cached_tokens)
        if record.output_tokens:
            tokens.add((scenario, "output"), record.output_tokens)
        if record.reasoning_tokens:
            tokens.add((scenario, "reasoning"), record.reasoning_tokens)
        if record.source is not None:
            self.classified.add((scenario, record.source))
            where.confidence.add(record.confidence or 0.0)
        for labels in actions:
            self.actions.add(labels)
        if record.thinking:
            self.thinking.add((scenario,))
        if record.outcome == "ok" and record.answer_chars == 0:
            self.empty.add((scenario,))
        if record.retries:
            self.retries.add((backend,), record.retries)

    def text(self, gauges: Iterable[Gauge]) -> str:
        """The page, in the Prometheus text format 0.0.4."""
        families: list[_Counter | _Histograms | Gauge] = [
            family for family in vars(self).values() if isinstance(family, (_Counter, _Histograms))
        ]
        families += gauges
        return "\n".join(line for family in families for line in family.lines()) + "\n"


def _labels(names: Labels, values: Labels) -> str:
    if not names:
        return ""
    pairs = zip(names, values, strict=True)
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
