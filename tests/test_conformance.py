"""HTTP/1.1 at the edge, by raw sockets: what is lawful is served, and arrives as it was meant.

Each case goes to a running router and on to a backend that keeps every byte. Requests carry
`x-router-policy: off`, so that their bodies must come through to the byte. What is not lawful
is in docs/limits.md, and test_bad_input.py sees to that.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping

import pytest

from tests.support.badinput import CHAT, CHUNKED
from tests.support.badinput import spelled as spelled_with
from tests.support.pool import POLICY
from tests.support.product import Product
from tests.support.rawclient import (
    HOST,
    RawConnection,
    RawReply,
    ReplyReader,
    chunked,
    request_bytes,
)
from tests.support.script import chat_ok
from tests.support.scripted import ScriptedBackend, Seen

OFF = "x-router-policy: off"
#: a model of the backend's own name, so that there is nothing to put right
BODY = b'{ "model":"m", "messages" : [{"role":"user","content":"Name a river."}], "x": 0.10 }'
LENGTH = f"Content-Length: {len(BODY)}"


def spelled(*lines: str, start: str = f"POST {CHAT} HTTP/1.1", body: bytes = BODY) -> bytes:
    return spelled_with(*lines, start=start, body=body)


PLAIN = spelled("Host: a", OFF, LENGTH)
VERSION = request_bytes("GET", "/version")
HTTP10 = f"POST {CHAT} HTTP/1.0"
#: what belongs to one connection, or to us alone
NEVER = {"connection", "te", "trailer", "upgrade", "http2-settings", "transfer-encoding", "expect"}


@pytest.fixture(scope="module")
def shared_backend() -> Iterator[ScriptedBackend]:
    with ScriptedBackend([chat_ok("The Rhine.")]) as running:
        yield running


@pytest.fixture(scope="module")
def product(
    shared_backend: ScriptedBackend, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Product]:
    config = {"backends": [{"name": "one", "url": shared_backend.url, "model": "m"}]}
    with Product.start(tmp_path_factory.mktemp("conformance"), config, policy=POLICY) as running:
        yield running


@pytest.fixture
def backend(shared_backend: ScriptedBackend) -> ScriptedBackend:
    shared_backend.set_script([chat_ok("The Rhine.")])
    shared_backend.requests.clear()
    return shared_backend


def in_chunks(body: bytes, *lines: str) -> bytes:
    return spelled("Host: a", OFF, *lines, CHUNKED, body=body)


#: one request each, which is served, with the connection still good for another
KEPT: Mapping[str, bytes] = {
    "a length": PLAIN,
    "one chunk": in_chunks(chunked(BODY)),
    "a chunk for each byte": in_chunks(chunked(*[BODY[at : at + 1] for at in range(len(BODY))])),
    "a size in capitals": in_chunks(b"%X\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)),
    "a size with zeros before it": in_chunks(b"0000%x\r\n%b\r\n000\r\n\r\n" % (len(BODY), BODY)),
    "a chunk extension": in_chunks(b"%x;a=b\r\n%b\r\n0;c\r\n\r\n" % (len(BODY), BODY)),
    "a quoted chunk extension": in_chunks(b'%x;a="b c"\r\n%b\r\n0\r\n\r\n' % (len(BODY), BODY)),
    "a long chunk extension": in_chunks(
        b"%x;%b\r\n%b\r\n0\r\n\r\n" % (len(BODY), b"a" * 1000, BODY)
    ),
    "the coding in capitals": spelled(
        "Host: a", OFF, "Transfer-Encoding: CHUNKED", body=chunked(BODY)
    ),
    "names in capitals": spelled("HOST: a", OFF.upper(), LENGTH.upper()),
    "no space behind the colon": spelled("Host:a", OFF.replace(" ", ""), LENGTH.replace(" ", "")),
    "white space around values": spelled("Host: \t a \t", OFF, LENGTH + "\t "),
    "an empty value": spelled("Host: a", OFF, "X-Empty:", LENGTH),
    "a comma in a value": spelled("Host: a", OFF, "X-A: b, c", "X-A: d", LENGTH),
    "an empty host": spelled("Host:", OFF, LENGTH),
    "a host with a port": spelled("Host: router_1.test:8088", OFF, LENGTH),
    "a host that is an IPv6 address": spelled("Host: [::1]:8088", OFF, LENGTH),
    "empty lines before": b"\r\n\r\n" + PLAIN,
    "an absolute target": spelled("Host: b", OFF, LENGTH, start=f"POST http://a{CHAT} HTTP/1.1"),
    "an absolute target of TLS": spelled(
        "Host: b", OFF, LENGTH, start=f"POST HTTPS://a:443{CHAT} HTTP/1.1"
    ),
    "HTTP/2 on offer": spelled(
        *("Host: a", OFF, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c"),
        *("HTTP2-Settings: AA", LENGTH),
    ),
    "WebSocket on offer": spelled(
        "Host: a", OFF, "Connection: keep-alive, Upgrade", "Upgrade: websocket", LENGTH
    ),
    "an expectation that nobody knows": spelled("Host: a", OFF, "Expect: 200-ok", LENGTH),
    "headers for this hop": spelled("Host: a", OFF, "Connection: x-hop", "X-Hop: 1", LENGTH),
    "framing named as a header of this hop": spelled(
        "Host: a", OFF, "Connection: content-length, host, x-request-id", LENGTH
    ),
    "TE and a promised trailer": in_chunks(
        chunked(BODY)[:-2] + b"x-sum: 1\r\n\r\n", "TE: trailers", "Trailer: x-sum"
    ),
}

#: likewise, with a connection that ends behind the answer
CLOSED: Mapping[str, bytes] = {
    "a client that closes": spelled("Host: a", OFF, "Connection: close", LENGTH),
    "one that says so among other things": spelled(
        "Host: a", OFF, "Connection: x-hop, CLOSE", "X-Hop: 1", LENGTH
    ),
    "HTTP/1.0": spelled(OFF, LENGTH, start=HTTP10),
    "HTTP/1.0 with a host": spelled("Host: a", OFF, LENGTH, start=HTTP10),
    "HTTP/1.0 that would stay": spelled(OFF, "Connection: keep-alive", LENGTH, start=HTTP10),
    "HTTP/1.0 with an expectation": spelled(OFF, "Expect: 100-continue", LENGTH, start=HTTP10),
}


def as_meant(seen: Seen, target: str = CHAT) -> None:
    """One request of ours to the backend, framed once, with the client's body to the byte."""
    assert seen.head.startswith(f"POST {target} HTTP/1.1\r\n".encode())
    names = [name.lower() for name, _ in seen.headers]
    assert names.count("content-length") == names.count("host") == 1
    assert names.count("x-request-id") == 1
    assert not NEVER.intersection(names)
    assert "x-hop" not in names
    assert "x-sum" not in names
    assert seen.body == BODY
    assert seen.framing_fault == ""


