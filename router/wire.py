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
from functools import lru_cache
from typing import Final, NamedTuple

import httptools

from router.errors import (
    BadRequestHead,
    HeadTooLarge,
    RouterError,
    TargetTooLong,
    TlsOnPlainPort,
    TooLarge,
)
from router.message import AnswerHead, Header, Request

#: hop-by-hop (RFC 9110 §7.6.1) and what belongs to our own connection only
HOP_BY_HOP: Final[frozenset[bytes]] = frozenset(
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


#: separators and the rest of the request line, which no limit is meant for
_HEAD_SLACK = 256
#: chunks of a single byte, the smallest that anybody sends, take five more to frame
_FRAMING_PER_BYTE = 8
_NO_LIMIT = 1 << 40


class RequestReader:
    """Bytes of a client connection → requests in `ready`.

    `feed` raises a ClientError for what must not be read on. `head` is the request
    whose body is still coming, so that its owner can answer `Expect` or refuse early.
    """

    __slots__ = (
        "_body",
        "_body_limit",
        "_body_size",
        "_chunked_size",
        "_count_limit",
        "_fault",
        "_fields",
        "_first",
        "_has_said_last",
        "_head_limit",
        "_head_size",
        "_headers",
        "_is_begun",
        "_is_unmeasured",
        "_is_upgrade",
        "_length",
        "_line_limit",
        "_parser",
        "_plain_limit",
        "_seam",
        "_target",
        "_target_limit",
        "_trailer_size",
        "head",
        "ready",
    )

    def __init__(
        self,
        *,
        head_limit: int,
        body_limit: int,
        count_limit: int = _NO_LIMIT,
        line_limit: int = _NO_LIMIT,
        target_limit: int = _NO_LIMIT,
    ) -> None:
        """Bytes of a head, of a body, of one header line and of a target; `count_limit` lines."""
        self._head_limit = head_limit
        self._body_limit = body_limit
        self._count_limit = count_limit
        self._line_limit = line_limit
        self._target_limit = target_limit
        #: a head of so many bytes has no line that is too long, nor a target
        self._plain_limit = min(head_limit - 4, line_limit, target_limit)
        #: made when it is needed, which for most connections is never
        self._parser: httptools.HttpRequestParser | None = None
        self.ready: list[Request] = []  # few at a time; a deque's first block is 600 bytes
        self.head: Request | None = None
        self._head_size = 0
        self._seam = b""  # the last bytes of an unfinished head
        self._length: int | None = None  # of the body, where it is told
        self._body_size = 0
        self._chunked_size = 0  # of the body so far, its framing included
        self._fault: RouterError | None = None
        self._is_upgrade = False
        self._is_unmeasured = False  # the head's beginning came behind a chunked body
        self._is_begun = False
        self._first = b""  # byte of the connection
        self._has_said_last = False  # what follows is not one of its requests; llhttp says so

    @property
    def is_between_requests(self) -> bool:
        """Nothing of a next request has come yet, but for empty lines."""
        return self.head is None and not self._is_begun

    def feed(self, data: bytes) -> None:
        if not self._first:
            self._first = data[:1]
        while data:
            if self.head is not None:
                data = self._read_body(data)
            elif (
                self._head_size
                or self._is_begun
                or self._has_said_last
                or (rest := self._read_plain(data)) is None
            ):
                data = self._read_head(data)
            else:
                data = rest

    def _read_plain(self, data: bytes) -> bytes | None:
        """Take a request that came whole and is like nearly all; what lies behind it.

        None, and nothing taken, for any other: llhttp reads that, and judges it. A request is
        like nearly all if it is a POST with one length, one host, and header lines of the
        plainest form, of which most were seen before. A third of what llhttp's callbacks cost.
        """
        end = data.find(b"\r\n\r\n")
        if not data.startswith(b"POST /") or end < 0 or end > self._plain_limit:
            return None
        first, *lines = data[:end].split(b"\r\n")
        target = _PLAIN_REQUEST.fullmatch(first)
        if target is None or len(lines) > self._count_limit:
            return None
        headers = []
        for line in lines:
            header = _plain_header(line) if len(line) < 256 else _plain_header.__wrapped__(line)
            if header is None:
                return None
            headers.append(header)
        fields = dict(headers)
        length = fields.get(b"content-length")
        if length is None or len(fields) != len(headers) or b"host" not in fields:
            return None
        size = int(length)
        start = end + 4
        if size > self._body_limit or len(data) < start + size:
            return None
        body = data[start : start + size]
        self.ready.append(Request(b"POST", target[1], headers, fields, False, True, body))
        return data[start + size :]

    def _read_head(self, data: bytes) -> bytes:
        """Read up to the end of a head and no further; what lies behind it."""
        # The blank line may have been cut, so the end of what came before is looked at too.
        seam = self._seam
        found = (seam + data).find(b"\r\n\r\n") if seam else data.find(b"\r\n\r\n")
        end = found + 4 - len(seam) if found >= 0 else len(data)
        self._head_size += end
        if not self._is_begun:
            self._is_unmeasured = False  # all of this head's bytes come by here
        if self._head_size > self._head_limit:
            # Over the limit on the wire; whether it counts as that is told by what it holds.
            self._is_unmeasured = True
            over = self._head_size - self._head_limit - _HEAD_SLACK
            if over > 0:
                # What is wrong within the limit is said first, however the bytes were cut.
                self._parse(data[: max(0, end - over)])
                raise _head_too_large(self._head_limit)
        self._seam = (seam + data[:end])[-3:] if found < 0 else b""
        return self._parse(data[:end] if end < len(data) else data) + data[end:]

    def _read_body(self, data: bytes) -> bytes:
        """Read what belongs to the body, as far as its length tells; what lies behind it."""
        size = len(data)
        if self._length is not None:
            size = min(size, self._length - self._body_size)
        else:
            self._is_unmeasured = True  # the next head may begin in this piece
            self._chunked_size += size
        rest = self._parse(data[:size] if size < len(data) else data) + data[size:]
        if self._length is None and self._head_size == 0 and self.head is None:
            # A chunked body's end shows only when it is read: a next head may have begun.
            self._seam = data[-3:]
        elif self._length is None:
            self._check_framing()
        return rest

    def _check_framing(self) -> None:
        """Extensions of chunks, and a trailer's line without an end, are bytes without content.

        Looked at after each read, so that what comes in one of them is not stopped halfway.
        """
        framing = self._chunked_size - self._body_size
        if framing > 2 * self._head_limit + _FRAMING_PER_BYTE * self._body_size:
            raise TooLarge(
                "The framing of the request's chunks is far larger than what is in them.",
                limit="header_limit_kb",
            )

    def _parse(self, data: bytes) -> bytes:
        """Give bytes to llhttp; those that it did not take."""
        parser = self._parser
        if parser is None:
            parser = self._parser = httptools.HttpRequestParser(self)
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as stopped:
            self._read_on_without_upgrade()
            return data[stopped.args[0] :]
        except httptools.HttpParserCallbackError as error:
            raise self._fault or BadRequestHead("The request cannot be read.") from error
        except httptools.HttpParserError as error:
            if self._first == _TLS_HANDSHAKE:
                raise TlsOnPlainPort("This port speaks plain HTTP: use http://.") from None
            raise BadRequestHead(f"The request is not valid HTTP: {error}.") from None
        return b""

    def _read_on_without_upgrade(self) -> None:
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
        tokens = head.fields.get(b"connection", b"").lower().split(b",")
        if b"close" in (token.strip() for token in tokens):
            lines.append(b"connection: close")
        self.head, self._is_upgrade = None, False
        self._parser = None
        version = b"1.0" if head.is_http10 else b"1.1"
        first = b"%b %b HTTP/%b" % (head.method, head.target, version)
        self._parse(b"\r\n".join([first, *lines, b"", b""]))

    # llhttp's callbacks, in the order it calls them

    def on_message_begin(self) -> None:
        self._is_begun = True
        self._headers: list[Header] = []
        self._fields: dict[bytes, bytes] = {}
        self._target = b""
        self._body: list[bytes] = []
        self._body_size = self._trailer_size = 0

    def on_url(self, url: bytes) -> None:
        self._target += url
        if len(self._target) > self._target_limit:
            self._refuse(
                TargetTooLong(
                    f"The request's target is over {_kib(self._target_limit)}.",
                    limit="target_limit_kb",
                )
            )

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head is not None:
            # A trailer: nothing behind a body may add to what was decided by its head.
            self._trailer_size += len(name) + len(value)
            if self._trailer_size > self._head_limit:
                self._refuse(
                    HeadTooLarge("The request's trailer has no end.", limit="header_limit_kb")
                )
            return
        if len(name) + len(value) > self._line_limit:
            self._refuse(
                HeadTooLarge(
                    f"A header line of the request is over {_kib(self._line_limit)}.",
                    limit="header_line_kb",
                )
            )
        name = name.lower()
        value = value.rstrip(b" \t")  # llhttp leaves it
        self._headers.append((name, value))
        self._fields[name] = value
        if len(self._headers) > self._count_limit:
            self._refuse(
                HeadTooLarge(
                    f"The request has more than {self._count_limit} header lines.",
                    limit="header_count",
                )
            )

    def on_headers_complete(self) -> None:
        parser, fields = self._parser, self._fields
        assert parser is not None
        version = parser.get_http_version()
        self._is_upgrade = parser.should_upgrade()
        self._head_size, self._seam, self._chunked_size = 0, b"", 0
        method = parser.get_method()
        host = fields.get(b"host")
        if host is not None and _HOST.fullmatch(host) is None:
            self._refuse(BadRequestHead("Host must be a host and perhaps a port."))
        if not self._target.startswith(b"/") and method != b"CONNECT":
            self._read_absolute(method)
        self.head = Request(
            method,
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
        if version == "1.1" and host is None:
            self._refuse(BadRequestHead("A request needs a Host."))
        if len(fields) != len(self._headers):
            names = [name for name, _ in self._headers]
            if names.count(b"host") > 1 or names.count(b"transfer-encoding") > 1:
                self._refuse(BadRequestHead("Host and Transfer-Encoding may stand there once."))
            if names.count(b"connection") > 1:  # each line names headers that go no further
                fields[b"connection"] = _joined(self._headers, b"connection")
        if self._is_unmeasured:
            size = sum([len(name) + len(value) + 4 for name, value in self._headers])
            if size + len(self._target) > self._head_limit:
                self._refuse(_head_too_large(self._head_limit))
        length = fields.get(b"content-length")
        self._length = int(length) if length is not None else None
        if self._length is not None and self._length > self._body_limit:
            self._too_large()

    def _read_absolute(self, method: bytes) -> None:
        """Take the target as it is sent to proxies, which every server must (RFC 9112 §3.2.2).

        What it says of the host is over what Host says.
        """
        found = _ABSOLUTE.fullmatch(self._target)
        if found is None or _HOST.fullmatch(found[1]) is None:
            if self._target != b"*" or method != b"OPTIONS":
                self._refuse(BadRequestHead("The request's target is not one of this server's."))
            return
        path = found[2]
        self._target = path if path.startswith(b"/") else b"/" + path
        if b"host" in self._fields:
            self._fields[b"host"] = found[1]
            self._headers = [
                (name, found[1] if name == b"host" else value) for name, value in self._headers
            ]

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
        self._is_begun = False
        self._has_said_last = not request.keep_alive
        self.ready.append(request)

    def _too_large(self) -> None:
        self._refuse(
            TooLarge(
                f"The request body is over {self._body_limit / 2**20:g} MiB.",
                limit="body_limit_mb",
            )
        )

    def _refuse(self, fault: RouterError) -> None:
        # llhttp wraps what a callback raises, so it is kept here for `feed`.
        self._fault = fault
        raise fault


#: the kind of record that TLS begins with; no word of HTTP does
_TLS_HANDSHAKE = b"\x16"
_PLAIN_REQUEST = re.compile(rb"POST (/[A-Za-z0-9/._~%?&=:@!$'()*+,;-]*) HTTP/1\.1")
#: no odd white space, no bytes but ASCII: how lines look that anybody means
_PLAIN_HEADER = re.compile(rb"([A-Za-z0-9-]+): ([!-~](?:[ -~]*[!-~])?)")
_PLAIN_LENGTH = re.compile(rb"0|[1-9]\d{0,11}")
#: a host and perhaps a port (RFC 3986 §3.2); empty where there is none to name
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]*)(?::\d{0,5})?")
_ABSOLUTE = re.compile(rb"[Hh][Tt][Tt][Pp][Ss]?://([^/?#]*)([^#]*)")
#: what changes how a message is framed or answered
_NOT_PLAIN = HOP_BY_HOP | {b"expect", b"http2-settings"}


