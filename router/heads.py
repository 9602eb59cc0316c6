"""Message heads of our own making: what goes on to a backend, and what back to a client.

Pure. Lines that many messages share are made once and remembered; those are the operator's
and the software's own, and what a client can vary at will is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import isfinite

from router import wire
from router.message import Header

_NEVER_FORWARDED = wire.HOP_BY_HOP | {
    b"host",
    b"content-length",
    b"content-encoding",  # the body goes on decoded
    b"expect",
    b"http2-settings",
    b"cookie",
    b"x-api-key",
    b"x-request-id",
    b"accept-encoding",
    b"authorization",
}
_NEVER_FORWARDED_PREFIXES = (b"x-stainless-", b"x-router-")
_NEVER_RETURNED = wire.HOP_BY_HOP | {
    b"content-length",
    b"x-request-id",
    # What a backend may not decide for this address, where the dashboard lives too: who else may
    # read answers, what a browser keeps, and where clients are to ask from now on.
    b"alt-svc",
    b"clear-site-data",
    b"location",
    b"refresh",
    b"service-worker-allowed",
    b"set-cookie",
    b"strict-transport-security",
    # Orders to a web server in front of us, which would answer with a file of its own.
    b"x-accel-redirect",
    b"x-lighttpd-send-file",
    b"x-sendfile",
}
_NEVER_RETURNED_PREFIXES = (b"access-control-", b"x-router-")
#: types that a browser would run as a page of this address
_PAGES = (b"text/html", b"text/xml", b"application/xhtml", b"application/xml", b"image/svg")
_NO_PAGE = b"content-type: text/plain; charset=utf-8\r\nx-content-type-options: nosniff"
_REASONS: Mapping[int, bytes] = {200: b"OK", 400: b"Bad Request", 404: b"Not Found"}


@lru_cache(maxsize=512)
def reply_start(status: int, scenario: str | None, backend: str | None, policy: str) -> bytes:
    """The part of a reply's head that is the same for many, up to the request's id."""
    lines = [b"HTTP/1.1 %d %b" % (status, _REASONS.get(status, b""))]
    if scenario is not None:
        lines.append(b"x-router-scenario: " + scenario.encode())
    if backend is not None:
        lines.append(b"x-router-backend: " + backend.encode())
    lines.append(b"x-router-policy: " + policy.encode())
    lines.append(b"x-request-id: ")
    return b"\r\n".join(lines)


@lru_cache(maxsize=256)
def request_start(path: bytes, host: bytes) -> bytes:
    return b"POST %b HTTP/1.1\r\nhost: %b\r\nx-request-id: " % (path, host)


def forwarded(header: Header) -> bytes:
    """A client's header line for the backend; nothing where it is not for it."""
    return _forwarded_line(header) if len(header[1]) < 128 else _forwarded_line.__wrapped__(header)


@lru_cache(maxsize=1024)
def _forwarded_line(header: Header) -> bytes:
    name, value = header
    if name in _NEVER_FORWARDED or name.startswith(_NEVER_FORWARDED_PREFIXES):
        return b""
    return name + b": " + value


@lru_cache(maxsize=512)
def returned(header: Header) -> bytes:
    """A backend's header line for the client; nothing where it is not for it."""
    name, value = header
    if name in _NEVER_RETURNED or name.startswith(_NEVER_RETURNED_PREFIXES):
        return b""
    if name == b"content-type" and value.lower().startswith(_PAGES):
        return _NO_PAGE  # an answer is data, whatever it says of itself
    return name + b": " + value


_NO_NAMES: frozenset[bytes] = frozenset()


def named_by(connection: bytes | None) -> frozenset[bytes]:
    """The headers that a Connection header makes hop-by-hop."""
    if connection is None or connection.lower() in (b"keep-alive", b"close"):
        return _NO_NAMES
    return frozenset(name.strip().lower() for name in connection.split(b","))


def bearer(fields: Mapping[bytes, bytes]) -> bytes | None:
    """The key in `Authorization: Bearer <key>`; None where there is none."""
    scheme, _, key = fields.get(b"authorization", b"").partition(b" ")
    return key.strip() or None if scheme.lower() == b"bearer" else None


def given_id(fields: Mapping[bytes, bytes]) -> str | None:
    """The client's own request id, where it is one that can go into headers and logs."""
    given = fields.get(b"x-request-id")
    if given is None or not 0 < len(given) <= 128 or not given.isascii():
        return None
    text = given.decode()
    return text if text.isprintable() and " " not in text else None


def retry_after(fields: Mapping[bytes, bytes]) -> float | None:
    """Seconds that a backend asks to be left alone; None where it does not say, or by a date."""
    try:
        seconds = float(fields[b"retry-after"])
    except (KeyError, ValueError):
        return None
    return max(0.0, seconds) if isfinite(seconds) else None


_PRINTABLE = bytes(byte if 32 <= byte < 127 else ord(" ") for byte in range(256))


def ascii_line(text: str) -> bytes:
    """A header value: headers are printable ASCII, one line, and of bounded length."""
    return text[:2000].encode("ascii", "replace").translate(_PRINTABLE)
