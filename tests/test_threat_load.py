"""Nothing that one request or answer says wears the router out: depth, size, numbers, names."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.product import ROOT, Product
from tests.support.rawbackend import RawBackend, whole
from tests.support.rawclient import RawReply, exchange, request_bytes

CHAT = "/v1/chat/completions"
POLICY = """
schema = 1
default_scenario = "chat"
[scenarios.chat]
preset.max_new_tokens = { cap = 64 }
"""
JSON = b"content-type: application/json"
ANSWER = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Fine."},
                       "finish_reason": "stop"}]}  # fmt: skip
ASK = '{"model":"auto","messages":[{"role":"user","content":"Hi."}]'
PATHS = (CHAT, "/v1/completions", "/v1/responses", "/v1/embeddings", "/router/explain")
MEMBERS = (
    "x", "model", "messages", "prompt", "input", "stop", "tools", "tool_choice", "response_format",
    "extra_body", "chat_template_kwargs", "stream_options", "user", "metadata", "session_id",
    "reasoning", "generation_config", "temperature", "max_tokens", "text", "thinking",
)  # fmt: skip
#: readable everywhere; by some decoders and not by others; by none
DEPTHS = (100, 300, 1010, 100_000)


@pytest.fixture(scope="module")
def backend() -> Iterator[RawBackend]:
    with RawBackend() as running:
        yield running


@pytest.fixture(scope="module")
def product(backend: RawBackend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    folder = tmp_path_factory.mktemp("load")
    config = {
        "backends": [{"name": "a", "url": backend.url, "model": "m"}],
        "policy": {"real_model_bypass": True},
        "health": {"failures": 100_000},
        "log": {"flush_ms": 5, "bodies": "on"},
    }
    with Product.start(folder, config, policy=POLICY) as running:
        yield running
        output = "".join(running.output)
        assert "Traceback" not in output
        assert "failed inside" not in output


def ask(product: Product, body: str, path: str = CHAT, **headers: str) -> RawReply:
    told = {name.replace("_", "-"): value for name, value in headers.items()}
    return exchange(product.port, request_bytes("POST", path, told, body), timeout_s=15)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("brackets", [("[", "]"), ('{"a":', "}")])
def test_any_depth_anywhere_is_served_or_the_clients_error(
    product: Product, backend: RawBackend, depth: int, brackets: tuple[str, str]
) -> None:
    backend.answers = [whole(json.dumps(ANSWER).encode(), JSON)]
    deep = brackets[0] * depth + "1" + brackets[1] * depth
    for path in PATHS:
        for name in MEMBERS:
            start = '{"model":"auto"' if name == "messages" else ASK
            reply = ask(product, f'{start},"{name}":{deep}}}', path)
            assert reply.status in (200, 400), (path, name, reply.text[:200])
    untouched = ask(product, f'{ASK},"x":{deep}}}', x_router_policy="off")
    assert untouched.status in (200, 400)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("start", ["[", '{"error":', '{"choices":', '{"detail":', '{"a":'])
def test_any_depth_of_an_answer_is_told_or_a_bad_gateway(
    product: Product, backend: RawBackend, depth: int, start: str
) -> None:
    """FastAPI's refusals repeat what a client sent, so that a client can say what an answer is."""
    deep = (start * depth + "1" + ("]" if start == "[" else "}") * depth).encode()
    for status, stream in ((b"200 OK", b"false"), (b"422 Bad", b"false"), (b"500 Bad", b"true")):
        backend.answers = [whole(deep, JSON, status=status)]
        reply = ask(product, f'{ASK},"stream":{stream.decode()}}}')
        assert reply.ended_properly, (status, reply.broken)
        assert reply.status in (200, 422, 500, 502)
    frames = b"data: %b\n\ndata: [DONE]\n\n" % deep
    backend.answers = [whole(frames, b"content-type: text/event-stream")]
    for stream in (b"true", b"false"):
        reply = ask(product, f'{ASK},"stream":{stream.decode()}}}')
        assert reply.status in (200, 500, 502)
        assert reply.ended_properly or reply.closed


def test_a_large_body_of_odd_things_does_not_grow_the_router(
    product: Product, backend: RawBackend
) -> None:
    """Many names, long names, many messages, none of which may be remembered."""
    backend.answers = [whole(json.dumps(ANSWER).encode(), JSON)]

    def resident_mb() -> float:
        status = Path(f"/proc/{product.process.pid}/statm").read_text().split()
        return int(status[1]) * resource.getpagesize() / 2**20

    def round_of(number: int) -> None:
        long = f"{number}" * 50_000
        many = ",".join(f'"k{number}-{n}":1' for n in range(20_000))
        decided_anew = f'"temperature":{number / 1000}'
        for extra in (f'"{long}":1', many, f'"user":"{long}"', f'"stop":["{long}"]'):
            assert ask(product, f"{ASK},{decided_anew},{extra}}}").status == 200
        assert ask(product, f'{ASK[:16]}{long}"{ASK[16:]}}}').status in (400, 404)

    for number in range(1, 5):
        round_of(number)
    before = resident_mb()
    for number in range(5, 45):
        round_of(number)
    # Where the names were kept with each decision, it was 2 MB a round.
    assert resident_mb() - before < 30


def test_nothing_that_is_deployed_takes_chance_out_of_hashing() -> None:
    """Names that all fall into one place of a table would cost the square of their number."""
    for path in (ROOT / "docker").rglob("*"):
        if path.is_file():
            assert b"PYTHONHASHSEED" not in path.read_bytes(), path
