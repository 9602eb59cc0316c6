"""One client connection: inference goes straight to the pipeline, the operator's pages to aiohttp.

Every request is read by llhttp under our limits, whoever then serves it; a page is
handed to aiohttp as one clean request at a time. So there is one parser at the edge,
no request can be read two ways, and the inference path carries no framework.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol, cast

import structlog

from router import cors, heads, wire
from router.chat import PASSED, Endpoint
from router.errors import (
    BadKey,
    ClientError,
    InvalidJson,
    RequestTimeout,
    RouterError,
    TlsOnPlainPort,
    TooManyConnections,
    TooManyFromAddress,
)
from router.exchange import Exchange
from router.keyring import Grant, Keyring
from router.message import Request
from router.pipeline import Pipeline
from router.ports import Order
from router.programlog import Seldom
from router.server.packed import decompressed
from router.server.plain import OPERATORS, Door, Page, headers_of
from router.visitors import Guard

if sys.platform != "win32":
    import fcntl
    import termios

#: path, without /v1 → what it asks for. What is not classified passes as it came.
_PATHS: Mapping[bytes, Endpoint] = {
    b"/chat/completions": Endpoint.CHAT,
    b"/completions": Endpoint.COMPLETIONS,
    b"/responses": Endpoint.RESPONSES,
    **{b"/" + name.encode(): Endpoint.OTHER for name in PASSED},
}
#: vLLM and llama.cpp serve these at the root, not below /v1
_ROOT_PATHS = frozenset({b"/tokenize", b"/detokenize", b"/pooling", b"/classify"})
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_LINGER_S = 0.5
_AHEAD_LIMIT = 1 << 20
#: so many connections beyond the limit are told so; more than that are cut off
_TOLD = 256


class Settings(Protocol):
    """What the edge needs to know of the configuration."""

    @property
    def head_limit(self) -> int: ...
    @property
    def count_limit(self) -> int: ...
    @property
    def line_limit(self) -> int: ...
    @property
    def target_limit(self) -> int: ...
    @property
    def body_limit(self) -> int: ...
    @property
    def inflate_ratio(self) -> int: ...
    @property
    def head_timeout_s(self) -> float: ...
    @property
    def body_timeout_s(self) -> float: ...
    @property
    def request_timeout_s(self) -> float: ...
    @property
    def idle_timeout_s(self) -> float: ...
    @property
    def write_timeout_s(self) -> float: ...
    @property
    def pipelined(self) -> int: ...
    @property
    def connections(self) -> int: ...
    @property
    def per_address(self) -> int: ...


class PageProtocol(Protocol):
    """aiohttp's connection handler, as far as it is used here."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def connection_lost(self, exc: BaseException | None) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


#: makes a protocol that serves one page, on a transport that is lent to it
Pages = Callable[[], PageProtocol]


class PlainPages(Protocol):
    """The pages that need no framework; see plain.Plain.page."""

    def __call__(
        self,
        method: str,
        target: str,
        *,
        is_inference: bool,
        door: Door,
        admit: Callable[[], Grant | None],
    ) -> Page: ...


log = structlog.get_logger(__name__)
_seldom = Seldom(10.0)

