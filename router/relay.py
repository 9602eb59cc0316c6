"""An answer on its way back: passed on as it came, counted, mended only where it must be.

In: pieces of an answer's body. Out: the bytes for the client, and a Tally of what was
in them. Sans-io; whole frames are never held back. The beginning of one that came in two
reads goes out once it has shown a choice, and so is not the usage frame that may have to be
taken out, or 16 KiB; but not past where an end or an error begins, which may have to be mended.

Whole chunks go on untouched. Where a read ends inside a chunk its payload is framed
anew, so that the client's stream always stands between two chunks and an error frame
can be put there at any moment.

Where a thought may have to be moved (bridge.py), frames are read one by one until the answer
has begun, and only whole ones go on; from then on it is as if there were no bridge.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import Any, cast

import orjson

from router import bridge, refusals, sse, wire
from router.bridge import Bridge
from router.frames import Frame
from router.tally import Tally

#: how much of a whole (not streamed) reply is kept to read its usage
WHOLE_LIMIT = 4 << 20
#: a frame's beginning is judged by this much; `choices` stands within it everywhere
_JUDGED = 16 << 10
_HAS_CHOICES = (b'"choices":[{', b'"choices": [{')
#: what has come of an event up to here may go out, and what stands behind may have to be mended
_MAY_BE_MENDED = (b'"finish_reason"', b'"error"')
#: events that are counted together, and texts of events that are all alike
_COUNTED_TOGETHER = 8
_TEXTS_TOGETHER = 32
#: the text of a token, where it needs no escapes
_TEXT = re.compile(rb'"(content|reasoning|reasoning_content)": ?"([^"\\]*)"')
#: one whole chunk that holds one event of one line
_ONE_TOKEN = re.compile(rb"([0-9A-Fa-f]{1,6})\r\n(data:[^\r\n]*\n\n)\r\n").fullmatch


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
                if self.tally.said is not None:
                    self.tally.said.is_cut = True
            elif piece.is_last:
                self._read()
        return _reframed(data, piece, frames)

    def end(self, frames: bool) -> bytes:
        """The connection that the body ends with has closed."""
        self._read()
        return wire.LAST_CHUNK if frames else b""

    def _read(self) -> None:
        if self._kept:
            self.tally.read_whole(decoded(b"".join(self._kept), self._coding))


class Stream:
    """A reply of server-sent events.

    `cuts_usage`: the usage frame was asked for by us alone and is taken out.
    `adds_done`: a stream whose choices have finished ends with `[DONE]`, whoever forgot it.
    A thought over the bridge's budget stops it (`is_stopped`).
    `rescues`: one that ran out of tokens before its answer began is not ended here: its end is
    kept back (`is_empty_handed`, `kept_back`) for whoever gets it an answer.
    """

    __slots__ = (
        "_adds_done",
        "_bridge",
        "_cuts_usage",
        "_is_giant",
        "_rescues",
        "_sent",
        "_shape",
        "_splitter",
        "_texts",
        "_uncounted",
        "is_empty_handed",
        "is_stopped",
        "kept_back",
        "sample",
        "tally",
        "written",
    )

    def __init__(
        self,
        tally: Tally,
        *,
        cuts_usage: bool,
        adds_done: bool,
        bridge: Bridge | None = None,
        rescues: bool = False,
    ) -> None:
        self.tally = tally
        self._cuts_usage = cuts_usage
        self._adds_done = adds_done
        self._bridge = bridge
        self._rescues = rescues and bridge is not None
        self._splitter = sse.EventSplitter()
        self._sent = 0  # bytes of the open event that have already gone out
        self._is_giant = False  # the open event is over the limit: its bytes are not kept
        self._uncounted: list[bytes] = []  # token events that have gone out
        self._shape: Shape | None = None  # of the one that was read last
        self._texts: list[bytes] = []  # ... and the texts of those that were like it
        self.sample = b""  # data of the first frame with choices
        self.written = 0  # grows with whatever goes out, but for what goes by express
        self.is_empty_handed = False
        self.is_stopped = False  # its thought is over the budget: nothing more of it is wanted
        self.kept_back: list[bytes] = []  # data of the events that would have ended it

    @property
    def is_clear(self) -> bool:
        """Whether we stand between two events and the first token, whose time counts, is past."""
        return (
            self.tally.has_token
            and not (self._sent or self._is_giant or self._splitter.held)
            and (self._bridge is None or self._bridge.is_settled)
        )

    def express(self, data: bytes) -> bool:
        """Whether `data` is one whole chunk with one token's event, to be sent on as it is.

        Only to be asked between two chunks while `is_clear`. The event is read later, some at
        a time: reading it here, with the processor's caches cold, would be half of what a
        token costs. Most differ from the one before in their text alone, and of those no more is
        read than that. What may have to be cut or mended is no express matter.
        """
        shape = self._shape
        if shape is not None and data.startswith(shape.start, shape.width):
            text = shape.text_in(data)
            if text is not None and (self._bridge is None or b"think" not in text):
                texts = self._texts
                texts.append(text)
                if len(texts) >= _TEXTS_TOGETHER:
                    self.count()
                return True
        found = _ONE_TOKEN(data)
        if found is None:
            return False
        payload = found[2]
        if int(found[1], 16) != len(payload) or b'"usage"' in payload or b'"error"' in payload:
            return False
        if b'finish_reason":"' in payload or b'finish_reason": "' in payload:
            return False
        if self._bridge is not None and bridge.sees(payload):
            return False
        if self._texts:
            self.count()
        uncounted = self._uncounted
        uncounted.append(payload)
        if len(uncounted) >= _COUNTED_TOGETHER:
            self.count()
        return True

    def count(self) -> None:
        """Read what has gone out unread."""
        if self._texts:
            self.tally.count_texts(self._texts, is_thought=cast(Shape, self._shape).is_thought)
            self._texts = []
        uncounted, self._uncounted = self._uncounted, []
        for payload in uncounted:
            data = sse.data_of(payload)
            if data == sse.DONE:
                self.tally.has_done = True
            elif len(payload) <= sse.EVENT_LIMIT:
                frame = self.tally.read(data)
                if frame is not None and self.tally.said is None:
                    self._shape = shape_of(payload, frame)
        self.tally.has_odd_end = False  # gone out as it was, and no matter of the next event's

    def pass_on(self, data: bytes, piece: wire.Piece, frames: bool) -> bytes:
        """The bytes for the client. `frames`: the client's body is chunked."""
        if self._uncounted or self._texts:
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
        is_over = piece.is_last and not (self.is_empty_handed or self.is_stopped)
        if len(open_event) > self._sent and (is_over or self._may_go(open_event)):
            out.append(open_event[self._sent :])
            self._sent = len(open_event)
        if self.is_empty_handed or self.is_stopped:
            return self._gone(b"".join(out), is_last=False, frames=frames)
        if piece.is_last and self._lacks_done():
            out.append((b"\n\n" if open_event else b"") + sse.event(sse.DONE))
            is_as_it_came = False
        if self._sent != len(open_event):
            is_as_it_came = False
        elif self._sent > sse.EVENT_LIMIT:
            splitter.take_held()
            self._sent, self._is_giant = 0, True
        if is_as_it_came:
            self.written += len(data)
            return _reframed(data, piece, frames)
        return self._gone(b"".join(out), is_last=piece.is_last, frames=frames)

    def _gone(self, text: bytes, *, is_last: bool, frames: bool) -> bytes:
        self.written += len(text)
        return _framed(text, is_last) if frames else text

    def _kept(self, event: sse.Event) -> bytes:
        """What the client gets of an event: itself, nothing, or an error in the right shape."""
        data = event.data
        if self._is_giant or len(event.raw) > sse.EVENT_LIMIT:
            self._is_giant = False
            return event.raw
        if not data:
            return b"" if self.is_empty_handed else event.raw
        if self.is_stopped:
            return b""
        if data == sse.DONE:
            if self.is_empty_handed:
                self.kept_back.append(data)
                return b""
            self.tally.has_done = True
            return event.raw
        chars = self.tally.answer_chars, self.tally.reasoning_chars
        frame = self.tally.read(data)
        if self.tally.has_odd_end:
            self.tally.has_odd_end = False
            event = self._with_known_end(event)
            data = event.data
        if frame is None or self._sent:
            return event.raw
        if self._cuts_usage and frame.usage is not None and not frame.choices:
            return b"" if frame.type is None else event.raw
        if bytes(frame.error)[:1] == b'"':
            return sse.event(refusals.in_shape(500, data))
        if self.is_empty_handed:
            self.kept_back.append(data)
            return b""
        if not frame.choices:
            return event.raw
        if not self.sample and bridge.document_in(data) is not None:
            self.sample = data
        across = self._bridge
        if across is not None and across.is_settled and across.mode == "keep":
            across = None  # its beginning may have gone out already, and all of it stays as it is
        if across is None or (across.is_settled and not bridge.sees(data)):
            if self._shape is None and self.tally.said is None:
                self._shape = shape_of(event.raw, frame)
            return event.raw
        turned = across.event(data)
        if across.is_over and self.tally.finish_reason is None:
            self.is_stopped = True
        if across.was_read:
            self.tally.answer_chars = chars[0] + across.answer_chars
            self.tally.reasoning_chars = chars[1] + across.thought_chars
        is_used_up = self.tally.finish_reason == "length" and not across.has_answer
        if self._rescues and is_used_up and self.sample:
            self.is_empty_handed = True
            said, rest = _parted(data if turned is None else turned)
            self.kept_back.append(rest)
            return sse.event(said) if said else b""
        if turned is None:
            return event.raw
        return sse.event(turned) if turned else b""

    def _with_known_end(self, event: sse.Event) -> sse.Event:
        raw = bridge.with_known_end_behind(event.raw, self._sent)
        if raw != event.raw:
            return sse.Event(raw, sse.data_of(raw))
        if self._sent:
            return event
        data = bridge.with_known_end(event.data)  # written in some odder way
        return event if data is event.data else sse.Event(sse.event(data), data)

    def _may_go(self, open_event: bytes) -> bool:
        """Whether an event's beginning can go out: it can no longer be one to cut or mend."""
        if self.is_empty_handed or self.is_stopped:
            return False
        across = self._bridge
        if across is not None and not across.is_settled:
            return len(open_event) > sse.EVENT_LIMIT
        if len(open_event) > _JUDGED:
            return True
        if across is not None and across.mode != "keep":
            return False  # a thought may follow an answer, too
        if any(mark in open_event for mark in _MAY_BE_MENDED):
            return False
        return any(mark in open_event for mark in _HAS_CHOICES)

    def _lacks_done(self) -> bool:
        tally = self.tally
        return self._adds_done and not tally.has_done and tally.finish_reason is not None

    @property
    def progress(self) -> tuple[int, int, int]:
        """Something that changes with whatever goes out."""
        tally = self.tally
        unread = len(self._uncounted) + len(self._texts)
        return self.written, tally.answer_chars + tally.reasoning_chars, unread

    def keep_alive(self, frames: bool, stand_in: bytes) -> bytes:
        """A frame that says nothing, for a client that counts the seconds; none inside an event.

        A comment would do by the book, but the timers of LangChain and others run on over it.
        `stand_in` is the data of such a frame where the backend has not shown one yet.
        """
        if self._sent or self._is_giant:
            return b""
        text = sse.event(saying_nothing(shown_in(self.sample)) if self.sample else stand_in)
        return _framed(text, False) if frames else text

    def end(self, frames: bool) -> bytes:
        """The connection that the body ends with has closed."""
        self.count()
        open_event = self._splitter.take_held()
        if self.is_empty_handed:
            return b""
        text = open_event[self._sent :]
        if self._lacks_done():
            text += (b"\n\n" if open_event else b"") + sse.event(sse.DONE)
        return _framed(text, True) if frames else text

    def break_off(self, error: bytes, frames: bool) -> bytes:
        """An error frame, told apart from a half-sent event before it."""
        text = (b"\n\n" if self._sent or self._is_giant else b"") + sse.event(error)
        return _framed(text, True) if frames else text


