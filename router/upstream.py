"""Attempts against one backend over pooled connections; foreign errors become ours.

In: a request head and body as bytes. Out: calls on an AnswerListener. Raw protocol
connections rather than an HTTP client library: passing an answer on costs a third of
the CPU, and its bytes stay as they came (benchmarks/ measures both).

Deadlines are swept a few times a second instead of timed one by one: a timer a
request, moved at every piece of a stream, would be the larger half of the work.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import structlog

from router import tls, wire
from router.config import Backend
from router.errors import (
    AnswerTooLarge,
    BackendError,
    BackendRefused,
    BackendTimeout,
    BackendUntrusted,
)
from router.message import AnswerHead
from router.ports import AnswerListener

log = structlog.get_logger(__name__)

#: above this, head and body go to the socket side by side instead of joined
_JOIN_LIMIT = 64 << 10
#: within this, a kept-alive connection that closes without a byte had been closed before
_STALE_S = 0.25
#: 100 and 103 before an answer; more than a few is nobody's server
_INTERIM_LIMIT = 16


class BackendUpstream:
    """The way to one backend: its connections and what is in flight on them."""

    def __init__(
        self,
        backend: Backend,
        loop: asyncio.AbstractEventLoop,
        holder: tls.Holder | None = None,
    ) -> None:
        """`holder` is how TLS is spoken to a backend of https."""
        assert (holder is not None) == backend.is_tls
        self.backend = backend
        self.inflight = 0
        self.answer_limit = int(backend.answer_limit_mb * 2**20)  # bytes
        self._loop = loop
        self._tls = holder
        self._idle: deque[_Connection] = deque()
        self._attempts: set[_Attempt] = set()
        self._connecting: set[asyncio.Future[None]] = set()
        self._is_closed = False
        self.now = loop.time

    def send(
        self,
        head: bytes,
        body: bytes,
        method: bytes,
        listener: AnswerListener,
        *,
        fresh: bool = False,
        timeout_s: float | None = None,
    ) -> _Attempt:
        attempt = _Attempt(self, head, body, method, listener, timeout_s)
        self.inflight += 1
        self._attempts.add(attempt)
        connection = None if fresh else self._take_idle()
        if connection is not None:
            attempt.start(connection)
        else:
            task = asyncio.ensure_future(self._connect(attempt), loop=self._loop)
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)
        return attempt

    def _take_idle(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closing:
                return connection
        return None

    async def _connect(self, attempt: _Attempt) -> None:
        backend, holder = self.backend, self._tls
        try:
            async with asyncio.timeout(backend.connect_timeout_s):
                _, connection = await self._loop.create_connection(
                    lambda: _Connection(self),
                    backend.host,
                    backend.port,
                    ssl=holder.context if holder is not None else None,
                    server_hostname=backend.tls_name if holder is not None else None,
                )
        except (OSError, TimeoutError) as error:
            log.warning("backend refused", backend=backend.name, error=_short(error))
            attempt.fail(_refusal(backend.name, error), may_retry=True)
            return
        if attempt.is_over:  # the client left meanwhile
            connection.transport.abort()
            return
        attempt.start(connection)

    def ended(self, attempt: _Attempt) -> None:
        self.inflight -= 1
        self._attempts.discard(attempt)

    def keep(self, connection: _Connection) -> None:
        """Back into the pool, for as long as the server surely keeps it open itself."""
        if self._is_closed or self.backend.keepalive_s == 0:
            connection.transport.close()
            return
        connection.idle_since = self._loop.time()
        self._idle.append(connection)

    def sweep(self, now: float) -> None:
        """Fail what is late or too large and close what has been idle for too long."""
        # Here and not where it is compared: a reload may have changed it.
        self.answer_limit = limit = int(self.backend.answer_limit_mb * 2**20)
        for attempt in list(self._attempts):
            if attempt.deadline_at(now) < now:
                attempt.time_out()
            elif attempt.size > limit:
                attempt.fail(self.too_large())
        while self._idle and now - self._idle[0].idle_since > self.backend.keepalive_s:
            self._idle.popleft().transport.close()

    def too_large(self) -> AnswerTooLarge:
        backend = self.backend
        return AnswerTooLarge(
            f"The answer of the backend {backend.name!r} is over {backend.answer_limit_mb:g} MiB.",
            limit="answer_limit_mb",
        )

    def forget(self, connection: _Connection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        """No new use of old connections; what is in flight goes on."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().transport.close()


