"""Finished requests asked once more with another arm's preset, while their backend is idle.

Off unless an experiment says `shadow.share`. The client has its answer before; what comes of
the repetition is one more record, marked, and a pair of token counts for the referee. One at
a time in a worker, a few waiting, and given up at once when a real request comes for that
backend: while one runs, the way to the backend is wrapped in one that first clears the road.

Its times are not compared with anything: the prompt has just been read by that backend.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from router import heads
from router.chat import Endpoint
from router.config import Backend
from router.errors import RouterError
from router.exchange import Exchange
from router.pipeline import Pipeline
from router.ports import AnswerListener, Attempt, Upstream
from router.record import Record, timestamp
from router.rescue import SecondTry
from router.tally import Tally
from router.trials import ArmInForce, Trial
from router.verdict import Slot, Verdict, params_line, plan_for

log = structlog.get_logger(__name__)

_WAITING = 8
_LARGE = 64 << 10
_ENDS = {Endpoint.CHAT, Endpoint.COMPLETIONS}

#: experiment, arm, its tokens through control's, session
Pairs = Callable[[str, str, float, str | None], None]


class _Asked(msgspec.Struct):
    """A request that may be repeated."""

    record: Record
    verdict: Verdict
    arm: ArmInForce
    path: bytes


class Shadows:
    """One worker's. `consider` is called for finished requests, `look` a few times a second."""

    def __init__(self, pipeline: Pipeline, pairs: Pairs) -> None:
        self._pipeline = pipeline
        self._pairs = pairs
        self._waiting: deque[_Asked] = deque(maxlen=_WAITING)  # the oldest gives way
        self._running: _Running | None = None
        self._turn = 0

    def consider(self, exchange: Exchange, record: Record) -> None:
        """Remember a request to be repeated, if its experiment wants that of it."""
        verdict, trials = exchange.verdict, self._pipeline.live.trials
        if verdict is None or verdict.plan.arm is None or trials is None:
            return
        trial, own = trials.get(verdict.found.scenario), verdict.plan.arm
        if trial is None or trial.name != own.experiment or record.outcome != "ok":
            return
        share = trial.written.shadow.share
        if not share or zlib.crc32(record.request_id.encode()) >= share * 2**32:
            return
        slot, order = exchange.slot, exchange.order
        has_own_key = b"authorization" in order.http.fields and not exchange.live.has_keys
        if slot is None or (has_own_key and slot.authorization is None):
            return  # the client's own key is the client's to use
        other = self._other(trial, own)
        if other is None or order.endpoint not in _ENDS or len(verdict.request.raw) > _LARGE:
            return
        self._waiting.append(_Asked(record, verdict, other, order.path))

    def _other(self, trial: Trial, own: ArmInForce) -> ArmInForce | None:
        """Control for an arm; for control each of the arms that serve, in turn."""
        if own.name != trial.control:
            return trial.arms[trial.control]
        arms = [arm for arm in dict.fromkeys(trial.places) if arm.name != trial.control]
        self._turn += 1
        return arms[self._turn % len(arms)] if arms else None

    def look(self) -> None:
        """Repeat one, if its backend has nothing else to do."""
        if self._running is not None or not self._waiting or self._pipeline.waiting:
            return
        asked = self._waiting[0]
        live = self._pipeline.live
        pool = live.pools.get(asked.verdict.decision.pool, ())
        slot = next((slot for slot in pool if slot.name == asked.record.backend), None)
        if slot is not None and slot.upstream.inflight:
            return
        self._waiting.popleft()
        now = self._pipeline.clock.now()
        is_stale = asked.record.policy != live.policy.hash or self._pipeline.is_draining
        if slot is None or is_stale or slot.is_draining or not slot.health.is_usable(now):
            return
        try:
            self._running = _Running(self, slot, asked)
        except RouterError:
            return  # that arm's request cannot be said to this backend
        self._running.start()

    def give_way(self) -> None:
        """Something real comes: what runs is given up."""
        if self._running is not None:
            self._running.give_up()

    def over(self, record: Record | None, pair: tuple[str, float] | None = None) -> None:
        """One is over; `pair`: the arm that is not control, and its tokens through control's."""
        self._running = None
        if record is None:
            return
        self._pipeline.journal.write(record)
        if pair is not None and record.experiment is not None:
            self._pairs(record.experiment, *pair, record.session)

    @property
    def clock(self) -> Any:
        return self._pipeline.clock


