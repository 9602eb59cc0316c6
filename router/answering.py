"""The answer to one request: heard from the backend, given to the client.

    on_head, on_piece … on_end     as it comes, or whole where something has to be looked at:
    passed on      relay.py        every answer that needs nothing
    gathered       collect.py      a whole answer in which a thought may have to be moved
    collected      collect.py      a streamed one, for a client that wants a whole
    joined         rescue.py       two, where thought left no tokens for the answer, or was stopped

The fast ways are the first ones; an Exchange owns it and ends the journey.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import orjson

from router import bridge, collect, health, refusals, relay, rescue, sse, wire
from router.bridge import Bridge
from router.chat import Endpoint
from router.errors import BackendError
from router.message import AnswerHead
from router.tally import Tally
from router.wire import Piece

if TYPE_CHECKING:
    from router.exchange import Exchange

_ERROR_BODY_LIMIT = 1 << 20
#: marks a reply whose answer had to be asked for again: a header, a trailer behind a stream
RESCUED = b"x-router-rescued: thought-used-up-the-tokens"
_TRAILER = b"trailer: x-router-rescued"
_LAST_RESCUED = b"0\r\n" + RESCUED + b"\r\n\r\n"
_REFUSAL_HEADERS = frozenset(
    {b"retry-after", b"retry-after-ms", b"x-should-retry", b"www-authenticate"}
)


class Answering:
    """Listens to the backend of one exchange."""

    # What most answers never set stands here once and not in every instance.
    is_read = False  # the answer's body was looked into
    is_rescued = False
    is_early = False  # the reply began before the backend had said anything
    first_token_at: float | None = None
    _is_mid_stream = False
    _frames = False
    _held_head = b""
    _refused: list[bytes] | None = None  # an error body being gathered
    _answer: AnswerHead | None = None
    _bridge: Bridge | None = None
    _seen: tuple[int, int, int] | None = None  # how far the stream was when last looked at
    _quiet_since = 0.0
    __deletable__ = ("_exchange",)  # for mypyc, see `let_go`

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.tally = Tally()
        # mypyc sets no union in the class.
        self._passage: relay.Stream | relay.Whole | None = None
        self._gathering: collect.Gathered | collect.Collector | None = None  # of a whole answer

    def let_go(self) -> None:
        """The exchange is over and recorded. Each holding the other, both would stay until the
        garbage collector comes by: at some thousand requests a second that is 100 MB."""
        del self._exchange

    @property
    def has_begun(self) -> bool:
        """Whether the client has a part of an answer, so that nothing but it can follow."""
        return self._is_mid_stream and not (self.is_early and self._answer is None)

    def is_answered(self) -> bool:
        """Whether the client has all of a stream: OpenAI's SDK hangs up at `[DONE]`, before the
        last chunk of the framing is there."""
        self.count()
        return self.tally.has_done

    def count(self) -> None:
        """Read what has gone out unread."""
        if isinstance(self._passage, relay.Stream):
            self._passage.count()

    @property
    def is_framed(self) -> bool:
        """Whether the reply's end shows in its bytes, and not in the connection's."""
        return self._frames

    def last_words(self, error: bytes) -> bytes | None:
        """What ends a reply that has begun; None where an error has no place in it."""
        if self.is_early and self._passage is None:
            text = sse.event(error)
            return wire.chunk(text) + wire.LAST_CHUNK if self._frames else text
        if isinstance(self._passage, relay.Stream):
            return self._passage.break_off(error, self._frames)
        return None

    # ------------------------------------------------------------------ from the backend

    def on_sent(self) -> None:
        self._exchange.on_sent()

    def on_failure(self, fault: Exception, *, may_retry: bool) -> None:
        self._exchange.on_failure(fault, may_retry=may_retry)

    def on_whole(self, head: AnswerHead, body: bytes) -> None:
        kind = head.fields.get(b"content-type", b"")
        if head.status >= 300 or kind.startswith(b"text/event-stream"):
            self.on_head(head, has_more=True)
            if self._answer is head:  # else another backend is asked
                self.on_piece(body, Piece([body], False, True, b""))
            return
        self._answer = head
        self._exchange.took()
        self.is_read = True
        coding = head.fields.get(b"content-encoding", b"").lower()
        if self.is_early:
            self._exchange.break_off(BackendError("The backend did not stream its answer."))
            return
        if self._looks() and len(body) <= relay.WHOLE_LIMIT:
            plain = relay.decoded(body, coding)
            if plain and self._needs_a_look(plain):
                self._turn(plain)
                return
        self._send_answer(head, body, coding)

    def on_head(self, head: AnswerHead, *, has_more: bool) -> None:
        if head.status >= 300:
            if head.status < 400:
                self._answer = head
                self._exchange.redirected()
                return
            if self._exchange.try_another(head):
                return
            self._answer, self._refused = head, []
            self._exchange.observe(health.outcome_of(head.status), head)
            return
        self._answer = head
        self._exchange.forget_body()
        self._exchange.took()
        self.is_read = True
        kind = head.fields.get(b"content-type", b"")
        coding = head.fields.get(b"content-encoding", b"").lower()
        is_sse = kind.startswith(b"text/event-stream")
        is_plain_sse = is_sse and coding in (b"", b"identity")
        if self._is_chat and not self._exchange.is_stream and is_plain_sse:
            stops = self._exchange.told is not None and self._exchange.told.budget is not None
            self._gathering = collect.Collector(self._new_bridge() if stops else None)
        elif self._looks() and not is_sse and not self.is_early:
            self._gathering = collect.Gathered(coding)
        else:
            self._pass_on(head, is_plain_sse, coding, has_more=has_more)

    def _pass_on(self, head: AnswerHead, is_sse: bool, coding: bytes, *, has_more: bool) -> None:
        """Begin to send the answer on as it comes."""
        length = head.fields.get(b"content-length")
        if b"transfer-encoding" in head.fields:
            length = None  # chunks overrule a length (RFC 9112 §6.3)
        if is_sse:
            self._passage = self._stream()
            length = None
        elif self.is_early:
            self._exchange.break_off(BackendError("The backend did not stream its answer."))
            return
        else:
            self._passage = relay.Whole(self.tally, coding)
        if self.is_early:
            return
        has_body = head.status not in (204, 304)
        self._frames = has_body and length is None and not self._exchange.order.http.is_http10
        lines = self._exchange.head_lines(head)
        if is_sse:
            if b"x-accel-buffering" not in head.fields:
                lines.append(b"x-accel-buffering: no")
            if b"cache-control" not in head.fields:
                lines.append(b"cache-control: no-cache")
        if length is not None:
            lines.append(b"content-length: " + length)
        elif self._frames:
            lines.append(b"transfer-encoding: chunked")
        if self._frames and is_sse and self._may_rescue():
            lines.append(_TRAILER)
        start = self._exchange.head_bytes(head.status, lines)
        if has_more or not is_sse:
            # One send for head and body; and a whole answer of which no more than the head comes
            # can still be told as the error that it is.
            self._held_head = start
        else:
            self._is_mid_stream = True
            self._exchange.reply.write(start)

    def express(self) -> tuple[Callable[[bytes], bool], Callable[[bytes], None]] | None:
        passage = self._passage
        if isinstance(passage, relay.Stream) and self._frames and passage.is_clear:
            return passage.express, self._exchange.reply.write
        return None

    def on_piece(self, data: bytes, piece: Piece) -> None:
        if self._refused is not None:
            self._gather_refusal(piece)
            return
        if self._gathering is not None:
            self._gather(self._gathering, piece)
            return
        passage = self._passage
        if passage is None:  # broken off at its head
            return
        out = passage.pass_on(data, piece, self._frames)
        if self._held_head:
            out, self._held_head = self._held_head + out, b""
            self._is_mid_stream = True
        if out:
            self._exchange.reply.write(out)
        if self.first_token_at is None and (self.tally.has_token or not self._exchange.is_stream):
            self.first_token_at = self._exchange.pipeline.clock.ticks()
        if isinstance(passage, relay.Stream) and passage.is_stopped:
            self._exchange.stop_backend()
            self._continue_stream(passage)
        elif piece.is_last:
            self._end_of(passage)

    def on_end(self) -> None:
        if self._refused is not None:
            self._send_refusal()
            return
        if self._gathering is not None:
            self._gathered(self._gathering)
            return
        passage = self._passage
        if passage is None:
            return
        rest = self._held_head + passage.end(self._frames)
        self._held_head = b""
        if rest:
            self._exchange.reply.write(rest)
        self._end_of(passage)

    def _end_of(self, passage: relay.Stream | relay.Whole) -> None:
        if isinstance(passage, relay.Stream) and passage.is_empty_handed:
            self._rescue_stream(passage)
        else:
            self._finish()

    # ------------------------------------------------------------------ a refusal

    def _gather_refusal(self, piece: Piece) -> None:
        assert self._refused is not None
        if sum(map(len, self._refused)) < _ERROR_BODY_LIMIT:
            self._refused += piece.payloads
        if piece.is_last:
            self._send_refusal()

    def _send_refusal(self) -> None:
        """A backend's own error: its status and words, in the shape that clients read."""
        head = self._answer
        assert head is not None
        assert self._refused is not None
        coding = head.fields.get(b"content-encoding", b"").lower()
        body = refusals.in_shape(head.status, relay.decoded(b"".join(self._refused), coding))
        extra = [b"%b: %b" % (n, value) for n, value in head.headers if n in _REFUSAL_HEADERS]
        self._exchange.send_error(head.status, body, extra)

    # ------------------------------------------------------------------ thought and answer

    @property
    def _is_chat(self) -> bool:
        return self._exchange.verdict is not None and self._exchange.order.endpoint is Endpoint.CHAT

    def _looks(self) -> bool:
        """Whether something in the answer may have to be moved, or be missing."""
        verdict, told = self._exchange.verdict, self._exchange.told
        if verdict is None or not self._is_chat:
            return False
        plan = verdict.plan
        return (
            plan.rescue is not None
            or self._wanted() != "keep"
            or (told is not None and told.budget is not None)
        )

    def _needs_a_look(self, body: bytes) -> bool:
        """Whether this whole answer cannot simply go on: a thought in it, or nothing else."""
        slot, told = self._exchange.slot, self._exchange.told
        if slot is not None and slot.dialect.opens_in_prompt:
            return told is None or told.params.get("thinking") is not False
        return bridge.sees(body) or (b'"length"' in body and self._may_rescue())

    def _wanted(self) -> str:
        """Where the client's thought goes; a leak of the server's is mended in any case."""
        verdict, slot = self._exchange.verdict, self._exchange.slot
        assert verdict is not None
        assert slot is not None
        is_leaking = slot.dialect.leaks_empty_thought and verdict.decision.thinking is False
        mode = verdict.plan.thought
        return "field" if is_leaking and mode == "keep" else mode

    def _may_rescue(self) -> bool:
        """Whether an answer that thought used up can be asked for once more."""
        return (
            self._exchange.verdict is not None
            and self._exchange.verdict.plan.rescue is not None
            and self._exchange.slot is not None
            and "thinking" in self._exchange.slot.dialect.places
        )

    def _new_bridge(self) -> Bridge:
        verdict, slot, told = self._exchange.verdict, self._exchange.slot, self._exchange.told
        assert verdict is not None
        assert slot is not None
        self._bridge = Bridge(
            self._wanted(),
            thinking=told.params.get("thinking") if told is not None else None,
            opens_in_prompt=slot.dialect.opens_in_prompt,
            is_single="n" not in verdict.request.has,
            budget=told.budget if told is not None else None,
        )
        return self._bridge

    def _stream(self) -> relay.Stream:
        verdict = self._exchange.verdict
        endpoint = self._exchange.order.endpoint
        return relay.Stream(
            self.tally,
            cuts_usage=verdict is not None and verdict.plan.changes.ask_usage,
            adds_done=endpoint is Endpoint.CHAT or endpoint is Endpoint.COMPLETIONS,
            bridge=self._new_bridge() if self._looks() else None,
            rescues=self._may_rescue(),
        )

    def _gather(self, gathering: collect.Gathered | collect.Collector, piece: Piece) -> None:
        """Take a part of an answer that the client gets as a whole."""
        for payload in piece.payloads:
            gathering.take(payload)
        if self.first_token_at is None and gathering.has_token:
            self.first_token_at = self._exchange.pipeline.clock.ticks()
        if isinstance(gathering, collect.Gathered) and gathering.size > relay.WHOLE_LIMIT:
            # Too long to be looked at: it goes on as it is.
            head = self._answer
            assert head is not None
            self._gathering = None
            self._pass_on(head, False, gathering.coding, has_more=True)
            gathered = Piece([gathering.raw()], False, piece.is_last, b"")
            self.on_piece(gathered.payloads[0], gathered)
        elif isinstance(gathering, collect.Collector) and gathering.is_stopped:
            self._gathering = None
            self._exchange.stop_backend()
            self._continue_whole(gathering)
        elif piece.is_last:
            self._gathered(gathering)

    def _gathered(self, gathering: collect.Gathered | collect.Collector) -> None:
        self._gathering = None
        if isinstance(gathering, collect.Collector):
            gathering.close()
        if isinstance(gathering, collect.Gathered):
            raw, head = gathering.raw(), self._answer
            assert head is not None
            plain = relay.decoded(raw, gathering.coding)
            if plain and self._needs_a_look(plain):
                self._turn(plain)
            else:
                self._send_answer(head, raw, gathering.coding)
        elif gathering.error is not None:
            self._exchange.send_error(500, refusals.in_shape(500, gathering.error), ())
        elif not gathering.is_finished:
            self._exchange.refuse(BackendError("The backend broke off its answer."))
        else:
            self._turn(gathering.whole())

    def _turn(self, body: bytes) -> None:
        """Send a whole answer, its thought where it is wanted; none is not let pass as one."""
        document = bridge.document_in(body)
        head = self._answer
        assert head is not None
        if document is None:
            self._send_answer(head, body, b"")
            return
        self.tally.keep_whole(body)
        turner = self._new_bridge()
        is_changed = turner.turn(document)
        if not turner.has_answer and _finish_of(document) == "length" and self._may_rescue():
            self._rescue_whole(document, turner)
        else:
            self._send_answer(head, orjson.dumps(document) if is_changed else body, b"", turner)

    def _send_answer(
        self, head: AnswerHead, body: bytes, coding: bytes, turner: Bridge | None = None
    ) -> None:
        if self._is_chat and not coding and len(body) <= relay.WHOLE_LIMIT:
            if bridge.is_hollow(body):
                self._exchange.refuse(BackendError("The backend answered without a choice."))
                return
            if bridge.ends_oddly(body):
                body = bridge.with_known_end(body)
        lines = self._exchange.head_lines(head, is_decoded=not coding)
        lines.append(b"content-length: %d" % len(body))
        self._exchange.reply.write(self._exchange.head_bytes(head.status, lines) + body)
        if self.first_token_at is None:
            self.first_token_at = self._exchange.pipeline.clock.ticks()
        if len(body) <= relay.WHOLE_LIMIT:
            self.tally.read_whole(relay.decoded(body, coding))
        if turner is not None:  # in tags, or dropped, they are counted all the same
            self.tally.answer_chars = turner.answer_chars
            self.tally.reasoning_chars = turner.thought_chars
        self._finish()

    # ------------------------------------------------------------------ two answers in one

    def _rescue_whole(self, first: dict[str, Any], turner: Bridge) -> None:
        """Thought used the tokens up: ask for the answer alone."""
        body = self._body_again()
        self._join_whole(first, turner, body, stopped=0)

    def _rescue_stream(self, first: relay.Stream) -> None:
        assert self._bridge is not None
        joint = rescue.Joint(first, self._bridge, self.tally)
        self._join_stream(joint, self._body_again(), is_rescue=True)

    def _continue_stream(self, first: relay.Stream) -> None:
        """Thought is over its budget: have the answer written behind it."""
        assert self._bridge is not None
        body = self._body_behind(self._bridge)
        joint = rescue.Joint(first, self._bridge, self.tally, stopped=self._bridge.pieces)
        self._join_stream(joint, body, is_rescue=False)

    def _continue_whole(self, gathering: collect.Collector) -> None:
        assert self._bridge is not None
        stopped, body = self._bridge.pieces, self._body_behind(self._bridge)
        document = gathering.document()
        if self.tally.said is not None:
            self.tally.keep_whole(orjson.dumps(document))
        for choice in document["choices"]:
            choice["finish_reason"] = "length"
        turner = self._new_bridge()
        turner.turn(document)
        self._join_whole(document, turner, body, stopped=stopped)

    def _body_again(self) -> bytes:
        slot, verdict = self._exchange.slot, self._exchange.verdict
        assert slot is not None
        assert verdict is not None
        told = verdict.told_again(slot.dialect, slot.model or "")
        assert told is not None
        return told.patch.apply(verdict.request.raw, verdict.request.spans)

    def _body_behind(self, across: Bridge) -> bytes:
        slot, verdict = self._exchange.slot, self._exchange.verdict
        assert slot is not None
        assert verdict is not None
        return verdict.continued(slot.dialect, slot.model or "", across.thought)

    def _join_whole(
        self, first: dict[str, Any], turner: Bridge, body: bytes, *, stopped: int
    ) -> None:
        head = self._answer
        assert head is not None
        second = collect.Collector()

        def over(told: bytes | None) -> None:
            found = None
            if told:
                found = bridge.document_in(told)
            elif told is not None and second.is_finished:
                found = second.document()
            if found is None or not bridge.choices_in(found):
                self._send_answer(head, orjson.dumps(first), b"")
                return
            if self._exchange.said is not None:
                self._exchange.said.whole(orjson.dumps(found))
            whole = rescue.joined(first, found, turner, stopped=stopped)
            self.is_rescued = not stopped and turner.has_answer
            self._send_answer(head, orjson.dumps(whole), b"")

        self._exchange.ask_again(body, rescue.SecondTry(second.feed, over))

    def _join_stream(self, joint: rescue.Joint, body: bytes, *, is_rescue: bool) -> None:
        def on_event(data: bytes) -> None:
            self._write_text(joint.event(data))

        def over(told: bytes | None) -> None:
            wants_usage = (
                self._exchange.verdict is not None and self._exchange.verdict.request.wants_usage
            )
            if joint.is_finished and told == b"":
                self.is_rescued = is_rescue and joint.has_answer
                self._write_text(joint.end(tells_usage=wants_usage))
            elif joint.has_spoken or not is_rescue:
                self._exchange.break_off(BackendError("The backend broke off its answer."))
                return
            else:  # as it would have ended without us
                self._write_text(joint.as_it_was())
            self.tally.has_done = True
            if self._frames:
                self._exchange.reply.write(_LAST_RESCUED if self.is_rescued else wire.LAST_CHUNK)
            self._finish()

        self._exchange.ask_again(body, rescue.SecondTry(on_event, over))

    def _write_text(self, text: bytes) -> None:
        if text:
            self._exchange.reply.write(wire.chunk(text) if self._frames else text)

    # ------------------------------------------------------------------ a sign of life

    def keep_alive(self, now: float, after_s: float) -> None:
        """Tell a waiting client that we are still there: while a long prompt is read or a
        thought that it does not want to see goes on."""
        if not self._exchange.is_stream or not self._is_chat or self._refused is not None:
            return
        passage = self._passage
        if isinstance(passage, relay.Stream):
            seen = passage.progress
        elif passage is None and self._exchange.sent_at is not None and self._answer is None:
            seen = (0, 0, 0)
        else:
            return
        if seen != self._seen:
            self._seen, self._quiet_since = seen, now
        elif now - self._quiet_since >= after_s:
            self._quiet_since = now
            stand_in = self._stand_in()
            if isinstance(passage, relay.Stream):
                self._exchange.reply.write(passage.keep_alive(self._frames, stand_in))
                return
            if not self.is_early:
                self._begin_early()
            self._write_text(sse.event(stand_in))

    def _stand_in(self) -> bytes:
        slot = self._exchange.slot
        return relay.saying_nothing(
            {
                "id": f"chatcmpl-{self._exchange.request_id}",
                "object": "chat.completion.chunk",
                "created": int(self._exchange.pipeline.clock.now()),
                "model": (slot.model if slot is not None else None) or "auto",
            }
        )

    def _begin_early(self) -> None:
        """Begin a stream that the backend has not begun: from here on an error is a frame."""
        self.is_early = self._is_mid_stream = True
        self._frames = not self._exchange.order.http.is_http10
        lines = self._exchange.own_lines(200)
        lines.append(b"content-type: text/event-stream\r\ncache-control: no-cache")
        lines.append(b"x-accel-buffering: no")
        if self._frames:
            lines.append(b"transfer-encoding: chunked")
            if self._may_rescue():
                lines.append(_TRAILER)
        self._exchange.reply.write(self._exchange.head_bytes(200, lines))

    def _finish(self) -> None:
        self._is_mid_stream = False
        self._exchange.finish(self.tally.error)


def _finish_of(document: Mapping[str, Any]) -> Any:
    choices = document.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first.get("finish_reason") if isinstance(first, dict) else None