_REASONS = {
    200: "OK",
    204: "No Content",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


@lru_cache(maxsize=256)
def endpoint_of(target: bytes) -> tuple[Endpoint, bytes] | None:
    """What a target asks for and the path for the backend; None for a page."""
    path, mark, query = target.partition(b"?")
    path = path.rstrip(b"/")
    short = path[3:] if path.startswith(b"/v1/") else path
    endpoint = _PATHS.get(short)
    if endpoint is None:
        return None
    at_root = short in _ROOT_PATHS and not path.startswith(b"/v1/")
    return endpoint, (short if at_root else b"/v1" + short) + mark + query


class LentTransport(asyncio.Transport):
    """A connection's transport for the length of one page.

    aiohttp closes its transport when it is done with it; ours goes on, so closing only
    says that the page is over.
    """

    def __init__(self, transport: asyncio.Transport, done: Callable[[], None]) -> None:
        self._transport = transport
        self._done: Callable[[], None] | None = done

    def page_done(self) -> None:
        done, self._done = self._done, None
        if done is not None:
            done()

    def close(self) -> None:
        self.page_done()

    def abort(self) -> None:
        self.page_done()

    def is_closing(self) -> bool:
        return self._done is None or self._transport.is_closing()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._transport.write(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self._transport.writelines(list_of_data)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def pause_reading(self) -> None:
        """Nothing is read for a page: it was given its whole request."""

    def resume_reading(self) -> None:
        """See `pause_reading`."""


class Connection(asyncio.Protocol):
    """A client's connection. Serves its requests one after another."""

    def __init__(self, hub: Hub, door: Door) -> None:
        self._hub = hub
        self._door = door
        limits = hub.settings
        self._reader = wire.RequestReader(
            head_limit=limits.head_limit,
            body_limit=limits.body_limit,
            count_limit=limits.count_limit,
            line_limit=limits.line_limit,
            target_limit=limits.target_limit,
        )
        self._transport = cast(asyncio.Transport, None)
        self._exchange: Exchange | None = None
        self._page: PageProtocol | None = None
        self._is_busy = False
        self._is_paused = False
        self._ahead = 0  # bytes read behind the request that is being served
        self._has_continued = False
        self._keep_alive = True
        self._is_lingering = False
        self._spoiled: RouterError | None = None  # by bytes behind the request being served
        self.counted_at: bytes | None = None  # its address, where those of one are counted
        self._guard = hub.guards[door]
        self._is_welcome = False
        self.last_active = 0.0
        self._begun_at = 0.0  # of the request that is coming, as the clock saw it; 0: none is
        self._unread_since = 0.0  # the client has taken nothing of what waits; 0: nothing does
        self._unread = 0  # so many bytes

    # ------------------------------------------------------------ from the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.write = self._transport.write  # type: ignore[method-assign]  # one call less a piece
        self._hub.connections.add(self)
        self.last_active = self._begun_at = self._hub.now()
        self._hub.admit(self, self._transport)

    def data_received(self, data: bytes) -> None:
        if self._is_lingering or self._spoiled is not None:
            return
        self.last_active = self._hub.now()
        try:
            self._reader.feed(data)
        except ClientError as fault:
            if isinstance(fault, TlsOnPlainPort) and _seldom.due("tls") is not None:
                log.warning("a client speaks TLS to a port of plain HTTP: it must use http://")
            if self._is_busy or not self._reader.ready:
                self._refuse_bytes(fault)
            else:  # what came before it is good, and gets its answer first
                self._spoiled = fault
                self._serve(self._reader.ready.pop(0))
            return
        if self._is_busy:
            # A pipelined request waits for its turn. Reading goes on, since only reading shows
            # that a client has left, until it sends more than anybody would.
            self._ahead += len(data)
            if self._ahead > _AHEAD_LIMIT or self._is_far_ahead():
                self._transport.pause_reading()
                self._is_paused = True
        elif self._reader.ready:
            self._serve(self._reader.ready.pop(0))
        elif self._reader.head is not None and not self._has_continued:
            self._judge_head(self._reader.head)

    def _is_far_ahead(self) -> bool:
        return len(self._reader.ready) >= self._hub.settings.pipelined

    def eof_received(self) -> bool:
        return False  # a client that stops sending has left, as nginx sees it too

    def connection_lost(self, exc: Exception | None) -> None:
        self._hub.left(self)
        if self._page is not None:
            self._page.connection_lost(exc)
        if self._exchange is not None:
            self._exchange.on_client_gone()
        self._exchange = self._page = None

    def pause_writing(self) -> None:
        self._unread_since = self._hub.now()
        if self._page is not None:
            self._page.pause_writing()
        elif self._exchange is not None:
            self._exchange.pause()

    def resume_writing(self) -> None:
        self._unread_since = 0.0
        if self._page is not None:
            self._page.resume_writing()
        elif self._exchange is not None:
            self._exchange.resume()

    # ------------------------------------------------------------ one request

    def _judge_head(self, head: Request) -> None:
        """A body that nobody will read is refused before it is here; `Expect` gets its answer."""
        self._has_continued = True
        if (
            head.method == b"POST"
            and self._door is not Door.OPERATORS
            and endpoint_of(head.target) is not None
        ):
            try:
                self._hub.grant_of(head)
            except RouterError as fault:
                self._refuse_bytes(fault)
                return
        # A client of HTTP/1.0 knows nothing of it (RFC 9110 §10.1.1).
        if head.fields.get(b"expect", b"").lower() == b"100-continue" and not head.is_http10:
            self._transport.write(_CONTINUE)

    def _serve(self, request: Request) -> None:
        self._is_busy = True
        self._begun_at = 0.0
        self._has_continued = False
        self._keep_alive = request.keep_alive
        found = endpoint_of(request.target)
        guard = self._guard
        if guard is not None and (not self._is_welcome or b"sec-fetch-site" in request.fields):
            try:
                allowed = self._hub.pipeline.cors
                guard.check(
                    request.fields, may_cross=allowed is not None and allowed.allows(request.fields)
                )
            except RouterError as fault:
                self._refuse(found[0] if found is not None else "http", request, fault, keep=False)
                return
            self._is_welcome = True  # a browser has a connection for each name
        if found is None or request.method != b"POST" or self._door is Door.OPERATORS:
            self._serve_page(request)
            return
        endpoint, path = found
        grant = None
        try:
            grant = self._hub.grant_of(request)
            if b"content-encoding" in request.fields:
                self._unpack(request)
            if self._hub.is_too_deep is not None and self._hub.is_too_deep(request.body):
                raise InvalidJson("The body is nested too deep.", limit="json_depth")
        except RouterError as fault:
            self._refuse(endpoint, request, fault, keep=True, grant=grant)
            return
        order = Order(request, endpoint, path, grant)
        exchange = Exchange(self._hub.pipeline, order, self)
        self._exchange = exchange
        self._hub.pipeline.active.add(exchange)
        exchange.start()

    def _unpack(self, request: Request) -> None:
        limits = self._hub.settings
        request.body = decompressed(request, limits.body_limit, limits.inflate_ratio)

    def _serve_page(self, request: Request) -> None:
        if b"content-encoding" in request.fields and request.body:
            try:
                self._unpack(request)
            except RouterError as fault:
                self._refuse("http", request, fault, keep=True)
                return
        path = request.target.partition(b"?")[0]
        if self._door is Door.CLIENTS or not path.startswith(OPERATORS):
            self._write_page(request)
        elif self._hub.pages is not None:
            self._lend(request, self._hub.pages)
        else:
            self._hub.load_pages(lambda pages: self._lend(request, pages))

    def _write_page(self, request: Request) -> None:
        allowed = self._hub.pipeline.cors if self._door is not Door.OPERATORS else None
        if allowed is not None and cors.is_preflight(request.method, request.fields):
            self._answer_preflight(request, allowed)
            return
        page = self._hub.plain(
            request.method.decode("latin-1"),
            request.target.decode("latin-1"),
            is_inference=endpoint_of(request.target) is not None,
            door=self._door,
            admit=lambda: self._hub.grant_of(request),
        )
        if page.pieces is not None:
            self._gather(request, page, [])
        else:
            self._send_page(request, page)

    def _answer_preflight(self, request: Request, allowed: cors.Cors) -> None:
        """A browser asks whether a page may ask; it sends no key with that."""
        try:
            lines = allowed.preflight(request.fields)
        except RouterError as fault:
            self._send_page(request, Page(fault.status, fault.body()))
            return
        start = [b"HTTP/1.1 204 No Content", *lines]
        if not request.keep_alive:
            start.append(b"connection: close")
        self._transport.write(b"\r\n".join([*start, b"", b""]))
        self.finish(keep=True)

    def _gather(self, request: Request, page: Page, done: list[bytes]) -> None:
        """Make one more piece of a page; between two of them others have their turn."""
        assert page.pieces is not None
        if self._transport.is_closing():
            return
        try:
            piece = next(page.pieces, None)
        except Exception:
            log.exception("page not made", page=request.target.decode("latin-1"))
            self.abort()
            return
        if piece is None:
            self._send_page(request, page._replace(body=b"".join(done)))
            return
        done.append(piece.encode())
        self._hub.loop.call_soon(self._gather, request, page, done)

    def _send_page(self, request: Request, page: Page) -> None:
        pipeline = self._hub.pipeline
        lines = [
            f"HTTP/1.1 {page.status} {_REASONS.get(page.status, '')}",
            f"x-request-id: {pipeline.id_for(request.fields)}",
            f"x-router-policy: {pipeline.live.policy.hash}",
            f"content-type: {page.content_type}",
            f"content-length: {len(page.body)}",
            "x-content-type-options: nosniff",
            "cache-control: no-store",
            *(f"{name.lower()}: {value}" for name, value in page.headers.items()),
            *self._cors_lines(request),
            *([] if request.keep_alive else ["connection: close"]),
        ]
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        self._transport.write(head if request.method == b"HEAD" else head + page.body)
        self.finish(keep=True)

    def _cors_lines(self, request: Request | None) -> list[str]:
        allowed = self._hub.pipeline.cors
        if allowed is None or self._door is Door.OPERATORS or request is None:
            return []
        return [line.decode("latin-1") for line in allowed.lines(request.fields)]

    def _lend(self, request: Request, pages: Pages) -> None:
        """Have aiohttp serve one request on this connection."""
        if self._transport.is_closing():
            return
        self._page = page = pages()
        page.connection_made(LentTransport(self._transport, self._page_done))
        page.data_received(_as_bytes(request))

    def _page_done(self) -> None:
        """The page is written; the connection is ours again after aiohttp's clean-up."""
        self._hub.loop.call_soon(self._leave_page)

    def _leave_page(self) -> None:
        page, self._page = self._page, None
        if page is not None:
            page.connection_lost(None)
            self.finish(keep=True)

    # ------------------------------------------------------------ the Reply port

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def finish(self, *, keep: bool) -> None:
        self._exchange = None
        self._is_busy = False
        self.last_active = self._hub.now()
        if not keep or not self._keep_alive or self._hub.pipeline.is_draining:
            self._transport.close()
            return
        self._ahead = 0
        if self._is_paused and not self._is_far_ahead():
            self._is_paused = False
            self._transport.resume_reading()
        if self._spoiled is not None and not self._reader.ready:
            self._refuse_bytes(self._spoiled)
        elif self._reader.ready:
            # From the loop, so that a pipelining client does not deepen the stack.
            self._is_busy = True
            self._hub.loop.call_soon(self._serve_next)

    def _serve_next(self) -> None:
        if not self._transport.is_closing():
            self._serve(self._reader.ready.pop(0))

    def abort(self) -> None:
        self._exchange = None
        self._transport.abort()

    # ------------------------------------------------------------ faults of the bytes

    def _refuse_bytes(self, fault: RouterError) -> None:
        """Bytes that cannot be served: answer, and read no further request from them."""
        if self._is_busy:
            self._spoiled = fault  # the request under way is a good one and gets its answer first
            return
        head = self._reader.head
        found = endpoint_of(head.target) if head is not None else None
        self._refuse(found[0] if found is not None else "http", head, fault, keep=False)

    def _refuse(
        self,
        endpoint: str,
        request: Request | None,
        fault: RouterError,
        *,
        keep: bool,
        grant: Grant | None = None,
    ) -> None:
        """Answer and record a request whose journey does not begin."""
        pipeline = self._hub.pipeline
        request_id = pipeline.id_for(request.fields if request is not None else {})
        pipeline.note(endpoint, request_id, fault, key=grant.name if grant is not None else None)
        keep = keep and self._keep_alive
        more = self._cors_lines(request)
        if grant is not None:
            more += pipeline.rate_lines(grant)
        is_head = request is not None and request.method == b"HEAD"
        self._write_fault(request_id, fault, more, keep=keep, has_body=not is_head)
        if keep:
            self.finish(keep=True)
        else:
            self._linger()

    def _write_fault(
        self,
        request_id: str,
        fault: RouterError,
        more: Sequence[str] = (),
        *,
        keep: bool,
        has_body: bool = True,
    ) -> None:
        body = fault.body()
        lines = [
            b"HTTP/1.1 %d " % fault.status,
            b"x-request-id: " + request_id.encode(),
            b"x-router-policy: " + self._hub.pipeline.live.policy.hash.encode(),
            b"content-type: application/json",
            b"content-length: %d" % len(body),
        ]
        lines += fault.lines()
        for name, value in headers_of(fault).items():
            lines.append(f"{name.lower()}: {value}".encode())
        lines += [line.encode("latin-1") for line in more]
        if not keep:
            lines.append(b"connection: close")
        head = b"\r\n".join([*lines, b"", b""])
        self._transport.write(head + body if has_body else head)

    def turn_away(self, fault: RouterError) -> None:
        """There are too many: say so before anything is read. There is no request to record."""
        self._write_fault(self._hub.pipeline.new_id(), fault, keep=False)
        self._linger()

    def _linger(self) -> None:
        """Close so that the client can read the answer while it is still sending.

        Closing over unread bytes resets the connection and may take the answer with it.
        """
        self._is_busy = True
        self._is_lingering = True
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._hub.loop.call_later(_LINGER_S, self._transport.close)

    # ------------------------------------------------------------ time

    def check_time(self, now: float) -> None:
        """Close what is idle or too slow; called a few times a second."""
        is_closing = self._transport.is_closing()
        if self._unread_since or is_closing:
            self._check_taking(now)
        if self._is_busy or is_closing:
            return
        limits = self._hub.settings
        quiet_s = now - self.last_active
        if self._reader.is_between_requests:
            if self._begun_at:  # not a byte since it was opened
                if now - self._begun_at > limits.head_timeout_s:
                    self._hub.count_limit("head_timeout_s")
                    self._transport.close()
            elif quiet_s > limits.idle_timeout_s:
                self._transport.close()
            return
        if not self._begun_at:
            self._begun_at = now
        took_s = now - self._begun_at
        if self._reader.head is None:
            if took_s > limits.head_timeout_s:
                self._refuse_bytes(_too_slow("head_timeout_s"))
        elif quiet_s > limits.body_timeout_s:
            self._refuse_bytes(_too_slow("body_timeout_s"))
        elif took_s > limits.request_timeout_s:
            self._refuse_bytes(_too_slow("request_timeout_s"))

    def _check_taking(self, now: float) -> None:
        """Cut a client off that takes nothing of what waits for it."""
        unread = self._transport.get_write_buffer_size() + _held_by_system(self._transport)
        if unread != self._unread or not self._unread_since:
            self._unread, self._unread_since = unread, now
        elif now - self._unread_since > self._hub.settings.write_timeout_s:
            if unread:
                self._hub.count_limit("write_timeout_s")
            self._transport.abort()

    def close_if_idle(self) -> None:
        if not self._is_busy:
            self._transport.close()


class Hub:
    """What all connections share."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        settings: Settings,
        pipeline: Pipeline,
        plain: PlainPages,
        load_pages: Callable[[Callable[[Pages], None]], None],
        keyring: Keyring | None,
        guards: Mapping[Door, Guard | None],
        is_too_deep: Callable[[bytes], bool] | None = None,
    ) -> None:
        """`load_pages` gets the operator's pages ready and then calls back with them.

        `keyring` may be changed while serving; None: everybody may ask. `guards` look at who does,
        where no key is asked for. `is_too_deep` judges bodies where their nesting has a limit.
        """
        self.loop = loop
        self.now = loop.time
        self.settings = settings
        self.pipeline = pipeline
        self.plain = plain
        self.load_pages = load_pages
        self.pages: Pages | None = None  # once they are loaded
        self.keyring = keyring
        self.is_too_deep = is_too_deep
        self.guards = guards
        self.connections: set[Connection] = set()
        self._addresses: dict[bytes, int] = {}  # connections of each, where that has a limit

    def connection(self, door: Door) -> Connection:
        return Connection(self, door)

    def admit(self, connection: Connection, transport: asyncio.Transport) -> None:
        """Let a new connection be, unless there are too many."""
        limits = self.settings
        many = len(self.connections)
        if many > limits.connections:
            self.count_limit("connections")
            if many > limits.connections + _TOLD:
                transport.abort()
            else:
                connection.turn_away(
                    TooManyConnections("There are too many connections.", retry_after_s=1)
                )
        elif limits.per_address and not self._has_room(connection, transport, limits.per_address):
            self.count_limit("connections_per_address")
            connection.turn_away(
                TooManyFromAddress("Your address has too many connections.", retry_after_s=1)
            )

    def _has_room(
        self, connection: Connection, transport: asyncio.Transport, per_address: int
    ) -> bool:
        address = _address_of(transport)
        many = self._addresses.get(address, 0)
        if many >= per_address:
            return False
        self._addresses[address] = many + 1
        connection.counted_at = address
        return True

    def left(self, connection: Connection) -> None:
        self.connections.discard(connection)
        address = connection.counted_at
        if address is None:
            return
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]

    def count_limit(self, setting: str) -> None:
        """A connection was ended by a limit."""
        self.pipeline.meter.limited(setting)

    def grant_of(self, request: Request) -> Grant | None:
        """What the client's key opens. Raises BadKey where keys are asked for."""
        keyring = self.keyring
        if keyring is None:
            return None
        key = heads.bearer(request.fields)
        if key is None:
            raise BadKey("An API key is needed: `Authorization: Bearer <key>`.")
        grant = keyring.find(key, self.pipeline.clock.now())
        if grant is None:
            raise BadKey(keyring.refusal(key))
        return grant

    def check_time(self) -> None:
        now = self.now()
        for connection in list(self.connections):
            connection.check_time(now)

    def close_idle(self) -> None:
        for connection in list(self.connections):
            connection.close_if_idle()


def _too_slow(setting: str) -> RequestTimeout:
    return RequestTimeout("The request did not arrive in time.", limit=setting)


def _held_by_system(transport: asyncio.Transport) -> int:
    """Bytes that the client has not taken of what the system was given for it.

    That may be megabytes, and of a slow client we would see nothing move for a minute.
    """
    if sys.platform == "win32":
        return 0
    sock = transport.get_extra_info("socket")
    try:
        told = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
    except (AttributeError, OSError, ValueError):  # gone already
        return 0
    return int.from_bytes(told, sys.byteorder)


def _address_of(transport: asyncio.Transport) -> bytes:
    """Whose connection it is: of IPv6 the network, since one host has all of its addresses."""
    peer = transport.get_extra_info("peername")
    if not isinstance(peer, tuple):
        return b""  # gone already, or no address at all
    host = str(peer[0])
    if ":" not in host:
        return host.encode()
    return socket.inet_pton(socket.AF_INET6, host.partition("%")[0])[:8]


def _as_bytes(request: Request) -> bytes:
    """A request as one clean message for aiohttp: its body whole, its framing plain."""
    skipped = wire.HOP_BY_HOP | {b"content-length", b"content-encoding", b"expect"}
    lines = [b"%b %b HTTP/1.1" % (request.method, request.target)]
    lines += [b"%b: %b" % (name, v) for name, v in request.headers if name not in skipped]
    if b"host" not in request.fields:
        lines.append(b"host: localhost")
    if request.body or request.method not in (b"GET", b"HEAD"):
        lines.append(b"content-length: %d" % len(request.body))
    if not request.keep_alive:
        lines.append(b"connection: close")
    return b"\r\n".join([*lines, b"", b""]) + request.body


__all__ = ["Connection", "Hub", "decompressed", "endpoint_of"]
