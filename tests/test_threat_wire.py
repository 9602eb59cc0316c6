"""One request is one request, and one answer is one answer: nothing hides in either.

The chains of attacks; how single messages are read is in test_wire.py.
"""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.product import Product
from tests.support.rawbackend import RawBackend, whole
from tests.support.rawclient import HOST, RawConnection, exchange, request_bytes

CHAT = "/v1/chat/completions"
BODY = {"model": "auto", "messages": [{"role": "user", "content": "Hi."}]}
RAW = json.dumps(BODY).encode()
#: what must be seen nowhere
HIDDEN = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\nx-session-id: HIDDEN\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(RAW), RAW)
)
START = b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\n"
GET = b"GET %b HTTP/1.1\r\nhost: h\r\n"
POLICY = 'schema = 1\ndefault_scenario = "chat"\n[scenarios.chat]\n'


def answer(text: str = "Fine.") -> bytes:
    told = {"choices": [{"index": 0, "message": {"role": "assistant", "content": text},
                         "finish_reason": "stop"}]}  # fmt: skip
    return whole(json.dumps(told).encode(), b"content-type: application/json")


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Product, RawBackend]]:
    with RawBackend() as backend:
        config = {
            "backends": [{"name": "a", "url": backend.url, "model": "m", "keepalive_s": 60}],
            "health": {"failures": 1000, "interval_s": 600},
            "log": {"flush_ms": 5},
        }
        folder = tmp_path_factory.mktemp("threat")
        with Product.start(folder, config, policy=POLICY) as product:
            yield product, backend


@pytest.fixture
def product(stand: tuple[Product, RawBackend]) -> Product:
    return stand[0]


@pytest.fixture
def backend(stand: tuple[Product, RawBackend]) -> RawBackend:
    stand[1].answers = [answer()]
    stand[1].forget()
    return stand[1]


def ask(connection: RawConnection, **headers: str) -> Any:
    connection.send(request_bytes("POST", CHAT, headers, BODY))
    return connection.read()


def all_answers(port: int, raw: bytes) -> bytes:
    """All that comes back for these bytes, until nothing more does or the router closes.

    Behind them the client stops sending, which the router takes for its leaving: so what is
    answered is answered before.
    """
    found = b""
    with socket.create_connection((HOST, port), 10) as connection:
        connection.sendall(raw)
        while select.select([connection], [], [], 0.3 if found else 30.0)[0]:
            data = connection.recv(65536)
            if not data:
                break
            found += data
    return found


