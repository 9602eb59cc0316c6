"""HTTP/1.1 without sockets: requests in (llhttp), answer heads and bodies in.

In: bytes as they come off a socket. Out: whole requests; answer heads; and for each
piece of an answer, where its payload lies and whether the message is over. Knows
limits, nothing of JSON. Any way of cutting the bytes gives the same result.

Requests are read by llhttp, which is strict about what smuggling lives on (two
lengths, a length beside chunks, bare line feeds). Answers come from the operator's
own servers; their heads are split here, and chunked bodies are walked rather than
decoded, so that whole chunks can be passed on as they are.
"""

from __future__ import annotations

import re
from collections import deque
from functools import lru_cache
from typing import NamedTuple

import httptools
import msgspec

from router.errors import BadRequestHead, HeadTooLarge, RouterError, TooLarge

Header = tuple[bytes, bytes]

#: hop-by-hop (RFC 9110 §7.6.1) and what belongs to our own connection only
HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)


class Request(msgspec.Struct):
    """One request off the wire; header names in lower case."""

    method: bytes
    target: bytes
    headers: list[Header]
    fields: dict[bytes, bytes]  # the last of each name
    is_http10: bool
    keep_alive: bool
    body: bytes


class RequestReader:
    """Bytes of a client connection → requests in `ready`.

    `feed` raises a ClientError for what must not be read on. `head` is the request
    whose body is still coming, so that its owner can answer `Expect` or refuse early.
    """

    __slots__ = (
        "_body",
        "_body_limit",
        "_body_size",
        "_fault",
        "_fields",
        "_head_limit",
        "_head_size",
        "_headers",
        "_is_upgrade",
        "_parser",
        "_target",
        "head",
        "ready",
    )

    def __init__(self, *, head_limit: int, body_limit: int) -> None:
        self._head_limit = head_limit
        self._body_limit = body_limit
        self._parser = httptools.HttpRequestParser(self)
        self.ready: deque[Request] = deque()
        self.head: Request | None = None
        self._head_size = 0
        self._fault: RouterError | None = None
        self._is_upgrade = False

    @property
    def is_between_requests(self) -> bool:
        """Nothing of a next request has come yet."""
        return self._head_size == 0 and self.head is None

    def feed(self, data: bytes) -> None:
        if self.head is None:
            self._head_size += len(data)
            if self._head_size > self._head_limit and self._is_head_too_large(data):
                raise HeadTooLarge(f"The request's head is over {self._head_limit >> 10} KiB.")
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as stopped:
            self._read_on_without_upgrade(data[stopped.args[0] :])
        except httptools.HttpParserCallbackError as error:
            raise self._fault or BadRequestHead("The request cannot be read.") from error
        except httptools.HttpParserError as error:
            raise BadRequestHead(f"The request is not valid HTTP: {error}.") from None

    def _is_head_too_large(self, data: bytes) -> bool:
        """Over the limit, unless this piece ends the head within it and brings a body along."""
        end = data.find(b"\r\n\r\n")
        return end < 0 or self._head_size - len(data) + end + 4 > self._head_limit

    def _read_on_without_upgrade(self, rest: bytes) -> None:
        """An offer of another protocol is not taken up (RFC 9110 §7.8) and the request served.

        llhttp stops behind such a head, so it is given again without the offer.
        """
        head = self.head
        if head is None or head.method == b"CONNECT":
            raise BadRequestHead("This server is no tunnel.")
        lines = [
            b"%b: %b" % (name, value)
            for name, value in head.headers
            if name not in (b"upgrade", b"http2-settings", b"connection")
        ]
        self.head, self._is_upgrade = None, False
        self._parser = httptools.HttpRequestParser(self)
        first = b"%b %b HTTP/1.1" % (head.method, head.target)
        self.feed(b"\r\n".join([first, *lines, b"", b""]) + rest)

    # llhttp's callbacks, in the order it calls them

    def on_message_begin(self) -> None:
        self._headers: list[Header] = []
        self._fields: dict[bytes, bytes] = {}
        self._target = b""
        self._body: list[bytes] = []
        self._body_size = 0

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head is not None:
            return  # a trailer: nothing behind a body may add to what was decided by its head
        name = name.lower()
        self._headers.append((name, value))
        self._fields[name] = value

    def on_headers_complete(self) -> None:
        parser, fields = self._parser, self._fields
        version = parser.get_http_version()
        self._is_upgrade = parser.should_upgrade()
        self._head_size = 0
        self.head = Request(
            parser.get_method(),
            self._target,
            self._headers,
            fields,
            version == "1.0",
            parser.should_keep_alive() and version != "1.0",  # one request each, as they expect
            b"",
        )
        coding = fields.get(b"transfer-encoding")
        if version not in ("1.1", "1.0"):
            self._refuse(BadRequestHead(f"HTTP/{version} is not spoken here."))
        if coding is not None and (coding.lower() != b"chunked" or version == "1.0"):
            self._refuse(BadRequestHead("The only transfer coding understood is chunked."))
        if (version == "1.1" and b"host" not in fields) or (
            len(fields) != len(self._headers)
            and sum(name == b"host" for name, _ in self._headers) > 1
        ):
            self._refuse(BadRequestHead("A request needs exactly one Host."))
        length = fields.get(b"content-length")
        if length is not None and int(length) > self._body_limit:
            self._too_large()

    def on_body(self, piece: bytes) -> None:
        self._body_size += len(piece)
        if self._body_size > self._body_limit:
            self._too_large()
        self._body.append(piece)

    def on_message_complete(self) -> None:
        request = self.head
        if request is None or self._is_upgrade:
            return
        body = self._body
        request.body = body[0] if len(body) == 1 else b"".join(body)
        self._body = []
        self.head = None
        self.ready.append(request)

    def _too_large(self) -> None:
        self._refuse(TooLarge(f"The request body is over {self._body_limit / 2**20:g} MiB."))

    def _refuse(self, fault: RouterError) -> None:
        # llhttp wraps what a callback raises, so it is kept here for `feed`.
        self._fault = fault
        raise fault