class Shape:
    """A chunk with one token's event, apart from the text in it.

    What is like it in all but a text that needs no escapes says another word and nothing else.
    """

    __slots__ = ("_head", "_tail", "end", "is_thought", "start", "width")

    def __init__(self, before: bytes, after: bytes, *, width: int, is_thought: bool) -> None:
        """`before` and `after` the text; the chunk's size has `width` digits."""
        self.start = b"\r\n" + before
        self.end = after + b"\r\n"
        self.width = width
        self.is_thought = is_thought
        self._head = width + len(self.start)
        self._tail = len(self.end)

    def text_in(self, data: bytes) -> bytes | None:
        """The text of a chunk that begins like this one; None where it is not all like it."""
        size = len(data)
        if size < self._head + self._tail or not data.endswith(self.end):
            return None
        if data[: self.width] != b"%x" % (size - self.width - 4):
            return None
        text = data[self._head : size - self._tail]
        if b'"' in text or b"\\" in text or b"\n" in text or b"\r" in text:
            return None
        return text


def shape_of(payload: bytes, frame: Frame) -> Shape | None:
    """The shape of an event's chunk; None for one that is not a token of plain text alone."""
    choices = frame.choices
    if choices is None or len(choices) != 1 or b'"usage"' in payload or frame.type is not None:
        return None
    choice = choices[0]
    delta = choice.delta
    if delta is None or choice.message is not None or choice.text or choice.finish_reason:
        return None
    is_thought = delta.content is None
    told = delta.reasoning_content if delta.reasoning is None else delta.reasoning
    said = told if is_thought else delta.content
    if delta.tool_calls or not isinstance(said, str) or (told is not None and not is_thought):
        return None
    if b'"error"' in payload or not payload.endswith(b"\n\n"):
        return None
    if b"\r" in payload or payload.count(b"\n") != 2 or not payload.startswith(b"data:"):
        return None
    found = _TEXT.findall(payload)
    text = said.encode("utf-8", "replace")
    if [value for _, value in found] != [text]:
        return None
    match = cast("re.Match[bytes]", _TEXT.search(payload))
    before, after = payload[: match.start(2)], payload[match.end(2) :]
    return Shape(before, after, width=len(b"%x" % len(payload)), is_thought=is_thought)