@pytest.mark.parametrize(
    "raw",
    [
        START + b"content-length: %d\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" % 5 + HIDDEN,
        START + b"transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n"
        + b"%x\r\n%b\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN),
        START + b"content-length: 0\r\ncontent-length: %d\r\n\r\n" % len(HIDDEN) + HIDDEN,
        START + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n" + HIDDEN,
        START + b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
        START + b"x: a\r\n content-length: 0\r\n\r\n" + HIDDEN,
        START + b"x: a\rcontent-length: 0\r\n\r\n" + HIDDEN,
        START.replace(b"1.1", b"1.0") + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
        START + b"connection: close\r\ncontent-length: 0\r\n\r\n" + HIDDEN,
        START + b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: %d\r\n\r\n" % len(HIDDEN)
        + HIDDEN,
        START + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(HIDDEN) + HIDDEN,
        GET % b"/health" + b"content-length: %d\r\n\r\n" % len(HIDDEN) + HIDDEN,
        GET % b"/health" + b"connection: upgrade\r\nupgrade: websocket\r\n"
        b"content-length: %d\r\n\r\n" % len(HIDDEN) + HIDDEN,
        GET % b"/router/status" + b"content-length: %d\r\n\r\n" % len(HIDDEN) + HIDDEN,
        GET % b"/dashboard" + b"transfer-encoding: chunked\r\n\r\n"
        + b"%x\r\n%b\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN),
        b"CONNECT h:80 HTTP/1.1\r\nhost: h\r\n\r\n" + HIDDEN,
    ],
    ids=["cl-te", "te-cl", "cl-cl", "te-list", "te-blank", "fold", "cr", "te-1.0", "close", "h2c",
         "expect", "page-body", "websocket", "operator-body", "dashboard-chunks", "connect"],
)  # fmt: skip
def test_a_request_inside_another_reaches_nobody(
    product: Product, backend: RawBackend, raw: bytes
) -> None:
    told = all_answers(product.port, raw)

    finals = [line for line in told.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
    assert len([line for line in finals if not line.startswith(b"HTTP/1.1 100")]) == 1
    assert b"HIDDEN" not in b"".join(backend.heard())


def test_two_requests_in_a_row_are_two(product: Product, backend: RawBackend) -> None:
    """The same hidden request is seen where it may be: this test's eyes are open."""
    first = request_bytes("POST", CHAT, {}, BODY)
    told = all_answers(product.port, first + HIDDEN)

    assert told.count(b"HTTP/1.1 200") == 2
    assert b"".join(backend.heard()).count(b"HIDDEN") == 1
    assert sum(heard.count(b"POST ") for heard in backend.heard()) == 2


def test_what_connection_names_goes_no_further_in_however_many_lines(
    product: Product, backend: RawBackend
) -> None:
    lines = b"connection: keep-alive, x-first\r\nx-first: 1\r\nconnection: x-second\r\nx-second: 1"
    raw = START + lines + b"\r\nx-third: 1\r\ncontent-length: %d\r\n\r\n%b" % (len(RAW), RAW)

    assert all_answers(product.port, raw).startswith(b"HTTP/1.1 200")

    (heard,) = backend.heard()
    assert b"x-third: 1" in heard
    assert b"x-first" not in heard
    assert b"x-second" not in heard


# --- answers ------------------------------------------------------------------------------

POISON = answer("POISON")
CHUNKS = b"2\r\n{}\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    "pieces",
    [
        [answer() + POISON],
        [answer(), POISON],
        [b"HTTP/1.1 204 No Content\r\ncontent-length: %d\r\n\r\n" % len(POISON), POISON],
        [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n"
         + CHUNKS + POISON],
        [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + CHUNKS, POISON],
        [b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}", POISON],
        [b"HTTP/1.1 103 Early Hints\r\n\r\n" + answer() + POISON],
    ],
    ids=["behind", "later", "204", "cl-te", "chunks", "refusal", "hints"],
)  # fmt: skip
def test_bytes_behind_an_answer_are_nobodys_answer(
    product: Product, backend: RawBackend, pieces: list[bytes]
) -> None:
    """One client asks; what its backend says too much is not told to the next one."""
    backend.answers = [pieces, answer()]
    with RawConnection(product.port) as first, RawConnection(product.port) as second:
        mine = ask(first)
        # The late bytes are on their way before anybody asks again.
        assert backend.wait(lambda: backend.sent >= len(b"".join(pieces)))
        yours = ask(second)

    assert mine.status in (200, 204, 400)
    assert "POISON" not in mine.text
    assert yours.json()["choices"][0]["message"]["content"] == "Fine."


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n" + CHUNKS,
        b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ntransfer-encoding: chunked\r\n\r\n" + CHUNKS,
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: x, close\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\nconnection: x\r\n\r\n{}",
        b"HTTP/1.1 204 No Content\r\n\r\n",
    ],
    ids=["cl-te", "te-1.0", "close-in-a-list", "close-in-two-lines", "204"],
)
def test_a_connection_whose_end_of_answer_is_a_guess_is_not_used_again(
    product: Product, backend: RawBackend, head: bytes
) -> None:
    backend.answers = [head, answer()]
    with RawConnection(product.port) as client:
        assert ask(client).status in (200, 204)
        assert ask(client).status == 200

    assert [heard.count(b"POST ") for heard in backend.heard()] == [1, 1]


