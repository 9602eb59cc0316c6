"""HTTP/1.1 without sockets: requests, answer heads, and the walk over chunks."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import wire
from router.errors import (
    BadRequestHead,
    HeadTooLarge,
    RouterError,
    TargetTooLong,
    TlsOnPlainPort,
    TooLarge,
)
from router.message import Request
from router.wire import BadAnswer, ChunkedBody, LengthBody, RequestReader, UntilCloseBody
from tests.support.strategies import cut, cut_points

HEAD_LIMIT, BODY_LIMIT = 1024, 1000
START = b"POST /v1/x?y=1 HTTP/1.1\r\nHost: h\r\n"
GET = b"GET /n HTTP/1.1\r\nHost: h\r\n\r\n"
CHUNKED = START + b"Transfer-Encoding: chunked\r\n\r\n"
UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"


@dataclass(frozen=True, slots=True)
class Heard:
    """What a reader made of a connection's bytes."""

    requests: list[Request]
    fault: type[RouterError] | None
    is_between: bool


def hear(*pieces: bytes, head_limit: int = HEAD_LIMIT) -> Heard:
    reader = RequestReader(head_limit=head_limit, body_limit=BODY_LIMIT)
    fault: type[RouterError] | None = None
    for piece in pieces:
        try:
            reader.feed(piece)
        except RouterError as error:
            fault = type(error)
            break
    return Heard(list(reader.ready), fault, fault is None and reader.is_between_requests)


def limited(*pieces: bytes) -> tuple[int, str | None]:
    """How many requests a reader with low limits finds, and the limit that it meets."""
    reader = RequestReader(
        head_limit=HEAD_LIMIT, body_limit=BODY_LIMIT, count_limit=5, line_limit=100, target_limit=50
    )
    for piece in pieces:
        try:
            reader.feed(piece)
        except RouterError as error:
            return len(reader.ready), error.limit
    return len(reader.ready), None


def with_header(line: bytes, body: bytes = b"") -> bytes:
    return START + line + b"\r\n\r\n" + body