@lru_cache(maxsize=1024)
def _plain_header(line: bytes) -> Header | None:
    found = _PLAIN_HEADER.fullmatch(line)
    if found is None:
        return None
    name, value = found[1].lower(), found[2]
    if name in _NOT_PLAIN and (name != b"connection" or value.lower() != b"keep-alive"):
        return None
    if name == b"content-length" and _PLAIN_LENGTH.fullmatch(value) is None:
        return None
    if name == b"host" and _HOST.fullmatch(value) is None:
        return None
    return name, value


def _joined(headers: list[Header], wanted: bytes) -> bytes:
    """The value of a header that stands there several times, as one list (RFC 9110 §5.3)."""
    return b", ".join([value for name, value in headers if name == wanted])


def _head_too_large(limit: int) -> HeadTooLarge:
    return HeadTooLarge(f"The request's head is over {_kib(limit)}.", limit="header_limit_kb")


def _kib(size: int) -> str:
    return f"{size >> 10} KiB"


class BadAnswer(Exception):
    """What came from a backend is not an HTTP answer, or breaks off inside."""


#: one answer head may be this large; vLLM's are under 1 KiB
ANSWER_HEAD_LIMIT = 64 << 10
_BODILESS = frozenset({204, 304})
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
        if [name for name, _ in headers].count(b"transfer-encoding") > 1:
            raise BadAnswer("several transfer codings")
        if b"connection" in fields:
            fields[b"connection"] = _joined(headers, b"connection")
    status = int(found[2])
    connection = fields.get(b"connection", b"").lower()
    keep_alive = b"close" not in connection if found[1] == b"1" else connection == b"keep-alive"
    if status in _BODILESS:
        keep_alive = False  # some send a body all the same, which is not the next answer
    elif b"transfer-encoding" in fields and (b"content-length" in fields or found[1] == b"0"):
        keep_alive = False  # two framings: where the next answer begins is a guess (RFC 9112 §6.3)
    return AnswerHead(status, headers, fields, keep_alive)