def test_a_connection_of_a_plain_answer_is_used_again(
    product: Product, backend: RawBackend
) -> None:
    with RawConnection(product.port) as client:
        assert ask(client).status == 200
        assert ask(client).status == 200

    assert [heard.count(b"POST ") for heard in backend.heard()] == [2]


def test_an_answer_before_the_end_of_the_request_costs_the_connection(
    product: Product, backend: RawBackend
) -> None:
    """Else what is left of one client's body would be the next request on it."""
    backend.answers_heads = True
    backend.answers = [whole(b'{"choices":[]}', status=b"413 Content Too Large"), answer()]
    # More than what fits between the two: the rest is still ours to send when the answer comes.
    large = {**BODY, "padding": "x" * (24 << 20)}
    try:
        refused = exchange(product.port, request_bytes("POST", CHAT, {}, large))
    finally:
        backend.answers_heads = False
    assert refused.status == 413
    with RawConnection(product.port) as client:
        assert ask(client).status == 200

    assert [heard.count(b"POST ") for heard in backend.heard()] == [1, 1]


def test_interim_answers_have_an_end(product: Product, backend: RawBackend) -> None:
    hint = b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"
    backend.answers = [hint * 3 + answer(), hint * 10_000]
    with RawConnection(product.port) as client:
        assert ask(client).status == 200
        refused = ask(client)

    assert refused.status == 502
    assert refused.json()["error"]["code"] == "backend_error"


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nx: a\nset-cookie: planted\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nx: a\rset-cookie: planted\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nx: a\0b\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nx: a\r\n planted: b\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n"
        + CHUNKS,
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n",
    ],
    ids=["lf", "cr", "nul", "fold", "te-te", "cl-cl", "101"],
)  # fmt: skip
def test_an_answer_that_can_be_split_is_a_bad_gateway(
    product: Product, backend: RawBackend, head: bytes
) -> None:
    backend.answers = [head]
    reply = exchange(product.port, request_bytes("POST", CHAT, {}, BODY))

    assert reply.status == 502
    assert "planted" not in str(reply.headers)


def test_a_backend_decides_nothing_for_our_address(product: Product, backend: RawBackend) -> None:
    """No cookie, no other reader, no other server, no header of ours, no page, no file."""
    lines = {
        "set-cookie": "a=planted",
        "access-control-allow-origin": "*",
        "access-control-allow-credentials": "true",
        "alt-svc": 'h3="planted:443"',
        "strict-transport-security": "max-age=99",
        "clear-site-data": '"*"',
        "location": "http://planted/",
        "refresh": "0;url=http://planted/",
        "x-accel-redirect": "/planted",
        "x-sendfile": "/planted",
        "x-router-scenario": "planted",
        "x-router-anything": "planted",
        "x-request-id": "planted",
        "keep-alive": "timeout=9",
        "x-of-its-own": "kept",
    }
    told = [f"{name}: {value}".encode() for name, value in lines.items()]
    backend.answers = [whole(b"<script>", b"content-type: text/html; charset=utf-8", *told)]

    reply = exchange(product.port, request_bytes("POST", CHAT, {"x-router-policy": "off"}, BODY))

    got = {name.lower(): value for name, value in reply.headers}
    assert got.keys() & lines.keys() == {"x-request-id", "x-of-its-own"}
    assert "planted" not in str(reply.headers)
    assert got["content-type"] == "text/plain; charset=utf-8"
    assert got["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary Redirect", "304 Same"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_redirect_leads_nowhere(
    product: Product, backend: RawBackend, status: str, stream: bool
) -> None:
    with RawBackend() as elsewhere:
        lines = b"location: " + elsewhere.url.encode(), b"content-type: text/event-stream"
        backend.answers = [whole(b"<html>", *lines, status=status.encode())]
        reply = exchange(product.port, request_bytes("POST", CHAT, {}, {**BODY, "stream": stream}))

        assert elsewhere.heard() == elsewhere.probed() == []
    assert reply.status == 502
    assert "redirect" in reply.json()["error"]["message"]
    assert reply.header("location") is None