class _Attempt:
    """One request on one connection."""

    # What an attempt begins with, once and not in every instance.
    is_over = False
    _connection: _Connection | None = None
    _buffer = b""
    _head: AnswerHead | None = None
    _interim = 0  # answers of the 1xx kind so far
    _is_paused = False
    _started_at = 0.0
    _seen = 0  # what had come when the deadline was last moved

    def __init__(
        self,
        upstream: BackendUpstream,
        head: bytes,
        body: bytes,
        method: bytes,
        listener: AnswerListener,
        timeout_s: float | None,
    ) -> None:
        self._upstream = upstream
        self._request: tuple[bytes, bytes] | None = (head, body)
        self._body: wire.Body | None = None  # mypyc sets no union in the class
        self._method = method
        self.listener = listener
        if timeout_s is None:
            timeout_s = upstream.backend.timeout_s
        self.deadline = upstream.now() + timeout_s

    def deadline_at(self, now: float) -> float:
        """The deadline, moved if something has come since it was last looked at.

        Or if nothing was to come: a client that does not read is no fault of the backend.
        """
        size = self.size
        if size != self._seen or (self._is_paused and size):
            self._seen = size
            self.deadline = now + self._upstream.backend.stall_timeout_s
        return self.deadline

    @property
    def size(self) -> int:
        """Bytes of the answer that have come."""
        return self._connection.came if self._connection is not None else 0

    def start(self, connection: _Connection) -> None:
        """Put the request on the wire."""
        self._connection = connection
        self._started_at = self._upstream.now()
        connection.attempt = self
        connection.came = 0
        head, body = cast("tuple[bytes, bytes]", self._request)
        self._request = None  # 32 MiB are not kept for the length of an answer
        if len(body) < _JOIN_LIMIT:
            connection.transport.write(head + body)
        else:
            connection.transport.writelines((head, body))
        if self._is_paused:
            connection.transport.pause_reading()
        self.listener.on_sent()

    def on_data(self, data: bytes) -> None:
        upstream = self._upstream
        try:
            if self._body is None:
                data = self._read_head(data)
            elif self.size > upstream.answer_limit:
                self.fail(upstream.too_large())
                return
            if self._body is not None and not self.is_over:
                self._read_body(data)
        except wire.BadAnswer as error:
            log.warning("bad answer", backend=upstream.backend.name, error=str(error))
            self._broken(f"The backend {upstream.backend.name!r} sent a broken answer.")
        except Exception:
            # Whatever an answer says, its client is told something and nothing stays behind.
            log.exception("answer not understood", backend=upstream.backend.name)
            fault = BackendError(f"The backend {upstream.backend.name!r} sent an odd answer.")
            self.cancel()
            self.listener.on_failure(fault, may_retry=False)

    def _read_head(self, data: bytes) -> bytes:
        """Gather the head; what is left of `data` belongs to the body."""
        upstream = self._upstream
        buffer = self._buffer + data if self._buffer else data
        while True:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(buffer) > wire.ANSWER_HEAD_LIMIT:
                    raise wire.BadAnswer("an endless head")
                self._buffer = buffer
                return b""
            head = wire.answer_head(buffer[:end])
            buffer = buffer[end + 4 :]
            if head.status >= 200:
                break
            if head.status == 101:
                raise wire.BadAnswer("it switched protocols unasked")
            self._interim += 1
            if self._interim > _INTERIM_LIMIT:
                raise wire.BadAnswer("no end of interim answers")
        self._buffer = b""
        self._head = head
        if self._is_whole(head, buffer):
            self._release(keep=True)
            self.listener.on_whole(head, buffer)
            return b""
        self._body = wire.body_of(head, self._method)
        if isinstance(self._body, wire.LengthBody) and self._body.left > upstream.answer_limit:
            self.fail(upstream.too_large())
            return b""
        self.listener.on_head(head, has_more=bool(buffer))
        return buffer

    def _is_whole(self, head: AnswerHead, rest: bytes) -> bool:
        """Whether all of a body of known length came along with its head."""
        return (
            len(rest) > 0
            and head.fields.get(b"content-length") == b"%d" % len(rest)
            and b"transfer-encoding" not in head.fields
            and head.status not in (204, 304)
        )

    def _read_body(self, data: bytes) -> None:
        body = cast(wire.Body, self._body)
        piece = body.feed(data)
        if piece.is_last:
            self._release(keep=not piece.excess)
            if piece.excess:
                data = data[: len(data) - len(piece.excess)]
        if data or piece.is_last:
            self.listener.on_piece(data, piece)
        connection = self._connection
        if connection is not None and isinstance(body, wire.ChunkedBody) and body.is_between():
            connection.express = self.listener.express()

    def _release(self, *, keep: bool) -> None:
        """The answer is whole: the connection is free for the next request.

        Not if the answer came before the request had gone out: a server that has given up on it
        may take the rest of its body, which is a client's own text, for a request.
        """
        connection = self._end()
        head = cast(AnswerHead, self._head)
        if connection is None:
            return
        if keep and head.keep_alive and not connection.transport.get_write_buffer_size():
            if self._is_paused:
                connection.transport.resume_reading()
            self._upstream.keep(connection)
        else:
            connection.transport.close()

    def _end(self) -> _Connection | None:
        """Leave the connection; its owner decides what becomes of it."""
        self.is_over = True
        self._request = None
        self._upstream.ended(self)
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.attempt = connection.express = None
            connection.was_used = True
        return connection

    def on_lost(self, connection: _Connection, error: Exception | None) -> None:
        """The connection closed under us."""
        if self._body is not None and error is None and self._body.close():
            self._end()
            self.listener.on_end()
            return
        name = self._upstream.backend.name
        if self._head is None and not self._buffer and error is not None:
            # Since TLS 1.3 a server says only after the handshake that it wants another
            # certificate of us, or one at all.
            refusal = _refusal(name, error)
            if isinstance(refusal, BackendUntrusted):
                log.warning("backend refused", backend=name, error=_short(error))
                self.fail(refusal, may_retry=True)
                return
        # An idle connection that the server had closed is lost at once. One that is lost later
        # took the request with it, which may be why, so no other backend shall have it.
        is_prompt = self._upstream.now() - self._started_at < _STALE_S
        is_stale = connection.was_used and is_prompt and self._head is None and not self._buffer
        if self._head is not None:
            text = f"The backend {name!r} broke off its answer."
        else:
            text = f"The backend {name!r} closed the connection without an answer."
        self.fail(BackendError(text), may_retry=is_stale)

    def _broken(self, text: str) -> None:
        self.fail(BackendError(text), may_retry=False)

    def time_out(self) -> None:
        name = self._upstream.backend.name
        what = "gone on with" if self._head is not None else "begun"
        self.fail(BackendTimeout(f"The backend {name!r} has not {what} its answer in time."))

    def fail(self, fault: BackendError, *, may_retry: bool = False) -> None:
        if self.is_over:
            return
        connection = self._end()
        if connection is not None:
            connection.transport.abort()
        self.listener.on_failure(fault, may_retry=may_retry)

    def cancel(self) -> None:
        if self.is_over:
            return
        connection = self._end()
        if connection is not None:
            connection.transport.abort()

    def pause(self) -> None:
        self._is_paused = True
        if self._connection is not None:
            self._connection.transport.pause_reading()

    def resume(self) -> None:
        self._is_paused = False
        if self._connection is not None:
            self._connection.transport.resume_reading()


