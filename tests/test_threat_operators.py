"""Nobody gets at the operator's pages, and no page of a stranger's at a router without keys."""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import httpx
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from router import config as configs
from router.app import App, listen
from router.dashboard.again import Again
from router.dashboard.api import Api, Context
from router.dashboard.store import Store
from router.errors import BadKey
from router.server.hot import endpoint_of
from router.server.pages import Pages
from router.server.plain import Door, Plain
from router.visitors import can_be_strangers
from tests.support.product import Product, write_toml
from tests.support.rawclient import RawReply, exchange, request_bytes
from tests.support.script import chat_ok
from tests.support.scripted import ScriptedBackend

CHAT = "/v1/chat/completions"
ASK = {"model": "auto", "messages": [{"role": "user", "content": "Hi."}]}
POLICY = 'schema = 1\ndefault_scenario = "chat"\n[scenarios.chat]\n'
KEYS = {"T_ADMIN": "key-of-admin", "T_KEYS": "alice=key-of-alice"}
#: what is open to everybody who reaches the address, and holds nothing of anybody's
OPEN_ROUTES = {"/dashboard", "/dashboard/", "/dashboard/static/{name}"}
OPEN_PAGES = {"/health", "/ready", "/version", "/metrics", "/openapi.json"}


@pytest.fixture(scope="module")
def backend() -> Iterator[ScriptedBackend]:
    with ScriptedBackend([chat_ok("Fine.")]) as running:
        yield running


def config_of(backend: ScriptedBackend, **more: Any) -> dict[str, Any]:
    return {
        "backends": [{"name": "a", "url": backend.url, "model": "m"}],
        "log": {"flush_ms": 5},
        **more,
    }


