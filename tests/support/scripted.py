"""A scripted upstream on real sockets, with a thread and an event loop of its own.

    with ScriptedBackend([chat_ok("The Danube.")]) as backend:
        ...send something to backend.url...
        assert backend.requests[0].json["model"] == "qwen3-0.6b"

Synchronous tests use it as it is. `script.py` has the steps. Every request is kept
with its bytes and times, and so is every entity byte of the reply.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeVar

from tests.support.rawclient import HOST, Frame
from tests.support.script import (
    AwaitPeer,
    Cut,
    Finish,
    Framing,
    Head,
    Pause,
    Piece,
    Step,
    as_json,
    choose,
    effects,
)

Listen = Literal["normal", "refuse"]
T = TypeVar("T")


@dataclass
class Seen:
    """One request as it arrived, and what was answered."""

    head: bytes
    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    arrived: float
    framing_fault: str = ""
    frames: list[Frame] = field(default_factory=list)
    peer_closed_at: float | None = None
    _peer_closed: threading.Event = field(default_factory=threading.Event, repr=False)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def header(self, name: str) -> str | None:
        """The first header of this name."""
        return next(iter(self.all(name)), None)

    @property
    def json(self) -> Any:
        """The body as JSON; MISSING where it is none."""
        return as_json(self.body)

    @property
    def entity(self) -> bytes:
        """The bytes of the reply's body, transfer framing left out."""
        return b"".join(frame.data for frame in self.frames)

    def wait_peer_closed(self, timeout_s: float = 5.0) -> float | None:
        """When the peer closed the connection of this request; None if it has not."""
        self._peer_closed.wait(timeout_s)
        return self.peer_closed_at

    def peer_left(self, now: float) -> None:
        if self.peer_closed_at is None:
            self.peer_closed_at = now
            self._peer_closed.set()


