"""An answer on its way back: passed on as it came, counted, mended only where it must be.

In: pieces of an answer's body. Out: the bytes for the client, and a Tally of what was
in them. Sans-io; frames are never held back. Where the usage frame nobody asked for has
to be taken out, the beginning of a frame that came in two reads waits for its end, or
until it has shown a choice or 16 KiB and so cannot be that one.

Whole chunks go on untouched. Where a read ends inside a chunk its payload is framed
anew, so that the client's stream always stands between two chunks and an error frame
can be put there at any moment.
"""

from __future__ import annotations

import re
import zlib
from typing import Any

import msgspec
import orjson

from router import errors, sse, wire

#: how much of a whole (not streamed) reply is kept to read its usage
WHOLE_LIMIT = 4 << 20
#: a frame's beginning is judged by this much; `choices` stands within it everywhere
_JUDGED = 16 << 10
_HAS_CHOICES = (b'"choices":[{', b'"choices": [{')
_DONE = b"[DONE]"
_COUNTED_TOGETHER = 8
#: one whole chunk that holds one event of one line
_ONE_TOKEN = re.compile(rb"([0-9A-Fa-f]{1,6})\r\n(data:[^\r\n]*\n\n)\r\n").fullmatch


class _Delta(msgspec.Struct, gc=False):
    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: Any = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    message: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _Response(msgspec.Struct, gc=False):
    usage: _Usage | None = None
    status: str | None = None