class AnswerHead(msgspec.Struct):
    """The head of an answer; header names in lower case."""

    status: int
    headers: list[Header]
    fields: dict[bytes, bytes]
    keep_alive: bool


class BadAnswer(Exception):
    """What came from a backend is not an HTTP answer, or breaks off inside."""


#: one answer head may be this large; vLLM's are under 1 KiB
ANSWER_HEAD_LIMIT = 64 << 10
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-5]\d\d)(?: |$)")


def answer_head(raw: bytes) -> AnswerHead:
    """The head that `raw`, which ends before the blank line, spells."""
    lines = raw.split(b"\r\n")
    found = _STATUS.match(lines[0])
    if found is None:
        raise BadAnswer("not an HTTP/1 answer")
    headers = [_header(line) for line in lines[1:]]
    fields = dict(headers)
    if len(fields) != len(headers):
        lengths = {value for name, value in headers if name == b"content-length"}
        if len(lengths) > 1:
            raise BadAnswer("two lengths")
    connection = fields.get(b"connection", b"").lower()
    keep_alive = connection != b"close" if found[1] == b"1" else connection == b"keep-alive"
    return AnswerHead(int(found[2]), headers, fields, keep_alive)


@lru_cache(maxsize=512)
def _header(line: bytes) -> Header:
    """One header line. A backend says the same few, so most are read only once."""
    name, colon, value = line.partition(b":")
    if not colon or not name or name != name.strip():
        raise BadAnswer("a header line without a name")
    return name.lower(), value.strip()


class Piece(NamedTuple):
    """What one read of an answer's body held."""

    payloads: list[bytes]  # without framing, in order
    is_whole: bool  # whole chunks and nothing else, so it can go out as it is
    is_last: bool
    excess: bytes  # behind the end of the message


class LengthBody:
    """A body of known length, or of none."""

    __slots__ = ("_left",)
    is_chunked = False

    def __init__(self, length: int) -> None:
        self._left = length

    def feed(self, data: bytes) -> Piece:
        mine = data[: self._left] if len(data) > self._left else data
        self._left -= len(mine)
        return Piece([mine] if mine else [], False, self._left == 0, data[len(mine) :])

    def close(self) -> bool:
        """Whether the connection may end here."""
        return self._left == 0


