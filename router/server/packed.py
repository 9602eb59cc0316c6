"""Request bodies that came compressed, unpacked under limits. Pure."""

from __future__ import annotations

import zlib

from router.errors import BadRequestHead, TooLarge, UnsupportedCoding
from router.message import Request

#: a short text of one letter grows thousandfold, and harms nobody
_ALWAYS = 1 << 20


def decompressed(request: Request, limit: int, ratio: int = 1 << 20) -> bytes:
    """A request body without its Content-Encoding.

    Never more than `limit` bytes, nor than `ratio` times what came; unpacking stops there.
    """
    coding = request.fields[b"content-encoding"].lower().strip()
    body = request.body
    if coding in (b"", b"identity"):
        return body
    if coding not in (b"gzip", b"x-gzip", b"deflate"):
        raise UnsupportedCoding(
            "Content-Encoding must be gzip, deflate or identity.", param="content-encoding"
        )
    room = min(limit, max(_ALWAYS, ratio * len(body)))
    try:
        plain = _inflated(body, zlib.MAX_WBITS | 32, room)
    except zlib.error:
        if coding != b"deflate":
            raise BadRequestHead("The compressed body cannot be read.") from None
        plain = _raw_deflate(body, room)
    if len(plain) > limit:
        raise TooLarge(
            f"The decompressed body is over {limit / 2**20:g} MiB.", limit="body_limit_mb"
        )
    if len(plain) > room:
        raise TooLarge(
            f"The compressed body grows to more than {ratio} times its size.",
            limit="inflate_ratio",
        )
    return plain


def _raw_deflate(body: bytes, room: int) -> bytes:
    """`deflate` without the zlib wrapper, which some clients send under that name."""
    try:
        return _inflated(body, -zlib.MAX_WBITS, room)
    except zlib.error:
        raise BadRequestHead("The compressed body cannot be read.") from None


def _inflated(body: bytes, window: int, room: int) -> bytes:
    """What `body` holds; of more than `room` bytes, one more than that."""
    inflater = zlib.decompressobj(window)
    plain = inflater.decompress(body, room + 1)
    if len(plain) <= room:
        if not inflater.eof:
            raise BadRequestHead("The compressed body is cut off.")
        if inflater.unused_data:
            raise BadRequestHead("There is more behind the compressed body.")
    return plain
