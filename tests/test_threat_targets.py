"""Nobody but the configuration says where requests go, and what is said on the way is believed by
nobody."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from router import discovery
from router.config import Backend
from router.doctor.asking import Asker
from tests.support.product import Product
from tests.support.rawbackend import RawBackend, whole
from tests.support.rawclient import RawReply, exchange, request_bytes

CHAT = "/v1/chat/completions"
ASK = {"model": "auto", "messages": [{"role": "user", "content": "Hi."}]}
POLICY = 'schema = 1\ndefault_scenario = "chat"\n[scenarios.chat]\n'
OK = whole(
    json.dumps({"choices": [{"index": 0, "message": {"role": "assistant", "content": "Fine."},
                             "finish_reason": "stop"}]}).encode(),
    b"content-type: application/json",
)  # fmt: skip


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[RawBackend]:
    """A server that is in no configuration."""
    with RawBackend() as running:
        yield running


@pytest.fixture(scope="module")
def backend() -> Iterator[RawBackend]:
    with RawBackend() as running:
        running.answers = [OK]
        yield running


@pytest.fixture(scope="module")
def product(backend: RawBackend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    folder = tmp_path_factory.mktemp("targets")
    config = {
        "backends": [{"name": "a", "url": backend.url, "api_key_env": "T_BACKEND"}],
        "server": {"admin_key_env": "T_ADMIN"},
        "auth": {"keys_env": "T_KEYS"},
        "log": {"flush_ms": 5},
    }
    env = {"T_ADMIN": "key-of-admin", "T_KEYS": "alice=key-of-alice", "T_BACKEND": "key-of-backend"}
    with Product.start(folder, config, policy=POLICY, env=env) as running:
        yield running


def ask(
    product: Product, headers: dict[str, str], body: Any = ASK, *, path: str = CHAT
) -> RawReply:
    key = {"Authorization": "Bearer key-of-alice"}
    return exchange(product.port, request_bytes("POST", path, {**key, **headers}, body))


def test_no_header_says_where_a_request_goes(
    product: Product, backend: RawBackend, elsewhere: RawBackend
) -> None:
    place = f"127.0.0.1:{elsewhere.port}"
    names = ("X-Router-Backend", "X-Router-Url", "X-Router-Upstream", "X-Router-Pool",
             "X-Forwarded-Host", "X-Forwarded-Server", "X-Original-Host", "X-Host", "Via",
             "X-Original-URL", "X-Rewrite-URL", "X-Proxy-URL", "Destination", "Proxy",
             "OpenAI-Base-Url", "X-Base-Url", "Referer", "Origin", "Forwarded")  # fmt: skip
    backend.forget()
    for value in (place, elsewhere.url, f"host={place}"):
        assert ask(product, {"Host": place}).status == 200
        assert ask(product, dict.fromkeys(names, value)).status == 200

    assert elsewhere.connections == 0
    told = b"".join(backend.heard()).lower()
    assert told.count(b"\r\nhost: 127.0.0.1:%d\r\n" % backend.port) == 6
    assert b"x-router-" not in told


@pytest.mark.parametrize("scheme", ["http://", "https://", "//", "\\\\", "@", "http:/"])
def test_no_target_says_where_a_request_goes(
    product: Product, elsewhere: RawBackend, scheme: str
) -> None:
    place = f"127.0.0.1:{elsewhere.port}"
    for path in (f"{scheme}{place}{CHAT}", f"{CHAT}/{scheme}{place}", f"{CHAT}@{place}"):
        assert ask(product, {}, path=path).status in (200, 400, 404)  # served here, if at all
    assert ask(product, {}, path=f"{CHAT}?url={scheme}{place}&base_url={place}").status == 200
    assert elsewhere.connections == 0


def test_no_member_says_where_a_request_goes(
    product: Product, backend: RawBackend, elsewhere: RawBackend
) -> None:
    """An image's address is the backend's to fetch or not; it goes on as it is, and no further."""
    url = elsewhere.url
    names = ("base_url", "api_base", "api_url", "url", "endpoint", "upstream", "backend", "host",
             "proxy", "server", "webhook", "callback_url")  # fmt: skip
    image = {"type": "image_url", "image_url": {"url": f"{url}/image.png"}}
    parts = [{"type": "text", "text": "What is it?"}, image]
    backend.forget()
    assert ask(product, {}, {**ASK, **dict.fromkeys(names, url)}).status == 200
    assert ask(product, {}, {**ASK, "extra_body": dict.fromkeys(names, url)}).status == 200
    assert ask(product, {}, {**ASK, "messages": [{"role": "user", "content": parts}]}).status == 200
    for model in (url, f"{url}/v1", f"auto:{url}", f"openai/{url}"):
        assert ask(product, {}, {**ASK, "model": model}).status in (400, 404)

    assert elsewhere.connections == 0
    assert f"{url}/image.png".encode() in b"".join(backend.heard())


def test_what_others_say_of_a_client_opens_nothing(product: Product, backend: RawBackend) -> None:
    """Addresses, users and methods that a proxy may tell of are not looked at."""
    claims = {
        "X-Forwarded-For": "127.0.0.1",
        "X-Real-IP": "127.0.0.1",
        "X-Forwarded-User": "admin",
        "X-Remote-User": "admin",
        "X-Client-Cert": "admin",
        "X-Original-URL": "/router/status",
        "X-HTTP-Method-Override": "GET",
        "X-Forwarded-Prefix": "/router",
    }
    for method, path in (("GET", "/router/status"), ("POST", CHAT), ("GET", "/dashboard/api/meta")):
        raw = request_bytes(method, path, claims, ASK if method == "POST" else b"")
        assert exchange(product.port, raw).status == 401
    assert ask(product, {**claims, "x-request-id": "claims"}).json()["choices"]

    def records() -> list[dict[str, Any]]:
        return [record for record in product.records() if record["request_id"] == "claims"]

    assert backend.wait(lambda: bool(records()))
    (record,) = records()
    assert "127.0.0.1" not in json.dumps(record)
    assert record["key"] == "alice"


def test_a_backend_hears_no_key_but_its_own(product: Product, backend: RawBackend) -> None:
    backend.forget()
    lines = {"Cookie": "a=b", "X-Api-Key": "key-of-alice", "Proxy-Authorization": "Basic eDp5"}
    assert ask(product, lines).status == 200

    told = b"".join([*backend.heard(), *backend.probed()]).lower()
    assert b"authorization: bearer key-of-backend\r\n" in told
    for word in (b"key-of-alice", b"key-of-admin", b"cookie", b"x-api-key", b"basic"):
        assert word not in told


def test_nothing_that_asks_a_backend_follows_it_elsewhere(
    elsewhere: RawBackend, tmp_path: Path
) -> None:
    """Checks of health, the question for its models, the doctor, with a key that would go along."""
    known = elsewhere.connections
    with RawBackend() as backend:
        lines = (b"location: " + elsewhere.url.encode() + b"/v1/models",)
        backend.probe = whole(b"{}", *lines, status=b"302 Found")
        backend.answers = [whole(b"{}", *lines, status=b"307 Temporary Redirect")]
        told = {"name": "a", "url": backend.url, "dialect": "auto", "api_key_env": "T_BACKEND"}
        config = {
            "backends": [told],
            "health": {"interval_s": 0.05, "examine": True},
            "log": {"flush_ms": 5},
        }
        env = {"T_BACKEND": "key-of-backend"}
        with Product.start(tmp_path, config, policy=POLICY, env=env) as product:
            assert backend.wait(lambda: len(backend.probed()) >= 6)
            body = request_bytes("POST", CHAT, {}, ASK)
            assert exchange(product.port, body).status in (502, 503)
        with Asker(backend.url, key="key-of-backend") as asker:
            assert asker.get("/v1/models").status == 302
            assert asker.post("/v1/chat/completions", b"{}").status == 307
    assert elsewhere.connections == known


def test_a_name_server_moves_a_backend_but_changes_no_port_path_or_scheme() -> None:
    backend = Backend(name="gpu", url="http://models:8000/v1", discover=True)
    for address, url in (
        ("169.254.169.254", "http://169.254.169.254:8000/v1"),
        ("::1", "http://[::1]:8000/v1"),
    ):
        ((found, _),) = discovery.expanded([backend], {"models": [address]}).values()
        assert found.url == url
    for url in ("file:///etc/passwd", "gopher://x", "http://u:p@models",
                "http://models/path", "http://models?x=1"):  # fmt: skip
        with pytest.raises(ValueError, match=r"discover|base URL|http"):
            Backend.model_validate({"name": "gpu", "url": url, "discover": True})