def served(reply: RawReply) -> None:
    assert (reply.status, reply.ended_properly) == (200, True), (reply.text, reply.broken)
    assert "The Rhine." in reply.text


@pytest.mark.parametrize("raw", KEPT.values(), ids=KEPT.keys())
def test_what_is_lawful_arrives_as_it_was_meant(
    product: Product, backend: ScriptedBackend, raw: bytes
) -> None:
    with RawConnection(product.port) as connection:
        connection.send(raw + VERSION)
        served(connection.read())
        assert connection.read(method="GET").json()["version"]

    [seen] = backend.requests
    as_meant(seen)


@pytest.mark.parametrize("raw", CLOSED.values(), ids=CLOSED.keys())
def test_a_connection_ends_where_its_client_wants_no_more(
    product: Product, backend: ScriptedBackend, raw: bytes
) -> None:
    with RawConnection(product.port) as connection:
        connection.send(raw)
        reply = connection.read()
        served(reply)
        assert connection.wait_closed(reply, 5)

    assert (reply.header("connection") or "").lower() == "close"
    assert reply.header("transfer-encoding") is None
    [seen] = backend.requests
    as_meant(seen)


@pytest.mark.parametrize("name", ["a chunk for each byte", "an absolute target", "HTTP/2 on offer"])
def test_any_cut_of_the_bytes_is_the_same_request(
    product: Product, backend: ScriptedBackend, name: str
) -> None:
    raw = KEPT[name]
    with RawConnection(product.port) as connection:
        for at in range(len(raw)):
            connection.send(raw[at : at + 1])
        served(connection.read())

    [seen] = backend.requests
    as_meant(seen)


