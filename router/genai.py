"""What is counted by OpenTelemetry's conventions for generative AI, and the words that they have.

In: Records, only where a collector is to have metrics. Out: histograms by the names in
catalogue.CONVENTIONS. Attributes come from the configuration, from closed sets, and from what a
backend says its model is called: no client can grow them, and a backend only so far.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping

from router.catalogue import CONVENTIONS, Labels
from router.chat import ENDPOINTS, OTHER
from router.errors import (
    BackendError,
    BackendTimeout,
    BackendUntrusted,
    NoBackend,
    Overloaded,
    RouterError,
)
from router.exposition import Histogram
from router.record import Record

#: what an endpoint is called by the conventions; others are called as they are
_OPERATIONS: Mapping[str, str] = {
    "chat.completions": "chat",
    "responses": "chat",
    "messages": "chat",
    "completions": "text_completion",
}
#: ends of a request that are a fault of the service, not of its client
_FAULTS = frozenset({"upstream_error", "upstream_timeout", "router_error", "rejected"})
_CODES = frozenset(
    kind.code
    for kind in (
        *(RouterError, BackendError, BackendUntrusted, BackendTimeout),
        *(NoBackend, Overloaded),
    )
)
#: requests of one kind that may wait to be sorted into buckets: some 50 µs of work
_ROWS = 64
#: kinds of requests that are told apart; beyond that, models are not
_KINDS = 1024
#: who answered where no backend was asked
_OURSELVES = "scenario_router"

_Key = tuple[str, str | None, str | None, str | None, str | None, bytes | None]
#: ms in all, to the first token and per token (streams alone); tokens in and out
_Row = tuple[float | None, float | None, float | None, int | None, int | None]


def operation_of(endpoint: str) -> str:
    """`gen_ai.operation.name`."""
    return _OPERATIONS.get(endpoint, endpoint)


def fault_of(record: Record) -> str | None:
    """`error.type`: what went wrong, where that was no fault of the client."""
    return (record.error_code or record.outcome) if record.outcome in _FAULTS else None


class _Series:
    """Requests that differ in their numbers alone."""

    __slots__ = ("backend", "fault", "rows", "where")

    def __init__(self, key: _Key) -> None:
        endpoint, self.fault, backend, model, dialect, host = key
        self.backend = backend or ""
        address, _, port = (host or b"").decode().rpartition(":")
        self.where: Labels = (
            operation_of(endpoint),
            dialect or _OURSELVES,
            model or "",
            address.strip("[]"),
            port,
            self.backend,
        )
        self.rows: list[_Row] = []


class Conventions:
    """Counts finished requests by the conventions.

    A request is one look-up and one row; rows are sorted into buckets many at a time.
    """

    def __init__(self, histogram: Callable[[str, Labels], Histogram]) -> None:
        """`histogram`: the one of that name and these labels, made when missing."""
        self._histogram = histogram
        self._series: dict[_Key, _Series] = {}

    def observe(self, record: Record, host: bytes | None) -> None:
        """Count one finished request. `host`: the backend's, with its port; None: none was asked.

        A request that was refused before a backend was asked is none, if its client was to blame.
        """
        fault = None if record.outcome == "ok" else _known_fault(record)
        key = (
            record.endpoint,
            fault,
            record.backend,
            record.backend_model,
            record.dialect,
            host,
        )
        series = self._series.get(key)
        if series is None:
            if host is None and fault is None:
                return
            series = self._begin(key)
        is_stream = record.stream
        rows = series.rows
        rows.append(
            (
                record.total_ms,
                # Of a whole answer the first token was not seen to come.
                record.ttft_ms if is_stream else None,
                record.tpot_ms if is_stream else None,
                record.input_tokens,
                record.output_tokens,
            )
        )
        if len(rows) >= _ROWS:
            self._sort_in(series)

    def _begin(self, key: _Key) -> _Series:
        """A kind that has not come before, or with something in it that somebody invented."""
        endpoint, fault, backend, model, dialect, host = key
        if endpoint not in ENDPOINTS:
            endpoint = OTHER
        known = (endpoint, fault, backend, model, dialect, host)
        if known not in self._series and len(self._series) >= _KINDS:
            known = (endpoint, fault, backend, OTHER, dialect, host)
        series = self._series.get(known)
        if series is None:
            series = self._series[known] = _Series(known)
        return series

    def settle(self) -> None:
        """Sort in all that has been put down."""
        for series in self._series.values():
            if series.rows:
                self._sort_in(series)

    def forget(self, backends: Collection[str]) -> None:
        """These have not been in use for long."""
        self._series = {
            key: series for key, series in self._series.items() if series.backend not in backends
        }

    def _sort_in(self, series: _Series) -> None:
        rows, series.rows = series.rows, []
        where, fault = series.where, series.fault
        total_ms, ttft_ms, tpot_ms, tokens_in, tokens_out = zip(*rows, strict=True)
        self._put("gen_ai.server.request.duration", (*where, fault or ""), _seconds(total_ms))
        if fault is None:
            self._put("gen_ai.server.time_to_first_token", where, _seconds(ttft_ms))
            self._put("gen_ai.server.time_per_output_token", where, _seconds(tpot_ms))
        for kind, tokens in (("input", tokens_in), ("output", tokens_out)):
            known = [count for count in tokens if count is not None]
            self._put("gen_ai.client.token.usage", (*where, kind), known)

    def _put(self, name: str, labels: Labels, values: Collection[float]) -> None:
        if not values:
            return
        histogram, edges = self._histogram(name, labels), CONVENTIONS[name].buckets
        for value in values:
            histogram.counts[bisect_left(edges, value)] += 1
        histogram.total += sum(values)


def _known_fault(record: Record) -> str | None:
    """Likewise, of a closed set: a code that a backend invented is not told."""
    if record.outcome not in _FAULTS:
        return None
    return record.error_code if record.error_code in _CODES else record.outcome


def _seconds(milliseconds: Collection[float | None]) -> list[float]:
    return [ms / 1e3 for ms in milliseconds if ms is not None]
