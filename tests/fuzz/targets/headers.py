"""What a client chooses freely in its headers and its path: read, or taken for nothing."""

from __future__ import annotations

import math

from router import heads, parse, tracing
from router.server.hot import endpoint_of
from tests.fuzz import source

NAMES = (
    b"x-session-id",
    b"x-conversation-id",
    b"x-request-id",
    b"traceparent",
    b"tracestate",
    b"retry-after",
    b"connection",
    b"x-router-scenario",
)


def check(data: bytes) -> None:
    given = source.of(data)
    values = given.raw.split(b"\n")
    fields = dict(zip(NAMES, values, strict=False))
    request_id = heads.given_id(fields)
    assert request_id is None or (request_id.isprintable() and 0 < len(request_id) <= 128)
    session = parse.session_of(fields)
    assert session is None or (len(session.hash) == 16 and session.source == "header")
    parent = tracing.parent_in(fields)
    if parent is not None:
        assert len(parent.trace_id) == 32
        assert int(parent.trace_id, 16)
    wait_s = heads.retry_after(fields)
    assert wait_s is None or (math.isfinite(wait_s) and wait_s >= 0), wait_s
    for name in heads.named_by(fields.get(b"connection")):
        assert name == name.strip().lower()
    line = heads.ascii_line(given.text())
    assert line.isascii()
    assert b"\n" not in line
    assert b"\r" not in line
    found = endpoint_of(b"/" + given.raw)
    if found is not None:
        _, path = found
        assert path.startswith(b"/")
        assert b".." not in path.partition(b"?")[0]