@pytest.fixture(scope="module")
def locked(backend: ScriptedBackend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """A router with keys for clients and for the operator."""
    folder = tmp_path_factory.mktemp("locked")
    config = config_of(backend, server={"admin_key_env": "T_ADMIN"}, auth={"keys_env": "T_KEYS"})
    env = {**KEYS, "SCENARIO_ROUTER_CACHE": str(folder / "cache")}
    with Product.start(folder, config, policy=POLICY, env=env) as running:
        yield running


@pytest.fixture(scope="module")
def bare(backend: ScriptedBackend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """A router without any key, as `make run` starts one."""
    folder = tmp_path_factory.mktemp("bare")
    config = config_of(backend, server={"hosts": ["llm.example.com"]})
    env = {"SCENARIO_ROUTER_CACHE": str(folder / "cache")}
    with Product.start(folder, config, policy=POLICY, env=env) as running:
        yield running


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def ask(
    product: Product, method: str, path: str, headers: Mapping[str, str], body: Any = b""
) -> RawReply:
    return exchange(product.port, request_bytes(method, path, headers, body))


# --- doors ------------------------------------------------------------------------------------


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    """The inside of a router, for its tables."""
    (tmp_path / "policy.toml").write_text(POLICY, encoding="utf-8")
    told = {
        "policy": {"file": "policy.toml", "watch": False},
        "log": {"dir": str(tmp_path / "logs")},
        "backends": [{"name": "a", "url": "http://127.0.0.1:9"}],
    }
    path = write_toml(tmp_path / "config.toml", told)
    running = App(configs.load(path, environ={}), path)
    await running.start([])
    yield running
    await running.close()


def routes_of(application: web.Application) -> set[tuple[str, str]]:
    return {
        (route.method, resource.canonical)
        for resource in application.router.resources()
        for route in resource
        if route.method != "HEAD"
    }


async def test_every_route_of_the_operators_asks_for_the_admin_key(
    app: App, locked: Product
) -> None:
    """Whatever is in the route tables; who adds a route need not think of this test."""
    context = Context((), True, Again(None, None))
    inner = Api(context, cast(Store, None)).application()
    routes = routes_of(Pages(app)._application()) | routes_of(inner)
    guarded = {(method, path) for method, path in routes if path not in OPEN_ROUTES}
    assert {path for _, path in routes} >= {"/router/status", "/dashboard/api/export"}
    assert len(guarded) > 20
    assert {path for _, path in routes - guarded} == OPEN_ROUTES

    for method, canonical in sorted(guarded):
        path = re.sub(r"\{[^}]*\}", "a", canonical)
        for key in (None, "Bearer key-of-alice", "Bearer key-of-admi", "key-of-adminx"):
            headers = {} if key is None else {"Authorization": key}
            reply = await asyncio.to_thread(ask, locked, method, path, headers, b"")
            assert reply.status == 401, (method, path, key)
            assert reply.json()["error"]["code"] == "invalid_api_key"


async def test_what_is_open_to_everybody_is_a_short_list(app: App, locked: Product) -> None:
    assert Plain(app)._pages.keys() == OPEN_PAGES
    for path in ("/models", "/v1/models", "/v1/models/m"):
        assert (await asyncio.to_thread(ask, locked, "GET", path, {})).status == 401
    for path in sorted(OPEN_PAGES):
        reply = await asyncio.to_thread(ask, locked, "GET", path, {})
        assert "key-of" not in reply.text
        assert reply.header("cache-control") == "no-store"


def test_every_way_to_a_model_asks_for_a_key(locked: Product, backend: ScriptedBackend) -> None:
    from router.server.hot import _PATHS

    asked = len(backend.requests)
    for path in sorted(_PATHS):
        for prefix in ("", "/v1"):
            target = prefix + path.decode()
            assert endpoint_of(target.encode()) is not None
            assert ask(locked, "POST", target, {}, ASK).status == 401
    admin = {"Authorization": "Bearer key-of-admin"}
    assert ask(locked, "POST", CHAT, admin, ASK).status == 401  # of another kind
    assert len(backend.requests) == asked


async def test_keys_are_compared_in_constant_time(
    app: App, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compared: list[bytes] = []
    compare = hmac.compare_digest

    def noted(one: bytes, other: bytes) -> bool:
        compared.append(one)
        return compare(one, other)

    pages = Pages(app)
    pages._admin_key = b"key-of-admin"
    monkeypatch.setattr(hmac, "compare_digest", noted)
    for given in ("", "k", "key-of-admi", "x" * 1000):
        request = make_mocked_request(
            "GET", "/router/status", headers={"Authorization": f"Bearer {given}"}
        )
        with pytest.raises(BadKey):
            pages._admit(request)
    assert len(compared) == 4


@pytest.mark.parametrize(
    "target",
    [
        "/dashboard/static/../../../../../etc/passwd",
        "/dashboard/static/..%2f..%2f..%2f..%2fetc%2fpasswd",
        "/dashboard/static/%2e%2e/pagefiles.py",
        "/dashboard/static/..%5c..%5cpagefiles.py",
        "/dashboard/static//etc/passwd",
        "/dashboard/static/%2fetc%2fpasswd",
        "/dashboard/static/index.html%00.js",
        "/dashboard/..;/router/status",
        "/dashboard/../router/status",
        "//router/status",
        "/router/../router/status",
        "/%72outer/status",
        "/v1/models/..%2f..%2frouter%2fstatus",
        "/dashboard/api/requests/..%2f..%2f..%2fetc%2fpasswd",
        "/dashboard/api/requests/..%2flabels.jsonl",
        "/router/backends/..%2f..%2fx/drain",
        "/router/experiments/..%2f..%2fx/stop",
        "http://elsewhere/router/status",
        "http://127.0.0.1/router/status",
    ],
)
def test_no_path_leads_out_of_its_folder_or_round_a_door(locked: Product, target: str) -> None:
    admin = {"Authorization": "Bearer key-of-admin"}
    method = "POST" if target.endswith(("drain", "stop")) else "GET"

    assert ask(locked, method, target, {}).status in (401, 404)
    reply = ask(locked, method, target, admin)
    if target.startswith("http:") and reply.status == 200:  # this server's own, said in full
        return
    assert reply.status == (401 if target.startswith("/v1/") else 404)  # asks for a client's key
    assert "root:" not in reply.text
    assert "import" not in reply.text


def test_no_name_of_a_client_becomes_a_file(locked: Product) -> None:
    """Scenario, model, session, request id, label: what they name is looked up, never opened."""
    names = ("../../planted", "/tmp/planted", "planted/../..", "planted%00", "..%2fplanted")
    for name in names:
        headers = {
            "Authorization": "Bearer key-of-alice",
            "x-session-id": name,
            "x-request-id": name,
        }
        ask(locked, "POST", CHAT, {**headers, "x-router-scenario": name}, ASK)
        ask(locked, "POST", CHAT, headers, {**ASK, "model": f"auto:{name}"})
        assert ask(locked, "POST", CHAT, headers, {**ASK, "user": name}).status == 200
        admin = {"Authorization": "Bearer key-of-admin", "Content-Type": "application/json"}
        path = f"/dashboard/api/requests/{name.replace('/', '%2f')}/label"
        ask(locked, "POST", path, admin, {"scenario": name})
    locked.wait_records(3 * len(names))

    written = [path.name for path in locked.folder.rglob("*")]
    assert [name for name in written if "planted" in name] == []
    assert not Path("/tmp/planted").exists()
    assert all(
        re.fullmatch(r"(requests-\d{8}T\d\d\.jsonl|labels\.jsonl)", path.name)
        for path in locked.log_dir.iterdir()
        if path.is_file()
    )


# --- pages of strangers ---------------------------------------------------------------------

#: how a browser asks for a page of another site: a form, fetch with no-cors, an old browser
STRANGERS = [
    {"Sec-Fetch-Site": "cross-site", "Content-Type": "text/plain"},
    {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"},
    {"Sec-Fetch-Site": "same-site", "Origin": "http://localhost:3000"},
    {"Origin": "https://evil.example", "Content-Type": "application/x-www-form-urlencoded"},
    {"Origin": "null"},
    {"Origin": "http://["},
]
WRITES = [
    "/router/policy/reload",
    "/router/policy/validate",
    "/router/backends/a/drain",
    "/router/backends/a/undrain",
    "/router/explain",
    "/router/experiments/x/stop",
    "/router/experiments/x/start",
    "/dashboard/api/requests/x/label",
    "/dashboard/api/requests/x/explain",
]


@pytest.mark.parametrize("path", WRITES)
def test_a_page_of_another_site_changes_nothing(bare: Product, locked: Product, path: str) -> None:
    """With a key too, which a browser may have kept."""
    host = {"Host": f"127.0.0.1:{bare.port}"}
    for stranger in STRANGERS:
        reply = ask(bare, "POST", path, {**host, **stranger}, b"{}")
        assert (reply.status, reply.json()["error"]["code"]) == (403, "cross_origin"), stranger
        admin = {"Authorization": "Bearer key-of-admin"}
        assert ask(locked, "POST", path, {**host, **stranger, **admin}, b"{}").status == 403
    state = bare.get("/router/status")
    assert state["backends"][0]["draining"] is False
    own = {"Sec-Fetch-Site": "same-origin", "Origin": f"http://127.0.0.1:{bare.port}"}
    told = {**host, **own, "Content-Type": "application/json"}
    assert ask(bare, "POST", path, told, b"{}").status != 403
    assert ask(bare, "POST", "/router/backends/a/undrain", told).status == 200


async def test_every_route_that_changes_something_is_among_those(app: App) -> None:
    context = Context((), True, Again(None, None))
    inner = Api(context, cast(Store, None)).application()
    routes = routes_of(Pages(app)._application()) | routes_of(inner)
    writes = {path for method, path in routes if method not in ("GET", "HEAD")}
    named = {re.sub(r"/(a|x)/", "/*/", path) for path in WRITES}

    assert {re.sub(r"/\{[^}]*\}/", "/*/", path) for path in writes} - {
        "/dashboard", "/dashboard/{rest}",
    } == named  # fmt: skip


def test_a_page_of_another_site_gets_no_answer_of_a_model(
    bare: Product, locked: Product, backend: ScriptedBackend
) -> None:
    asked = len(backend.requests)
    stranger = {"Sec-Fetch-Site": "cross-site", "Content-Type": "text/plain"}

    reply = ask(bare, "POST", CHAT, stranger, ASK)

    assert (reply.status, reply.json()["error"]["code"]) == (403, "cross_origin")
    assert len(backend.requests) == asked
    key = {"Authorization": "Bearer key-of-alice"}  # a page that was given a key may ask
    assert ask(locked, "POST", CHAT, {**stranger, **key}, ASK).status == 200


def test_no_page_is_told_that_it_may_read_an_answer(
    bare: Product, backend: ScriptedBackend
) -> None:
    """Without CORS a browser keeps answers from pages of other sites."""
    origin = {"Origin": "https://evil.example"}
    asks = {**origin, "Access-Control-Request-Method": "POST"}
    for reply in (
        ask(bare, "POST", CHAT, origin, ASK),
        ask(bare, "OPTIONS", CHAT, asks),
        ask(bare, "GET", "/v1/models", origin),
        ask(bare, "GET", "/router/status", origin),
        ask(bare, "OPTIONS", "/router/policy/reload", asks),
        ask(bare, "GET", "/dashboard/api/meta", origin),
    ):
        names = [name.lower() for name, _ in reply.headers]
        assert [name for name in names if name.startswith("access-control-")] == []


@pytest.mark.parametrize(
    "path", ["/router/status", "/dashboard", "/dashboard/api/meta", "/v1/models", "/metrics", CHAT]
)
def test_a_strangers_name_does_not_lead_here(
    bare: Product, locked: Product, backend: ScriptedBackend, path: str
) -> None:
    """DNS rebinding: the page is of the same origin then, and only its name gives it away."""
    asked = len(backend.requests)
    method, body = ("POST", ASK) if path == CHAT else ("GET", b"")
    for name in ("evil.example", "EVIL.example:8088", "localhost.evil.example", "a.b.co", "x.com.",
                 "localhost:1@evil.example", "127.1", "localhost,evil.example"):  # fmt: skip
        reply = ask(bare, method, path, {"Host": name, "Sec-Fetch-Site": "same-origin"}, body)
        is_none = "@" in name  # no Host at all, which is refused before it is looked at
        refusal = (400, "invalid_http") if is_none else (403, "wrong_host")
        assert (reply.status, reply.json()["error"]["code"]) == refusal, name
    assert len(backend.requests) == asked
    for name in ("localhost", f"127.0.0.1:{bare.port}", "[::1]:8088", "llm.example.com", "router"):
        assert ask(bare, method, path, {"Host": name}, body).status == 200, name
    if path == CHAT:  # where a key is asked for, the name says nothing
        key = {"Authorization": "Bearer key-of-alice", "Host": "evil.example"}
        assert ask(locked, method, path, key, body).status == 200


def test_pages_that_are_allowed_may_ask_and_operators_have_visitors_looked_at_too(
    backend: ScriptedBackend, tmp_path: Path, free_port: int
) -> None:
    config = config_of(
        backend,
        server={
            "cors_origins": ["https://app.example"],
            "admin_address": f"127.0.0.1:{free_port}",
        },
    )
    ours = {"Sec-Fetch-Site": "cross-site", "Origin": "https://app.example"}
    others = {**ours, "Origin": "https://evil.example"}
    with Product.start(tmp_path, config, policy=POLICY) as product:
        assert ask(product, "POST", CHAT, ours, ASK).status == 200
        assert ask(product, "POST", CHAT, others, ASK).status == 403
        for path in ("/metrics", "/router/status", "/dashboard"):
            for name, status in (("evil.example", 403), ("localhost", 200)):
                raw = request_bytes("GET", path, {"Host": name})
                assert exchange(free_port, raw).status == status, (path, name)


@pytest.mark.parametrize(
    ("name", "is_so"),
    [
        ("evil.example", True),
        ("127.0.0.1.evil.example", True),
        ("localhost.com", True),
        ("127.0.0.1", False),
        ("::1", False),
        ("192.168.1.20", False),
        ("localhost", False),
        ("router", False),
        ("box.local", False),
        ("host.docker.internal", False),
        ("", False),
    ],
)
def test_a_name_that_somebody_may_own(name: str, is_so: bool) -> None:
    assert can_be_strangers(name) is is_so


def test_nothing_is_kept_by_caches(bare: Product) -> None:
    for path in ("/router/status", "/router/experiments", "/dashboard/api/meta", "/v1/models",
                 "/health", "/ready", "/version", "/metrics", "/nothing", CHAT):  # fmt: skip
        assert ask(bare, "GET", path, {}).header("cache-control") == "no-store", path
    # What does not change may be asked about by its tag, and never served without asking.
    for path in ("/router/policy", "/dashboard", "/dashboard/static/main.js"):
        assert ask(bare, "GET", path, {}).header("cache-control") == "no-cache", path


def test_the_page_can_be_framed_by_nobody_and_runs_nothing_but_its_files(bare: Product) -> None:
    for path in ("/dashboard", "/dashboard/static/main.js", "/dashboard/api/meta"):
        rules = ask(bare, "GET", path, {}).header("content-security-policy") or ""
        told = dict(rule.strip().split(" ", 1) for rule in rules.split(";"))
        assert told["default-src"] == "'self'"
        assert told["frame-ancestors"] == told["base-uri"] == told["form-action"] == "'none'"
        assert "unsafe" not in rules
        assert "script-src" not in told  # so the default holds: no inline code


# --- what goes wrong ------------------------------------------------------------------------


async def test_an_error_of_ours_tells_nothing_of_the_inside(app: App) -> None:
    """Neither code nor paths nor values; those are for the program's own log."""
    sock, *others = listen("127.0.0.1", 0, shared=False)
    assert not others
    server = await app.loop.create_server(lambda: app.hub.connection(Door.ALL), sock=sock)
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    census, live = app.census, app.pipeline.live
    try:
        app.census = cast(Any, None)  # the page breaks, and so does every choice of a backend
        app.pipeline.live = msgspec.structs.replace(live, pools=cast(Any, None))
        async with httpx.AsyncClient(base_url=url) as client:
            replies = [await client.get("/router/status"), await client.post(CHAT, json=ASK)]
    finally:
        app.census, app.pipeline.live = census, live
        server.close()
    for reply in replies:
        assert reply.status_code == 500
        assert reply.json()["error"]["code"] == "router_error"
        for word in ("Traceback", "File ", "NoneType", "router/", ".py", "Error("):
            assert word not in reply.text


def test_no_page_offers_another_protocol(bare: Product) -> None:
    """No websocket, no tunnel: what is not offered need not be guarded."""
    lines = {"Connection": "upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
             "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}  # fmt: skip
    for path in ("/dashboard", "/dashboard/api/meta", "/router/status", "/v1/models"):
        assert ask(bare, "GET", path, lines).status == 200
    for method in ("TRACE", "CONNECT", "PUT", "DELETE", "PATCH"):
        assert ask(bare, method, "/router/status", {}).status in (400, 405)


def test_an_error_names_no_more_than_it_must(bare: Product) -> None:
    """What a client is told of a model that is not there is short, and of no address."""
    reply = ask(bare, "POST", CHAT, {}, {**ASK, "model": "x" * 100_000})

    assert reply.status == 404
    assert len(reply.body) < 1000
    assert "127.0.0.1" not in reply.text
    assert json.loads(reply.body)["error"]["code"] == "model_not_found"
