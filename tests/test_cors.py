"""Which web pages may ask: those that are named, without cookies, and by default none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from router import config as configs
from router.cors import Cors
from router.errors import Forbidden
from router.heads import returned
from router.tomlfile import FileFault
from tests.support.product import Product, write_toml
from tests.support.rawclient import RawReply, exchange, request_bytes
from tests.support.script import DONE, END, delta, reply_json, stream_head
from tests.support.scripted import ScriptedBackend

CHAT = "/v1/chat/completions"
PAGE = "https://app.example"
ASK: dict[str, Any] = {"model": "auto", "messages": [{"role": "user", "content": "Name a river."}]}
KEYS = {"T_KEYS": "alice=key-of-alice"}
ALICE = {"Authorization": "Bearer key-of-alice"}
#: what some servers say to any page, whoever asks
STAR = {"Access-Control-Allow-Origin": "*", "Access-Control-Allow-Credentials": "true"}
COMPLETION = {
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "The Rhine."}}],
}
POLICY = 'schema = 1\ndefault_scenario = "chat"\n[scenarios.chat]\n'
WANTS = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
}


def allowed(reply: RawReply) -> str | None:
    assert reply.header("access-control-allow-credentials") is None
    return reply.header("access-control-allow-origin")


# --- the lines ---------------------------------------------------------------------------


def test_only_a_named_origin_is_told_that_it_may() -> None:
    cors = Cors([PAGE])

    assert b"access-control-allow-origin: https://app.example" in cors.lines(
        {b"origin": PAGE.encode()}
    )
    for other in (b"https://app.example.evil", b"http://app.example", b"null", b"*", b""):
        assert cors.lines({b"origin": other}) == [b"vary: origin"]
        with pytest.raises(Forbidden):
            cors.preflight({b"origin": other})
    assert cors.lines({}) == [b"vary: origin"]  # a cache must not give it to the page


def test_any_origin_is_a_star_and_never_its_own_name() -> None:
    lines = Cors(["*"]).lines({b"origin": b"https://evil.example"})

    assert lines[0] == b"access-control-allow-origin: *"
    assert not any(b"credentials" in line or b"evil" in line for line in lines)


def test_header_names_that_are_none_are_not_said_back() -> None:
    fields = {b"origin": PAGE.encode(), b"access-control-request-headers": b"a: b\x0b<x>"}

    lines = Cors([PAGE]).preflight(fields)

    assert not any(line.startswith(b"access-control-allow-headers") for line in lines)


def test_a_backend_has_no_say_in_it() -> None:
    assert returned((b"access-control-allow-origin", b"*")) == b""
    assert returned((b"access-control-allow-credentials", b"true")) == b""


@pytest.mark.parametrize(
    "origin", ["app.example", "https://app.example/", "https://a b", "null", "https://*.example"]
)
def test_what_is_no_origin_is_a_mistake(tmp_path: Path, origin: str) -> None:
    written = {
        "server": {"cors_origins": [origin]},
        "backends": [{"name": "a", "url": "http://127.0.0.1:9"}],
    }
    with pytest.raises(FileFault, match="is no origin"):
        configs.load(write_toml(tmp_path / "c.toml", written), environ={})


# --- over the wire ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared() -> Iterator[ScriptedBackend]:
    with ScriptedBackend() as running:
        yield running


@pytest.fixture
def backend(shared: ScriptedBackend) -> ScriptedBackend:
    shared.set_script([reply_json(COMPLETION, headers=STAR)])
    shared.requests.clear()
    return shared


def config(backend: ScriptedBackend, **server: Any) -> dict[str, Any]:
    return {
        "server": server,
        "auth": {"keys_env": "T_KEYS"},
        "backends": [{"name": "one", "url": backend.url, "model": "m"}],
    }


@pytest.fixture(scope="module")
def product(shared: ScriptedBackend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    told = config(shared, cors_origins=[PAGE, "http://localhost:3000"])
    with Product.start(tmp_path_factory.mktemp("cors"), told, policy=POLICY, env=KEYS) as running:
        yield running


def ask(product: Product, method: str, path: str, body: Any = b"", **fields: str) -> RawReply:
    headers = {name.replace("_", "-"): value for name, value in fields.items()}
    return exchange(product.port, request_bytes(method, path, headers, body))


def test_a_browser_may_ask_first_without_a_key(product: Product, backend: ScriptedBackend) -> None:
    for path in (CHAT, "/v1/models", "/v1/embeddings"):
        reply = exchange(product.port, request_bytes("OPTIONS", path, {"Origin": PAGE, **WANTS}))
        assert reply.status == 204
        assert reply.body == b""
        assert allowed(reply) == PAGE
        assert reply.header("access-control-allow-methods") == "GET, POST"
        assert (
            reply.header("access-control-allow-headers") == WANTS["Access-Control-Request-Headers"]
        )
    refused = exchange(
        product.port, request_bytes("OPTIONS", CHAT, {"Origin": "https://evil.example", **WANTS})
    )
    assert refused.status == 403
    assert allowed(refused) is None
    assert backend.requests == []


def test_answers_and_refusals_can_be_read_by_the_page(
    product: Product, backend: ScriptedBackend
) -> None:
    alice = ALICE["Authorization"]
    answers = [
        ask(product, "POST", CHAT, ASK, Origin=PAGE, Authorization=alice),
        ask(product, "POST", CHAT, ASK, Origin=PAGE),
        ask(product, "POST", CHAT, b"{", Origin=PAGE, Authorization=alice),
        ask(product, "GET", "/v1/models", Origin=PAGE, Authorization=alice),
        ask(product, "GET", "/nothing", Origin=PAGE),
    ]
    backend.set_script([stream_head(), delta(content="The Rhine."), DONE, END])
    answers.append(
        ask(product, "POST", CHAT, {**ASK, "stream": True}, Origin=PAGE, Authorization=alice)
    )

    assert [reply.status for reply in answers] == [200, 401, 400, 200, 404, 200]
    for reply in answers:
        assert reply.all("access-control-allow-origin") == [PAGE]
        assert allowed(reply) == PAGE
        assert "origin" in (reply.header("vary") or "")


def test_another_page_and_no_page_read_nothing(product: Product, backend: ScriptedBackend) -> None:
    for fields in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {}):
        reply = ask(product, "POST", CHAT, ASK, **{**ALICE, **fields})
        assert reply.status == 200
        assert allowed(reply) is None


def test_operators_pages_are_for_no_other_page(product: Product) -> None:
    reply = exchange(
        product.port, request_bytes("OPTIONS", "/router/status", {"Origin": PAGE, **WANTS})
    )
    assert reply.status in (401, 405)
    assert allowed(reply) is None
    assert allowed(ask(product, "GET", "/router/status", Origin=PAGE)) is None


def test_by_default_no_page_may(backend: ScriptedBackend, tmp_path: Path) -> None:
    with Product.start(tmp_path, config(backend), policy=POLICY, env=KEYS) as product:
        asked_first = exchange(
            product.port, request_bytes("OPTIONS", CHAT, {"Origin": PAGE, **WANTS})
        )
        assert asked_first.status == 405
        reply = ask(product, "POST", CHAT, ASK, Origin=PAGE, **ALICE)
        assert reply.status == 200
        for one in (asked_first, reply):
            assert not [name for name, _ in one.headers if name.lower().startswith("access-co")]
