"""The edge's limits by raw sockets, where nothing is answered or something has to happen first.

Those that are answered at once are rows of docs/limits.md, see test_bad_input.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import re
import resource
import select
import socket
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import fields as fields_of
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import config as configs
from router import nesting
from router.counted import LIMITS
from router.errors import AnswerTooLarge, RouterError
from router.message import AnswerHead, Request
from router.server.packed import decompressed
from router.upstream import BackendUpstream
from router.wire import Piece
from tests.clients.demo import await_fact, record_of
from tests.support.badinput import ASK, CHAT, post
from tests.support.pool import POLICY
from tests.support.product import Product
from tests.support.prometheus import page_of
from tests.support.rawclient import (
    HOST,
    RawConnection,
    RawReply,
    exchange,
    request_bytes,
    sse_payloads,
)
from tests.support.script import Step, chat_ok, delta, stream_head
from tests.support.scripted import ScriptedBackend

ROOT = Path(__file__).resolve().parents[1]
STREAM = {**ASK, "stream": True}
VERSION = request_bytes("GET", "/version")
SILENCE: Step = {"do": "wait_disconnect", "max_ms": 60_000}
#: 64 KiB a frame; a hundred times as much as anybody waits for
ENDLESS: list[Step] = [
    stream_head(),
    {"do": "repeat", "times": 4000, "steps": [delta(content="x" * 65536)]},
]
#: limits that are met soon, by those who mean to
SOON: Mapping[str, Any] = {
    "head_timeout_s": 0.3,
    "idle_timeout_s": 0.3,
    "write_timeout_s": 1.2,  # longer than a backend may stall
    "pipelined": 4,
    "grace_s": 0,
}


@pytest.fixture(scope="module")
def shared_backend() -> Iterator[ScriptedBackend]:
    with ScriptedBackend() as running:
        yield running


@pytest.fixture
def backend(shared_backend: ScriptedBackend) -> ScriptedBackend:
    shared_backend.set_script([chat_ok("The Rhine.")])
    shared_backend.requests.clear()
    return shared_backend


def router(
    folder: Path,
    backend: ScriptedBackend,
    server: Mapping[str, Any],
    settings: Mapping[str, Any],
    **tables: Any,
) -> Product:
    one = {"name": "one", "url": backend.url, "model": "m", **settings}
    config = {"backends": [one], "server": server, "log": {"flush_ms": 10}, **tables}
    env = {"ROUTER_TEST_KEYS": "alice=key-of-alice"}
    return Product.start(folder, config, policy=POLICY, env=env)


@pytest.fixture(scope="module")
def soon(
    shared_backend: ScriptedBackend, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Product]:
    folder = tmp_path_factory.mktemp("soon")
    with router(folder, shared_backend, SOON, {"stall_timeout_s": 0.6}) as running:
        yield running


@pytest.fixture(scope="module")
def small(
    shared_backend: ScriptedBackend, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Product]:
    """Answers may have 1 MiB, and clients must have a key."""
    folder, keys = tmp_path_factory.mktemp("small"), {"keys_env": "ROUTER_TEST_KEYS"}
    with router(folder, shared_backend, {}, {"answer_limit_mb": 1}, auth=keys) as running:
        yield running


def met(product: Product, limit: str) -> float:
    return page_of(product).value("limited_total", limit=limit)


def memory_mb(product: Product) -> float:
    status = Path(f"/proc/{product.process.pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) / 1024


# --- the settings are said everywhere -----------------------------------------------------------


def test_each_limit_is_a_setting_and_in_the_document() -> None:
    """The metric names settings, so that its reader can find them."""
    document = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
    fields = {
        field.name: field for kind in (configs.Server, configs.Backend) for field in fields_of(kind)
    }

    assert [name for name in LIMITS if name not in fields] == []
    for name in [*LIMITS, "idle_timeout_s", "pipelined"]:
        row = re.search(rf"^\| `{name}` \| (\S+) \|", document, re.M)
        assert row, name
        assert float(row[1]) == fields[name].default, name


# --- time ---------------------------------------------------------------------------------------


def test_a_connection_that_says_nothing_is_closed_without_a_word(soon: Product) -> None:
    before = met(soon, "head_timeout_s")

    with socket.create_connection((HOST, soon.port), 30) as sock:
        assert sock.recv(1000) == b""

    assert met(soon, "head_timeout_s") == before + 1


def test_a_kept_connection_that_asks_nothing_more_is_closed_without_a_word(soon: Product) -> None:
    with RawConnection(soon.port) as connection:
        connection.send(VERSION)
        reply = connection.read(method="GET")
        assert reply.status == 200
        assert connection.wait_closed(reply, 30)
        assert connection.read().status is None


def test_a_request_under_way_is_no_silence(soon: Product, backend: ScriptedBackend) -> None:
    """Limits of time are for what a client sends: it may wait as long as its backend may take."""
    backend.set_script([{"do": "sleep", "ms": 700}, chat_ok("The Rhine.")])

    assert exchange(soon.port, post(ASK)).status == 200


# --- a client that does not read ------------------------------------------------------------------


def unread(product: Product, raw: bytes) -> socket.socket:
    """A connection whose client sends and does not read; its kernel takes next to nothing."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(30)
    sock.connect((HOST, product.port))
    sock.sendall(raw)
    return sock


