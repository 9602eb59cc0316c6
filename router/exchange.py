"""The journey of one request, top to bottom; speaks only to ports.

    start → parse → classify → decide → (rewrite → encode) → order → send
    answering (answering.py) … → finish, and from wherever it ends: one record

An Exchange is told what happens by its upstream and its client, and never waits: no
task and no future per request. The pure part is in verdict.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import structlog

from router import (
    account,
    choosing,
    dialects,
    heads,
    health,
    parse,
    permission,
    refusals,
    retrying,
    untouched,
)
from router import toll as tolls
from router.answering import RESCUED, Answering
from router.body import Spoken
from router.chat import Endpoint
from router.errors import (
    BackendError,
    BackendsUnreachable,
    BackendUntrusted,
    ContextLength,
    Draining,
    Forbidden,
    Overloaded,
    RouterError,
)
from router.message import AnswerHead
from router.pipeline import Pipeline
from router.ports import AnswerListener, Attempt, Bodies, Lookup, Order, Reply, Tracer
from router.rates import Standing
from router.record import Record
from router.said import Said
from router.toll import Toll
from router.tracing import Journey, Trace
from router.verdict import Slot, Told, Verdict, check_fits, decide_for, is_virtual

log = structlog.get_logger(__name__)

_RETRY_AFTER_S = 1
_OF_STREAMS = (b"content-type:", b"cache-control:", b"x-accel-buffering:")
_LARGE = 64 << 10
#: a fresh connection cannot be stale, so that the second one settles it
_STALE_TRIES = 2


class Exchange:
    """One request on its way. The one mutable thing of a journey; never leaves it."""

    # What most requests never set stands here once and not in every instance. They set fewer than
    # 30: with more, each would get a dictionary of its own, 1.5 KB.
    verdict: Verdict | None = None
    warnings: tuple[str, ...] = ()
    is_over = False
    slot: Slot | None = None  # the backend that was asked last
    told: Told | None = None  # how it was asked
    trace: Trace | None = None  # only where traces are told
    attempts = 0
    tried: tuple[tuple[str, str], ...] = ()  # backend and reason of the attempts before the last
    classify_us: float | None = None
    sent_at: float | None = None
    ended_at = 0.0
    queued_s = 0.0
    status: int | None = None  # as sent to the client
    outcome = "ok"
    error_code: str | None = None
    session: str | None = None  # by its hash
    affinity = "none"
    moved_because: str | None = None
    said: Said | None = None  # what the answer says, where that is kept
    toll: Toll | None = None  # only where the client's key has limits
    _is_fresh = False  # a conversation begins, and is known by its first words alone
    _pool = ""
    _slots: Sequence[Slot] = ()
    _home: str | None = None  # where the session belongs
    _remembered: str | None = None  # where it was last, if not there
    _lookup: Lookup | None = None  # while that is being found out
    _candidates: Sequence[Slot] = ()
    _encoded: tuple[bytes, dialects.Dialect, str | None] | None = None  # body; for whom
    _attempt: Attempt | None = None
    asked_at = 0.0  # when the first backend was asked; the clock of healths
    _tried_at = 0.0  # when the last one was

    def __init__(self, pipeline: Pipeline, order: Order, reply: Reply) -> None:
        self.pipeline = pipeline
        self.live = pipeline.live
        self.order = order
        self.reply = reply
        self.started = pipeline.clock.ticks()
        self.request_id = pipeline.id_for(order.http.fields)
        self.answering = Answering(self)
        if pipeline.bodies is not None:
            self._keep_what_is_said(pipeline.bodies)
        if (grant := order.grant) is not None and grant.allowance is not None:
            self.toll = Toll(grant.name, grant.allowance)

    def _keep_what_is_said(self, bodies: Bodies) -> None:
        if self.order.endpoint is not Endpoint.OTHER and bodies.wants(self.request_id):
            self.said = self.answering.tally.said = Said(bodies.text_limit)

    # ------------------------------------------------------------------ deciding

    def start(self) -> None:
        try:
            if self.pipeline.is_draining:
                raise Draining("The router is shutting down.", retry_after_s=_RETRY_AFTER_S)
            if self.toll is not None:
                self._spare_the_reading(self.toll)
            self._decide()
            if self.toll is None:
                self._set_off()
            else:
                self._ask_leave(self.toll)
        except RouterError as fault:
            self.refuse(fault)
        except Exception:
            self._failed_inside()

    # ------------------------------------------------------------------ the limits of its key

    def _spare_the_reading(self, toll: Toll) -> None:
        """A key that has no request left is told so before anything is read. Raises RateLimited."""
        try:
            standing = self.pipeline.rates.look(toll)
        except Exception:
            log.exception("limits not looked at", request_id=self.request_id)
            return
        if standing.refused:
            toll.standing = standing
            raise self._refused_by(toll, standing)

    def _ask_leave(self, toll: Toll) -> None:
        """Ask whether the key may have this; whatever goes wrong with that, the request goes on."""
        try:
            tolls.reserve(toll, self.order.http.body, self.verdict)
            lookup = self.pipeline.rates.ask(toll, self._come_in)
            if lookup is not None:
                self._lookup = lookup
        except Exception:
            log.exception("limits not asked", request_id=self.request_id)
            if not self.attempts and not self.is_over:
                self._come_in(toll)

    def _come_in(self, toll: Toll) -> None:
        """The key was asked for: go on, or be refused."""
        if self._lookup is not None:
            self._lookup = None
        try:
            standing = toll.standing
            if standing is not None and standing.refused:
                raise self._refused_by(toll, standing)
            self._set_off()
        except RouterError as fault:
            self.refuse(fault)
        except Exception:
            self._failed_inside()

    def _free_the_place(self, toll: Toll) -> None:
        try:
            self.pipeline.rates.over(toll)
        except Exception:
            log.exception("a key's place not given back", request_id=self.request_id)

    def _rate_lines(self, toll: Toll) -> list[bytes]:
        try:
            return tolls.lines(toll.allowance, self.pipeline.rates.look(toll))
        except Exception:
            log.exception("limits not told", request_id=self.request_id)
            return []

    def _refused_by(self, toll: Toll, standing: Standing) -> RouterError:
        busy_s = self.pipeline.place_after_s(toll.allowance.streams)
        return tolls.refusal(toll.name, toll.allowance, standing, busy_s)

    # ------------------------------------------------------------------ where to

    def _set_off(self) -> None:
        """Look where the session is, then ask the backends."""
        self._pool, self._slots = choosing.pool_of(self.live, self.verdict, self.order.grant)
        if self.verdict is not None:
            known = self.verdict.request.session
        else:
            grant = self.order.grant
            owner = grant.name if grant is not None else None
            known = parse.session_of(self.order.http.fields, owner)
        if known is not None:
            self.session = known.hash
            # Strangers begin with the same words, and what begins has no past to go back to.
            self._is_fresh = not known.is_named and self._turns <= 1
        if self.session is None or self._is_fresh or len(self._slots) == 1:
            self._depart(None)
        else:
            self._look_up(self.session)

    def _look_up(self, session: str) -> None:
        """Find out where the session was; whatever goes wrong with that, the request goes on."""
        try:
            lookup = self.pipeline.affinity.find(self._pool, session, self._depart)
            if lookup is not None:
                self._lookup = lookup
        except Exception:
            log.exception("session not looked up", request_id=self.request_id)
            if not self.attempts and not self.is_over:
                self._depart(None)

    @property
    def _has_named_session(self) -> bool:
        """Whether the client has a name for its session; headers are all that can name one."""
        session = self.verdict.request.session if self.verdict is not None else None
        return self.verdict is None or (session is not None and session.is_named)

    @property
    def _turns(self) -> int:
        return self.verdict.request.turns if self.verdict is not None else 0

    def _depart(self, remembered: str | None) -> None:
        """Ask, or wait in line; `remembered` is where the session was, if not at home."""
        if self._lookup is not None:
            self._lookup = None
        if remembered is not None:
            self._remembered = remembered
        busy = self._leave()
        if busy is not None and not self.pipeline.wait(self):
            busy.retry_after_s = self.pipeline.retry_after_s()
            self.refuse(busy)

    def _leave(self, waiting_since: float | None = None) -> Overloaded | None:
        """Ask a backend, or refuse where none ever will do; given back: all are busy just now."""
        try:
            self._choose()
        except Overloaded as busy:
            return busy
        except RouterError as fault:
            self.refuse(fault)
        except Exception:
            self._failed_inside()
        else:
            if waiting_since is not None:
                del self.pipeline.waiting[self]
                self.queued_s = self.pipeline.clock.ticks() - waiting_since
            self._try()
        return None

    def go_on(self) -> None:
        """Leave the queue, if there is a backend now."""
        # Backends may have come and gone since it took its place in line.
        self._slots = self.pipeline.live.pools.get(self._pool, self._slots)
        self._leave(self.pipeline.waiting[self])

    def _try(self, *, again: Slot | None = None) -> None:
        """Ask a backend; a request that this one cannot be asked is refused."""
        try:
            self._try_next(again=again)
        except RouterError as fault:
            self.refuse(fault)
        except Exception:
            self._failed_inside()

    def _failed_inside(self) -> None:
        log.exception("request failed inside the router", request_id=self.request_id)
        self.refuse(RouterError("The router failed on this request; its log says why."))

    @property
    def priority(self) -> int:
        """In line: that of its scenario."""
        if self.verdict is None:
            return 0
        return self.live.policy.scenarios[self.verdict.decision.scenario].priority

    def give_up_waiting(self) -> None:
        self.queued_s = self.pipeline.clock.ticks() - self.pipeline.waiting.pop(self)
        self.refuse(
            Overloaded(
                "Every backend is busy, and this request has waited for too long; try again.",
                retry_after_s=self.pipeline.retry_after_s(),
            )
        )

    def _decide(self) -> None:
        order, live = self.order, self.live
        if order.endpoint is Endpoint.OTHER or self._is_untouched():
            if order.grant is not None:
                permission.check_unclassified(order.grant, order.endpoint, order.path)
            return
        before = self.pipeline.clock.ticks()
        try:
            sessions = self.pipeline.sessions
            self.verdict = decide_for(
                order.endpoint,
                order.http.body,
                order.http.fields,
                live,
                sessions.scenario,
                self.request_id,
                order.grant,
            )
            session = self.verdict.request.session
            if session is not None and session.is_named:
                sessions.settled(session.hash, self.verdict.found.scenario)
        except RouterError:
            raise
        except Exception:
            # Better served without a preset than not at all; but never past what a key is for.
            if order.grant is not None and order.grant.scenarios is not None:
                raise
            log.exception("request not classified", request_id=self.request_id)
            self.warnings = ("the router failed to classify this request",)
            return
        self.classify_us = (self.pipeline.clock.ticks() - before) * 1e6
        self.warnings = self.verdict.decision.warnings

    def _is_untouched(self) -> bool:
        """Whether the client asked, and may ask, for its bytes to go on as they are."""
        if self.order.http.fields.get(b"x-router-policy", b"").lower() == b"off":
            if not self.live.allow_policy_off:
                raise Forbidden("This router does not allow x-router-policy: off.")
            return True
        grant = self.order.grant
        if self.live.real_model_bypass and (grant is None or grant.scenarios is None):
            model = untouched.model_of(self.order.http.body)
            return not is_virtual(model, self.live) and model in self.live.served_names()
        return False

    def _choose(self) -> None:
        """Put the backends in order. Raises where there is none to be had."""
        pipeline = self.pipeline
        pipeline.turn += 1
        session = None if self._is_fresh else self.session
        last = None
        if session is not None and len(self._slots) > 1:
            last = pipeline.affinity.last(self._pool, session)
        chosen = choosing.choice(
            self._slots,
            pipeline.turn,
            pipeline.clock.now(),
            pipeline.rules,
            session=session,
            remembered=self._remembered,
            last=last,
        )
        self._candidates, self._home = chosen.slots, chosen.home

    # ------------------------------------------------------------------ sending

    def _try_next(self, *, again: Slot | None = None) -> None:
        if again is None:
            slot, *self._candidates = self._candidates
        else:
            slot = again
        try:
            body = self._bytes_for(slot)
        except ContextLength:
            if again is None and self._candidates:
                self._try_next()  # another one may take more
                return
            raise
        self.slot = slot
        self.attempts += 1
        now = self.pipeline.clock.now()
        if self.attempts == 1:
            self.asked_at = now
            self.pipeline.budget.asked(now)
        if slot.health.opened is not None:
            slot.health = slot.health.trying(now)
        self._tried_at = now
        timeout_s = slot.upstream.backend.timeout_s
        self._attempt = slot.upstream.send(
            self._head_for(slot, len(body)),
            body,
            self.order.http.method,
            self.answering,
            fresh=again is not None,
            timeout_s=retrying.left_s(self.asked_at, now, timeout_s),
        )

    def _bytes_for(self, slot: Slot) -> bytes:
        """The request as this backend wants it, encoded once per dialect and model."""
        encoded, verdict = self._encoded, self.verdict
        if encoded is not None and encoded[1] == slot.dialect and encoded[2] == slot.model:
            return encoded[0]
        if verdict is None:
            body = untouched.with_model(self.order.http.body, slot.model, self.live)
        else:
            request = verdict.request
            check_fits(request, slot.dialect.context)
            self.told = told = verdict.told(slot.dialect, slot.model or "")
            body = told.patch.apply(request.raw, request.spans)
            self.warnings = told.warnings
        self._encoded = body, slot.dialect, slot.model
        return body

    def _head_for(self, slot: Slot, length: int) -> bytes:
        http = self.order.http
        fields = http.fields
        named = heads.named_by(fields.get(b"connection"))
        lines = [heads.request_start(self.order.path, slot.host) + self.request_id.encode()]
        lines += [
            line
            for header in http.headers
            if (line := heads.forwarded(header)) and header[0] not in named
        ]
        coding = fields.get(b"accept-encoding")
        if self.is_stream:
            coding = b"identity"  # frames are passed on one by one, and read for the record
        if coding is not None:
            lines.append(b"accept-encoding: " + coding)
        if slot.authorization is not None:
            lines.append(b"authorization: " + slot.authorization)
        elif not self.live.has_keys and b"authorization" in fields:
            lines.append(b"authorization: " + fields[b"authorization"])
        if self.pipeline.tracer is not None:
            lines = self.traced(self.pipeline.tracer).lead(lines)
        lines.append(b"content-length: %d\r\n\r\n" % length)
        return b"\r\n".join(lines)

    def traced(self, tracer: Tracer) -> Trace:
        """Its place in a trace, the same for all attempts."""
        if self.trace is None:
            self.trace = tracer.begin(self.order.http.fields)
        return self.trace

    @property
    def is_stream(self) -> bool:
        return self.verdict is not None and self.verdict.request.stream

    def on_sent(self) -> None:
        if self.sent_at is None:
            self.sent_at = self.pipeline.clock.ticks()

    def ask_again(self, body: bytes, listener: AnswerListener) -> None:
        """Ask the same backend, for the second half of the reply that is under way."""
        slot = self.slot
        assert slot is not None
        self._attempt = slot.upstream.send(
            self._head_for(slot, len(body)), body, self.order.http.method, listener, fresh=True
        )

    def forget_body(self) -> None:
        """It has arrived, so nobody will need it again."""
        self._encoded = None

    def stop_backend(self) -> None:
        """Nothing more is wanted of it."""
        if self._attempt is not None:
            self._attempt.cancel()

    # ------------------------------------------------------------------ what goes wrong

    def on_failure(self, fault: Exception, *, may_retry: bool) -> None:
        """Before the first byte: another try where that is safe. After it: say so and end."""
        assert isinstance(fault, BackendError)
        if self.is_over:
            return
        slot = self.slot
        is_untrusted = isinstance(fault, BackendUntrusted)
        was_stale = may_retry and self.sent_at is not None and not is_untrusted
        if slot is not None and not was_stale:
            self.observe("failed" if fault.tells_of_health else "client")
        if self.answering.has_begun:
            self.break_off(fault)
        elif was_stale and slot is not None and self.attempts <= _STALE_TRIES:
            self.sent_at = None
            self._note_failed("stale")
            self._try(again=slot)  # a kept-alive connection that had died
        elif may_retry and self._may_go_on():
            self.sent_at = None
            self._note_failed("untrusted" if is_untrusted else "unreachable")
            self._try()
        elif may_retry and not is_untrusted:
            self.refuse(
                BackendsUnreachable("No backend can be reached.", retry_after_s=_RETRY_AFTER_S)
            )
        else:
            self.refuse(fault)

    def try_another(self, head: AnswerHead) -> bool:
        """Whether another backend is asked, this one having said that it did not do the work."""
        is_safe = retrying.is_retryable(head.status, sent=True, answered=self.answering.has_begun)
        if not is_safe or not self._may_go_on():
            return False
        if not self.pipeline.budget.may_retry(self.pipeline.clock.now()):
            return False
        self.observe(health.outcome_of(head.status), head)
        self.stop_backend()
        self.sent_at = None
        self._note_failed(f"status {head.status}")
        self._try()
        return True

    def redirected(self) -> None:
        """A backend pointed elsewhere. Where requests go is the configuration's to say alone, and
        a client that went there would take its prompt past us."""
        self.observe("failed")
        self.refuse(BackendError("The backend answered with a redirect, which is not followed."))

    def _note_failed(self, reason: str) -> None:
        """The last attempt failed, and another one is to make up for it."""
        if self.slot is not None:
            self.tried += ((self.slot.name, reason),)

    def _may_go_on(self) -> bool:
        """Whether there is another backend, and a try and time left for it."""
        if not self._candidates or self.attempts > self.pipeline.attempts:
            return False
        now = self.pipeline.clock.now()
        timeout_s = self._candidates[0].upstream.backend.timeout_s
        return retrying.left_s(self.asked_at, now, timeout_s) > 0

    def observe(self, outcome: health.Outcome, head: AnswerHead | None = None) -> None:
        """What became of the request tells of the backend's health."""
        slot = self.slot
        if slot is None or (outcome == "ok" and slot.health.is_sound):
            return
        now, rules = self.pipeline.clock.now(), self.pipeline.rules
        was = slot.health.state(now)
        may_eject = outcome == "failed" and health.may_eject(
            [other.health for other in self._slots], now, rules
        )
        slot.health = slot.health.after(
            outcome,
            now,
            rules,
            retry_after_s=heads.retry_after(head.fields) if head is not None else None,
            may_eject=may_eject,
            sent_at=self._tried_at,
        )
        if (state := slot.health.state(now)) != was:
            log.info("backend's health", backend=slot.name, was=was, now=state)

    def took(self) -> None:
        """A backend has begun a proper answer: this is where the session is now."""
        session, slot, turns = self.session, self.slot, self._turns
        if slot is not None and slot.health.opened is not None:
            self.observe("ok")  # the answer to our question: a long stream must not hold its place
        if session is None or slot is None:
            return
        if len(self._slots) == 1:
            self.affinity = "hit" if turns > 1 else "new"
            return
        store, is_home = self.pipeline.affinity, slot.name == self._home
        # What nobody saw before may have been here all the same: another router takes it home
        # as well. But a hit is what we know of.
        self.affinity = "new"
        last = store.last(self._pool, session) or self._remembered
        if self._is_fresh:
            if store.is_shared:
                return  # not worth telling others: most of these never come back
        elif last == slot.name:
            self.affinity = "hit"
        elif last is not None:
            self.affinity, self.moved_because = "moved", self._why_not(last)
        # All routers find a home by themselves. A session that its client has a name for is told
        # of all the same: then it stays where it is when a backend is added, and its turns are
        # known for hits by routers that have not seen it.
        is_untold = is_home and not (store.is_shared and self._has_named_session)
        try:
            store.served(self._pool, session, slot.name, is_home=is_untold)
        except Exception:
            log.exception("session not remembered", request_id=self.request_id)

    def _why_not(self, name: str) -> str:
        """Why a session is no longer at this backend."""
        slot = next((slot for slot in self._slots if slot.name == name), None)
        if slot is None:
            return f"{name} is gone"
        if slot.is_draining:
            return f"{name} is drained"
        if self.attempts > 1:
            return f"{name} failed on this request"
        now = self.pipeline.clock.now()
        if not slot.health.is_usable(now):
            return f"{name} is {slot.health.state(now)}"
        if self.slot is not None and self._home == self.slot.name:
            return f"{self._home} is its home again"
        return f"{name} was busy"

    def on_client_gone(self) -> None:
        """The client left: what it asked for is stopped at once."""
        if self.is_over:
            return
        if self._lookup is not None:
            self._lookup.cancel()
        self.stop_backend()
        if not self.answering.is_answered():
            self.outcome = "client_disconnect"
            self.observe("client")
        else:
            self.observe("ok")
        self._end()

    def pause(self) -> None:
        if self._attempt is not None:
            self._attempt.pause()

    def resume(self) -> None:
        if self._attempt is not None:
            self._attempt.resume()

    def end_now(self) -> None:
        """The grace of a shutdown is over."""
        if self.is_over:
            return
        if self._lookup is not None:
            self._lookup.cancel()
        self.stop_backend()
        if self.answering.has_begun:
            self.break_off(BackendError("The router is shutting down."))
        else:
            self.refuse(Draining("The router is shutting down.", retry_after_s=_RETRY_AFTER_S))

    # ------------------------------------------------------------------ endings

    def finish(self, error: str | None) -> None:
        """The answer is whole; `error`: what it told of one inside."""
        if error is not None and self.outcome == "ok":
            self.outcome, self.error_code = "upstream_error", "backend_error"
        self.observe("ok" if error is None else "failed")
        self._end()
        self.reply.finish(keep=True)

    def break_off(self, fault: RouterError) -> None:
        """After the first byte: one error frame where frames are spoken, then the end."""
        self._note_fault(fault)
        self._break_off(fault.body())

    def _break_off(self, error: bytes) -> None:
        last = self.answering.last_words(error)
        if last is not None:
            self.reply.write(last)
        self._end()
        if last is not None:
            # Nothing has told the client that the connection would close, so where the reply has an
            # end of its own it does not: the next request may be on its way.
            self.reply.finish(keep=self.answering.is_framed)
        else:
            self.reply.abort()

    def refuse(self, fault: RouterError) -> None:
        """Answer with an error of our own."""
        if self.answering.is_early:
            self.break_off(fault)
            return
        self._note_fault(fault)
        self._send_whole(fault.status, fault.body(), fault.lines())

    def _note_fault(self, fault: RouterError) -> None:
        self.outcome, self.error_code = fault.outcome, fault.code
        if fault.limit is not None:
            self.pipeline.meter.limited(fault.limit)

    def send_error(self, status: int, body: bytes, extra: Sequence[bytes]) -> None:
        """Tell the client of a backend's error; `extra` are header lines."""
        if status in (429, 503):
            self.outcome = "rejected"
        else:
            self.outcome = "upstream_error" if status >= 500 else "client_error"
        self.error_code = refusals.code_in(status, body)
        if self.answering.is_early:
            self._break_off(body)
        else:
            self._send_whole(status, body, extra)

    def _send_whole(self, status: int, body: bytes, extra: Sequence[bytes]) -> None:
        lines = self.own_lines(status)
        lines += extra
        lines.append(b"content-type: application/json\r\ncontent-length: %d" % len(body))
        self.reply.write(self.head_bytes(status, lines) + body)
        self._end()
        self.reply.finish(keep=True)

    # ------------------------------------------------------------------ the reply's head

    def head_lines(self, answer: AnswerHead, *, is_decoded: bool = False) -> list[bytes]:
        """A backend's head as the client gets it, still without the body's framing.

        `is_decoded`: the body is a JSON document, whatever it was when it came.
        """
        lines = self.own_lines(answer.status)
        named = heads.named_by(answer.fields.get(b"connection"))
        theirs = [
            line
            for header in answer.headers
            if (line := heads.returned(header)) and header[0] not in named
        ]
        if self.toll is not None:  # a backend's are about our key there, and not the client's
            theirs = [line for line in theirs if not line.startswith(tolls.PREFIX)]
        lines += theirs
        if is_decoded and answer.fields.get(b"content-type", b"").startswith(b"text/event-stream"):
            lines = [line for line in lines if not line.startswith(_OF_STREAMS)]
            lines.append(b"content-type: application/json")
        if is_decoded and b"content-encoding" in answer.fields:
            lines = [line for line in lines if not line.startswith(b"content-encoding:")]
        return lines

    def own_lines(self, status: int) -> list[bytes]:
        """Status line and the headers that every reply carries."""
        verdict, slot = self.verdict, self.slot
        start = heads.reply_start(
            status,
            verdict.plan.decision.scenario if verdict is not None else None,
            slot.name if slot is not None else None,
            self.live.policy.hash,
        )
        lines = [start + self.request_id.encode()]
        if self.sent_at is not None:
            ours_s = self.sent_at - self.started - self.queued_s
            whole, part = divmod(int(ours_s * 1e6 + 0.5), 1000)
            lines.append(b"x-router-overhead-ms: %d.%03d" % (whole, part))
        if verdict is not None and verdict.plan.arm is not None:
            lines.append(verdict.plan.arm.header)
        if self.answering.is_rescued:
            lines.append(RESCUED)
        if (toll := self.toll) is not None:
            lines += self._rate_lines(toll)
        if self.pipeline.cors is not None:
            lines += self.pipeline.cors.lines(self.order.http.fields)
        if self.warnings:
            lines.append(b"x-router-warnings: " + heads.ascii_line("; ".join(self.warnings)))
        if verdict is not None and b"x-router-debug" in self.order.http.fields:
            lines += self._debug_lines(verdict)
        return lines

    def _debug_lines(self, verdict: Verdict) -> list[bytes]:
        if self.order.http.fields[b"x-router-debug"].lower() not in (b"true", b"1"):
            return []
        thinking = {True: b"on", False: b"off", None: b"backend"}[verdict.decision.thinking]
        session = verdict.request.session
        sent = self.told.params if self.told is not None else {}
        actions = "; ".join(
            f"{p.name}={_brief(sent.get(p.name))} {p.origin}" for p in verdict.decision.params
        )
        return [
            b"x-router-source: " + verdict.found.source.encode(),
            b"x-router-confidence: %.2f" % verdict.found.confidence,
            b"x-router-thinking: " + thinking,
            b"x-router-session: " + (session.hash.encode() if session else b"none"),
            b"x-router-affinity: " + self.affinity.encode(),
            b"x-router-params: " + heads.ascii_line(actions),
            b"x-router-because: "
            + heads.ascii_line("; ".join(verdict.found.signals + verdict.decision.because)),
        ]

    def head_bytes(self, status: int, lines: list[bytes]) -> bytes:
        self.status = status
        if not self.order.http.keep_alive:
            lines.append(b"connection: close")
        lines.append(b"\r\n")
        return b"\r\n".join(lines)

    # ------------------------------------------------------------------ the record

    @property
    def is_large(self) -> bool:
        return len(self.order.http.body) > _LARGE

    def _end(self) -> None:
        """The journey is over, in whichever way: exactly one record will tell of it."""
        if self.is_over:
            return
        self.is_over = True
        self.stop_backend()  # nothing more is wanted of one that is still at it
        self._attempt = None
        self.ended_at = self.pipeline.clock.ticks()
        if self.toll is not None:
            self._free_the_place(self.toll)
        self.pipeline.ended(self)

    def account(self) -> tuple[Record, Sequence[tuple[str, str, str]]]:
        """The log line, and what the preset did for the metrics."""
        return account.of(self)

    def settle(self, toll: Toll, record: Record) -> None:
        """Pay for what was used, in place of what was reserved."""
        if not toll.is_granted:
            return
        try:
            tokens = tolls.used(record, toll, was_sent=self.sent_at is not None)
            self.pipeline.rates.settle(toll, tokens)
        except Exception:
            log.exception("tokens not settled", request_id=self.request_id)

    def journey(self, record: Record) -> Journey | None:
        """For its spans; None where it is not to be told of."""
        return account.journey(self, record)

    def spoken(self, record: Record, said: Said) -> Spoken:
        """What the request and its answer said, to be written down beside the record."""
        return Spoken(
            ts=record.ts,
            request_id=self.request_id,
            endpoint=self.order.endpoint,
            scenario=record.scenario,
            raw=self.order.http.body,
            said=said,
        )


def _brief(value: Any) -> str:
    return msgspec.json.encode(value).decode() if not isinstance(value, str) else value
