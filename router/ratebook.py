"""What each key has used, in the memory of one process, or of all workers of one router."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from router import rates
from router.ledger import Ledger
from router.ports import Clock
from router.rates import Standing, Used
from router.toll import Toll

log = structlog.get_logger(__name__)


class MemoryRates:
    """The store of one process, which counts for itself."""

    is_shared = False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._used: dict[str, Used] = {}

    def look(self, toll: Toll) -> Standing:
        return rates.look(self.of(toll.name), toll.allowance, self.ticks_us(), self.date_us())

    def ask(self, toll: Toll, then: Callable[[Toll], None]) -> None:
        used = self.of(toll.name)
        toll.standing = standing = rates.ask(
            used, toll.allowance, self.ticks_us(), self.date_us(), toll.tokens
        )
        toll.is_underway = not standing.refused
        then(toll)

    def over(self, toll: Toll) -> None:
        if toll.is_underway:
            toll.is_underway = False
            self.of(toll.name).underway -= 1

    def settle(self, toll: Toll, tokens: int) -> None:
        self._settle(self.of(toll.name), toll, tokens)

    def remember(self, name: str, day: int, spent: int) -> None:
        """So much was spent that day, before this process; at least."""
        used = self.of(name)
        rates.remember(used, self.date_us(), day=day, spent=spent)

    def _settle(self, used: Used, toll: Toll, tokens: int) -> None:
        standing = toll.standing
        assert standing is not None
        toll.is_settled = True
        rates.settle(
            used,
            toll.allowance,
            self.ticks_us(),
            self.date_us(),
            tokens=tokens - toll.taken,
            day=standing.day,
            spent=tokens - toll.tokens,
        )

    def of(self, name: str) -> Used:
        """What a key has used; a new one nothing."""
        used = self._used.get(name)
        if used is None:
            used = self._used[name] = Used()
        return used

    def ticks_us(self) -> int:
        """The clock of all moments here, which nobody sets."""
        return int(self._clock.ticks() * 1e6)

    def date_us(self) -> int:
        """The clock of days."""
        return int(self._clock.now() * 1e6)

    def status(self) -> dict[str, Any]:
        return status("memory")

    async def start(self) -> None:
        """Nothing to get ready."""

    async def close(self) -> None:
        """Nothing to close."""


class WorkersRates(MemoryRates):
    """The store of several workers, which count together: in a ledger that all of them have."""

    def __init__(self, clock: Clock, ledger: Ledger, worker: int) -> None:
        super().__init__(clock)
        self._ledger = ledger
        self._worker = worker
        self._rows: dict[str, int | None] = {}
        self._underway: dict[int, int] = {}  # of this worker, by row
        ledger.begin(worker)

    def ask(self, toll: Toll, then: Callable[[Toll], None]) -> None:
        row = self._row(toll.name)
        if row is None:
            super().ask(toll, then)
            return
        has_lock = self._ledger.lock(row)
        try:
            used = self._ledger.read(row)
            toll.standing = standing = rates.ask(
                used, toll.allowance, self.ticks_us(), self.date_us(), toll.tokens
            )
            toll.is_underway = not standing.refused
            self._ledger.write(row, used)
            if toll.is_underway:
                self._count(row, 1)
        finally:
            if has_lock:
                self._ledger.unlock(row)
        then(toll)

    def over(self, toll: Toll) -> None:
        row = self._row(toll.name)
        if row is None:
            super().over(toll)
        elif toll.is_underway:
            toll.is_underway = False
            self._count(row, -1)

    def settle(self, toll: Toll, tokens: int) -> None:
        row = self._row(toll.name)
        if row is None:
            super().settle(toll, tokens)
            return
        has_lock = self._ledger.lock(row)
        try:
            used = self._ledger.read(row)
            self._settle(used, toll, tokens)
            self._ledger.write(row, used)
        finally:
            if has_lock:
                self._ledger.unlock(row)

    def remember(self, name: str, day: int, spent: int) -> None:
        row = self._row(name)
        if row is None:
            super().remember(name, day, spent)
            return
        has_lock = self._ledger.lock(row)
        try:
            used = self._ledger.read(row)
            rates.remember(used, self.date_us(), day=day, spent=spent)
            self._ledger.write(row, used)
        finally:
            if has_lock:
                self._ledger.unlock(row)

    def of(self, name: str) -> Used:
        row = self._row(name)
        return super().of(name) if row is None else self._ledger.read(row)

    def _row(self, name: str) -> int | None:
        if name not in self._rows:
            self._rows[name] = row = self._ledger.row(name)
            if row is None:
                log.error("a key's limits hold for each worker alone: too many keys", key=name)
        return self._rows[name]

    def _count(self, row: int, change: int) -> None:
        count = self._underway.get(row, 0) + change
        self._underway[row] = count
        self._ledger.put_underway(row, self._worker, count)


def status(
    store: str,
    *,
    is_ok: bool = True,
    faults: int = 0,
    last_fault: str | None = None,
    latency_ms: float | None = None,
    local: int = 0,
) -> dict[str, Any]:
    """How a store tells operators of itself.

    `local`: requests that this process alone has decided on, where it should not have been.
    """
    return {
        "store": store,
        "is_ok": is_ok,
        "faults": faults,
        "last_fault": last_fault,
        "latency_ms": latency_ms,
        "local": local,
    }