GOOD: dict[str, tuple[bytes, list[bytes]]] = {
    "no body": (GET, [b""]),
    "a length": (with_header(b"Content-Length: 3", b"abc"), [b"abc"]),
    "a length of none": (with_header(b"Content-Length: 0"), [b""]),
    "chunks": (CHUNKED + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", [b"abcde"]),
    "a chunk extension": (CHUNKED + b'3;a=b;c="d"\r\nabc\r\n0;x\r\n\r\n', [b"abc"]),
    "chunk sizes in capitals": (CHUNKED + b"A\r\n0123456789\r\n0\r\n\r\n", [b"0123456789"]),
    "a trailer": (CHUNKED + b"1\r\na\r\n0\r\nx-sum: 1\r\n\r\n", [b"a"]),
    "pipelining": (GET + with_header(b"Content-Length: 1", b"a") + GET, [b"", b"a", b""]),
    "pipelining behind chunks": (CHUNKED + b"1\r\na\r\n0\r\n\r\n" + GET, [b"a", b""]),
    "empty lines before": (b"\r\n\r\n" + GET, [b""]),
    "HTTP/1.0": (b"POST / HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc", [b"abc"]),
    "an upgrade that is not taken up": (START + UPGRADE + b"\r\n" + GET, [b"", b""]),
    "an upgrade with a body": (
        START + UPGRADE + b"Content-Length: 3\r\n\r\nabc" + GET,
        [b"abc", b""],
    ),
    "an upgrade with chunks": (
        START + UPGRADE + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n" + GET,
        [b"a", b""],
    ),
    "expect": (with_header(b"Expect: 100-continue\r\nContent-Length: 1", b"a"), [b"a"]),
    "bytes beyond ASCII in a value": (with_header(b"x-name: \xe4\xf6"), [b""]),
    "a body as large as may be": (with_header(b"Content-Length: 1000", b"a" * 1000), [b"a" * 1000]),
}
BAD: dict[str, tuple[bytes, type[RouterError]]] = {
    "a length beside chunks": (
        with_header(b"Content-Length: 3\r\nTransfer-Encoding: chunked", b"0\r\n\r\n"),
        BadRequestHead,
    ),
    "chunks beside a length": (
        with_header(b"Transfer-Encoding: chunked\r\nContent-Length: 3", b"0\r\n\r\n"),
        BadRequestHead,
    ),
    "two lengths": (
        with_header(b"Content-Length: 3\r\nContent-Length: 4", b"abcd"),
        BadRequestHead,
    ),
    "one length twice": (
        with_header(b"Content-Length: 3\r\nContent-Length: 3", b"abc"),
        BadRequestHead,
    ),
    "a list of lengths": (with_header(b"Content-Length: 3, 3", b"abc"), BadRequestHead),
    "a length with a sign": (with_header(b"Content-Length: +3", b"abc"), BadRequestHead),
    "a length below nothing": (with_header(b"Content-Length: -1"), BadRequestHead),
    "an empty length": (with_header(b"Content-Length: "), BadRequestHead),
    "a length in hex": (with_header(b"Content-Length: 0x3", b"abc"), BadRequestHead),
    "a length beyond 64 bits": (with_header(b"Content-Length: " + b"9" * 30), BadRequestHead),
    "an unknown coding": (with_header(b"Transfer-Encoding: gzip, chunked"), BadRequestHead),
    "an unknown coding on a line of its own": (
        with_header(b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked", b"0\r\n\r\n"),
        BadRequestHead,
    ),
    "the coding identity": (with_header(b"Transfer-Encoding: identity"), BadRequestHead),
    "a coding that only looks chunked": (
        with_header(b"Transfer-Encoding: xchunked", b"0\r\n\r\n"),
        BadRequestHead,
    ),
    "chunked before another coding": (
        with_header(b"Transfer-Encoding: chunked, identity", b"0\r\n\r\n"),
        BadRequestHead,
    ),
    "chunked with HTTP/1.0": (
        b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        BadRequestHead,
    ),
    "a bare line feed in the first line": (b"GET / HTTP/1.1\nHost: h\r\n\r\n", BadRequestHead),
    "a bare line feed in a header": (START + b"x: y\ncontent-length: 0\r\n\r\n", BadRequestHead),
    "a bare carriage return": (with_header(b"x: a\rb"), BadRequestHead),
    "a space before the colon": (with_header(b"Content-Length : 0"), BadRequestHead),
    "a folded header": (with_header(b"x: y\r\n z"), BadRequestHead),
    "a NUL in a value": (with_header(b"x: a\0b"), BadRequestHead),
    "a NUL in a name": (with_header(b"x\0: a"), BadRequestHead),
    "a header without a name": (with_header(b": a"), BadRequestHead),
    "a line without a colon": (with_header(b"nonsense"), BadRequestHead),
    "a host with a path": (b"GET / HTTP/1.1\r\nHost: h/x\r\n\r\n", BadRequestHead),
    "a host with a user": (b"GET / HTTP/1.1\r\nHost: u@h\r\n\r\n", BadRequestHead),
    "a host with two ports": (b"GET / HTTP/1.1\r\nHost: h:1:2\r\n\r\n", BadRequestHead),
    "a target with a user": (b"GET http://u@h/ HTTP/1.1\r\nHost: h\r\n\r\n", BadRequestHead),
    "a target of another scheme": (b"GET ftp://h/ HTTP/1.1\r\nHost: h\r\n\r\n", BadRequestHead),
    "an asterisk that is no OPTIONS": (b"GET * HTTP/1.1\r\nHost: h\r\n\r\n", BadRequestHead),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", BadRequestHead),
    "two hosts": (with_header(b"Host: i"), BadRequestHead),
    "HTTP/0.9": (b"GET /\r\n\r\n", BadRequestHead),
    "HTTP/1.2": (b"GET / HTTP/1.2\r\nHost: h\r\n\r\n", BadRequestHead),
    "HTTP/2 with prior knowledge": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", BadRequestHead),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", TlsOnPlainPort),
    "what TLS begins with, in a header": (b"GET / HTTP/1.1\r\n\x16\x03: 1\r\n\r\n", BadRequestHead),
    "a tunnel": (b"CONNECT h:443 HTTP/1.1\r\nHost: h\r\n\r\n", BadRequestHead),
    "an unknown method": (b"FETCH / HTTP/1.1\r\nHost: h\r\n\r\n", BadRequestHead),
    "a chunk size that is none": (CHUNKED + b"xyz\r\n", BadRequestHead),
    "a chunk size with a sign": (CHUNKED + b"-1\r\na\r\n0\r\n\r\n", BadRequestHead),
    "a chunk size ended by a line feed": (CHUNKED + b"1\na\r\n0\r\n\r\n", BadRequestHead),
    "a chunk longer than it said": (CHUNKED + b"1\r\nabc\r\n0\r\n\r\n", BadRequestHead),
    "a body over the limit by its length": (with_header(b"Content-Length: 1001"), TooLarge),
    "a body over the limit by its chunks": (
        CHUNKED + b"1f4\r\n" + b"a" * 500 + b"\r\n1f5\r\n" + b"a" * 501 + b"\r\n0\r\n\r\n",
        TooLarge,
    ),
    "a head over the limit": (with_header(b"x: " + b"a" * 1024), HeadTooLarge),
    "a head over the limit that never ends": (START + b"x: y\r\n" * 300, HeadTooLarge),
    "a target over the limit": (
        b"GET /" + b"a" * 1024 + b" HTTP/1.1\r\nHost: h\r\n\r\n",
        HeadTooLarge,
    ),
    "a second head over the limit": (GET + with_header(b"x: " + b"a" * 1024), HeadTooLarge),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_may_be_said_is_read_whole_and_byte_by_byte(name: str) -> None:
    raw, bodies = GOOD[name]

    for heard in (hear(raw), hear(*[raw[at : at + 1] for at in range(len(raw))])):
        assert heard.fault is None
        assert [request.body for request in heard.requests] == bodies
        assert heard.is_between


@pytest.mark.parametrize("name", BAD)
def test_what_must_not_be_said_is_refused_whole_and_byte_by_byte(name: str) -> None:
    raw, fault = BAD[name]

    for heard in (hear(raw), hear(*[raw[at : at + 1] for at in range(len(raw))])):
        assert heard.fault is fault
        assert [request.target for request in heard.requests] in ([], [b"/n"])


# A head that never ends is refused at some length, but it is not known to which one of
# several requests in a piece its bytes belong before it ends: that moment may differ.
ENDING = [raw for name, (raw, _) in BAD.items() if "never ends" not in name]


def test_a_handshake_is_one_at_the_beginning_of_a_connection_alone() -> None:
    """However what comes before it was read, and cut."""
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"

    assert hear(hello).fault is hear(hello[:1]).fault is TlsOnPlainPort
    for raw, _ in GOOD.values():
        for pieces in ((raw + hello,), (raw, hello), (raw[:-1], raw[-1:] + hello)):
            assert hear(*pieces).fault is BadRequestHead


@given(
    st.lists(st.sampled_from([raw for raw, _ in GOOD.values()]), min_size=1, max_size=3),
    st.one_of(st.none(), st.sampled_from(ENDING)),
    cut_points,
)
def test_any_way_of_cutting_the_bytes_gives_the_same_requests(
    good: list[bytes], bad: bytes | None, points: list[int]
) -> None:
    stream = b"".join(good) + (bad or b"")

    assert hear(*cut(stream, points)) == hear(stream)


# Requests that came whole and are plain are read without llhttp: it must not be seen.
NEARLY_PLAIN = [
    b"POST /v1/x HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc",
    b"POST /a HTTP/1.1\r\nHost: h\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx",
    b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 05\r\n\r\nabcde",
    b"POST /a HTTP/1.1\r\nHost: h\r\nX:  y \r\nContent-Length: 1\r\n\r\nx",
    b"POST /a#b HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx",
    b"POST /\xc3\xa9 HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx",
    b"\r\n",
    b"POST /a HTTP/1.1\r\nhost: h\r\nHOST: i\r\ncontent-length: 1\r\n\r\nx",
    b"POST /a HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\nContent-Length: 1\r\n\r\nx",
    b"POST /a HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\nx",
    b"POST /a HTTP/1.1\r\nhost: h\r\nx_y: 1\r\ncontent-length: 1\r\n\r\nx",
    b"POST /a HTTP/1.1\r\nhost: h\r\nupgrade: h2c\r\ncontent-length: 1\r\n\r\nx",
    b"POST /a HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\nx",
    b"POST /a HTTP/1.1\r\nhost: h\r\ncontent-length: 1001\r\n\r\n" + b"x" * 1001,
    b"POST /a HTTP/1.1\r\nhost:\r\ncontent-length: 1\r\n\r\nx",
    b"POST /a HTTP/1.1\r\n: v\r\nhost: h\r\ncontent-length: 1\r\n\r\nx",
    b"POST /a%20b?c=d&e HTTP/1.1\r\nhost: h\r\nuser-agent: a\tb\r\ncontent-length: 1\r\n\r\nx",
]


@given(
    st.lists(
        st.sampled_from([*NEARLY_PLAIN, *(raw for raw, _ in GOOD.values())]), min_size=1, max_size=3
    ),
    cut_points,
)
def test_the_short_way_reads_what_llhttp_would(stream: list[bytes], points: list[int]) -> None:
    whole = b"".join(stream)

    assert hear(*cut(whole, points)) == hear(whole)


@given(
    st.sampled_from(NEARLY_PLAIN),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=3),
)
def test_a_byte_that_is_off_is_judged_alike_both_ways(
    raw: bytes, faults: list[tuple[int, int]]
) -> None:
    spoiled = bytearray(raw)
    for at, byte in faults:
        spoiled[at % len(raw)] = byte
    stream = bytes(spoiled) + NEARLY_PLAIN[0]

    assert hear(stream) == hear(*[stream[at : at + 1] for at in range(len(stream))])


@given(st.binary(max_size=80), cut_points)
def test_any_bytes_are_requests_or_the_clients_error(noise: bytes, points: list[int]) -> None:
    stream = GET + noise
    whole = hear(stream)

    assert len(whole.requests) >= 1
    assert [r.target for r in hear(*cut(stream, points)).requests] == [
        r.target for r in whole.requests
    ]


def test_a_small_head_is_not_blamed_for_a_large_body_behind_it() -> None:
    raw = with_header(b"Content-Length: 900", b"a" * 900)
    end = raw.index(b"\r\n\r\n")

    for at in range(end, end + 5):
        heard = hear(raw[:at], raw[at:], head_limit=200)
        assert (heard.fault, len(heard.requests)) == (None, 1)


def test_a_head_behind_a_chunked_body_is_measured_like_any_other() -> None:
    raw = CHUNKED + b"1\r\na\r\n0\r\n\r\n" + with_header(b"x: " + b"a" * 1024)

    for at in (len(CHUNKED) + 1, raw.index(b"0\r\n\r\n") + 1):
        assert hear(raw[:at], raw[at:]).fault is HeadTooLarge


def test_a_next_request_that_has_begun_is_one() -> None:
    assert not hear(GET + b"GET /half").is_between
    assert not hear(GET, b"GET /half").is_between
    assert hear(GET).is_between


def test_a_request_whose_body_is_coming_is_no_pause() -> None:
    reader = RequestReader(head_limit=HEAD_LIMIT, body_limit=BODY_LIMIT)

    reader.feed(with_header(b"Expect: 100-continue\r\nContent-Length: 3"))

    assert reader.head is not None
    assert reader.head.fields[b"expect"] == b"100-continue"
    assert not reader.is_between_requests
    reader.feed(b"abc")
    assert reader.head is None
    assert reader.is_between_requests


def test_names_are_lower_case_and_values_as_they_came() -> None:
    (request,) = hear(with_header(b"X-Name:  Some Value \r\nX-NAME: two")).requests

    assert request.method == b"POST"
    assert request.target == b"/v1/x?y=1"
    assert request.headers[1:] == [(b"x-name", b"Some Value"), (b"x-name", b"two")]
    assert request.fields[b"x-name"] == b"two"


@pytest.mark.parametrize(
    ("raw", "is_http10", "keep_alive"),
    [
        (GET, False, True),
        (with_header(b"Connection: close"), False, False),
        (with_header(b"Connection: keep-alive"), False, True),
        (b"GET / HTTP/1.0\r\n\r\n", True, False),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", True, False),
        (START + b"Connection: close, Upgrade\r\nUpgrade: h2c\r\n\r\n", False, False),
        (b"GET / HTTP/1.0\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", True, False),
    ],
)
def test_a_connection_is_kept_only_where_the_client_wants_it(
    raw: bytes, is_http10: bool, keep_alive: bool
) -> None:
    heard = hear(raw)

    assert heard.fault is None
    (request,) = heard.requests
    assert (request.is_http10, request.keep_alive) == (is_http10, keep_alive)


def test_an_offer_that_is_not_taken_up_is_not_passed_on() -> None:
    (request,) = hear(START + UPGRADE + b"x-kept: 1\r\n\r\n").requests

    assert [name for name, _ in request.headers] == [b"host", b"x-kept"]


def test_any_number_of_offers_in_one_piece_is_read() -> None:
    heard = hear((START + UPGRADE + b"\r\n") * 2000, head_limit=1 << 16)

    assert (heard.fault, len(heard.requests)) == (None, 2000)


def test_a_trailer_is_no_header() -> None:
    """What comes behind the body was never judged with the head: no key, no scenario."""
    raw = CHUNKED + b"1\r\na\r\n0\r\nauthorization: Bearer x\r\nhost: evil\r\n\r\n"
    (request,) = hear(raw).requests

    assert [name for name, _ in request.headers] == [b"host", b"transfer-encoding"]
    assert request.fields[b"host"] == b"h"
    assert b"authorization" not in request.fields


@pytest.mark.parametrize(
    ("given", "target", "host"),
    [
        (b"http://h:80/n?a=b", b"/n?a=b", b"h:80"),
        (b"HTTPS://[::1]/n", b"/n", b"[::1]"),
        (b"http://h", b"/", b"h"),
        (b"http://h?a", b"/?a", b"h"),
        (b"/n", b"/n", b"i"),
    ],
)
def test_an_absolute_target_is_one_of_ours_and_names_the_host(
    given: bytes, target: bytes, host: bytes
) -> None:
    (request,) = hear(b"GET %b HTTP/1.1\r\nhost: i\r\nx: y\r\n\r\n" % given).requests

    assert request.target == target
    assert request.headers == [(b"host", host), (b"x", b"y")]
    assert request.fields[b"host"] == host


@pytest.mark.parametrize(
    ("raw", "limit"),
    [
        (with_header(b"x: y\r\n" * 3 + b"content-length: 1", b"a"), None),
        (with_header(b"x: y\r\n" * 4 + b"content-length: 1", b"a"), "header_count"),
        (with_header(b"content-length: 1\r\nx: " + b"y" * 99, b"a"), None),
        (with_header(b"content-length: 1\r\nx: " + b"y" * 100, b"a"), "header_line_kb"),
        (GET.replace(b"/n", b"/" + b"n" * 49), None),
        (GET.replace(b"/n", b"/" + b"n" * 50), "target_limit_kb"),
        (GET.replace(b"/n", b"/" + b"n" * 2000), "target_limit_kb"),
        (with_header(b"x: y\r\n" * 900), "header_count"),
        (with_header(b"content-length: 1001"), "body_limit_mb"),
    ],
)
def test_a_limit_is_met_by_the_first_that_is_over_it_however_the_bytes_are_cut(
    raw: bytes, limit: str | None
) -> None:
    for pieces in ([raw], [raw[at : at + 1] for at in range(len(raw))], cut(raw, [7, 300, 301])):
        assert limited(*pieces) == (0 if limit else 1, limit)


def test_a_target_that_is_too_long_is_told_from_a_head_that_is() -> None:
    reader = RequestReader(head_limit=HEAD_LIMIT, body_limit=BODY_LIMIT, target_limit=50)

    with pytest.raises(TargetTooLong):
        reader.feed(b"GET /" + b"n" * 60)


@pytest.mark.parametrize(
    "endless", [b"1;" + b"x" * 90 + b"\r\na\r\n", b"0\r\nx: " + b"y" * 90, b"1;x=" + b"y" * 90]
)
def test_framing_without_content_has_an_end(endless: bytes) -> None:
    more = endless if endless.endswith(b"\r\n") else b"y" * 90

    assert hear(CHUNKED + endless, *[more] * 40).fault is TooLarge


def test_a_chunk_for_each_byte_is_no_flood() -> None:
    heard = hear(CHUNKED, *[b"1\r\na\r\n"] * 1000, b"0\r\n\r\n")

    assert [request.body for request in heard.requests] == [b"a" * 1000]


def test_an_endless_trailer_is_refused() -> None:
    pieces = [CHUNKED + b"0\r\n", *[b"x-more: and more\r\n"] * 500]

    assert hear(*pieces).fault is HeadTooLarge


def test_what_was_read_before_a_fault_stays_read() -> None:
    heard = hear(GET + BAD["two hosts"][0])

    assert heard.fault is BadRequestHead
    assert [request.target for request in heard.requests] == [b"/n"]


# --- answers -----------------------------------------------------------------------------


def test_an_answers_head_is_read() -> None:
    head = wire.answer_head(b"HTTP/1.1 200 OK\r\nContent-Type: a/b; c\r\nX-A:1\r\nx-a: 2")

    assert (head.status, head.keep_alive) == (200, True)
    assert head.headers == [(b"content-type", b"a/b; c"), (b"x-a", b"1"), (b"x-a", b"2")]
    assert head.fields[b"x-a"] == b"2"


@pytest.mark.parametrize(
    ("raw", "keep_alive"),
    [
        (b"HTTP/1.1 200", True),
        (b"HTTP/1.1 200 OK\r\nConnection: close", False),
        (b"HTTP/1.1 200 OK\r\nConnection: Close", False),
        (b"HTTP/1.0 200 OK", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive", True),
    ],
)
def test_a_backends_connection_is_kept_only_where_it_stays_open(
    raw: bytes, keep_alive: bool
) -> None:
    assert wire.answer_head(raw).keep_alive is keep_alive


@pytest.mark.parametrize(
    "raw",
    [b"", b"HTTP/2 200 OK", b"ICY 200 OK", b"HTTP/1.1 20 OK", b"HTTP/1.1 2000 OK", b"200 OK"]
    + [
        b"HTTP/1.1 200 OK\r\n" + line
        for line in (b"nonsense", b": x", b" folded: x", b"a : x", b"\tx", b"")
    ]
    + [b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\nContent-Length: 2"]
    + [b"HTTP/1.1 200 OK\r\nx: a\nset-cookie: b", b"HTTP/1.1 200 OK\r\nx: a\rb"],
)
def test_what_is_no_answer_is_said_to_be_none(raw: bytes) -> None:
    with pytest.raises(BadAnswer):
        wire.answer_head(raw)


@pytest.mark.parametrize(
    ("lines", "method", "kind"),
    [
        (b"content-length: 3", b"POST", LengthBody),
        (b"transfer-encoding: chunked", b"POST", ChunkedBody),
        (b"transfer-encoding: Chunked\r\ncontent-length: 3", b"POST", ChunkedBody),
        (b"x: y", b"POST", UntilCloseBody),
        (b"transfer-encoding: chunked", b"HEAD", LengthBody),
    ],
)
def test_a_body_is_framed_as_its_head_says(lines: bytes, method: bytes, kind: type) -> None:
    head = wire.answer_head(b"HTTP/1.1 200 OK\r\n" + lines)

    assert isinstance(wire.body_of(head, method), kind)


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_without_content_has_no_body(status: int) -> None:
    head = wire.answer_head(b"HTTP/1.1 %d\r\ncontent-length: 5" % status)

    assert wire.body_of(head, b"GET").close()


@pytest.mark.parametrize(
    "line",
    [b"transfer-encoding: gzip", b"content-length: x", b"content-length: -1", b"content-length:"],
)
def test_a_framing_that_nobody_knows_is_refused(line: bytes) -> None:
    with pytest.raises(BadAnswer):
        wire.body_of(wire.answer_head(b"HTTP/1.1 200 OK\r\n" + line), b"GET")


def test_a_body_of_known_length_ends_where_it_said() -> None:
    body = LengthBody(5)

    first, second = body.feed(b"abc"), body.feed(b"defg")

    assert (first.payloads, first.is_last, body.close()) == ([b"abc"], False, True)
    assert (second.payloads, second.is_last, second.excess) == ([b"de"], True, b"fg")


# --- chunks --------------------------------------------------------------------------------


@dataclass(slots=True)
class Walked:
    """What a walk over a chunked body found, and where it failed."""

    text: bytes = b""
    excess: bytes = b""
    is_over: bool = False
    is_bad: bool = False


def walk(*pieces: bytes) -> Walked:
    body, walked = ChunkedBody(), Walked()
    for piece in pieces:
        try:
            found = body.feed(piece)
        except BadAnswer:
            walked.is_bad = True
            break
        assert all(found.payloads)
        if found.is_whole:
            assert not found.excess
            assert decode(piece, found.is_last) == b"".join(found.payloads)
        walked.text += b"".join(found.payloads)
        walked.excess += found.excess
        walked.is_over = walked.is_over or found.is_last
    assert walked.is_bad or body.close() == walked.is_over
    return walked


def decode(raw: bytes, is_last: bool) -> bytes:
    """Whole chunks decoded, by a reader that has nothing in common with the walk."""
    text = b""
    while raw:
        line, _, raw = raw.partition(b"\r\n")
        size = int(line.split(b";")[0], 16)
        if not size:
            assert is_last
            return text
        text, raw = text + raw[:size], raw[size + 2 :]
    assert not is_last
    return text


@st.composite
def chunked_bodies(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A chunked body and its text."""
    texts = draw(st.lists(st.binary(min_size=1, max_size=40), max_size=6))
    extension = st.sampled_from([b"", b";a=b", b' ; x="y"', b"  "])
    size_of = st.sampled_from([b"%x", b"%X", b"00%x"])
    raw = b"".join(
        draw(size_of) % len(text) + draw(extension) + b"\r\n" + text + b"\r\n" for text in texts
    )
    trailer = draw(st.sampled_from([b"", b"x-sum: 1\r\n", b"a: b\r\nc: d\r\n"]))
    return raw + b"0" + draw(extension) + b"\r\n" + trailer + b"\r\n", b"".join(texts)


@given(chunked_bodies(), st.binary(max_size=8), cut_points)
def test_any_way_of_cutting_a_chunked_body_gives_its_text(
    case: tuple[bytes, bytes], excess: bytes, points: list[int]
) -> None:
    raw, text = case

    walked = walk(*cut(raw + excess, points))

    assert walked == Walked(text, excess, is_over=True)


@given(chunked_bodies(), st.integers(min_value=0), st.integers(0, 255), cut_points)
def test_a_broken_chunked_body_is_as_broken_however_it_is_cut(
    case: tuple[bytes, bytes], at: int, byte: int, points: list[int]
) -> None:
    raw = bytearray(case[0])
    raw[at % len(raw)] = byte
    stream = bytes(raw)

    whole, pieces = walk(stream), walk(*cut(stream, points))

    assert (pieces.is_bad, pieces.is_over) == (whole.is_bad, whole.is_over)
    if not whole.is_bad:
        assert pieces == whole


@pytest.mark.parametrize(
    "raw",
    [
        *[b"xyz\r\n", b"\r\n", b"-1\r\na\r\n", b"1\nab\n", b"1\r\nabc", b"2\r\nabX\n"],
        *[b"2\r\nab\rX", b" 1\r\na\r\n", b"0x1\r\na\r\n", b"1\r\na\n0\r\n\r\n"],
        b"ffffffffffffffffffff\r\n",
    ],
)
def test_a_chunk_that_is_none_is_refused_whole_and_byte_by_byte(raw: bytes) -> None:
    assert walk(raw).is_bad
    assert walk(*[raw[at : at + 1] for at in range(len(raw))]).is_bad


@pytest.mark.parametrize(
    "endless", [b"1;" + b"x" * 20_000 + b"\r\na\r\n", b"0\r\nx: " + b"y" * 40_000 + b"\r\n\r\n"]
)
def test_a_line_without_an_end_is_refused_however_it_is_cut(endless: bytes) -> None:
    assert walk(endless[:-5], endless[-5:]).is_bad
    assert walk(*cut(endless, range(0, len(endless), 1000))).is_bad
    assert walk(endless).is_bad


def test_whole_chunks_can_go_on_untouched() -> None:
    body = ChunkedBody()

    assert body.feed(b"1\r\na\r\n2\r\nbc\r\n").is_whole
    assert not body.feed(b"3\r\nd").is_whole
    assert not body.feed(b"ef\r\n").is_whole
    assert body.feed(b"0\r\n\r\n").is_whole


def test_a_chunk_of_nothing_is_nothing() -> None:
    assert wire.chunk(b"") == b""
    assert walk(wire.chunk(b"abc") + wire.LAST_CHUNK).text == b"abc"
