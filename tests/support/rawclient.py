"""An HTTP/1.1 client that hides nothing: bytes out, a reply with times in.

    reply = exchange(port, request_bytes("POST", "/v1/chat/completions", {}, body))
    assert reply.status == 200 and reply.ended_properly

`exchange` sends one request on a fresh connection. `RawConnection` keeps a connection
for several. Neither raises for what the peer does: a refusal, a cut body or silence
are facts in the `RawReply`.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

HOST = "127.0.0.1"
READ_SIZE = 65536


@dataclass(frozen=True, slots=True)
class Frame:
    """Entity bytes of one write or one read, and when that was (`time.monotonic`)."""

    at: float
    data: bytes


@dataclass
class RawReply:
    """What came back, whole or not."""

    started: float = 0.0
    status: int | None = None  # None: no status line came
    headers: list[tuple[str, str]] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)  # body pieces, transfer framing removed
    ended_properly: bool = False  # the framing itself says that the body is whole
    closed: bool = False  # the peer closed the connection
    refused: bool = False  # there was no connection at all
    broken: str = ""  # what cut the exchange short, in words
    head_at: float | None = None
    ended_at: float | None = None  # end of the body, or of hope
    closed_at: float | None = None
    left_at: float | None = None  # when we hung up before the end

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def header(self, name: str) -> str | None:
        """The first header of this name."""
        return next(iter(self.all(name)), None)

    @property
    def body(self) -> bytes:
        return b"".join(frame.data for frame in self.frames)

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def head_ms(self) -> float | None:
        return self._since_start(self.head_at)

    @property
    def first_frame_ms(self) -> float | None:
        return self._since_start(self.frames[0].at) if self.frames else None

    @property
    def total_ms(self) -> float | None:
        return self._since_start(self.ended_at)

    @property
    def closed_ms(self) -> float | None:
        return self._since_start(self.closed_at)

    def _since_start(self, at: float | None) -> float | None:
        return None if at is None else (at - self.started) * 1000


class ReplyReader:
    """Bytes of one reply in, a `RawReply` out. It holds no socket and reads no clock."""

    def __init__(self, *, method: str = "POST", started: float = 0.0) -> None:
        self.reply = RawReply(started=started)
        self.done = False
        self.rest = b""  # what came after the reply
        self._bodiless = method == "HEAD"
        self._buffer = bytearray()
        self._body: Iterator[None] | None = None
        self._left = 0
        self._now = 0.0

    def feed(self, data: bytes, at: float) -> None:
        self._now = at
        self._buffer += data
        while not self.done and self.reply.head_at is None:
            if not self._read_head():
                return
        if not self.done:
            self._read_body()
        if self.done:
            self.rest += bytes(self._buffer)
            self._buffer.clear()

    def eof(self, at: float, why: str = "") -> None:
        """No more bytes will come."""
        self._now = at
        self.reply.closed, self.reply.closed_at = True, at
        if self.done:
            return
        if self.reply.head_at is not None and self._framing == "close" and not why:
            self._finish()
            return
        self.reply.broken = why or "the connection was closed before the reply was whole"
        self._finish(whole=False)

    def give_up(self, at: float, why: str) -> None:
        """The reader's own decision to stop."""
        self._now = at
        self.reply.broken = why
        self._finish(whole=False)

    def _finish(self, *, whole: bool = True) -> None:
        self.reply.ended_properly = whole
        self.reply.ended_at = self._now
        self.done = True

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        start, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        status = int(start.split(" ", 2)[1])
        if status in range(100, 200) and status != 101:
            return True  # an interim reply; the real one follows
        reply = self.reply
        reply.status, reply.head_at = status, self._now
        reply.headers = [
            (name, value.strip()) for name, _, value in (line.partition(":") for line in lines)
        ]
        self._choose_framing(status)
        return True

    def _choose_framing(self, status: int) -> None:
        length = self.reply.header("content-length")
        if self._bodiless or status in (204, 304):
            self._framing, self._left = "length", 0
        elif "chunked" in (self.reply.header("transfer-encoding") or "").lower():
            self._framing = "chunked"
        elif length is not None:
            self._framing, self._left = "length", int(length)
        else:
            self._framing = "close"
        if self._framing == "length" and not self._left:
            self._finish()

    def _read_body(self) -> None:
        match self._framing:
            case "close":
                self._take(len(self._buffer))
            case "length":
                self._left -= self._take(min(self._left, len(self._buffer)))
                if not self._left:
                    self._finish()
            case _:
                while not self.done and self._read_chunk_part():
                    pass

    def _read_chunk_part(self) -> bool:
        """One step through the chunked framing; whether there may be another."""
        if self._left > 2:  # data, then CRLF: the two bytes past it
            taken = self._take(min(self._left - 2, len(self._buffer)))
            self._left -= taken
            return taken > 0
        if self._left:
            if len(self._buffer) < self._left:
                return False
            del self._buffer[: self._left]
            self._left = 0
        end = self._buffer.find(b"\r\n")
        if end < 0:
            return False
        size = int(self._buffer[:end].split(b";")[0], 16)
        if size:
            del self._buffer[: end + 2]
            self._left = size + 2
            return True
        # The last chunk: trailers, if any, and a blank line.
        closing = self._buffer.find(b"\r\n\r\n", end)
        if closing < 0:
            return False
        del self._buffer[: closing + 4]
        self._finish()
        return False

    def _take(self, count: int) -> int:
        if count:
            self.reply.frames.append(Frame(self._now, bytes(self._buffer[:count])))
            del self._buffer[:count]
        return count