@lru_cache(maxsize=512)
def _header(line: bytes) -> Header:
    """One header line. A backend says the same few, so most are read only once."""
    name, colon, value = line.partition(b":")
    if not colon or not name or name != name.strip():
        raise BadAnswer("a header line without a name")
    if b"\n" in line or b"\r" in line or b"\0" in line:
        raise BadAnswer("a header line that is several")
    return name.lower(), value.strip()


class Piece(NamedTuple):
    """What one read of an answer's body held."""

    payloads: list[bytes]  # without framing, in order
    is_whole: bool  # whole chunks and nothing else, so it can go out as it is
    is_last: bool
    excess: bytes  # behind the end of the message


class LengthBody:
    """A body of known length, or of none; `left` is what is still to come of it."""

    __slots__ = ("left",)

    def __init__(self, length: int) -> None:
        self.left = length

    def feed(self, data: bytes) -> Piece:
        mine = data[: self.left] if len(data) > self.left else data
        self.left -= len(mine)
        return Piece([mine] if mine else [], False, self.left == 0, data[len(mine) :])

    def close(self) -> bool:
        """Whether the connection may end here."""
        return self.left == 0


class UntilCloseBody:
    """A body that ends with its connection."""

    __slots__ = ()

    def feed(self, data: bytes) -> Piece:
        return Piece([data] if data else [], False, False, b"")

    def close(self) -> bool:
        return True


