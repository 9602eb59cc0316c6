"""One client connection: inference goes straight to the pipeline, the operator's pages to aiohttp.

Every request is read by llhttp under our limits, whoever then serves it; a page is
handed to aiohttp as one clean request at a time. So there is one parser at the edge,
no request can be read two ways, and the inference path carries no framework.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Protocol, cast

import structlog

from router import wire
from router.chat import PASSED, Endpoint
from router.errors import (
    BadKey,
    BadRequestHead,
    ClientError,
    RequestTimeout,
    RouterError,
    TlsOnPlainPort,
    TooLarge,
    UnsupportedCoding,
)
from router.exchange import Exchange
from router.message import Request
from router.pipeline import Pipeline
from router.ports import Order
from router.programlog import Seldom
from router.server.plain import OPERATORS, Page

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


class Settings(Protocol):
    """What the edge needs to know of the configuration."""

    @property
    def head_limit(self) -> int: ...
    @property
    def body_limit(self) -> int: ...
    @property
    def idle_timeout_s(self) -> float: ...
    @property
    def body_timeout_s(self) -> float: ...


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

    def __call__(self, method: str, target: str, *, is_inference: bool) -> Page: ...


log = structlog.get_logger(__name__)
_seldom = Seldom(10.0)

_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}
#: the client's key → its name; None where everybody may ask
Keys = Callable[[bytes], str | None]


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

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._reader = wire.RequestReader(
            head_limit=hub.settings.head_limit, body_limit=hub.settings.body_limit
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
        self.last_active = 0.0

    # ------------------------------------------------------------ from the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.write = self._transport.write  # type: ignore[method-assign]  # one call less a piece
        self._hub.connections.add(self)
        self.last_active = self._hub.now()

    def data_received(self, data: bytes) -> None:
        if self._is_lingering or self._spoiled is not None:
            return
        self.last_active = self._hub.now()
        try:
            self._reader.feed(data)
        except ClientError as fault:
            if isinstance(fault, TlsOnPlainPort) and _seldom.due("tls") is not None:
                log.warning("a client speaks TLS to a port of plain HTTP: it must use http://")
            self._refuse_bytes(fault)
            return
        if self._is_busy:
            # A pipelined request waits for its turn. Reading goes on, since only reading shows
            # that a client has left, until it sends more than anybody would.
            self._ahead += len(data)
            if self._ahead > _AHEAD_LIMIT:
                self._transport.pause_reading()
                self._is_paused = True
        elif self._reader.ready:
            self._serve(self._reader.ready.pop(0))
        elif self._reader.head is not None and not self._has_continued:
            self._answer_expectation(self._reader.head)

    def eof_received(self) -> bool:
        return False  # a client that stops sending has left, as nginx sees it too

    def connection_lost(self, exc: Exception | None) -> None:
        self._hub.connections.discard(self)
        if self._page is not None:
            self._page.connection_lost(exc)
        if self._exchange is not None:
            self._exchange.on_client_gone()
        self._exchange = self._page = None

    def pause_writing(self) -> None:
        if self._page is not None:
            self._page.pause_writing()
        elif self._exchange is not None:
            self._exchange.pause()

    def resume_writing(self) -> None:
        if self._page is not None:
            self._page.resume_writing()
        elif self._exchange is not None:
            self._exchange.resume()

    # ------------------------------------------------------------ one request

    def _answer_expectation(self, head: Request) -> None:
        """`Expect: 100-continue`: say yes before the body, or the error instead of it."""
        self._has_continued = True
        if head.fields.get(b"expect", b"").lower() != b"100-continue":
            return
        try:
            self._hub.key_of(head)
        except RouterError as fault:
            self._refuse_bytes(fault)
            return
        self._transport.write(_CONTINUE)

    def _serve(self, request: Request) -> None:
        self._is_busy = True
        self._has_continued = False
        self._keep_alive = request.keep_alive
        found = endpoint_of(request.target)
        if found is None or request.method != b"POST":
            self._serve_page(request)
            return
        endpoint, path = found
        try:
            key = self._hub.key_of(request)
            if b"content-encoding" in request.fields:
                request.body = decompressed(request, self._hub.settings.body_limit)
        except RouterError as fault:
            self._refuse(endpoint, request, fault, keep=True)
            return
        order = Order(request, endpoint, path, key)
        exchange = Exchange(self._hub.pipeline, order, self)
        self._exchange = exchange
        self._hub.pipeline.active.add(exchange)
        exchange.start()

    def _serve_page(self, request: Request) -> None:
        path = request.target.partition(b"?")[0]
        if not path.startswith(OPERATORS):
            self._write_page(request)
        elif self._hub.pages is not None:
            self._lend(request, self._hub.pages)
        else:
            self._hub.load_pages(lambda pages: self._lend(request, pages))

    def _write_page(self, request: Request) -> None:
        page = self._hub.plain(
            request.method.decode("latin-1"),
            request.target.decode("latin-1"),
            is_inference=endpoint_of(request.target) is not None,
        )
        if page.pieces is not None:
            self._gather(request, page, [])
        else:
            self._send_page(request, page)

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
            *(f"{name.lower()}: {value}" for name, value in page.headers.items()),
            *([] if request.keep_alive else ["connection: close"]),
        ]
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        self._transport.write(head if request.method == b"HEAD" else head + page.body)
        self.finish(keep=True)

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
        if self._is_paused:
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
        self, endpoint: str, request: Request | None, fault: RouterError, *, keep: bool
    ) -> None:
        """Answer and record a request whose journey does not begin."""
        pipeline = self._hub.pipeline
        request_id = pipeline.id_for(request.fields if request is not None else {})
        pipeline.note(endpoint, request_id, fault)
        body = fault.body()
        keep = keep and self._keep_alive
        self._transport.write(
            b"HTTP/1.1 %d \r\nx-request-id: %b\r\nx-router-policy: %b\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n%b\r\n"
            % (
                fault.status,
                request_id.encode(),
                pipeline.live.policy.hash.encode(),
                len(body),
                b"" if keep else b"connection: close\r\n",
            )
            + body
        )
        if keep:
            self.finish(keep=True)
        else:
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
        if self._is_busy:
            return
        quiet_s = now - self.last_active
        if self._reader.is_between_requests:
            if quiet_s > self._hub.settings.idle_timeout_s:
                self._transport.close()
        elif quiet_s > self._hub.settings.body_timeout_s:
            self._refuse_bytes(RequestTimeout("The request did not arrive in time."))

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
        keys: Keys | None,
    ) -> None:
        """`load_pages` gets the operator's pages ready and then calls back with them."""
        self.loop = loop
        self.now = loop.time
        self.settings = settings
        self.pipeline = pipeline
        self.plain = plain
        self.load_pages = load_pages
        self.pages: Pages | None = None  # once they are loaded
        self._keys = keys
        self.connections: set[Connection] = set()

    def connection(self) -> Connection:
        return Connection(self)

    def key_of(self, request: Request) -> str | None:
        """The name of the client's key. Raises BadKey where keys are asked for."""
        if self._keys is None:
            return None
        scheme, _, key = request.fields.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not key:
            raise BadKey("An API key is needed: `Authorization: Bearer <key>`.")
        name = self._keys(key.strip())
        if name is None:
            raise BadKey("The API key is not known here.")
        return name

    def check_time(self) -> None:
        now = self.now()
        for connection in list(self.connections):
            connection.check_time(now)

    def close_idle(self) -> None:
        for connection in list(self.connections):
            connection.close_if_idle()


