"""A backend's connection: the same answer however it is cut, and one end of it, no more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from router.config import Backend
from router.message import AnswerHead
from router.upstream import BackendUpstream, _Connection
from router.wire import Piece
from tests.fuzz import source

BACKEND = Backend.model_validate({"name": "b", "url": "http://127.0.0.1:9"})
METHODS = (b"POST", b"GET")  # the only ones that we ask by


class Clock:
    """As much of a loop as an attempt asks for."""

    def time(self) -> float:
        return 1.0


class Transport:
    is_closed = False

    def write(self, data: bytes) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self.is_closed = True

    abort = close


class Listener:
    def __init__(self) -> None:
        self.head: tuple[int, list[tuple[bytes, bytes]]] | None = None
        self.body = b""
        self.ends: list[str] = []

    def on_sent(self) -> None: ...

    def on_head(self, head: AnswerHead, *, has_more: bool) -> None:
        assert self.head is None, "two heads"
        assert not self.ends
        self.head = head.status, list(head.headers)

    def on_piece(self, data: bytes, piece: Piece) -> None:
        assert not self.ends, "something behind the end"
        self.body += b"".join(piece.payloads)
        if piece.is_last:
            self.ends.append("whole")

    def express(self) -> tuple[Callable[[bytes], bool], Callable[[bytes], None]] | None:
        return None

    def on_whole(self, head: AnswerHead, body: bytes) -> None:
        self.on_head(head, has_more=False)
        self.body = body
        self.ends.append("whole")

    def on_end(self) -> None:
        self.ends.append("whole")

    def on_failure(self, fault: Exception, *, may_retry: bool) -> None:
        assert "sent an odd answer" not in str(fault), "something fell over"
        self.ends.append(f"{fault} {may_retry}")


class Heard(NamedTuple):
    head: tuple[int, list[tuple[bytes, bytes]]] | None
    body: bytes
    ends: list[str]
    is_reusable: bool


def heard(pieces: Sequence[bytes], method: bytes) -> Heard:
    upstream = BackendUpstream(BACKEND, cast(asyncio.AbstractEventLoop, Clock()))
    connection, transport, listener = _Connection(upstream), Transport(), Listener()
    connection.connection_made(transport)
    upstream.keep(connection)
    upstream.send(b"head", b"", method, listener)
    for piece in pieces:
        if not transport.is_closed:
            connection.data_received(piece)
    is_reusable = upstream._take_idle() is not None
    if not transport.is_closed:
        connection.connection_lost(None)
    assert len(listener.ends) == 1, listener.ends
    assert upstream.inflight == 0
    return Heard(listener.head, listener.body, listener.ends, is_reusable)


def check_same(cut: Heard, whole: Heard) -> None:
    if whole.ends == ["whole"]:
        assert cut == whole, "another cut, another answer"
        return
    assert (cut.ends, cut.is_reusable) == (whole.ends, whole.is_reusable)
    # Of one that breaks off, what came before the fault in the same read is not passed on.
    assert cut.body.startswith(whole.body) or whole.body.startswith(cut.body)


def check(data: bytes) -> None:
    given = source.of(data)
    method = METHODS[given.pick(len(METHODS))]
    whole = heard([given.raw], method)
    head, body, ends, is_reusable = whole
    for pieces in given.pieces():
        if pieces:
            check_same(heard(pieces, method), whole)
    if is_reusable:
        assert ends == ["whole"]
    if head is not None:
        for name, value in head[1]:
            assert not any(byte in name + value for byte in b"\r\n\0"), (name, value)
        assert head[0] >= 200
    assert len(body) <= len(given.raw)
