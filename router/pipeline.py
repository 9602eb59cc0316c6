"""The journey of one request, top to bottom; speaks only to ports.

    start → parse → classify → decide → (rewrite → encode) → order → send
    on_head → on_piece … → finish, and from wherever it ends: one record

An Exchange is told what happens by its upstream and its client, and never waits: no
task and no future per request. The pure part is in verdict.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import msgspec
import structlog

from router import balance, dialects, heads, relay, splice, wire
from router.chat import Endpoint
from router.errors import (
    BackendError,
    BackendsUnreachable,
    ClientError,
    Draining,
    Forbidden,
    NoBackend,
    Overloaded,
    RouterError,
)
from router.ports import Attempt, Clock, Journal, Meter, Reply, Sessions
from router.record import Record, timestamp
from router.verdict import Live, Slot, Told, Verdict, decide_for, is_virtual, params_line
from router.wire import AnswerHead, Piece

log = structlog.get_logger(__name__)

_ERROR_BODY_LIMIT = 1 << 20
_AUTO_FIRST = b'{"model":"auto"'
_MODEL_FIRST = re.compile(rb'\{\s*"model"\s*:\s*"([A-Za-z0-9:_./-]*)"\s*[,}]')
_RETRY_AFTER_S = 1
#: records made in a row: a quarter of a millisecond
_SETTLED_TOGETHER = 64
_LARGE = 64 << 10


class Order(msgspec.Struct, frozen=True):
    """A request as the edge hands it over."""

    http: wire.Request
    endpoint: Endpoint
    path: bytes  # as the backend wants it, with its query
    key: str | None  # the client's name, where clients have keys


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
    ) -> None:
        """`soon` calls a function a little later, when nobody waits for an answer."""
        self._soon = soon
        self._ended: list[Exchange] = []
        self.live = live
        self.journal = journal
        self.meter = meter
        self.clock = clock
        self.sessions = sessions
        self.active: set[Exchange] = set()
        self.is_draining = False
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
        self._ended.append(exchange)
        if exchange.is_large or len(self._ended) >= _SETTLED_TOGETHER:
            self.settle()  # large: its bytes are not kept a moment longer
        elif len(self._ended) == 1:
            self._soon(self.settle)

    def settle(self) -> None:
        """Make the records of all that has ended."""
        ended, self._ended = self._ended, []
        for exchange in ended:
            self._record(exchange)

    def _record(self, exchange: Exchange) -> None:
        try:
            record, actions = exchange.record()
            self.meter.observe(record, actions)
            self.journal.write(record)
        except Exception:
            log.exception("record not made", request_id=exchange.request_id)

    def id_for(self, fields: Mapping[bytes, bytes]) -> str:
        """The id of a request: its own, or a new one."""
        return heads.given_id(fields) or self.new_id()

    def note(self, endpoint: str, request_id: str, fault: RouterError) -> None:
        """Record a request that ended before its journey began (bad HTTP, no key)."""
        record = Record(
            ts=timestamp(self.clock.now()),
            request_id=request_id,
            endpoint=endpoint,
            policy=self.live.policy.hash,
            status=fault.status,
            outcome=fault.outcome,
            error_code=fault.code,
        )
        self.meter.observe(record, ())
        self.journal.write(record)


class Exchange:
    """One request on its way. The one mutable thing of a journey; never leaves it."""

    # What most requests never set stands here once and not in every instance.
    verdict: Verdict | None = None
    warnings: tuple[str, ...] = ()
    is_over = False
    _candidates: Sequence[Slot] = ()
    _slot: Slot | None = None
    _told: Told | None = None
    _body: bytes | None = None
    _body_for: tuple[dialects.Dialect, str | None] | None = None
    _attempt: Attempt | None = None
    _attempts = 0
    _classify_us: float | None = None
    _sent_at: float | None = None
    _first_token_at: float | None = None
    _status: int | None = None  # as sent to the client
    _passage: relay.Stream | relay.Whole | None = None
    _frames = False
    _is_mid_stream = False
    _is_read = False  # the answer's body was looked into
    _ended_at = 0.0
    _held_head = b""
    _refused: list[bytes] | None = None  # an error body being gathered
    _answer: AnswerHead | None = None
    _outcome = "ok"
    _error_code: str | None = None

    def __init__(self, pipeline: Pipeline, order: Order, reply: Reply) -> None:
        self.pipeline = pipeline
        self.live = pipeline.live
        self.order = order
        self.reply = reply
        self.started = pipeline.clock.ticks()
        self.request_id = pipeline.id_for(order.http.fields)
        self.tally = relay.Tally()

    # ------------------------------------------------------------------ deciding

    def start(self) -> None:
        try:
            if self.pipeline.is_draining:
                raise Draining("The router is shutting down.", retry_after_s=_RETRY_AFTER_S)
            self._decide()
            self._candidates = self._ordered()
            self._try_next()
        except RouterError as fault:
            self._refuse(fault)
        except Exception:
            log.exception("request failed inside the router", request_id=self.request_id)
            self._refuse(RouterError("The router failed on this request; its log says why."))

    def _decide(self) -> None:
        order, live = self.order, self.live
        if order.endpoint is Endpoint.OTHER or self._is_untouched():
            return
        before = self.pipeline.clock.ticks()
        try:
            sessions = self.pipeline.sessions
            self.verdict = decide_for(
                order.endpoint, order.http.body, order.http.fields, live, sessions.scenario
            )
            session = self.verdict.request.session
            if session is not None and session.source != "fingerprint":
                sessions.settled(session.hash, self.verdict.found.scenario)
        except RouterError:
            raise
        except Exception:
            # Better served without a preset than not at all.
            log.exception("request not classified", request_id=self.request_id)
            self.warnings = ("the router failed to classify this request",)
            return
        self._classify_us = (self.pipeline.clock.ticks() - before) * 1e6
        self.warnings = self.verdict.decision.warnings

    def _is_untouched(self) -> bool:
        """Whether the client asked, and may ask, for its bytes to go on as they are."""
        if self.order.http.fields.get(b"x-router-policy", b"").lower() == b"off":
            if not self.live.allow_policy_off:
                raise Forbidden("This router does not allow x-router-policy: off.")
            return True
        if self.live.real_model_bypass:
            model = _model_of(self.order.http.body)
            return not is_virtual(model, self.live) and model in self.live.served_names()
        return False

    def _ordered(self) -> list[Slot]:
        """The backends to try. Raises where there is none to be had."""
        pool = self.verdict.decision.pool if self.verdict is not None else "default"
        slots = self.live.pools.get(pool)
        if slots is None and self.verdict is None and self.live.pools:
            slots = next(iter(self.live.pools.values()))
        if not slots:
            raise NoBackend(f"There is no backend in the pool {pool!r}.")
        if len(slots) == 1:
            slot = slots[0]
            if slot.upstream.inflight < slot.upstream.backend.max_inflight:
                return [slot]
        self.pipeline.turn += 1
        candidates = [
            balance.Candidate(
                slot.upstream.backend.weight,
                slot.upstream.inflight,
                slot.upstream.backend.max_inflight,
                slot.health.is_up,
            )
            for slot in slots
        ]
        indexes = balance.order(candidates, self.pipeline.turn)
        if not indexes:
            raise Overloaded(
                "Every backend is busy; try again shortly.", retry_after_s=_RETRY_AFTER_S
            )
        return [slots[index] for index in indexes]

    # ------------------------------------------------------------------ sending

    def _try_next(self, *, again: Slot | None = None) -> None:
        if again is None:
            slot, *self._candidates = self._candidates
        else:
            slot = again
        body = self._bytes_for(slot)
        self._slot = slot
        self._attempts += 1
        self._attempt = slot.upstream.send(
            self._head_for(slot, len(body)),
            body,
            self.order.http.method,
            self,
            fresh=again is not None,
        )

    def _bytes_for(self, slot: Slot) -> bytes:
        """The request as this backend wants it, encoded once per dialect and model."""
        wanted = (slot.dialect, slot.model)
        if self._body is None or self._body_for != wanted:
            verdict = self.verdict
            if verdict is None:
                self._body = self._plain_body(slot)
            else:
                request = verdict.request
                self._told = told = verdict.told(slot.dialect, slot.model or "")
                self._body = told.patch.apply(request.raw, request.spans)
                self.warnings = told.warnings
            self._body_for = wanted
        return self._body

    def _plain_body(self, slot: Slot) -> bytes:
        """The client's own bytes; only a model name that means us is put right."""
        body = self.order.http.body
        if not slot.model or body[:1] != b"{":
            return body
        if body.startswith(_AUTO_FIRST):
            name = msgspec.json.encode(slot.model)
            return b'{"model":' + name + body[len(_AUTO_FIRST) :]
        first = _MODEL_FIRST.match(body)
        if first is not None:
            if is_virtual(first[1].decode(), self.live):
                name = msgspec.json.encode(slot.model)
                return body[: first.start(1) - 1] + name + body[first.end(1) + 1 :]
            return body
        try:
            values, spans = splice.members(body)
        except ClientError:
            return body  # not ours to judge here
        if "model" in values and is_virtual(_model_of(body), self.live):
            return splice.apply(body, spans, {"model": msgspec.json.encode(slot.model)})
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
        lines.append(b"content-length: %d\r\n\r\n" % length)
        return b"\r\n".join(lines)

    @property
    def is_stream(self) -> bool:
        return self.verdict is not None and self.verdict.request.stream

    # ------------------------------------------------------------------ the answer

    def on_sent(self) -> None:
        if self._sent_at is None:
            self._sent_at = self.pipeline.clock.ticks()

    def on_whole(self, head: AnswerHead, body: bytes) -> None:
        kind = head.fields.get(b"content-type", b"")
        if head.status >= 400 or kind.startswith(b"text/event-stream"):
            self.on_head(head, has_more=True)
            self.on_piece(body, Piece([body], False, True, b""))
            return
        self._answer = head
        self._is_read = True
        lines = self._head_lines(head)
        lines.append(b"content-length: %d" % len(body))
        self.reply.write(self._head_bytes(head.status, lines) + body)
        self._first_token_at = self.pipeline.clock.ticks()
        if len(body) <= relay.WHOLE_LIMIT:
            coding = head.fields.get(b"content-encoding", b"").lower()
            self.tally.read(relay.decoded(body, coding))
        self._finish()

    def on_head(self, head: AnswerHead, *, has_more: bool) -> None:
        self._answer = head
        self._body = None  # it has arrived, so nobody will need it again
        if head.status >= 400:
            self._refused = []
            return
        self._is_read = True
        kind = head.fields.get(b"content-type", b"")
        coding = head.fields.get(b"content-encoding", b"").lower()
        is_sse = kind.startswith(b"text/event-stream")
        length = head.fields.get(b"content-length")
        if b"transfer-encoding" in head.fields:
            length = None  # chunks overrule a length (RFC 9112 §6.3)
        if is_sse and coding in (b"", b"identity"):
            asked = self.verdict is not None and self.verdict.plan.changes.ask_usage
            ends = self._slot is None or self._slot.dialect.ends_with_done
            self._passage = relay.Stream(self.tally, cuts_usage=asked, adds_done=not ends)
            length = None
        else:
            self._passage = relay.Whole(self.tally, coding)
        has_body = head.status not in (204, 304)
        self._frames = has_body and length is None and not self.order.http.is_http10
        lines = self._head_lines(head)
        if is_sse:
            lines.append(b"x-accel-buffering: no")
            if b"cache-control" not in head.fields:
                lines.append(b"cache-control: no-cache")
        if length is not None:
            lines.append(b"content-length: " + length)
        elif self._frames:
            lines.append(b"transfer-encoding: chunked")
        start = self._head_bytes(head.status, lines)
        self._is_mid_stream = True
        if has_more:
            self._held_head = start  # one send for both; the piece comes in this very call
        else:
            self.reply.write(start)

    def express(self) -> tuple[Callable[[bytes], bool], Callable[[bytes], None]] | None:
        passage = self._passage
        if isinstance(passage, relay.Stream) and self._frames and passage.is_clear:
            return passage.express, self.reply.write
        return None

    def on_piece(self, data: bytes, piece: Piece) -> None:
        if self._refused is not None:
            self._gather_refusal(piece)
            return
        passage = self._passage
        assert passage is not None
        out = passage.pass_on(data, piece, self._frames)
        if self._held_head:
            out, self._held_head = self._held_head + out, b""
        if out:
            self.reply.write(out)
        if self._first_token_at is None and (self.tally.has_token or not self.is_stream):
            self._first_token_at = self.pipeline.clock.ticks()
        if piece.is_last:
            self._finish()

    def on_end(self) -> None:
        if self._refused is not None:
            self._send_refusal()
            return
        if self._passage is not None:
            rest = self._passage.end(self._frames)
            if rest:
                self.reply.write(rest)
        self._finish()

    def on_failure(self, fault: Exception, *, may_retry: bool) -> None:
        """Before the first byte: another try where that is safe. After it: say so and end."""
        assert isinstance(fault, BackendError)
        if self.is_over:
            return
        if self._is_mid_stream:
            self._break_off(fault)
        elif may_retry and self._sent_at is not None and self._slot is not None:
            self._sent_at = None
            self._try_next(again=self._slot)  # a kept-alive connection that had died
        elif may_retry and self._candidates:
            self._try_next()
        elif may_retry:
            self._refuse(
                BackendsUnreachable("No backend can be reached.", retry_after_s=_RETRY_AFTER_S)
            )
        else:
            self._refuse(fault)

    def on_client_gone(self) -> None:
        """The client left: what it asked for is stopped at once."""
        if self.is_over:
            return
        if self._attempt is not None:
            self._attempt.cancel()
        if not self._is_answered():
            self._outcome = "client_disconnect"
        self._end()

    def _is_answered(self) -> bool:
        """Whether the client has all of a stream: OpenAI's SDK hangs up at `[DONE]`, before the
        last chunk of the framing is there."""
        if isinstance(self._passage, relay.Stream):
            self._passage.count()
        return self.tally.has_done

    def pause(self) -> None:
        if self._attempt is not None:
            self._attempt.pause()

    def resume(self) -> None:
        if self._attempt is not None:
            self._attempt.resume()

    def break_off(self) -> None:
        """The grace of a shutdown is over."""
        if self.is_over:
            return
        if self._attempt is not None:
            self._attempt.cancel()
        fault = BackendError("The router is shutting down.")
        if self._is_mid_stream:
            self._break_off(fault)
        else:
            self._refuse(Draining("The router is shutting down.", retry_after_s=_RETRY_AFTER_S))

    # ------------------------------------------------------------------ endings

    def _finish(self) -> None:
        self._is_mid_stream = False
        if self.tally.error is not None and self._outcome == "ok":
            self._outcome, self._error_code = "upstream_error", "backend_error"
        self._end()
        self.reply.finish(keep=True)

    def _break_off(self, fault: RouterError) -> None:
        """After the first byte: one error frame where frames are spoken, then the end."""
        self._outcome, self._error_code = fault.outcome, fault.code
        if isinstance(self._passage, relay.Stream):
            self.reply.write(self._passage.break_off(fault.body(), self._frames))
            self._end()
            self.reply.finish(keep=False)
        else:
            self._end()
            self.reply.abort()

    def _refuse(self, fault: RouterError) -> None:
        """Answer with an error of our own."""
        self._outcome, self._error_code = fault.outcome, fault.code
        extra = []
        if fault.retry_after_s is not None:
            extra.append(b"retry-after: %d" % fault.retry_after_s)
        self._send_whole(fault.status, fault.body(), extra)
        self._end()
        self.reply.finish(keep=True)

    def _gather_refusal(self, piece: Piece) -> None:
        assert self._refused is not None
        if sum(map(len, self._refused)) < _ERROR_BODY_LIMIT:
            self._refused += piece.payloads
        if piece.is_last:
            self._send_refusal()

    def _send_refusal(self) -> None:
        """A backend's own error: its status and words, in the shape that clients read."""
        assert self._answer is not None
        assert self._refused is not None
        status, fields = self._answer.status, self._answer.fields
        coding = fields.get(b"content-encoding", b"").lower()
        body = relay.in_shape(status, relay.decoded(b"".join(self._refused), coding))
        extra = [
            b"%b: %b" % (name, value)
            for name, value in self._answer.headers
            if name in (b"retry-after", b"retry-after-ms", b"x-should-retry", b"www-authenticate")
        ]
        if status in (429, 503):
            self._outcome = "rejected"
        else:
            self._outcome = "upstream_error" if status >= 500 else "client_error"
        self._error_code = _code_of(body)
        self._send_whole(status, body, extra)
        self._end()
        self.reply.finish(keep=True)

    def _send_whole(self, status: int, body: bytes, extra: Sequence[bytes]) -> None:
        lines = self._own_lines(status)
        lines += extra
        lines.append(b"content-type: application/json\r\ncontent-length: %d" % len(body))
        self.reply.write(self._head_bytes(status, lines) + body)

    def _head_lines(self, answer: AnswerHead) -> list[bytes]:
        """A backend's head as the client gets it, still without the body's framing."""
        lines = self._own_lines(answer.status)
        named = heads.named_by(answer.fields.get(b"connection"))
        lines += [
            line
            for header in answer.headers
            if (line := heads.returned(header)) and header[0] not in named
        ]
        return lines

    def _own_lines(self, status: int) -> list[bytes]:
        """Status line and the headers that every reply carries."""
        verdict, slot = self.verdict, self._slot
        start = heads.reply_start(
            status,
            verdict.plan.decision.scenario if verdict is not None else None,
            slot.name if slot is not None else None,
            self.live.policy.hash,
        )
        lines = [start + self.request_id.encode()]
        if self._sent_at is not None:
            whole, part = divmod(int((self._sent_at - self.started) * 1e6 + 0.5), 1000)
            lines.append(b"x-router-overhead-ms: %d.%03d" % (whole, part))
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
        sent = self._told.params if self._told is not None else {}
        actions = "; ".join(
            f"{p.name}={_brief(sent.get(p.name))} {p.origin}" for p in verdict.decision.params
        )
        return [
            b"x-router-source: " + verdict.found.source.encode(),
            b"x-router-confidence: %.2f" % verdict.found.confidence,
            b"x-router-thinking: " + thinking,
            b"x-router-session: " + (session.hash.encode() if session else b"none"),
            b"x-router-affinity: none",
            b"x-router-params: " + heads.ascii_line(actions),
            b"x-router-because: "
            + heads.ascii_line("; ".join(verdict.found.signals + verdict.decision.because)),
        ]

    def _head_bytes(self, status: int, lines: list[bytes]) -> bytes:
        self._status = status
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
        self._attempt = None
        self._ended_at = self.pipeline.clock.ticks()
        self.pipeline.ended(self)

    def record(self) -> tuple[Record, Sequence[tuple[str, str, str]]]:
        """The log line, and what the preset did for the metrics."""
        clock = self.pipeline.clock
        total_s = self._ended_at - self.started
        order, slot, sent_at = self.order, self._slot, self._sent_at
        record = Record(
            ts=timestamp(clock.now() - (clock.ticks() - self.started)),
            request_id=self.request_id,
            key=order.key,
            endpoint=order.endpoint if order.endpoint is not Endpoint.OTHER else _name(order.path),
            policy=self.live.policy.hash,
            warnings=self.warnings,
            total_ms=_ms(total_s),
            status=self._status,
            outcome=self._outcome,
            error_code=self._error_code,
        )
        if b"traceparent" in order.http.fields:
            record.trace_id = heads.trace_id(order.http.fields)
        if slot is not None:
            record.backend = slot.name
            record.backend_model = slot.model
            record.dialect = slot.dialect.name
            record.retries = self._attempts - 1
        if sent_at is not None:
            record.overhead_ms = _ms(sent_at - self.started)
        if self.verdict is not None:
            self._describe(record, self.verdict)
        if self._is_read:
            self._describe_answer(record, total_s)
        return record, self.verdict.plan.actions if self.verdict is not None else ()

    def _describe(self, record: Record, verdict: Verdict) -> None:
        request, found, decision = verdict.request, verdict.found, verdict.plan.decision
        if request.session is not None:
            record.session = request.session.hash
        record.client_model = request.model
        record.pool = decision.pool
        record.scenario = found.scenario
        record.source = found.source
        record.confidence = int(found.confidence * 1e3 + 0.5) / 1e3
        record.signals = found.signals + decision.because if decision.because else found.signals
        record.lang = found.lang
        record.turns = request.turns
        record.prompt_chars = found.chars
        record.stream = request.stream
        record.thinking = decision.thinking
        record.params = self._told.line if self._told is not None else params_line(decision, {})
        if self._classify_us is not None:
            record.classify_us = int(self._classify_us * 10 + 0.5) / 10

    def _describe_answer(self, record: Record, total_s: float) -> None:
        if isinstance(self._passage, relay.Stream):
            self._passage.count()
        tally, first = self.tally, self._first_token_at
        record.input_tokens = tally.input_tokens
        record.output_tokens = tally.output_tokens
        record.cached_tokens = tally.cached_tokens
        record.reasoning_tokens = tally.reasoning_tokens
        record.answer_chars = tally.answer_chars
        record.reasoning_chars = tally.reasoning_chars
        record.finish_reason = tally.finish_reason
        if first is not None:
            ttft_s = first - self.started
            record.ttft_ms = _ms(ttft_s)
            if tally.output_tokens is not None and tally.output_tokens > 1 and self.is_stream:
                record.tpot_ms = _ms((total_s - ttft_s) / (tally.output_tokens - 1))


def _ms(seconds: float) -> float:
    """Milliseconds, three digits behind the point: a third of what round() takes."""
    return int(seconds * 1e6 + 0.5) / 1e3


def _model_of(body: bytes) -> str:
    try:
        return _Named.decode(body).model or ""
    except msgspec.DecodeError:
        return ""


class _ModelOnly(msgspec.Struct):
    model: str | None = None


_Named = msgspec.json.Decoder(_ModelOnly)


def _code_of(body: bytes) -> str | None:
    try:
        code = msgspec.json.decode(body)["error"].get("code")
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return "backend_error"
    return None if code is None else str(code)


def _name(path: bytes) -> str:
    return path.partition(b"?")[0].decode("latin-1").removeprefix("/v1").lstrip("/")


def _brief(value: Any) -> str:
    return msgspec.json.encode(value).decode() if not isinstance(value, str) else value