class ScriptedBackend:
    """An upstream that plays a script. Its port is taken at once and stays the same."""

    def __init__(
        self,
        steps: Sequence[Step] = (),
        *,
        rules: Sequence[Mapping[str, Any]] = (),
        models: Sequence[str] = ("qwen3-0.6b",),
        listen: Listen = "normal",
        keepalive: Mapping[str, Any] | None = None,
        host: str = HOST,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self.host = host
        self.models = list(models)
        self.requests: list[Seen] = []
        self.probes: list[Seen] = []  # GET /health and /v1/models, which count for nothing
        self._rules = list(rules)
        self._steps = list(steps)
        self._keepalive = dict(keepalive or {})
        self._listen: Listen = listen
        self._changed = threading.Condition()
        self._connections: set[_Connection] = set()
        self._socket = _bound_socket(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def url(self) -> str:
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{self.host}:{self.port}"

    # --- life ---

    def start(self) -> Self:
        self._thread.start()
        if self._listen == "normal":
            self._do(self._open())
        return self

    def stop(self) -> None:
        if self._thread.is_alive():
            self._do(self._shut())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
        self._socket.close()
        self._loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    # --- the script ---

    @property
    def script(self) -> tuple[list[Mapping[str, Any]], list[Step]]:
        """The rules and the steps in force."""
        return list(self._rules), list(self._steps)

    def set_script(self, steps: Sequence[Step], *, rules: Sequence[Mapping[str, Any]] = ()) -> None:
        """Another script for the requests to come."""
        self._rules, self._steps = list(rules), list(steps)

    def set_keepalive(self, **fault: Any) -> None:
        """`close_after_ms=…`, or `close_when="next_request_arrives"` with `first_only`."""
        self._keepalive = fault

    def set_listen(self, listen: Listen) -> None:
        """`refuse` also drops the connections that are open, as a dead process would."""
        if listen != self._listen:
            self._listen = listen
            self._do(self._open() if listen == "normal" else self._shut_and_hold())

    # --- what happened ---

    def wait_requests(self, count: int, timeout_s: float = 5.0) -> list[Seen]:
        """The requests once there are at least `count`."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.requests) >= count, timeout_s):
                raise AssertionError(f"{len(self.requests)} of {count} requests arrived")
        return self.requests

    # --- inside the loop ---

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _open(self) -> None:
        self._server = await self._loop.create_server(
            lambda: _Connection(self), sock=self._socket, backlog=1024, ssl=self._tls
        )

    async def _shut(self) -> None:
        if self._server is not None:
            # What has been accepted just now is given its connection first: asyncio would lose
            # its socket, and say so in whichever test comes next.
            for listening in self._server.sockets:
                self._loop.remove_reader(listening.fileno())
            for _ in range(3):
                await asyncio.sleep(0)
            self._server.close()
            self._server = None
        tasks = [connection.drop() for connection in list(self._connections)]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _shut_and_hold(self) -> None:
        # A socket that is bound but does not listen keeps the port ours and
        # refuses connections.
        await self._shut()
        self._socket = _bound_socket(self.host, self.port)

    def take(self, seen: Seen) -> list[Step]:
        """Record a request; the steps that answer it."""
        with self._changed:
            self.requests.append(seen)
            self._changed.notify_all()
        return choose(self._rules, self._steps, seen.body)

    def drops_reused(self) -> bool:
        """Whether a connection that carried a reply is closed when more bytes come."""
        if self._keepalive.get("close_when") != "next_request_arrives":
            return False
        if self._keepalive.get("first_only"):
            self._keepalive = {}
        return True

    @property
    def idle_ms(self) -> float | None:
        return self._keepalive.get("close_after_ms")

    def joined(self, connection: _Connection) -> None:
        self._connections.add(connection)

    def left(self, connection: _Connection) -> None:
        self._connections.discard(connection)


class _Connection(asyncio.Protocol):
    """One connection: requests are read and answered in order."""

    def __init__(self, backend: ScriptedBackend) -> None:
        self._backend = backend
        self._buffer = bytearray()
        self._woken = asyncio.Event()
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._gone = False  # the peer left
        self._ours = False  # we closed; what follows says nothing about the peer
        self._last: Seen | None = None
        self._busy = False

    # --- transport events ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._backend.joined(self)
        self._task = asyncio.get_running_loop().create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._woken.set()

    def eof_received(self) -> None:
        self._peer_left()

    def connection_lost(self, exc: Exception | None) -> None:
        self._peer_left()
        self._backend.left(self)

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def _peer_left(self) -> None:
        if self._ours or self._gone:
            return
        self._gone = True
        if self._last is not None:
            self._last.peer_left(time.monotonic())
        self._woken.set()
        if self._busy:
            # An engine stops generating when its caller hangs up.
            self._task.cancel()

    def drop(self) -> asyncio.Task[None]:
        self._ours = True
        self._transport.abort()
        self._task.cancel()
        return self._task

    def _close(self, *, reset: bool = False) -> None:
        self._ours = True
        if reset:
            raw = self._transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
        else:
            self._transport.close()

    # --- requests in ---

    async def _serve(self) -> None:
        answered = 0
        try:
            while await self._more():
                if answered and self._backend.drops_reused():
                    break
                seen = await self._read_request()
                if seen is None:
                    break
                if _is_probe(seen):
                    self._answer_probe(seen)
                    continue
                self._last, self._busy = seen, True
                steps = self._backend.take(seen)
                if seen.framing_fault or not await self._play(seen, steps):
                    break
                self._busy = False
                answered += 1
                self._close_when_idle()
        finally:
            self._close()

    async def _more(self) -> bool:
        """Whether there are bytes to read; waits for them."""
        while not self._buffer:
            if self._gone or self._ours:
                return False
            self._woken.clear()
            await self._woken.wait()
        return True

    async def _read_request(self) -> Seen | None:
        head = await self._until(b"\r\n\r\n")
        if head is None:
            return None
        start, *lines = head[:-4].decode("latin-1").split("\r\n")
        method, path, _ = start.split(" ", 2)
        headers = [(name, value.strip()) for name, _, value in (x.partition(":") for x in lines)]
        seen = Seen(head, method, path, headers, b"", 0.0)
        lengths, codings = seen.all("content-length"), seen.all("transfer-encoding")
        if len(set(lengths)) > 1 or (lengths and codings):
            seen.framing_fault = f"Content-Length {lengths} with Transfer-Encoding {codings}"
            body: bytes | None = b""
        elif codings:
            body = await self._read_chunks()
        else:
            body = await self._exactly(int(lengths[0]) if lengths else 0)
        if body is None:
            return None
        seen.body, seen.arrived = body, time.monotonic()
        return seen

    async def _read_chunks(self) -> bytes | None:
        body = bytearray()
        while (line := await self._until(b"\r\n")) is not None:
            size = int(line.split(b";")[0], 16)
            piece = await self._exactly(size + 2) if size else await self._until(b"\r\n")
            if piece is None:
                return None
            if not size:
                return bytes(body)
            body += piece[:-2]
        return None

    async def _until(self, mark: bytes) -> bytes | None:
        while (end := self._buffer.find(mark)) < 0:
            if not await self._grow():
                return None
        return self._cut(end + len(mark))

    async def _exactly(self, count: int) -> bytes | None:
        while len(self._buffer) < count:
            if not await self._grow():
                return None
        return self._cut(count)

    async def _grow(self) -> bool:
        if self._gone or self._ours:
            return False
        self._woken.clear()
        await self._woken.wait()
        return True

    def _cut(self, count: int) -> bytes:
        piece = bytes(self._buffer[:count])
        del self._buffer[:count]
        return piece

    # --- replies out ---

    async def _play(self, seen: Seen, steps: Sequence[Step]) -> bool:
        """Carry the steps out; whether the connection can take another request."""
        framing: Framing = "length"
        headers = {name.lower(): value for name, value in seen.headers}
        for effect in effects(steps, path=seen.path, headers=headers, body=seen.body):
            match effect:
                case Head():
                    framing = effect.framing
                    self._transport.write(_head_bytes(effect))
                case Piece():
                    seen.frames.append(Frame(time.monotonic(), effect.data))
                    self._transport.write(_framed(effect.data, framing))
                    await asyncio.sleep(0)  # else an endless script would see nobody leave
                    await self._may_write.wait()
                case Pause():
                    await asyncio.sleep(effect.ms / 1000)
                case Cut():
                    self._close(reset=effect.reset)
                    return False
                case AwaitPeer():
                    await asyncio.sleep(effect.max_ms / 1000)  # ends sooner: see `_peer_left`
                case Finish():
                    break
        if framing == "chunked":
            self._transport.write(b"0\r\n\r\n")
        return framing != "close"

    def _answer_probe(self, seen: Seen) -> None:
        self._backend.probes.append(seen)
        value: Any = {"status": "ok"}
        if seen.path == "/v1/models":
            data = [{"id": name, "object": "model"} for name in self._backend.models]
            value = {"object": "list", "data": data}
        body = json.dumps(value).encode()
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        self._transport.write(_head_bytes(Head(200, headers, "length")) + body)

    def _close_when_idle(self) -> None:
        idle_ms = self._backend.idle_ms
        if idle_ms is not None:
            asyncio.get_running_loop().call_later(idle_ms / 1000, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if not self._busy and not self._buffer:
            self._close()
            self._woken.set()


def _bound_socket(host: str, port: int) -> socket.socket:
    # The protocol is named: asyncio turns Nagle's delay off where it sees that it is TCP.
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((host, port))
    return made


def _is_probe(seen: Seen) -> bool:
    return seen.method == "GET" and seen.path in ("/health", "/v1/models")


def _head_bytes(head: Head) -> bytes:
    lines = [f"HTTP/1.1 {head.status} Scripted"]
    lines += [f"{name}: {value}" for name, value in head.headers.items()]
    match head.framing:
        case "chunked":
            lines.append("Transfer-Encoding: chunked")
        case "close":
            lines.append("Connection: close")
        case "length":
            pass
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _framed(data: bytes, framing: Framing) -> bytes:
    if framing == "chunked":
        return b"%x\r\n%b\r\n" % (len(data), data) if data else b""
    return data
