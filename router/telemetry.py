"""Counters and histograms over records, and their Prometheus text.

In: Records. Out: the text of /metrics. Labels come from configuration alone (scenario,
backend, parameter, outcome), so no client can grow them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any

from router.record import Record

PREFIX = "scenario_router_"
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_OVERHEAD = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25, 1.0)
_SHARE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)

#: endpoints whose answer is a text, so that none at all is worth a look
_ANSWERING = frozenset({"chat.completions", "completions", "responses"})

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
            f"{self.name}{_labels(self.labels, values)} {_number(value)}"
            for values, value in self.values
        ]


class _Series:
    """What is counted of one scenario on one backend; looked up once a request."""

    def __init__(self) -> None:
        self.ends: dict[Labels, int] = {}  # endpoint, stream, status, outcome
        self.sources: dict[str, int] = {}
        self.presets: dict[tuple[Labels, ...], int] = {}  # what a preset did, as a whole
        self.input_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0
        self.reasoning_tokens = 0
        self.thinking = 0
        self.empty = 0
        self.rescued = 0
        self.misses: dict[str, int] = {}  # by their cause
        self.retries = 0
        self.duration = _Histogram(_SECONDS)
        self.ttft = _Histogram(_SECONDS)
        self.tpot = _Histogram(_TOKEN_SECONDS)
        self.confidence = _Histogram(_SHARE)


class Metrics:
    """All that is counted over finished requests.

    Counting is on the path and told in a page: so it is a few additions to one object,
    and the families of the page are put together when somebody asks.
    """

    def __init__(self) -> None:
        self._series: dict[Labels, _Series] = {}
        self._overhead = _Histogram(_OVERHEAD)
        self.policy_reloads = _Counter("policy_reload_total", "Policy loads.", ("result",))

    def observe(self, record: Record, actions: Sequence[Labels]) -> None:
        """Count one finished request. `actions`: (scenario, parameter, origin) of its preset."""
        key = (record.scenario or "", record.backend or "")
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = _Series()
        end = (
            record.endpoint,
            "true" if record.stream else "false",
            str(record.status or ""),
            record.outcome,
        )
        series.ends[end] = series.ends.get(end, 0) + 1
        if record.total_ms is not None:
            series.duration.add(record.total_ms / 1e3)
        if record.overhead_ms is not None:
            self._overhead.add(record.overhead_ms / 1e3)
        if record.ttft_ms is not None:
            series.ttft.add(record.ttft_ms / 1e3)
        if record.tpot_ms is not None:
            series.tpot.add(record.tpot_ms / 1e3)
        series.input_tokens += record.input_tokens or 0
        series.cached_tokens += record.cached_tokens or 0
        series.output_tokens += record.output_tokens or 0
        series.reasoning_tokens += record.reasoning_tokens or 0
        source = record.source
        if source is not None:
            series.sources[source] = series.sources.get(source, 0) + 1
            series.confidence.add(record.confidence or 0.0)
            preset = tuple(actions)
            series.presets[preset] = series.presets.get(preset, 0) + 1
        if record.thinking:
            series.thinking += 1
        if record.cache_miss is not None:
            series.misses[record.cache_miss] = series.misses.get(record.cache_miss, 0) + 1
        if record.rescued:
            series.rescued += 1
        if record.retries:
            series.retries += record.retries
        if (
            record.answer_chars == 0
            and record.outcome == "ok"
            and record.endpoint in _ANSWERING
            and record.finish_reason != "tool_calls"
        ):
            series.empty += 1

    def _families(self) -> list[_Counter | _Histograms]:
        where = ("scenario", "backend")
        requests = _Counter(
            "requests_total",
            "Finished requests.",
            (*where, "endpoint", "stream", "status", "outcome"),
        )
        tokens = _Counter("tokens_total", "Tokens, from usage.", ("scenario", "type"))
        classified = _Counter(
            "classification_total", "Requests by how they were told apart.", ("scenario", "source")
        )
        actions = _Counter(
            "param_actions_total", "What presets did.", ("scenario", "param", "origin")
        )
        thinking = _Counter("thinking_total", "Requests with thinking on.", ("scenario",))
        empty = _Counter("empty_answer_total", "Answers without content.", ("scenario",))
        rescued = _Counter(
            "rescued_total", "Answers asked for again, thought having used them up.", ("scenario",)
        )
        misses = _Counter(
            "prefix_miss_total", "Prompts whose past was not reused.", ("backend", "cause")
        )
        retries = _Counter("retries_total", "Further attempts.", ("backend",))
        histograms = [
            _Histograms(name, text, where, buckets)
            for name, text, buckets in (
                ("request_duration_seconds", "Arrival to end.", _SECONDS),
                ("time_to_first_token_seconds", "Arrival to the first token.", _SECONDS),
                ("time_per_output_token_seconds", "Between two tokens.", _TOKEN_SECONDS),
                ("classification_confidence", "Share of the evidence.", _SHARE),
            )
        ]
        overhead = _Histograms(
            "overhead_seconds", "Our own time until the request went out.", (), _OVERHEAD
        )
        overhead.values[()] = self._overhead
        for (scenario, backend), series in self._series.items():
            for end, count in series.ends.items():
                requests.add((scenario, backend, *end), count)
            for kind, count in (
                ("input", series.input_tokens),
                ("cached_input", series.cached_tokens),
                ("output", series.output_tokens),
                ("reasoning", series.reasoning_tokens),
            ):
                if count:
                    tokens.add((scenario, kind), count)
            for source, count in series.sources.items():
                classified.add((scenario, source), count)
            for preset, count in series.presets.items():
                for labels in preset:
                    actions.add(labels, count)
            for cause, count in series.misses.items():
                misses.add((backend, cause), count)
            for counter, label, count in (
                (thinking, scenario, series.thinking),
                (empty, scenario, series.empty),
                (rescued, scenario, series.rescued),
                (retries, backend, series.retries),
            ):
                if count:
                    counter.add((label,), count)
            counted = (
                series.duration,
                series.ttft,
                series.tpot,
                series.confidence,
            )
            for family, histogram in zip(histograms, counted, strict=True):
                family.values[scenario, backend] = histogram
        return [
            requests,
            *histograms,
            overhead,
            tokens,
            classified,
            actions,
            thinking,
            empty,
            rescued,
            misses,
            retries,
            self.policy_reloads,
        ]

    def prefix(self, backend: str) -> dict[str, Any]:
        """What prefix caching on a backend is worth: shares of tokens, misses by cause."""
        asked = cached = 0
        misses: dict[str, int] = {}
        for (_, name), series in self._series.items():
            if name == backend:
                asked += series.input_tokens
                cached += series.cached_tokens
                for cause, count in series.misses.items():
                    misses[cause] = misses.get(cause, 0) + count
        return {"cached_share": round(cached / asked, 3) if asked else None, "misses": misses}

    def text(self, gauges: Iterable[Gauge]) -> str:
        """The page, in the Prometheus text format 0.0.4."""
        families: list[_Counter | _Histograms | Gauge] = [*self._families(), *gauges]
        return "\n".join(line for family in families for line in family.lines()) + "\n"


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