class _Running:
    """One repetition, from its bytes to its record."""

    def __init__(self, shadows: Shadows, slot: Slot, asked: _Asked) -> None:
        self._shadows = shadows
        self._slot = slot
        self._asked = asked
        request, found = asked.verdict.request, asked.verdict.found
        self._verdict = Verdict(
            request, found, plan_for(request, found, asked.arm.policy, asked.arm)
        )
        self._told = self._verdict.told(slot.dialect, slot.model or "")
        self._upstream = slot.upstream
        self._tally = Tally()
        self._attempt: Attempt | None = None
        self._is_over = False
        self._began = self._first = 0.0

    def start(self) -> None:
        request, slot = self._verdict.request, self._slot
        body = self._told.patch.apply(request.raw, request.spans)
        lines = [
            heads.request_start(self._asked.path, slot.host) + self._request_id.encode(),
            b"content-type: application/json",
            b"accept-encoding: identity",
        ]
        if slot.authorization is not None:
            lines.append(b"authorization: " + slot.authorization)
        lines.append(b"content-length: %d\r\n\r\n" % len(body))
        self._began = self._shadows.clock.ticks()
        # While it runs, who asks this backend for something first clears the road.
        slot.upstream = _GivingWay(self._upstream, self._shadows.give_way)
        listener = SecondTry(self._tally_event, self._ended)
        self._attempt = self._upstream.send(b"\r\n".join(lines), body, b"POST", listener)
        if self._is_over:
            self._attempt.cancel()

    @property
    def _request_id(self) -> str:
        return f"{self._asked.record.request_id}-shadow"

    def _tally_event(self, data: bytes) -> None:
        self._tally.read(data)
        if not self._first and self._tally.has_token:
            self._first = self._shadows.clock.ticks()

    def _ended(self, told: bytes | None) -> None:
        """`told`: the body of a whole answer; nothing after a stream; None: it failed."""
        if self._is_over:
            return
        self._leave()
        if told:
            self._tally.read(told)
        is_ok = told is not None and self._tally.error is None
        self._shadows.over(self._record(is_ok=is_ok), self._pair() if is_ok else None)

    def give_up(self) -> None:
        if self._is_over:
            return
        self._leave()
        if self._attempt is not None:
            self._attempt.cancel()
        self._shadows.over(None)

    def _leave(self) -> None:
        self._is_over = True
        if isinstance(self._slot.upstream, _GivingWay):
            self._slot.upstream = self._upstream

    def _pair(self) -> tuple[str, float] | None:
        own, now = self._asked.record, self._tally.output_tokens
        if not own.output_tokens or not now or own.arm is None:
            return None
        arm = self._asked.arm.name
        is_own_control = arm != self._control
        ratio = now / own.output_tokens if is_own_control else own.output_tokens / now
        return (arm if is_own_control else own.arm), ratio

    @property
    def _control(self) -> str:
        experiments = self._asked.arm.policy.file.experiments
        return experiments[self._asked.arm.experiment].control

    def _record(self, *, is_ok: bool) -> Record:
        own, clock, tally = self._asked.record, self._shadows.clock, self._tally
        ended = clock.ticks()
        first = self._first - self._began if self._first else None
        return msgspec.structs.replace(
            own,
            ts=timestamp(clock.now() - (ended - self._began)),
            request_id=self._request_id,
            trace_id=None,
            backend_model=self._slot.model,
            experiment=self._asked.arm.experiment,
            arm=self._asked.arm.name,
            shadow=True,
            thinking=self._verdict.decision.thinking,
            params=params_line(self._verdict.decision, self._told.params),
            warnings=self._told.warnings,
            affinity="none",
            moved_because=None,
            retries=0,
            queue_ms=0.0,
            classify_us=None,
            overhead_ms=None,
            ttft_ms=None if first is None else _ms(first),
            tpot_ms=None,
            total_ms=_ms(ended - self._began),
            input_tokens=tally.input_tokens,
            cached_tokens=tally.cached_tokens,
            cached_share=None,
            cache_miss=None,
            cache_hint=None,
            output_tokens=tally.output_tokens,
            reasoning_tokens=tally.reasoning_tokens,
            answer_chars=tally.answer_chars,
            reasoning_chars=tally.reasoning_chars,
            rescued=False,
            finish_reason=tally.finish_reason,
            status=200 if is_ok else None,
            outcome="ok" if is_ok else "upstream_error",
            error_code=None,
        )


class _GivingWay:
    """The way to a backend at which a repetition runs; nobody else sees that it does."""

    def __init__(self, upstream: Upstream, clear: Callable[[], None]) -> None:
        self._upstream = upstream
        self._clear = clear

    @property
    def backend(self) -> Backend:
        return self._upstream.backend

    @property
    def inflight(self) -> int:
        return self._upstream.inflight - 1

    def send(
        self,
        head: bytes,
        body: bytes,
        method: bytes,
        listener: AnswerListener,
        *,
        fresh: bool = False,
        timeout_s: float | None = None,
    ) -> Attempt:
        self._clear()
        return self._upstream.send(head, body, method, listener, fresh=fresh, timeout_s=timeout_s)


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