_CHUNK_START = rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]{0,4096})?"
_CHUNK = re.compile(_CHUNK_START + rb"\r\n")
_CUT_CHUNK = re.compile(rb"(?:" + _CHUNK_START + rb"\r?)?")
_TRAILER_LIMIT = 16 << 10


class ChunkedBody:
    """A chunked body, walked: payloads are found, whole chunks can go on untouched."""

    __slots__ = ("_closing", "_held", "_in_trailer", "_is_over", "_left", "_trailer_size")

    def __init__(self) -> None:
        self._left = 0  # bytes of the open chunk's payload still to come
        self._closing = b""  # what must still come behind its payload
        self._held = b""  # an unfinished chunk-size line or trailer
        self._in_trailer = False
        self._trailer_size = 0
        self._is_over = False

    def feed(self, data: bytes) -> Piece:
        began_between = self.is_between()
        if self._held:
            data, self._held = self._held + data, b""
        payloads: list[bytes] = []
        at, end = 0, len(data)
        while at < end and not self._is_over:
            if self._left:
                taken = min(self._left, end - at)
                payloads.append(data[at : at + taken])
                self._left -= taken
                at += taken
            elif self._closing:
                part = data[at : at + len(self._closing)]
                if not self._closing.startswith(part):
                    raise BadAnswer("a chunk does not end where it said")
                self._closing = self._closing[len(part) :]
                at += len(part)
            elif self._in_trailer:
                at = self._trailer(data, at)
            else:
                at = self._size_line(data, at)
        whole = began_between and (self._is_over or self.is_between())
        return Piece(payloads, whole and not data[at:], self._is_over, data[at:])

    def is_between(self) -> bool:
        """Between two chunks."""
        return not (self._left or self._closing or self._held or self._in_trailer)

    def _size_line(self, data: bytes, at: int) -> int:
        found = _CHUNK.match(data, at)
        if found is None:
            if _CUT_CHUNK.fullmatch(data, at) is None:
                raise BadAnswer("not a chunk size")
            self._held = data[at:]
            return len(data)
        self._left = int(found[1], 16)
        if self._left:
            self._closing = b"\r\n"
        else:
            self._in_trailer = True
        return found.end()

    def _trailer(self, data: bytes, at: int) -> int:
        if data.startswith(b"\r\n", at):
            self._in_trailer, self._is_over = False, True
            return at + 2
        line = data.find(b"\r\n", at)
        size = (line + 2 if line >= 0 else len(data)) - at
        if self._trailer_size + size > _TRAILER_LIMIT:
            raise BadAnswer("an endless trailer")
        if line < 0:
            self._held = data[at:]
            return len(data)
        self._trailer_size += size
        return line + 2

    def close(self) -> bool:
        return self._is_over


Body = LengthBody | UntilCloseBody | ChunkedBody


def body_of(head: AnswerHead, method: bytes) -> Body:
    """How the body behind this head is framed (RFC 9112 §6.3)."""
    if method == b"HEAD" or head.status in _BODILESS:
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