def shown_in(sample: bytes) -> dict[str, Any]:
    """What stands in every frame of a stream that this one is of."""
    document = bridge.document_in(sample) or {}
    return {n: document[n] for n in ("id", "object", "created", "model") if n in document}


def saying_nothing(shown: Mapping[str, Any]) -> bytes:
    """The data of a chat frame without a word."""
    choice = {"index": 0, "delta": {}, "finish_reason": None}
    return orjson.dumps({**shown, "choices": [choice]})


def _parted(data: bytes) -> tuple[bytes, bytes]:
    """A frame that ends a stream as two: what it says, if anything, and the end."""
    document = orjson.loads(data) if data else {"choices": []}
    said = {**document, "choices": []}
    said.pop("usage", None)
    for choice in document["choices"]:
        if choice.get("delta"):
            said["choices"].append({**choice, "finish_reason": None})
            choice["delta"] = {}
    return orjson.dumps(said) if said["choices"] else b"", orjson.dumps(document)


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
    """A body without its content coding; nothing where we do not know the coding, or there is
    more than WHOLE_LIMIT of it."""
    if coding in (b"", b"identity"):
        return body
    if coding in (b"gzip", b"x-gzip", b"deflate"):
        inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)
        try:
            plain = inflater.decompress(body, WHOLE_LIMIT + 1)
        except zlib.error:
            return b""
        return plain if inflater.eof and len(plain) <= WHOLE_LIMIT else b""
    return b""