class _Frame(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")
    type: str | None = None
    delta: Any = None  # /v1/responses: the text itself
    response: _Response | None = None


_frame = msgspec.json.Decoder(_Frame).decode


class Tally:
    """What an answer held, for its record."""

    answer_chars = 0
    reasoning_chars = 0
    finish_reason: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    has_token = False  # text, thought or a tool call has come
    has_done = False
    error: str | None = None  # an error inside a 200 answer

    def read(self, data: bytes) -> _Frame | None:
        """Count one JSON document; None where it is none of ours."""
        try:
            frame = _frame(data)
        except (msgspec.DecodeError, RecursionError):
            return None
        for choice in frame.choices or ():
            part = choice.delta or choice.message
            if choice.finish_reason is not None:
                self.finish_reason = choice.finish_reason
            if choice.text:
                self._count(answer=choice.text)
            if part is not None:
                thought = part.reasoning if part.reasoning is not None else part.reasoning_content
                if thought or part.content:
                    self._count(part.content, thought)
                if part.tool_calls:
                    self.has_token = True
        if frame.type is not None:
            self._read_responses_event(frame)
        if frame.usage is not None:
            self._read_usage(frame.usage)
        if (error := bytes(frame.error)) != b"null":
            self.error = error_text(error)
        return frame

    def _count(self, answer: Any = None, thought: Any = None) -> None:
        self.has_token = True
        if isinstance(answer, str):
            self.answer_chars += len(answer)
        if isinstance(thought, str):
            self.reasoning_chars += len(thought)

    def _read_responses_event(self, frame: _Frame) -> None:
        if frame.type == "response.output_text.delta":
            self._count(frame.delta)
        elif frame.type in ("response.reasoning_text.delta", "response.reasoning.delta"):
            self._count(thought=frame.delta)
        if frame.response is not None and frame.response.usage is not None:
            self._read_usage(frame.response.usage)
            self.finish_reason = frame.response.status

    def _read_usage(self, usage: _Usage) -> None:
        sent, made = usage.prompt_tokens, usage.completion_tokens
        self.input_tokens = usage.input_tokens if sent is None else sent
        self.output_tokens = usage.output_tokens if made is None else made
        if details := usage.prompt_tokens_details or usage.input_tokens_details:
            self.cached_tokens = details.cached_tokens
        if details := usage.completion_tokens_details or usage.output_tokens_details:
            self.reasoning_tokens = details.reasoning_tokens


class Whole:
    """A reply that is no stream: passed on as it comes, a bounded copy read at its end."""

    __slots__ = ("_coding", "_kept", "_size", "tally")

    def __init__(self, tally: Tally, coding: bytes) -> None:
        self.tally = tally
        self._coding = coding
        self._kept: list[bytes] | None = []
        self._size = 0

    def pass_on(self, data: bytes, piece: wire.Piece, frames: bool) -> bytes:
        """The bytes for the client. `frames`: the client's body is chunked."""
        if self._kept is not None:
            self._kept += piece.payloads
            self._size += sum(map(len, piece.payloads))
            if self._size > WHOLE_LIMIT:
                self._kept = None
            elif piece.is_last:
                self._read()
        return _reframed(data, piece, frames)

    def end(self, frames: bool) -> bytes:
        """The connection that the body ends with has closed."""
        self._read()
        return wire.LAST_CHUNK if frames else b""

    def _read(self) -> None:
        if self._kept:
            self.tally.read(decoded(b"".join(self._kept), self._coding))


class Stream:
    """A reply of server-sent events.

    `cuts_usage`: the usage frame was asked for by us alone and is taken out.
    `adds_done`: this kind of server ends its streams without `[DONE]`.
    """

    __slots__ = (
        "_adds_done",
        "_cuts_usage",
        "_is_giant",
        "_sent",
        "_splitter",
        "_uncounted",
        "tally",
    )

    def __init__(self, tally: Tally, *, cuts_usage: bool, adds_done: bool) -> None:
        self.tally = tally
        self._cuts_usage = cuts_usage
        self._adds_done = adds_done
        self._splitter = sse.EventSplitter()
        self._sent = 0  # bytes of the open event that have already gone out
        self._is_giant = False  # the open event is over the limit: its bytes are not kept
        self._uncounted: list[bytes] = []  # token events that have gone out

    @property
    def is_clear(self) -> bool:
        """Whether we stand between two events and the first token, whose time counts, is past."""
        return self.tally.has_token and not (self._sent or self._is_giant or self._splitter.held)

    def express(self, data: bytes) -> bool:
        """Whether `data` is one whole chunk with one token's event, to be sent on as it is.

        Only to be asked between two chunks while `is_clear`. The event is read later, eight at
        a time: reading it here, with the processor's caches cold, would be half of what a
        token costs. What may have to be cut or mended is no express matter.
        """
        found = _ONE_TOKEN(data)
        if found is None:
            return False
        payload = found[2]
        if int(found[1], 16) != len(payload) or b'"usage"' in payload or b'"error"' in payload:
            return False
        uncounted = self._uncounted
        uncounted.append(payload)
        if len(uncounted) >= _COUNTED_TOGETHER:
            self.count()
        return True

    def count(self) -> None:
        """Read what has gone out unread."""
        uncounted, self._uncounted = self._uncounted, []
        for payload in uncounted:
            data = sse.data_of(payload)
            if data == _DONE:
                self.tally.has_done = True
            elif len(payload) <= sse.EVENT_LIMIT:
                self.tally.read(data)

    def pass_on(self, data: bytes, piece: wire.Piece, frames: bool) -> bytes:
        """The bytes for the client. `frames`: the client's body is chunked."""
        if self._uncounted:
            self.count()
        splitter = self._splitter
        is_as_it_came = self._sent == len(splitter.held)
        out: list[bytes] = []
        for payload in piece.payloads:
            for event in splitter.feed(payload):
                kept = self._kept(event)
                if kept is not event.raw:
                    is_as_it_came = False
                out.append(kept[self._sent :] if self._sent else kept)
                self._sent = 0
        open_event = splitter.held
        if len(open_event) > self._sent and (piece.is_last or self._may_go(open_event)):
            out.append(open_event[self._sent :])
            self._sent = len(open_event)
        if piece.is_last and self._lacks_done():
            out.append((b"\n\n" if open_event else b"") + sse.event(_DONE))
            is_as_it_came = False
        if self._sent != len(open_event):
            is_as_it_came = False
        elif self._sent > sse.EVENT_LIMIT:
            splitter.take_held()
            self._sent, self._is_giant = 0, True
        if is_as_it_came:
            return _reframed(data, piece, frames)
        text = b"".join(out)
        return _framed(text, piece.is_last) if frames else text

    def _kept(self, event: sse.Event) -> bytes:
        """What the client gets of an event: itself, nothing, or an error in the right shape."""
        data = event.data
        if self._is_giant or len(event.raw) > sse.EVENT_LIMIT:
            self._is_giant = False
            return event.raw
        if not data:
            return event.raw
        if data == _DONE:
            self.tally.has_done = True
            return event.raw
        frame = self.tally.read(data)
        if frame is None or self._sent:
            return event.raw
        if self._cuts_usage and frame.usage is not None and not frame.choices:
            return b"" if frame.type is None else event.raw
        if bytes(frame.error)[:1] == b'"':
            return sse.event(in_shape(500, data))
        return event.raw

    def _may_go(self, open_event: bytes) -> bool:
        """Whether an event's beginning can go out: it can no longer be one to cut or mend."""
        return len(open_event) > _JUDGED or any(mark in open_event for mark in _HAS_CHOICES)

    def _lacks_done(self) -> bool:
        tally = self.tally
        return self._adds_done and not tally.has_done and tally.finish_reason is not None

    def end(self, frames: bool) -> bytes:
        """The connection that the body ends with has closed."""
        self.count()
        open_event = self._splitter.take_held()
        text = open_event[self._sent :]
        if self._lacks_done():
            text += (b"\n\n" if open_event else b"") + sse.event(_DONE)
        return _framed(text, True) if frames else text

    def break_off(self, error: bytes, frames: bool) -> bytes:
        """An error frame, told apart from a half-sent event before it."""
        text = (b"\n\n" if self._sent or self._is_giant else b"") + sse.event(error)
        return _framed(text, True) if frames else text


def _framed(text: bytes, is_last: bool) -> bytes:
    return wire.chunk(text) + (wire.LAST_CHUNK if is_last else b"")


def _reframed(data: bytes, piece: wire.Piece, frames: bool) -> bytes:
    """A piece as the client's own framing wants it."""
    if frames and piece.is_whole:
        return data
    payloads = piece.payloads
    text = payloads[0] if len(payloads) == 1 else b"".join(payloads)
    return _framed(text, piece.is_last) if frames else text


def decoded(body: bytes, coding: bytes) -> bytes:
    """A body without its content coding; nothing where we do not know the coding."""
    if coding in (b"", b"identity"):
        return body
    if coding in (b"gzip", b"x-gzip", b"deflate"):
        try:
            return zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(body, WHOLE_LIMIT)
        except zlib.error:
            return b""
    return b""


def in_shape(status: int, body: bytes) -> bytes:
    """A backend's error as an OpenAI error object; one that is in shape stays as it is.

    Seen in the field: FastAPI's `{"detail": …}`, a text in place of the object, plain
    text, and an `{"object": "error", "message": …}` from older vLLM.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = body.decode("utf-8", "replace").strip()[:2000]
    given = document.get("error") if isinstance(document, dict) else None
    if isinstance(given, dict) and isinstance(given.get("message"), str):
        return body
    code: Any = None
    param: Any = None
    if isinstance(document, dict):
        message = given or document.get("detail") or document.get("message") or document
        source = given if isinstance(given, dict) else document
        code, param = source.get("code"), source.get("param")
    else:
        message = document
    if not isinstance(message, str):
        message = orjson.dumps(message).decode()
    kind = "invalid_request_error" if 400 <= status < 500 else "server_error"
    return errors.error_body(
        message or f"The backend answered with status {status}.",
        type=kind,
        param=param if isinstance(param, str) else None,
        code=code if isinstance(code, (str, int)) else "backend_error",
    )


def error_text(error: bytes) -> str:
    """The message of an error member, in whichever shape."""
    try:
        given = orjson.loads(error)
    except orjson.JSONDecodeError:
        return ""
    if isinstance(given, dict):
        given = given.get("message", "")
    return str(given)[:500]