def whole_of(size: int) -> Step:
    said = {"choices": [{"message": {"content": "x" * size}, "finish_reason": "stop"}]}
    return {"do": "json", "body": said}


def test_a_client_that_does_not_read_holds_its_backend_back_and_is_cut_off(
    soon: Product, backend: ScriptedBackend
) -> None:
    backend.set_script(ENDLESS)
    before, began_mb = met(soon, "write_timeout_s"), memory_mb(soon)

    with unread(soon, post(STREAM, {"x-request-id": "limits-unread"})):
        [seen] = backend.wait_requests(1)
        record = record_of(soon, "limits-unread")
        assert seen.wait_peer_closed() is not None

    # What the kernel holds for two connections, and no more than a few frames in between.
    assert len(seen.entity) < 64 << 20
    assert memory_mb(soon) < began_mb + 16
    assert (record["outcome"], record["status"]) == ("client_disconnect", 200)
    assert met(soon, "write_timeout_s") == before + 1
    assert soon.get("/router/status")["backends"][0]["state"] == "up"  # no fault of the backend


def test_an_answer_that_nobody_takes_is_not_kept_for_ever(
    soon: Product, backend: ScriptedBackend
) -> None:
    """The journey is over and recorded; only the bytes are still there."""
    backend.set_script([whole_of(3 << 20)])
    before = met(soon, "write_timeout_s")

    with unread(soon, post(ASK, {"x-request-id": "limits-untaken"})):
        assert record_of(soon, "limits-untaken")["outcome"] == "ok"
        await_fact(lambda: met(soon, "write_timeout_s") == before + 1)

    await_fact(lambda: page_of(soon).value("connections") == 1)


def test_a_client_that_reads_slowly_is_let_be(soon: Product, backend: ScriptedBackend) -> None:
    """It takes longer than the limit, but never stops for so long."""
    size = 3 << 20
    backend.set_script([whole_of(size)])
    got = 0
    with unread(soon, post(ASK, {"Connection": "close"})) as sock:
        for _ in range(18):  # nearly two seconds
            select.select([], [], [], 0.1)
            got += len(sock.recv(64 << 10))
        while data := sock.recv(1 << 20):
            got += len(data)

    assert got > size


# --- what is read ahead ---------------------------------------------------------------------------


def test_requests_are_not_read_without_end_while_one_is_served(
    soon: Product, backend: ScriptedBackend
) -> None:
    backend.set_script([SILENCE])
    began_mb, sent = memory_mb(soon), 0
    many = VERSION * 20_000

    with unread(soon, post(ASK)) as sock:
        backend.wait_requests(1)
        sock.setblocking(False)
        while select.select([], [sock], [], 0.5)[1] and sent < 256 << 20:
            sent += sock.send(many)

    assert sent < 64 << 20  # the kernel's buffers are full, and nobody empties them
    assert memory_mb(soon) < began_mb + 32


def test_all_that_is_read_ahead_is_answered_in_its_order(
    soon: Product, backend: ScriptedBackend
) -> None:
    rows = [{**ASK, "user": f"u{number}"} for number in range(40)]

    with RawConnection(soon.port) as connection:
        connection.send(b"".join(map(post, rows)))
        replies = [connection.read() for _ in rows]

    assert [reply.status for reply in replies] == [200] * len(rows)
    assert [seen.json["user"] for seen in backend.requests] == [row["user"] for row in rows]


# --- answers without end --------------------------------------------------------------------------


def asked(product: Product, body: Any, request_id: str) -> RawReply:
    key = {"Authorization": "Bearer key-of-alice", "x-request-id": request_id}
    return exchange(product.port, post(body, key), watch_close_s=5 if body is STREAM else 0)


def was_too_large(product: Product, request_id: str, status: int) -> None:
    record = record_of(product, request_id)
    assert (record["status"], record["outcome"]) == (status, "upstream_error")
    assert record["error_code"] == "response_too_large"
    health = product.get("/router/status")["backends"][0]
    assert health["state"] == "up"