def test_a_query_goes_along(product: Product, backend: ScriptedBackend) -> None:
    for start in (f"POST {CHAT}?a=b%20c HTTP/1.1", f"POST http://a{CHAT}?a=b%20c HTTP/1.1"):
        with RawConnection(product.port) as connection:
            connection.send(spelled("Host: a", OFF, LENGTH, start=start))
            served(connection.read())

    for seen in backend.requests:
        as_meant(seen, CHAT + "?a=b%20c")
    assert len(backend.requests) == 2


def test_requests_in_a_row_are_answered_in_their_order(
    product: Product, backend: ScriptedBackend
) -> None:
    rows = [b'{"model":"m","n":%d}' % n for n in range(5)]
    odd = in_chunks(chunked(b'{"model"', b':"m","n":5}'))
    raw = b"".join(request_bytes("POST", CHAT, {"x-router-policy": "off"}, row) for row in rows)

    with RawConnection(product.port) as connection:
        connection.send(raw + VERSION + odd + VERSION)
        for _ in rows:
            served(connection.read())
        assert "version" in connection.read(method="GET").json()
        served(connection.read())
        assert "version" in connection.read(method="GET").json()

    assert [seen.body for seen in backend.requests] == [*rows, b'{"model":"m","n":5}']


def test_what_is_wrong_behind_a_request_is_told_behind_its_answer(
    product: Product, backend: ScriptedBackend
) -> None:
    with RawConnection(product.port) as connection:
        connection.send(PLAIN + spelled("Host: a", LENGTH, CHUNKED) + PLAIN)
        served(connection.read())
        refused = connection.read()
        assert refused.json()["error"]["code"] == "invalid_http"
        assert connection.wait_closed(refused, 5)

    assert len(backend.requests) == 1


def test_nothing_behind_a_client_that_closes_is_read(
    product: Product, backend: ScriptedBackend
) -> None:
    with RawConnection(product.port) as connection:
        connection.send(CLOSED["a client that closes"] + PLAIN)
        reply = connection.read()
        served(reply)
        assert connection.wait_closed(reply, 5)

    assert len(backend.requests) == 1


def test_a_client_that_waits_for_its_body_to_be_wanted_is_told(
    product: Product, backend: ScriptedBackend
) -> None:
    head = spelled("Host: a", OFF, "Expect: 100-Continue", LENGTH, body=b"")

    reader = ReplyReader()
    with socket.create_connection((HOST, product.port), 30) as sock:
        sock.sendall(head)
        assert sock.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(BODY)
        while not reader.done:
            reader.feed(sock.recv(65536), 0.0)

    served(reader.reply)

    [seen] = backend.requests
    as_meant(seen)


@pytest.mark.parametrize("path", ["/health", "/nothing", CHAT, "/router/status", "/router/nothing"])
def test_head_has_the_head_of_its_answer_and_no_body(product: Product, path: str) -> None:
    with RawConnection(product.port) as connection:
        connection.send(request_bytes("HEAD", path) + VERSION)
        head = connection.read(method="HEAD")
        assert connection.read(method="GET").json()["version"]

    assert int(head.header("content-length") or 0) > 0


@pytest.mark.parametrize(
    "raw",
    [
        request_bytes("GET", "/health", {}, b"a body that is not asked for"),
        request_bytes("GET", "/router/status", {}, b"a body that is not asked for"),
        request_bytes("GET", "http://a/router/status"),
        request_bytes("GET", "/router/status", {"X-Long": "a" * 20_000}),
        request_bytes("GET", "/router/status?" + "a" * 8000),
        request_bytes("GET", "/router/status", {"X-Name": "\xe4\xf6 \x80"}),
        request_bytes("POST", "/router/explain", {"Transfer-Encoding": "chunked"}, chunked(BODY)),
        request_bytes("OPTIONS", "*"),
    ],
    ids=["body", "body, lent", "absolute", "long", "target", "latin-1", "chunks", "asterisk"],
)
def test_pages_are_read_by_the_same_reader(product: Product, raw: bytes) -> None:
    with RawConnection(product.port) as connection:
        connection.send(raw + VERSION)
        reply = connection.read()
        assert reply.status == (404 if raw.startswith(b"OPTIONS") else 200)
        assert connection.read(method="GET").json()["version"]


# --- the other side ---------------------------------------------------------------------------


def test_interim_answers_are_passed_over(product: Product, backend: ScriptedBackend) -> None:
    said = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
    backend.set_script([{"do": "send", "text": said}, chat_ok("The Rhine.")])

    with RawConnection(product.port) as connection:
        connection.send(PLAIN)
        reply = connection.read()

    served(reply)
    assert reply.header("link") is None
