"""Questions to the request log: which records are meant, and what they come to. Pure.

In: lines of the log. Out: those that a choice fits, or sums by scenario. Holds no more than it
gives: times are counted in classes of one per cent, not kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from router.record import Record
from router.recordfiles import Skipped, read_as

FIELDS = Record.__struct_fields__
#: no fault of anybody's: answered, or no longer wanted
_FINE = frozenset({"ok", "client_disconnect"})


class Row(msgspec.Struct, gc=False):
    """What of a record is asked about; the line has all of it."""

    schema: int = 0
    ts: str = ""
    request_id: str = ""
    session: str | None = None
    key: str | None = None
    client_model: str = ""
    backend: str | None = None
    backend_model: str | None = None
    scenario: str | None = None
    ttft_ms: float | None = None
    total_ms: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    outcome: str = ""
    shadow: bool = False

    @property
    def is_error(self) -> bool:
        return self.outcome not in _FINE


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Which records are meant; what is left empty is not asked about."""

    since: str = ""  # timestamps as in the record
    until: str = ""
    scenarios: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()  # or how they begin
    keys: tuple[str, ...] = ()
    models: tuple[str, ...] = ()  # as the client or the backend calls it
    ids: tuple[str, ...] = ()  # or how they begin
    slow_ms: float | None = None
    slow_ttft_ms: float | None = None
    is_error: bool = False

    def fits(self, row: Row) -> bool:
        """Whether this is one of them."""
        return not (
            (self.since and row.ts < self.since)
            or (self.until and row.ts >= self.until)
            or (self.scenarios and (row.scenario or "-") not in self.scenarios)
            or (self.backends and (row.backend or "-") not in self.backends)
            or (self.sessions and not (row.session or "").startswith(self.sessions))
            or (self.keys and (row.key or "-") not in self.keys)
            or (self.models and not {row.client_model, row.backend_model} & {*self.models})
            or (self.ids and not row.request_id.startswith(self.ids))
            or (self.slow_ms is not None and (row.total_ms or 0) < self.slow_ms)
            or (self.slow_ttft_ms is not None and (row.ttft_ms or 0) < self.slow_ttft_ms)
            or (self.is_error and not row.is_error)
        )


_decode = msgspec.json.Decoder(Row).decode


def rows(lines: Iterable[bytes], choice: Choice, skipped: Skipped) -> Iterator[tuple[Row, bytes]]:
    """The records that are meant, with their lines; what is no record is counted."""
    fits = choice.fits
    for line in lines:
        row = read_as(_decode, line, skipped)
        if row is not None and fits(row):
            yield row, line


# --- sums -----------------------------------------------------------------------------------------

_CLASS = math.log(1.02)  # so that its middle is within one per cent of all in it
_LEAST_MS = 0.001


class Times:
    """Milliseconds, counted by size."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0

    def add(self, ms: float | None) -> None:
        if ms is not None:
            size = math.floor(math.log(max(ms, _LEAST_MS)) / _CLASS)
            self._counts[size] = self._counts.get(size, 0) + 1
            self.count += 1

    def quantile(self, share: float) -> float | None:
        """So much of them is not longer, within one per cent; None where there are none."""
        wanted = math.ceil(share * self.count)
        for size in sorted(self._counts):
            wanted -= self._counts[size]
            if wanted <= 0:
                return float(f"{math.exp((size + 0.5) * _CLASS):.3g}")
        return None


class Sum:
    """What the records of one scenario come to."""

    def __init__(self) -> None:
        self.count = 0
        self.errors = 0
        self.ttft = Times()
        self.total = Times()
        self.input_tokens = 0
        self.output_tokens = 0

    def add(self, row: Row) -> None:
        self.count += 1
        self.errors += row.is_error
        self.ttft.add(row.ttft_ms)
        self.total.add(row.total_ms)
        self.input_tokens += row.input_tokens or 0
        self.output_tokens += row.output_tokens or 0

    def told(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "errors": self.errors,
            "ttft_p50_ms": self.ttft.quantile(0.5),
            "ttft_p95_ms": self.ttft.quantile(0.95),
            "total_p50_ms": self.total.quantile(0.5),
            "total_p95_ms": self.total.quantile(0.95),
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
        }


def sums(found: Iterable[tuple[Row, bytes]]) -> dict[str, Sum]:
    """By scenario, the most frequent first; `-` is what was not classified.

    What was repeated in the background counts for nothing.
    """
    told: dict[str, Sum] = {}
    for row, _ in found:
        if row.shadow:
            continue
        name = row.scenario or "-"
        if (own := told.get(name)) is None:
            own = told[name] = Sum()
        own.add(row)
    return dict(sorted(told.items(), key=lambda item: -item[1].count))
