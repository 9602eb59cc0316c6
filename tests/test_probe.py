"""What a server says of itself, in every shape, and over the connection that serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import probe
from router.config import Backend
from router.probe import TELLING, Told
from router.upstream import BackendUpstream

MODELS = {"data": [{"id": "a", "max_model_len": 1}, {"id": "b", "max_model_len": 2}]}
METRICS = b"x 1\nprocess_start_time_seconds 1.7e+09\nprocess_start_time_seconds_total 3\n"
PROPS = {
    "build_info": "b1-2",
    "media_marker": "<__media_abc__>",
    "default_generation_settings": {"n_ctx": 512},
}
FIXED = {"media_marker": "<__media__>"}


def page(value: object) -> bytes:
    return msgspec.json.encode(value)


@pytest.mark.parametrize(
    ("dialect", "bodies", "told"),
    [
        ("vllm", {"/v1/models": page(MODELS)}, Told(context=2)),
        ("vllm", {"/version": page({"version": "1"}), "/metrics": METRICS}, Told("1", "1.7e+09")),
        ("vllm", {"/v1/models": page({"data": [{"id": "c", "max_model_len": 9}]})}, Told()),
        ("vllm", {"/v1/models": page({"data": [{"id": "b", "max_model_len": -1}]})}, Told()),
        ("llamacpp", {"/props": page(PROPS)}, Told("b1-2", "<__media_abc__>", 512)),
        # One marker for all says nothing of when it was started.
        ("llamacpp", {"/props": page({**PROPS, **FIXED})}, Told("b1-2", None, 512)),
        ("ollama", {"/api/version": page({"version": "0.5"})}, Told("0.5")),
        ("transformers", {"/v1/models": page(MODELS)}, Told(context=2)),
        ("openai", {}, Told()),
    ],
)  # fmt: skip
def test_what_is_told_is_read(dialect: str, bodies: Mapping[str, bytes], told: Told) -> None:
    assert probe.read_told(dialect, "b", bodies) == told


PATHS = sorted({path for paths in TELLING.values() for path in paths} | {"/v1/models"})
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["data", "id", "max_model_len", "version", *PROPS, "n_ctx"]), inner
        )
    ),
    max_leaves=8,
)


@given(
    dialect=st.sampled_from([*sorted(TELLING), "openai"]),
    bodies=st.dictionaries(st.sampled_from(PATHS), JSON.map(page) | st.binary(max_size=20)),
)
def test_nonsense_tells_nothing_and_breaks_nothing(
    dialect: str, bodies: Mapping[str, bytes]
) -> None:
    told = probe.read_told(dialect, None, bodies)

    assert told.context is None or told.context > 0
    assert told.version != ""


@asynccontextmanager
async def serving(pages: Mapping[str, bytes]) -> AsyncIterator[str]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        body = pages.get(head.split()[1].decode())
        status, body = (b"404 Not Found", b"") if body is None else (b"200 OK", body)
        writer.write(b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_backend_is_asked_over_its_own_connection() -> None:
    pages = {"/v1/models": page(MODELS), "/metrics": METRICS}
    async with serving(pages) as url:
        upstream = BackendUpstream(Backend(name="b", url=url), asyncio.get_running_loop())
        models = await probe.get(upstream, "/v1/models", timeout_s=5, key=None)
        told = await probe.told(upstream, "vllm", "a", models=models, timeout_s=5, key=None)
        upstream.close()

    assert told == Told(version=None, started="1.7e+09", context=1)
