"""Every row of the table in docs/limits.md, sent by a raw socket to a router that runs.

A row says status, type, code, what the message holds and what becomes of the connection. Behind
each request comes another one, hidden in the same bytes: where the connection ends it must not be
read, where it stays it must be answered. No backend may have seen anything of either.
"""

from __future__ import annotations

import contextlib
import re
import select
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.badinput import HTTP, START, STRICT, TIGHT, USUAL, post
from tests.support.pool import POLICY
from tests.support.product import Product
from tests.support.rawclient import HOST, RawConnection, RawReply, ReplyReader, request_bytes
from tests.support.script import chat_ok
from tests.support.scripted import ScriptedBackend

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "limits.md"
HIDDEN = request_bytes("GET", "/version")


@dataclass(frozen=True, slots=True)
class Row:
    """What the document says of one bad input."""

    status: int
    type: str
    code: str
    message: str  # a part of it
    connection: str  # closed | kept


def rows() -> dict[str, Row]:
    """The tables of the document, by what is sent."""
    text = DOCUMENT.read_text(encoding="utf-8")
    found: dict[str, Row] = {}
    for part in text.split("<!-- bad input -->")[1::2]:
        for line in part.strip().splitlines()[2:]:
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            sent, status, kind, code, message, connection = cells
            assert sent not in found, f"twice: {sent}"
            code, kind = code.strip("`"), kind.strip("`")
            found[sent] = Row(int(status), kind, code, message, connection)
    return found


ROWS = rows()


# --- what takes its time ----------------------------------------------------------------------

#: seconds that nobody has to wait for long, and that no machine is too slow for
HASTY: Mapping[str, Any] = {"head_timeout_s": 0.4, "body_timeout_s": 0.4, "request_timeout_s": 1.2}
#: what comes first, and what then comes again and again
DRIPS: Mapping[str, tuple[bytes, bytes]] = {
    "a head that takes over `head_timeout_s`": (START.encode() + b"\r\nX: ", b"a"),
    "a pause in a body of over `body_timeout_s`": (post(b"", {"Content-Length": "1000"}), b""),
    "a request that takes over `request_timeout_s`": (
        post(b"", {"Content-Length": "100000"}),
        b"a",
    ),
}
FULL: Mapping[str, Mapping[str, Any]] = {
    "more than `connections`": {"connections": 1},
    "more than `connections_per_address` from one": {"connections_per_address": 1},
}


def dripped(port: int, first: bytes, drip: bytes) -> RawReply:
    """What is answered to bytes that come one by one, if ever it is; never more than 30 s."""
    reader = ReplyReader()
    with socket.create_connection((HOST, port), 30) as sock:
        sock.sendall(first)
        for _ in range(600):
            if select.select([sock], [], [], 0.05)[0]:
                break
            if drip:
                sock.sendall(drip)
        with contextlib.suppress(ConnectionError):
            while data := sock.recv(65536):
                reader.feed(data, 0.0)
    reader.eof(0.0)
    return reader.reply


# --- the routers ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def backend() -> Iterator[ScriptedBackend]:
    with ScriptedBackend([chat_ok("Not to be had.")]) as running:
        yield running


def router(
    folder: Path, backend: ScriptedBackend, server: Mapping[str, Any], **tables: Any
) -> Product:
    one = {"name": "one", "url": backend.url, "model": "m"}
    env = {"ROUTER_TEST_KEYS": "alice=key-of-alice"}
    config = {"backends": [one], "server": server, **tables}
    return Product.start(folder, config, policy=POLICY, env=env)


@pytest.fixture(scope="module")
def usual(backend: ScriptedBackend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with router(tmp_path_factory.mktemp("usual"), backend, {}) as running:
        yield running


@pytest.fixture(scope="module")
def tight(backend: ScriptedBackend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    keys = {"keys_env": "ROUTER_TEST_KEYS"}
    with router(tmp_path_factory.mktemp("tight"), backend, TIGHT, auth=keys) as running:
        yield running


@pytest.fixture(scope="module")
def hasty(backend: ScriptedBackend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with router(tmp_path_factory.mktemp("hasty"), backend, HASTY) as running:
        yield running


# --- the laws ---------------------------------------------------------------------------------


def test_the_document_has_a_row_for_all_of_these_and_for_nothing_else() -> None:
    assert list(ROWS) == [*HTTP, *USUAL, *STRICT, *DRIPS, *FULL]


def is_as_told(name: str, reply: RawReply) -> None:
    row = ROWS[name]
    assert reply.status == row.status, (reply.text, reply.broken)
    assert reply.ended_properly
    assert reply.header("content-type") == "application/json"
    assert reply.header("x-request-id")
    [(key, error)] = reply.json().items()
    assert (key, set(error)) == ("error", {"message", "type", "param", "code"})
    assert (error["type"], error["code"]) == (row.type, row.code)
    assert row.message.replace("`", "") in error["message"].replace("`", "")
    for inside in ("127.0.0.1", "Traceback", 'File "', "key-of-"):
        assert inside not in reply.text


def refused(name: str, raw: bytes, product: Product, backend: ScriptedBackend) -> None:
    with RawConnection(product.port) as connection:
        connection.send(raw + HIDDEN)
        reply = connection.read()
        is_as_told(name, reply)
        if ROWS[name].connection == "closed":
            assert (reply.header("connection") or "").lower() == "close"
            assert connection.wait_closed(reply, 5)
            assert connection.read(method="GET").status is None
        else:
            assert connection.read(method="GET").json()["version"]
    assert backend.requests == []


@pytest.mark.parametrize("name", HTTP)
def test_what_is_no_http_or_could_be_two_requests_is_refused(
    name: str, usual: Product, backend: ScriptedBackend
) -> None:
    refused(name, HTTP[name], usual, backend)


@pytest.mark.parametrize("name", USUAL)
def test_what_is_too_much_or_makes_no_sense_is_refused(
    name: str, usual: Product, backend: ScriptedBackend
) -> None:
    refused(name, USUAL[name], usual, backend)


@pytest.mark.parametrize("name", STRICT)
def test_what_a_stricter_router_refuses(
    name: str, tight: Product, backend: ScriptedBackend
) -> None:
    refused(name, STRICT[name], tight, backend)


@pytest.mark.parametrize("name", DRIPS)
def test_who_takes_too_long_is_told_and_left(
    name: str, hasty: Product, backend: ScriptedBackend
) -> None:
    is_as_told(name, dripped(hasty.port, *DRIPS[name]))

    assert ROWS[name].connection == "closed"
    assert backend.requests == []


@pytest.mark.parametrize("name", FULL)
def test_one_connection_too_many_is_told_before_it_asks(
    name: str, backend: ScriptedBackend, tmp_path: Path
) -> None:
    with router(tmp_path, backend, FULL[name]) as product:
        with RawConnection(product.port) as first:
            first.send(HIDDEN)
            assert first.read(method="GET").status == 200
            is_as_told(name, dripped(product.port, b"", b""))
        with RawConnection(product.port) as again:  # there is room again
            again.send(HIDDEN)
            reply = again.read(method="GET")

    assert ROWS[name].connection == "closed"
    assert reply.status == 200
