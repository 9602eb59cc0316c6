"""What is counted over finished requests.

In: Records. Out: counts by the metrics of the catalogue. Labels come from the configuration
and from closed sets (scenario, backend, parameter, outcome): whatever clients or backends send
beyond those is "other", so neither can grow them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from http import HTTPStatus

from router.catalogue import (
    OVERHEAD,
    SECONDS,
    SHARE,
    TOKEN_SECONDS,
    Labels,
)
from router.chat import ENDPOINTS, OTHER
from router.counted import Counted
from router.exposition import Histogram
from router.genai import Conventions
from router.record import Record

#: endpoints whose answer is a text, so that none at all is worth a look
_ANSWERING = frozenset({"chat.completions", "completions", "responses"})
_ENDPOINTS = ENDPOINTS | {"http"}
_STATUSES = frozenset(int(status) for status in HTTPStatus)
#: what servers say of an answer's end; /v1/responses has words of its own
_FINISHES = frozenset(
    {
        *("stop", "length", "tool_calls", "content_filter", "function_call"),
        *("completed", "incomplete", "failed", "cancelled", "abort", "error"),
    }
)
#: kinds of requests that are told apart before they are added up
_KINDS = 512
#: a backend that is gone is shown for so long: rates over its last minutes still come out right
HIDDEN_S = 3600.0
#: ... and forgotten so much later, that is when no worker shows it any more
FORGOTTEN_S = HIDDEN_S + 600.0


class _Series:
    """What is counted of one scenario on one backend; looked up once a request."""

    __slots__ = (
        "cached_tokens",
        "input_tokens",
        "kinds",
        "output_tokens",
        "reasoning_tokens",
        "sources",
        "streamed",
        "tpot",
        "ttft",
        "whole",
    )

    def __init__(self, counted: Counted, scenario: str, backend: str) -> None:
        #: requests by all that is said of them in words; one look-up in place of ten
        self.kinds: dict[tuple[object, ...], int] = {}
        self.sources: dict[str, Histogram] = {}  # confidence by source
        self.input_tokens = self.cached_tokens = 0
        self.output_tokens = self.reasoning_tokens = 0
        where = (scenario, backend)
        self.whole = counted.histogram("request_duration_seconds", (*where, "false"))
        self.streamed = counted.histogram("request_duration_seconds", (*where, "true"))
        self.ttft = counted.histogram("time_to_first_token_seconds", where)
        self.tpot = counted.histogram("time_per_output_token_seconds", where)


class Metrics:
    """All that one worker has counted.

    Counting is on the path and told in a page: so a request is a few additions to one object,
    and sorted into the metrics of the page (`counted`) when somebody asks.
    """

    def __init__(self, begin: Counted | None = None, *, now: float = 0.0) -> None:
        """`begin`: what whoever had this place before has counted. `now`: since the epoch."""
        self._counted = Counted.nothing(now if begin is None else begin.since)
        if begin is not None:
            self._counted.take(begin)
            self._counted.conventions = begin.conventions
        self._conventions: Conventions | None = None
        self._series: dict[tuple[str | None, str | None], _Series] = {}
        self._presets: dict[int, list[object]] = {}  # by identity: [actions, how often]
        self._followed: list[tuple[str, Labels, int, Callable[[], int]]] = []
        self._overhead = self._counted.histogram("overhead_seconds")
        self._classify = self._counted.histogram("classify_seconds")
        self._queue_wait = self._counted.histogram("queue_wait_seconds")

    # ------------------------------------------------------------------ on the path

    def observe(self, record: Record, actions: Sequence[Labels]) -> None:
        """Count one finished request. `actions`: (scenario, parameter, origin) of its preset."""
        series = self._series.get((record.scenario, record.backend))
        if series is None:
            series = self._begin(record)
        stream, outcome = record.stream, record.outcome
        kind = (
            record.endpoint,
            stream,
            record.status,
            outcome,
            record.finish_reason,
            record.affinity,
            record.thinking,
            record.rescued,
            record.cache_miss,
            record.answer_chars == 0,
        )
        try:
            series.kinds[kind] += 1
        except KeyError:
            self._new_kind(series, kind)
        if (total_ms := record.total_ms) is not None:
            histogram = series.streamed if stream else series.whole
            seconds = total_ms / 1e3
            histogram.counts[bisect_left(SECONDS, seconds)] += 1
            histogram.total += seconds
        if (overhead_ms := record.overhead_ms) is not None:
            histogram = self._overhead
            seconds = overhead_ms / 1e3
            histogram.counts[bisect_left(OVERHEAD, seconds)] += 1
            histogram.total += seconds
        if (ttft_ms := record.ttft_ms) is not None:
            histogram = series.ttft
            seconds = ttft_ms / 1e3
            histogram.counts[bisect_left(SECONDS, seconds)] += 1
            histogram.total += seconds
        if (tpot_ms := record.tpot_ms) is not None:
            histogram = series.tpot
            seconds = tpot_ms / 1e3
            histogram.counts[bisect_left(TOKEN_SECONDS, seconds)] += 1
            histogram.total += seconds
        if tokens := record.input_tokens:
            series.input_tokens += tokens
            if tokens := record.cached_tokens:
                series.cached_tokens += tokens
        if tokens := record.output_tokens:
            series.output_tokens += tokens
            if tokens := record.reasoning_tokens:
                series.reasoning_tokens += tokens
        if (source := record.source) is not None:
            confidence = series.sources.get(source) or self._new_source(series, record, source)
            share = record.confidence or 0.0
            confidence.counts[bisect_left(SHARE, share)] += 1
            confidence.total += share
            # Plans are remembered, so that their actions are the same object again and again.
            preset = self._presets.get(id(actions))
            if preset is None:
                self._new_preset(actions)
            else:
                preset[1] += 1  # type: ignore[operator]  # [actions, how often]
            if (classify_us := record.classify_us) is not None:
                histogram = self._classify
                seconds = classify_us / 1e6
                histogram.counts[bisect_left(OVERHEAD, seconds)] += 1
                histogram.total += seconds
        if record.queue_ms or record.tried or outcome == "rejected":
            self._unusual(record)

    def limited(self, setting: str) -> None:
        """Count something that met the limit of this setting."""
        self._counted.add("limited_total", (setting,))

    def _begin(self, record: Record) -> _Series:
        scenario, backend = record.scenario or "", record.backend or ""
        series = _Series(self._counted, scenario, backend)
        self._series[record.scenario, record.backend] = series
        if scenario:
            for name in ("thinking_total", "empty_answer_total", "rescued_total"):
                self._counted.add(name, (scenario,), 0)
        return series

    def _new_kind(self, series: _Series, kind: tuple[object, ...]) -> None:
        """One that has not come before, or that somebody invented."""
        if len(series.kinds) >= _KINDS:
            self._sort_in()
        endpoint, stream, status, outcome, finish, *rest = kind
        if endpoint not in _ENDPOINTS:
            endpoint = OTHER
        if status is not None and status not in _STATUSES:
            status = OTHER
        if finish is not None and finish not in _FINISHES:
            finish = OTHER
        known = (endpoint, stream, status, outcome, finish, *rest)
        series.kinds[known] = series.kinds.get(known, 0) + 1

    def _new_source(self, series: _Series, record: Record, source: str) -> Histogram:
        labels = (record.scenario or "", source)
        found = self._counted.histogram("classification_confidence", labels)
        series.sources[source] = found
        return found

    def _new_preset(self, actions: Sequence[Labels]) -> None:
        if len(self._presets) >= _KINDS:
            self._sort_in()
        # Held here, so that its identity is not given to another one meanwhile.
        self._presets[id(actions)] = [actions, 1]

    def _unusual(self, record: Record) -> None:
        if record.queue_ms:
            seconds = record.queue_ms / 1e3
            self._queue_wait.counts[bisect_left(SECONDS, seconds)] += 1
            self._queue_wait.total += seconds
        for backend, reason in record.tried:
            self._counted.add("retries_total", (backend, reason))
        if record.outcome == "rejected":
            self._counted.add("rejected_total", (_rejection(record),))
            if record.limit is not None:
                self._counted.add("key_limited_total", (record.key or "", record.limit))

    # ------------------------------------------------------------------ off the path

    def count(self, name: str, *labels: str) -> None:
        """One more of something that is no request."""
        self._counted.add(name, labels)

    def follow(self, name: str, reading: Callable[[], int], *labels: str) -> None:
        """A counter that somebody else keeps, from 0 on."""
        before = self._counted.counters[name].get(labels, 0)
        self._followed.append((name, labels, before, reading))

    def by_conventions(self) -> Conventions:
        """What counts by the conventions as well; from now on that is part of `counted`."""
        if self._conventions is None:
            self._conventions = Conventions(lambda *of: self._counted.convention(*of))
        return self._conventions

    def counted(self) -> Counted:
        """All so far; the same object each time, and only to be read."""
        self._sort_in()
        for name, labels, before, reading in self._followed:
            self._counted.counters[name][labels] = before + reading()
        return self._counted

    def know(self, backends: Collection[str], now: float) -> None:
        """These are in use; the labels of others go in a while. `now`: since the epoch."""
        gone = self._counted.gone
        named = {labels[1] for labels in self._counted.counters["requests_total"]}
        for name in named.difference(backends, ("",)):
            gone.setdefault(name, now)
        for name in [name for name in gone if name in backends]:
            del gone[name]
        old = [name for name, since in gone.items() if now - since > FORGOTTEN_S]
        if old:
            self._sort_in()
            self._counted = self._counted.without(old)
            self._series = {key: one for key, one in self._series.items() if key[1] not in old}
            if self._conventions is not None:
                self._conventions.forget(old)
            for name in old:
                del gone[name]

    def _sort_in(self) -> None:
        """Add up what `observe` has put down."""
        counted = self._counted
        if self._conventions is not None:
            self._conventions.settle()
        for (scenario, backend), series in self._series.items():
            _sort_in(counted, series, scenario or "", backend or "")
        for actions, times in self._presets.values():
            for labels in actions:  # type: ignore[attr-defined]  # [actions, how often]
                counted.add("param_actions_total", labels, times)  # type: ignore[arg-type]
        self._presets.clear()
        confidences = counted.histograms["classification_confidence"]
        counted.counters["classification_total"] = {
            labels: sum(histogram.counts) for labels, histogram in confidences.items()
        }


def _sort_in(counted: Counted, series: _Series, scenario: str, backend: str) -> None:
    add = counted.add
    for kind, count in series.kinds.items():
        endpoint, stream, status, outcome, finish, affinity, thinking, rescued, miss, none = kind
        is_stream = "true" if stream else "false"
        ends = (str(endpoint), is_stream, _word(status), str(outcome), _word(finish))
        add("requests_total", (scenario, backend, *ends), count)
        add("session_affinity_total", (str(affinity),), count)
        if thinking:
            add("thinking_total", (scenario,), count)
        if rescued:
            add("rescued_total", (scenario,), count)
        if miss is not None:
            add("prefix_miss_total", (backend, str(miss)), count)
        if none and outcome == "ok" and endpoint in _ANSWERING and finish != "tool_calls":
            add("empty_answer_total", (scenario,), count)
    series.kinds.clear()
    tokens = (
        ("input", series.input_tokens),
        ("cached_input", series.cached_tokens),
        ("output", series.output_tokens),
        ("reasoning", series.reasoning_tokens),
    )
    for kind_of, many in tokens:
        if many:
            add("tokens_total", (scenario, backend, kind_of), many)
    series.input_tokens = series.cached_tokens = 0
    series.output_tokens = series.reasoning_tokens = 0


def _word(value: object) -> str:
    """A label; nothing where there is nothing to say, which is as good as no label."""
    return "" if value is None else str(value)


def _rejection(record: Record) -> str:
    """Why a request was turned away."""
    if record.limit is not None:
        return "key_limit"
    if record.backend is not None:
        return "backend_busy"
    if record.error_code == "no_healthy_backend":
        return "no_backend"
    if record.error_code == "rate_limit_exceeded":
        return "queue_timeout" if record.queue_ms else "queue_full"
    return OTHER