class _Connection(asyncio.Protocol):
    """A socket to a backend: carries one attempt at a time."""

    __slots__ = (
        "_upstream",
        "attempt",
        "came",
        "express",
        "idle_since",
        "is_closing",
        "transport",
        "was_used",
    )

    def __init__(self, upstream: BackendUpstream) -> None:
        self._upstream = upstream
        self.attempt: _Attempt | None = None
        #: the way for whole chunks, while there is one: see AnswerListener.express
        self.express: tuple[Callable[[bytes], bool], Callable[[bytes], None]] | None = None
        self.came = 0  # bytes of the answer under way
        self.was_used = False
        self.is_closing = False
        self.idle_since = 0.0
        self.transport = cast(asyncio.Transport, None)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        express = self.express
        if express is not None and express[0](data):
            self.came += len(data)
            express[1](data)
        elif self.attempt is not None:
            self.came += len(data)
            self.express = None
            self.attempt.on_data(data)
        else:  # nobody asked: whatever it is, the next answer must not begin with it
            self.is_closing = True
            self.transport.abort()

    def eof_received(self) -> None:
        self.is_closing = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closing = True
        if self.attempt is not None:
            self.attempt.on_lost(self, exc)
        else:
            self._upstream.forget(self)


def _refusal(name: str, error: Exception) -> BackendRefused:
    why = tls.why_untrusted(error)
    if why is not None:
        return BackendUntrusted(f"The backend {name!r} is not spoken to: {why}.")
    return BackendRefused(f"The backend {name!r} cannot be reached.")


def _short(error: BaseException) -> str:
    return str(error) or type(error).__name__
