"""What all requests of a worker share, and the queue of those that wait for a backend.

A request's own journey is in exchange.py; speaks only to ports.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from itertools import count
from typing import TYPE_CHECKING

import structlog

from router import heads, toll
from router.affinity import MemoryAffinity
from router.cors import Cors
from router.errors import RouterError
from router.health import USUAL, Rules
from router.keyring import Grant
from router.ports import (
    Affinity,
    Bodies,
    Clock,
    Conventions,
    Journal,
    Meter,
    Observer,
    Rates,
    Repeater,
    Sessions,
    Tracer,
)
from router.ratebook import MemoryRates
from router.record import Record, timestamp
from router.retrying import Budget
from router.verdict import Live

if TYPE_CHECKING:
    from router.exchange import Exchange

log = structlog.get_logger(__name__)

#: records made in a row: a quarter of a millisecond
_SETTLED_TOGETHER = 64
#: how much one request counts in the mean of their lengths
_MEMORY = 0.1
_LATEST_S = 30


class Pipeline:
    """What all exchanges share."""

    def __init__(
        self,
        live: Live,
        journal: Journal,
        meter: Meter,
        clock: Clock,
        soon: Callable[[Callable[[], None]], object],
        sessions: Sessions,
        *,
        affinity: Affinity | None = None,
        rules: Rules = USUAL,
        budget: Budget | None = None,
        attempts: int = 2,
        queue: int = 0,
        queue_timeout_s: float = 30.0,
        keepalive_s: float = 0.0,
        tracer: Tracer | None = None,
        bodies: Bodies | None = None,
        cors: Cors | None = None,
        rates: Rates | None = None,
    ) -> None:
        """`soon` calls a function a little later, when nobody waits for an answer.

        `queue` requests may wait for a backend that takes no more just now, each as long as
        `queue_timeout_s`. `keepalive_s`: a stream that was silent for so long is given a sign
        of life; 0, none. `attempts`: further ones, each at another backend. `bodies`: where what is
        said is written down, if it is. `cors`: the web pages that may ask, if any may. `rates`:
        what keys with limits have used.
        """
        self.tracer = tracer
        self.conventions: Conventions | None = None
        self.affinity = affinity if affinity is not None else MemoryAffinity(clock)
        self.rates = rates if rates is not None else MemoryRates(clock)
        self.rules = rules
        self.budget = budget if budget is not None else Budget()
        self.attempts = attempts
        self._soon = soon
        self._queue = queue
        self._queue_timeout_s = queue_timeout_s
        self._keepalive_s = keepalive_s
        self.waiting: dict[Exchange, float] = {}  # since when; the longest waiting first
        self._is_serving_queue = False
        self._mean_s = 0.0  # how long a request takes, of late
        self._ended: list[Exchange] = []
        self.live = live
        self.journal = journal
        self.bodies = bodies
        self.cors = cors
        self.meter = meter
        self.clock = clock
        self.sessions = sessions
        self.active: set[Exchange] = set()
        self.is_draining = False
        self.observer: Observer | None = None  # of what is in an experiment
        self.repeater: Repeater | None = None  # of some of that
        self.turn = 0
        self._prefix = os.urandom(6).hex()
        self._numbers = count(1)

    def new_id(self) -> str:
        return f"req-{self._prefix}-{next(self._numbers):06x}"

    def ended(self, exchange: Exchange) -> None:
        """An exchange is over; its record is made soon, together with others.

        Off the path, and in a row: made between two requests it would cost twice as much,
        since by then the processor has forgotten how.
        """
        self.active.discard(exchange)
        self.waiting.pop(exchange, None)
        if exchange.sent_at is not None:
            took_s = exchange.ended_at - exchange.sent_at
            self._mean_s += (took_s - self._mean_s) * _MEMORY
        if self.waiting:
            self._serve_queue()
        self._ended.append(exchange)
        if exchange.is_large or len(self._ended) >= _SETTLED_TOGETHER:
            self.settle()  # large: its bytes are not kept a moment longer
        elif len(self._ended) == 1:
            self._soon(self.settle)

    def wait(self, exchange: Exchange) -> bool:
        """Let a request wait until a backend is free; whether there is room."""
        if len(self.waiting) >= self._queue:
            return False
        self.waiting[exchange] = self.clock.ticks()
        return True

    def _serve_queue(self) -> None:
        if self._is_serving_queue:  # one that failed at once ends in here again
            return
        self._is_serving_queue = True
        try:
            # A short answer does not wait behind a long one; of the same priority, first come.
            for exchange in sorted(self.waiting, key=lambda exchange: -exchange.priority):
                if exchange in self.waiting:
                    exchange.go_on()
        finally:
            self._is_serving_queue = False

    def retry_after_s(self) -> int:
        """When a place may be free for one more: what waits, at the pace of late."""
        places = sum(slot.max_inflight for slot in self.live.slots)
        return self._within(self._mean_s * (len(self.waiting) + 1) / max(places, 1))

    def place_after_s(self, places: int | None) -> int:
        """When one of a key's places may be free, at the pace of late."""
        return self._within(self._mean_s / max(places or 1, 1))

    @staticmethod
    def _within(seconds: float) -> int:
        return min(_LATEST_S, max(1, math.ceil(seconds)))

    def look_around(self) -> None:
        """What time alone brings about; to be called a few times a second."""
        now = self.clock.ticks()
        if self.waiting:
            self._serve_queue()  # a limit may have been lifted
            for exchange, since in list(self.waiting.items()):
                if now - since > self._queue_timeout_s:
                    exchange.give_up_waiting()
        if self.repeater is not None:
            self.repeater.look()
        if self._keepalive_s:
            for exchange in tuple(self.active):
                try:
                    exchange.answering.keep_alive(now, self._keepalive_s)
                except Exception:  # one odd answer must not stop the clock for all others
                    log.exception("no sign of life given", request_id=exchange.request_id)

    def settle(self) -> None:
        """Make the records of all that has ended."""
        ended, self._ended = self._ended, []
        for exchange in ended:
            self._record(exchange)

    def _record(self, exchange: Exchange) -> None:
        try:
            record, actions = exchange.account()
            if exchange.toll is not None:
                exchange.settle(exchange.toll, record)
            self.meter.observe(record, actions)
            self.journal.write(record)
            if self.tracer is not None and (journey := exchange.journey(record)) is not None:
                self.tracer.take(journey)
            if self.conventions is not None:
                slot = exchange.slot
                self.conventions.observe(record, slot.host if slot is not None else None)
            if self.bodies is not None and exchange.said is not None:
                self.bodies.write(exchange.spoken(record, exchange.said))
            if record.experiment is not None:
                if self.observer is not None:
                    self.observer.observe(record)
                if self.repeater is not None:
                    self.repeater.consider(exchange, record)
        except Exception:
            log.exception("record not made", request_id=exchange.request_id)
        exchange.answering.let_go()

    def id_for(self, fields: Mapping[bytes, bytes]) -> str:
        """The id of a request: its own, or a new one."""
        return heads.given_id(fields) or self.new_id()

    def rate_lines(self, grant: Grant) -> list[str]:
        """What its key is told of its limits where a journey does not begin."""
        if grant.allowance is None:
            return []
        standing = self.rates.look(toll.Toll(grant.name, grant.allowance))
        return [line.decode() for line in toll.lines(grant.allowance, standing)]

    def note(
        self, endpoint: str, request_id: str, fault: RouterError, *, key: str | None = None
    ) -> None:
        """Record a request that ended before its journey began (bad HTTP, no key)."""
        record = Record(
            ts=timestamp(self.clock.now()),
            request_id=request_id,
            key=key,
            endpoint=endpoint,
            policy=self.live.policy.hash,
            status=fault.status,
            outcome=fault.outcome,
            error_code=fault.code,
        )
        self.meter.observe(record, ())
        self.journal.write(record)
        if fault.limit is not None:
            self.meter.limited(fault.limit)
