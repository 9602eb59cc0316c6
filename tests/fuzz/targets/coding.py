"""Compressed bodies: never more than the limit, and what a whole one says comes out."""

from __future__ import annotations

import gzip
import zlib

from router.errors import ClientError
from router.message import Request
from router.relay import decoded
from router.server.hot import decompressed
from tests.fuzz import source

LIMIT = 4096
CODINGS = (b"gzip", b"deflate", b"x-gzip", b"identity", b"br", b" GZIP ", b"gzip, gzip")


def request(coding: bytes, body: bytes) -> Request:
    fields = {b"content-encoding": coding}
    return Request(b"POST", b"/", list(fields.items()), fields, False, True, body)


def check(data: bytes) -> None:
    given = source.of(data)
    coding = CODINGS[given.pick(len(CODINGS))]
    try:
        body = decompressed(request(coding, given.raw), LIMIT)
    except ClientError:
        pass
    else:
        assert len(body) <= LIMIT or coding == b"identity"
    decoded(given.raw, coding)
    raw_deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    for name, packed in (
        (b"gzip", gzip.compress(given.raw, 1, mtime=0)),
        (b"deflate", zlib.compress(given.raw, 1)),
        (b"deflate", raw_deflate.compress(given.raw) + raw_deflate.flush()),
    ):
        if len(given.raw) <= LIMIT:
            assert decompressed(request(name, packed), LIMIT) == given.raw