class RawConnection:
    """One connection. `send`, then `read`; again while the peer keeps it open."""

    def __init__(self, port: int, *, timeout_s: float = 30.0, host: str = HOST) -> None:
        self.timeout_s = timeout_s
        self._rest = b""
        self._started = time.monotonic()
        self._socket = socket.create_connection((host, port), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, raw: bytes) -> None:
        """Write, but stop as soon as the peer answers: it may refuse a body half-way."""
        self._started = time.monotonic()
        deadline = self._started + self.timeout_s
        view = memoryview(raw)
        while view and (left := deadline - time.monotonic()) > 0:
            ready = _wait(self._socket, select.POLLIN | select.POLLOUT, left)
            if ready & ~select.POLLOUT:
                return
            try:
                view = view[self._socket.send(view[:READ_SIZE]) :]
            except OSError:
                return  # `read` meets the same error and reports it

    def read(
        self,
        *,
        method: str = "POST",
        close_after_frames: int | None = None,
        close_after_ms: float | None = None,
    ) -> RawReply:
        """The reply to what was sent last.

        With `close_after_frames` (events of a stream) or `close_after_ms` (since the
        send) the client hangs up then.
        """
        reader = ReplyReader(method=method, started=self._started)
        rest, self._rest = self._rest, b""
        if rest:
            reader.feed(rest, time.monotonic())
        deadline = self._started + self.timeout_s
        if close_after_ms is not None:
            deadline = self._started + close_after_ms / 1000
        while not reader.done:
            self._read_some(reader, deadline)
            if close_after_frames and reader.reply.body.count(b"\n\n") >= close_after_frames:
                self._hang_up(reader)
            elif not reader.done and time.monotonic() >= deadline:
                if close_after_ms is None:
                    reader.give_up(time.monotonic(), f"no whole reply in {self.timeout_s} s")
                else:
                    self._hang_up(reader)
        self._rest = reader.rest
        return reader.reply

    def _read_some(self, reader: ReplyReader, deadline: float) -> None:
        if not _wait(self._socket, select.POLLIN, deadline - time.monotonic()):
            return
        try:
            data = self._socket.recv(READ_SIZE)
        except OSError as error:
            reader.eof(time.monotonic(), f"{type(error).__name__}: {error}")
            return
        if data:
            reader.feed(data, time.monotonic())
        else:
            reader.eof(time.monotonic())

    def _hang_up(self, reader: ReplyReader) -> None:
        self.close()
        reader.reply.left_at = time.monotonic()
        reader.give_up(time.monotonic(), "the client hung up")

    def wait_closed(self, reply: RawReply, timeout_s: float) -> bool:
        """Whether the peer closes after this reply; noted in it."""
        deadline = time.monotonic() + timeout_s
        while not reply.closed and (left := deadline - time.monotonic()) > 0:
            if not _wait(self._socket, select.POLLIN, left):
                break
            try:
                data = self._socket.recv(READ_SIZE)
            except OSError:
                data = b""
            if data:
                self._rest += data
            else:
                reply.closed, reply.closed_at = True, time.monotonic()
        return reply.closed

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def exchange(
    port: int,
    raw: bytes,
    *,
    timeout_s: float = 30.0,
    close_after_frames: int | None = None,
    close_after_ms: float | None = None,
    watch_close_s: float = 0.0,
    host: str = HOST,
) -> RawReply:
    """Send these bytes on a fresh connection and read one reply.

    `watch_close_s`: after the reply, wait so long for the peer to close.
    """
    started = time.monotonic()
    try:
        connection = RawConnection(port, timeout_s=timeout_s, host=host)
    except OSError as error:
        why = f"{type(error).__name__}: {error}"
        return RawReply(started=started, refused=True, broken=why, ended_at=time.monotonic())
    with connection:
        connection.send(raw)
        reply = connection.read(
            method=raw.split(b" ", 1)[0].decode("latin-1"),
            close_after_frames=close_after_frames,
            close_after_ms=close_after_ms,
        )
        if watch_close_s and reply.left_at is None:
            connection.wait_closed(reply, watch_close_s)
    return reply


def request_bytes(
    method: str,
    path: str,
    headers: Mapping[str, str] | None = None,
    body: bytes | str | Any = b"",
) -> bytes:
    """A whole request. A body that is neither bytes nor text is written as JSON.

    Host and, with a body, Content-Length are added unless the headers have them.
    """
    if isinstance(body, str):
        body = body.encode()
    elif not isinstance(body, bytes):
        body = json.dumps(body, ensure_ascii=False).encode()
    given = dict(headers or {})
    names = {name.lower() for name in given}
    if "host" not in names:
        given = {"Host": "router.test", **given}
    if body and not names & {"content-length", "transfer-encoding"}:
        given["Content-Length"] = str(len(body))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def chunked(*pieces: bytes) -> bytes:
    """A chunked body with exactly these chunks."""
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def sse_payloads(body: bytes) -> list[str]:
    """The `data` of each whole event of a stream, in order."""
    *events, _ = body.decode("utf-8", "replace").replace("\r\n", "\n").split("\n\n")
    found = []
    for event in events:
        lines = [line[5:].removeprefix(" ") for line in event.split("\n") if line[:5] == "data:"]
        if lines:
            found.append("\n".join(lines))
    return found


def sse_events(body: bytes) -> list[Any]:
    """The JSON of each event; `[DONE]` and what is not JSON are left out."""
    found = []
    for payload in sse_payloads(body):
        try:
            found.append(json.loads(payload))
        except ValueError:
            continue
    return found


def _wait(sock: socket.socket, events: int, timeout_s: float) -> int:
    # `poll` and not `select`: hundreds of clients may be open at once.
    poll = select.poll()
    poll.register(sock, events)
    return sum(mask for _, mask in poll.poll(max(0.0, timeout_s) * 1000))


def shut(sock: socket.socket) -> None:
    """End a connection both ways; it may be down already."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