def test_a_stream_without_end_ends_with_an_error(small: Product, backend: ScriptedBackend) -> None:
    backend.set_script(ENDLESS)
    before = met(small, "answer_limit_mb")

    reply = asked(small, STREAM, "limits-endless")

    *_, last = sse_payloads(reply.body)
    assert json.loads(last)["error"]["code"] == "response_too_large"
    assert "[DONE]" not in reply.text
    assert reply.ended_properly
    assert backend.requests[0].wait_peer_closed() is not None
    assert met(small, "answer_limit_mb") == before + 1
    was_too_large(small, "limits-endless", 200)


def test_a_stream_of_small_tokens_without_end_does_too(
    small: Product, backend: ScriptedBackend
) -> None:
    """They go on by the shortest way, which nothing must slow down."""
    tokens: Step = {"do": "repeat", "times": 1000, "steps": [delta(content="ab")] * 200}
    backend.set_script([stream_head(), tokens])

    reply = asked(small, STREAM, "limits-tokens")

    assert json.loads(sse_payloads(reply.body)[-1])["error"]["code"] == "response_too_large"
    was_too_large(small, "limits-tokens", 200)


def test_an_answer_that_says_that_it_is_too_large_is_refused_unread(
    small: Product, backend: ScriptedBackend
) -> None:
    head = {"Content-Type": "application/json", "Content-Length": str(2 << 20)}
    backend.set_script([{"do": "head", "headers": head, "framing": "length"}, SILENCE])

    reply = asked(small, ASK, "limits-announced")

    assert (reply.status, reply.json()["error"]["code"]) == (502, "response_too_large")
    was_too_large(small, "limits-announced", 502)


def test_a_stream_that_is_gathered_is_not_gathered_without_end(
    small: Product, backend: ScriptedBackend
) -> None:
    """Some servers stream unasked; their client waits for a whole answer."""
    backend.set_script(ENDLESS)

    reply = asked(small, ASK, "limits-gathered")

    assert (reply.status, reply.json()["error"]["code"]) == (502, "response_too_large")
    was_too_large(small, "limits-gathered", 502)


class Unheard:
    """Listens to a backend, and remembers what went wrong."""

    fault: Exception | None = None

    def __init__(self, *, has_shortest_way: bool) -> None:
        self._has_shortest_way = has_shortest_way

    def on_sent(self) -> None: ...
    def on_whole(self, head: AnswerHead, body: bytes) -> None: ...
    def on_head(self, head: AnswerHead, *, has_more: bool) -> None: ...
    def on_piece(self, data: bytes, piece: Piece) -> None: ...
    def on_end(self) -> None: ...

    def on_failure(self, fault: Exception, *, may_retry: bool) -> None:
        self.fault = fault

    def express(self) -> tuple[Callable[[bytes], bool], Callable[[bytes], None]] | None:
        return (lambda data: True, lambda data: None) if self._has_shortest_way else None


TOKENS = b"6\r\nabcdef\r\n" * 100
LIMIT = 10 << 10


@contextlib.asynccontextmanager
async def answering(
    listener: Unheard,
) -> AsyncIterator[tuple[BackendUpstream, Callable[[int], Awaitable[None]]]]:
    """The way to a backend that has begun a stream, and what has it sent up to a size."""
    ends: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        await ends.put(writer)

    async with await asyncio.start_server(answer, HOST, 0) as server:
        url = f"http://{HOST}:{server.sockets[0].getsockname()[1]}"
        backend = configs.Backend(name="b", url=url, answer_limit_mb=LIMIT / 2**20)
        upstream = BackendUpstream(backend, asyncio.get_running_loop())
        attempt = upstream.send(b"POST / HTTP/1.1\r\n\r\n", b"", b"POST", listener)
        end = await asyncio.wait_for(ends.get(), 10)

        async def send(size: int) -> None:
            async with asyncio.timeout(10):
                while attempt.size < size and not attempt.is_over:
                    end.write(TOKENS)
                    await asyncio.sleep(0.001)

        try:
            yield upstream, send
        finally:
            attempt.cancel()
            end.close()