class UntilCloseBody:
    """A body that ends with its connection."""

    __slots__ = ()
    is_chunked = False

    def feed(self, data: bytes) -> Piece:
        return Piece([data] if data else [], False, False, b"")

    def close(self) -> bool:
        return True


_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n")
_CHUNK_LINE_LIMIT = 4096
_TRAILER_LIMIT = 16 << 10


class ChunkedBody:
    """A chunked body, walked: payloads are found, whole chunks can go on untouched."""

    __slots__ = ("_held", "_in_trailer", "_is_over", "_left")
    is_chunked = True

    def __init__(self) -> None:
        self._left = 0  # bytes of the open chunk still to come, its CRLF included
        self._held = b""  # an unfinished chunk-size line or trailer
        self._in_trailer = False
        self._is_over = False

    def feed(self, data: bytes) -> Piece:
        began_between = not self._left and not self._held and not self._in_trailer
        if self._held:
            data, self._held = self._held + data, b""
        payloads: list[bytes] = []
        at, end = 0, len(data)
        while at < end and not self._is_over:
            if self._left:
                at = self._inside(data, at, payloads)
                continue
            if self._in_trailer:
                at = self._trailer(data, at)
                continue
            found = _CHUNK.match(data, at)
            if found is None:
                self._unfinished(data, at)
                at = end
                break
            at = found.end()
            size = int(found[1], 16)
            if size:
                self._left = size + 2
            else:
                self._in_trailer = True
        ended_between = not self._left and not self._held and not self._in_trailer
        whole = began_between and (ended_between or self._is_over)
        return Piece(payloads, whole and not data[at:], self._is_over, data[at:])

    def _inside(self, data: bytes, at: int, payloads: list[bytes]) -> int:
        """Take what there is of the open chunk."""
        end = at + self._left
        text_end = end - 2
        if len(data) >= end:
            closing = data[max(text_end, at) : end]
            if closing != b"\r\n"[-len(closing) :]:
                raise BadAnswer("a chunk does not end where it said")
            if text_end > at:
                payloads.append(data[at:text_end])
            self._left = 0
            return end
        if text_end > at:
            payloads.append(data[at:text_end])
        self._left = end - len(data)
        return len(data)

    def _trailer(self, data: bytes, at: int) -> int:
        if data.startswith(b"\r\n", at):
            self._in_trailer, self._is_over = False, True
            return at + 2
        line = data.find(b"\r\n", at)
        if line < 0:
            if len(data) - at > _TRAILER_LIMIT:
                raise BadAnswer("an endless trailer")
            self._held = data[at:]
            return len(data)
        return line + 2

    def _unfinished(self, data: bytes, at: int) -> None:
        rest = data[at:]
        line = rest.find(b"\r\n")
        looks_right = re.fullmatch(rb"[0-9A-Fa-f]{0,15}[ \t]*(?:;[^\n]*)?\r?", rest)
        if line >= 0 or looks_right is None or len(rest) > _CHUNK_LINE_LIMIT:
            raise BadAnswer("not a chunk size")
        self._held = rest

    def close(self) -> bool:
        return self._is_over


Body = LengthBody | UntilCloseBody | ChunkedBody


def body_of(head: AnswerHead, method: bytes) -> Body:
    """How the body behind this head is framed (RFC 9112 §6.3)."""
    if method == b"HEAD" or head.status in (204, 304):
        return LengthBody(0)
    coding = head.fields.get(b"transfer-encoding")
    if coding is not None:
        if coding.lower() != b"chunked":
            raise BadAnswer("a transfer coding other than chunked")
        return ChunkedBody()
    length = head.fields.get(b"content-length")
    if length is None:
        return UntilCloseBody()
    if not length.isdigit():
        raise BadAnswer("a length that is no number")
    return LengthBody(int(length))


def chunk(payload: bytes) -> bytes:
    """One chunk; nothing for nothing, since an empty chunk would end the body."""
    return b"%x\r\n%b\r\n" % (len(payload), payload) if payload else b""


LAST_CHUNK = b"0\r\n\r\n"
