"""The HTTP edge: the same requests however the bytes are cut, and as another parser reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import h11

from router import heads
from router.errors import ClientError, HeadTooLarge, TooLarge
from router.message import Request
from router.server.hot import _as_bytes as for_the_pages
from router.server.hot import endpoint_of
from router.wire import RequestReader
from tests.fuzz import source

HEAD_LIMIT, BODY_LIMIT = 512, 256


class Heard(NamedTuple):
    requests: list[Request]
    fault: type[ClientError] | None
    is_between: bool


def heard(pieces: Sequence[bytes], head_limit: int = HEAD_LIMIT) -> Heard:
    reader = RequestReader(head_limit=head_limit, body_limit=BODY_LIMIT)
    fault = None
    for piece in pieces:
        try:
            reader.feed(piece)
        except ClientError as error:
            fault = type(error)
            break
    return Heard(reader.ready, fault, fault is None and reader.is_between_requests)


def check(data: bytes) -> None:
    given = source.of(data)
    whole = heard([given.raw])
    for pieces in given.pieces():
        check_same(heard(pieces), whole)
    for request in whole.requests:
        check_request(request)
    check_framing(given.raw, whole)


def check_same(cut: Heard, whole: Heard) -> None:
    assert cut.requests == whole.requests, "another cut, other requests"
    assert (cut.fault is None) == (whole.fault is None)
    assert cut.is_between == whole.is_between
    if not {cut.fault, whole.fault} & {HeadTooLarge, TooLarge}:  # which of two faults shows first
        assert cut.fault == whole.fault


def check_request(request: Request) -> None:
    assert len(request.body) <= BODY_LIMIT
    endpoint_of(request.target)
    lines = [heads.forwarded(header) for header in request.headers]
    assert not any(byte in line for line in lines for byte in (b"\r", b"\n", b"\0")), lines
    again = heard([for_the_pages(request)], head_limit=4 * HEAD_LIMIT)
    assert [(r.method, r.target, r.body) for r in again.requests] == [
        (request.method, request.target, request.body)
    ], "the pages would read another request"


def check_framing(raw: bytes, ours: Heard) -> None:
    """What we take for a request, h11 takes for the same one, or refuses: nothing is smuggled."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    connection.receive_data(raw)
    for request in ours.requests:
        try:
            theirs = _next(connection)
        except h11.RemoteProtocolError:
            return
        assert theirs is not None, "h11 sees no whole request here"
        method, target, body = theirs
        assert (method, target) == (request.method, request.target)
        assert body == request.body
        try:
            connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            connection.send(h11.EndOfMessage())
            connection.start_next_cycle()
        except h11.LocalProtocolError:  # to h11 the connection ends here
            return


def _next(connection: h11.Connection) -> tuple[bytes, bytes, bytes] | None:
    method = target = body = b""
    while True:
        event = connection.next_event()
        match event:
            case h11.Request():
                method, target = event.method, event.target
            case h11.Data():
                body += event.data
            case h11.EndOfMessage():
                return method, target, body
            case _:
                return None