async def test_what_goes_by_the_shortest_way_is_counted_for_the_clock_to_see() -> None:
    listener = Unheard(has_shortest_way=True)
    async with answering(listener) as (upstream, send):
        await send(LIMIT // 2)
        upstream.sweep(upstream.now())
        assert listener.fault is None

        await send(LIMIT + 1)
        assert listener.fault is None
        upstream.sweep(upstream.now())

    assert isinstance(listener.fault, AnswerTooLarge)
    assert listener.fault.limit == "answer_limit_mb"


async def test_what_may_be_kept_ends_without_waiting_for_the_clock() -> None:
    listener = Unheard(has_shortest_way=False)
    async with answering(listener) as (_, send):
        await send(LIMIT // 2)
        assert listener.fault is None

        await send(2 * LIMIT)

    assert isinstance(listener.fault, AnswerTooLarge)


# --- bodies ---------------------------------------------------------------------------------------


def test_a_key_is_asked_for_before_a_body_is_read(small: Product) -> None:
    """Not a byte of it is sent."""
    reply = exchange(small.port, post(b"", {"Content-Length": "1000"}), watch_close_s=5)

    assert (reply.status, reply.json()["error"]["code"]) == (401, "invalid_api_key")
    assert reply.closed


def test_pages_get_their_bodies_unpacked_under_the_same_limits(small: Product) -> None:
    packed = {"Content-Encoding": "gzip"}
    bomb = request_bytes("POST", "/router/explain", packed, gzip.compress(b" " * (16 << 20)))
    sound = request_bytes(
        "POST", "/router/explain", packed, gzip.compress(json.dumps(ASK).encode())
    )

    assert exchange(small.port, bomb).json()["error"]["code"] == "request_too_large"
    assert exchange(small.port, sound).json()["scenario"] == "chat"


def unpacked(coding: str, body: bytes, limit: int = 1 << 30, ratio: int = 100) -> bytes | str:
    """What a body holds, or the limit that it met."""
    fields = {b"content-encoding": coding.encode()}
    request = Request(b"POST", CHAT.encode(), [], fields, False, True, body)
    try:
        return decompressed(request, limit, ratio)
    except RouterError as fault:
        return fault.limit or fault.code


@given(st.binary(max_size=3000))
def test_what_is_packed_in_any_way_is_unpacked(text: bytes) -> None:
    assert unpacked("gzip", gzip.compress(text)) == text
    assert unpacked("deflate", zlib.compress(text)) == text
    assert unpacked("deflate", zlib.compress(text, wbits=-15)) == text
    assert unpacked("identity", text) == text


@given(st.binary(max_size=300), st.sampled_from(["gzip", "deflate"]))
def test_any_bytes_are_unpacked_or_refused(noise: bytes, coding: str) -> None:
    assert unpacked(coding, noise) is not None


def test_unpacking_stops_at_the_sooner_of_two_limits() -> None:
    bomb = gzip.compress(b" " * (16 << 20))

    assert unpacked("gzip", bomb, limit=8 << 20) == "inflate_ratio"
    assert unpacked("gzip", bomb, limit=8 << 20, ratio=10_000) == "body_limit_mb"
    assert unpacked("gzip", bomb, ratio=10_000) == b" " * (16 << 20)
    assert unpacked("gzip", gzip.compress(b" " * (1 << 20)), ratio=1) == b" " * (1 << 20)


# --- nesting --------------------------------------------------------------------------------------

_json = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(alphabet='[]{}"\\a,:')),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)
_SHALLOW = {depth: nesting.checker(depth) for depth in range(1, 6)}


def depth_of(value: Any) -> int:
    if not isinstance(value, list | dict):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(map(depth_of, inner), default=0)


@given(_json, st.integers(1, 5))
def test_the_depth_of_a_text_is_that_of_what_it_says(value: Any, depth: int) -> None:
    text = json.dumps(value).encode() + b" " * 20

    assert _SHALLOW[depth](text) == (depth_of(value) > depth)


@pytest.mark.parametrize("depth", [100, 400])
def test_as_deep_as_may_be_and_one_deeper(depth: int) -> None:
    is_too_deep = nesting.checker(depth)

    for deepest in (depth, depth + 1, 1_000_000):
        text = b"[" * deepest + b"]" * deepest + b" " * depth
        assert is_too_deep(text) == (deepest > depth)


# --- file descriptors -----------------------------------------------------------------------------


def test_the_limit_of_open_files_is_raised_or_told_of() -> None:
    """In a process of its own: what is lowered here stays so."""
    text = """
import resource
from router.descriptors import connections_that_fit
resource.setrlimit(resource.RLIMIT_NOFILE, (300, 1000))
print(connections_that_fit(300), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
print(connections_that_fit(4096), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] > 1000

    ran = subprocess.run(
        [sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=True
    )

    raised, *_, fitting = ran.stdout.splitlines()
    assert raised == "300 856"
    assert "fewer client connections than configured" in ran.stdout
    assert fitting == "372 1000"