def decompressed(request: Request, limit: int) -> bytes:
    """A request body without its Content-Encoding, never more than `limit` bytes."""
    coding = request.fields[b"content-encoding"].lower().strip()
    if coding in (b"", b"identity"):
        return request.body
    if coding not in (b"gzip", b"x-gzip", b"deflate"):
        raise UnsupportedCoding(
            "Content-Encoding must be gzip, deflate or identity.", param="content-encoding"
        )
    inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        body = inflater.decompress(request.body, limit + 1)
        if not inflater.eof and coding == b"deflate" and not body:
            raise zlib.error("empty")
    except zlib.error:
        body = _raw_deflate(request.body, limit)
        inflater = None  # type: ignore[assignment]
    if len(body) > limit:
        raise TooLarge(f"The decompressed body is over {limit / 2**20:g} MiB.")
    if inflater is not None and not inflater.eof:
        raise BadRequestHead("The compressed body is cut off.")
    return body


def _raw_deflate(body: bytes, limit: int) -> bytes:
    """`deflate` without the zlib wrapper, which some clients send under that name."""
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(body, limit + 1)
    except zlib.error:
        raise BadRequestHead("The compressed body cannot be read.") from None


def _as_bytes(request: Request) -> bytes:
    """A request as one clean message for aiohttp: its body whole, its framing plain."""
    skipped = wire.HOP_BY_HOP | {b"content-length", b"expect"}
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
