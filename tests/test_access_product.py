"""Who gets in, where, and to what: real routers, the commands that keep keys, the OpenAI SDK."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import openai
import pytest

from router import commands, keyfile
from router import config as configs
from router.tomlfile import FileFault
from tests.clients.demo import await_fact, record_of
from tests.support.product import ROOT, Product, write_toml
from tests.support.prometheus import Page
from tests.support.rawclient import RawConnection, RawReply, exchange, request_bytes
from tests.support.script import DONE, END, chat_ok, delta, stream_head
from tests.support.scripted import ScriptedBackend

CHAT = "/v1/chat/completions"
KEYS = {"T_KEYS": "alice=key-of-alice", "T_ADMIN": "key-of-admin"}
ALICE = {"Authorization": "Bearer key-of-alice"}
ADMIN = {"Authorization": "Bearer key-of-admin"}
POLICY = """
schema = 1
default_scenario = "chat"
[scenarios.chat]
[scenarios.faq]
match.keywords = ["refund"]
preset.max_new_tokens = { cap = 64 }
[scenarios.code]
pool = "big"
match.keywords = ["python"]
"""


def ask(text: str = "Hello.", **more: Any) -> dict[str, Any]:
    return {"model": "auto", "messages": [{"role": "user", "content": text}], **more}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def get(port: int, path: str, headers: Mapping[str, str] | None = None) -> RawReply:
    return exchange(port, request_bytes("GET", path, headers))


def post(
    port: int, path: str, body: Any = b"", headers: Mapping[str, str] | None = None
) -> RawReply:
    return exchange(port, request_bytes("POST", path, headers, body))


def status_of(product: Product, key: str) -> int | None:
    return post(product.port, CHAT, ask(), bearer(key)).status


def keys(folder: Path, *words: str) -> str:
    """What a `keys` command prints; it has to end well."""
    config_path = str(folder / "config.toml")
    command = [sys.executable, "-m", "router", "keys", *words, "--config", config_path]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return ran.stdout.strip()


@pytest.fixture(scope="module")
def shared() -> Iterator[ScriptedBackend]:
    with ScriptedBackend() as running:
        yield running


@pytest.fixture
def backend(shared: ScriptedBackend) -> ScriptedBackend:
    shared.set_script([chat_ok("The Rhine.")])
    shared.requests.clear()
    return shared


def config(backend: ScriptedBackend, **tables: Any) -> dict[str, Any]:
    return {
        "backends": [
            {"name": "one", "url": backend.url, "model": "tiny"},
            {"name": "two", "url": backend.url, "model": "huge", "pool": "big"},
        ],
        "log": {"flush_ms": 10},
        **tables,
    }


def key_file(folder: Path, text: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "keys.toml").write_text("schema = 1\n" + text, encoding="utf-8")


def entry(name: str, key: str, more: str = "") -> str:
    return f'[keys.{name}]\nhash = "{keyfile._hashed(key)}"\n{more}\n'


# --- what a key opens ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def product(shared: ScriptedBackend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    folder = tmp_path_factory.mktemp("access")
    key_file(
        folder,
        entry("shop", "sr-shop", 'scenarios = ["faq", "chat"]')
        + entry("small", "sr-small", 'pools = ["default"]')
        + entry("over", "sr-over", "expires = 2020-01-01T00:00:00Z"),
    )
    told = config(
        shared,
        server={"admin_key_env": "T_ADMIN"},
        auth={"keys_env": "T_KEYS", "keys_file": "keys.toml"},
        policy={"real_model_bypass": True},
    )
    with Product.start(folder, told, policy=POLICY, env=KEYS) as running:
        yield running


def sdk(product: Product, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{product.url}/v1", api_key=key, max_retries=0)


def said(client: openai.OpenAI, text: str, **more: Any) -> Any:
    return client.chat.completions.with_raw_response.create(
        messages=[{"role": "user", "content": text}], **{"model": "auto", **more}
    )


def test_keys_of_both_sources_open_and_the_log_has_their_names(
    product: Product, backend: ScriptedBackend
) -> None:
    for name, key in (("alice", "key-of-alice"), ("shop", "sr-shop")):
        with sdk(product, key) as client:
            request_id = said(client, "A refund?").headers["x-request-id"]
        assert record_of(product, request_id)["key"] == name
    assert backend.requests[-1].header("authorization") is None
    text = "".join(path.read_text() for path in product.log_dir.iterdir())
    assert "sr-shop" not in text + "".join(product.output)


@pytest.mark.parametrize(
    ("key", "words"), [("sr-over", "expired"), ("sr-none", "not known"), ("key-of-admin", "not")]
)
def test_an_old_an_unknown_and_the_admin_key_are_authentication_errors(
    product: Product, backend: ScriptedBackend, key: str, words: str
) -> None:
    with sdk(product, key) as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            said(client, "Hello.")
        assert caught.value.code == "invalid_api_key"
        assert words in caught.value.message
        assert caught.value.response.headers["www-authenticate"] == "Bearer"
        with pytest.raises(openai.AuthenticationError):
            client.models.list()
    assert backend.requests == []


def test_a_closed_scenario_is_a_permission_error_and_what_is_classified_stays_open(
    product: Product, backend: ScriptedBackend
) -> None:
    with sdk(product, "sr-shop") as client:
        for way in ({"model": "auto:code"}, {"extra_headers": {"x-router-scenario": "code"}}):
            with pytest.raises(openai.PermissionDeniedError) as caught:
                said(client, "A refund?", **way)
            assert caught.value.code == "scenario_not_allowed"
            assert caught.value.type == "permission_error"
            assert "faq, chat" in caught.value.message
        assert backend.requests == []
        reply = said(client, "Some python.", extra_headers={"x-router-debug": "true"})
        assert reply.headers["x-router-scenario"] == "chat"
        assert "code is not for this key" in reply.headers["x-router-because"]
        told = record_of(product, reply.headers["x-request-id"])
        assert told["signals"][-1] == "code is not for this key"
        assert told["backend"] == "one"


def test_a_key_for_scenarios_has_no_way_round_them(
    product: Product, backend: ScriptedBackend
) -> None:
    shop = bearer("sr-shop")
    off = post(product.port, CHAT, ask(), {**shop, "x-router-policy": "off"})
    passed = post(product.port, "/v1/messages", ask(), shop)
    for reply in (off, passed):
        assert reply.status == 403
        assert reply.json()["error"]["code"] == "scenario_not_allowed"
    assert backend.requests == []

    bypass = post(product.port, CHAT, ask("A refund?", model="tiny"), shop)
    assert bypass.header("x-router-scenario") == "faq"
    assert post(product.port, CHAT, ask(model="tiny"), ALICE).header("x-router-scenario") is None


def test_a_key_for_pools_reaches_no_other(product: Product, backend: ScriptedBackend) -> None:
    small = bearer("sr-small")
    assert post(product.port, CHAT, ask("Some python."), small).header("x-router-backend") == "one"
    named = post(product.port, CHAT, ask(model="auto:code"), small)
    assert named.status == 403
    assert named.json()["error"]["code"] == "pool_not_allowed"
    assert post(product.port, CHAT, ask(model="auto:code"), ALICE).header("x-router-backend") == (
        "two"
    )


def test_models_are_those_that_the_key_may_use(product: Product) -> None:
    listed = {}
    for key in ("key-of-alice", "sr-shop", "sr-small"):
        with sdk(product, key) as client:
            listed[key] = {model.id for model in client.models.list()}

    everything = {"auto", "auto:chat", "auto:faq", "auto:code", "tiny", "huge"}
    assert listed["key-of-alice"] == everything
    assert listed["sr-shop"] == everything - {"auto:code"}
    assert listed["sr-small"] == everything - {"auto:code", "huge"}
    shop = bearer("sr-shop")
    assert get(product.port, "/v1/models/auto:faq", shop).status == 200
    assert get(product.port, "/v1/models/auto:code", shop).status == 404
    for path in ("/v1/models", "/models/", "/v1/%6dodels", "/v1/models/tiny"):
        assert get(product.port, path).status == 401


def test_the_operator_can_see_what_a_key_would_get(product: Product) -> None:
    body = ask("Some python.")
    free = post(product.port, "/router/explain", body, ADMIN).json()
    told = post(product.port, "/router/explain?key=shop", body, ADMIN).json()

    assert (free["scenario"], free["key"]) == ("code", None)
    assert told["scenario"] == "chat"
    assert told["key"] == {"name": "shop", "scenarios": ["faq", "chat"], "pools": None}
    assert post(product.port, "/router/explain?key=nix", body, ADMIN).status == 404
    keys_told = get(product.port, "/router/status", ADMIN).json()["keys"]
    assert keys_told["count"] == 4
    assert keys_told["last_error"] is None


def test_a_large_body_for_operators_is_asked_for_without_a_clients_key(product: Product) -> None:
    headers = {**ADMIN, "Expect": "100-continue", "Content-Length": str(len(POLICY))}
    with socket.create_connection(("127.0.0.1", product.port), timeout=10) as connection:
        connection.sendall(request_bytes("POST", "/router/policy/validate", headers))
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(POLICY.encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")


# --- keys come and go ------------------------------------------------------------------------


def both_have_read(product: Product, folder: Path) -> set[int]:
    """Wait until each of two workers has taken the file of keys as it is; their processes."""
    written_at = (folder / "keys.toml").stat().st_mtime
    seen: dict[int, float] = {}

    def look() -> bool:
        told = get(product.port, "/router/status").json()
        seen[told["pid"]] = told["keys"]["loaded_at"]
        return len(seen) == 2 and min(seen.values()) > written_at

    await_fact(look)
    return set(seen)


def test_keys_come_and_go_by_command_while_workers_serve(
    backend: ScriptedBackend, tmp_path: Path
) -> None:
    told = config(backend, server={"workers": 2}, auth={"keys_file": "keys.toml"})
    key_file(tmp_path)
    with Product.start(tmp_path, told, policy=POLICY) as product:
        assert status_of(product, "sr-nobody") == 401  # no key is not everybody's

        key = keys(tmp_path, "add", "shop", "--scenario", "faq", "--expires", "30d")
        both_have_read(product, tmp_path)
        replies = [post(product.port, CHAT, ask(), bearer(key)) for _ in range(8)]
        assert {reply.status for reply in replies} == {200}
        assert {reply.header("x-router-scenario") for reply in replies} == {"faq"}

        newer = keys(tmp_path, "rotate", "shop")
        both_have_read(product, tmp_path)
        assert [{status_of(product, one) for _ in range(8)} for one in (key, newer)] == [
            {401},
            {200},
        ]

        # What was let in may end; what comes next is refused.
        # More than all buffers on the way hold: it cannot end before it is read.
        filling = {"do": "repeat", "times": 400, "steps": [delta(content="x" * 100_000)]}
        backend.set_script([stream_head(), filling, delta("stop"), DONE, END])
        backend.requests.clear()
        with RawConnection(product.port) as connection:
            connection.send(request_bytes("POST", CHAT, bearer(newer), ask(stream=True)))
            backend.wait_requests(1)
            keys(tmp_path, "revoke", "shop")
            both_have_read(product, tmp_path)
            assert {status_of(product, newer) for _ in range(8)} == {401}
            assert connection.read(method="POST").text.rstrip().endswith("[DONE]")


@pytest.mark.parametrize("way", ["watch", "signal", "page"])
def test_a_bad_file_is_refused_and_the_keys_stay(
    way: str, backend: ScriptedBackend, tmp_path: Path
) -> None:
    key_file(tmp_path, entry("shop", "sr-shop"))
    told = config(
        backend, auth={"keys_file": "keys.toml"}, policy={"watch": way == "watch", "settle_ms": 20}
    )
    with Product.start(tmp_path, told, policy=POLICY) as product:

        def told_again() -> None:
            if way == "signal":
                product.signal(signal.SIGHUP)
            elif way == "page":
                answers.append(post(product.port, "/router/policy/reload").json()["keys"])

        def status() -> dict[str, Any]:
            found: dict[str, Any] = get(product.port, "/router/status").json()["keys"]
            return found

        answers: list[dict[str, Any]] = []
        key_file(tmp_path, entry("shop", "sr-shop", "steams = 3"))
        told_again()
        await_fact(lambda: status()["last_error"])
        assert "did you mean 'streams'?" in status()["last_error"]
        assert status_of(product, "sr-shop") == 200
        page = Page(get(product.port, "/metrics").text)
        assert page.value("keys_reload_total", result="failed") == 1
        assert page.value("keys_last_reload_successful") == 0
        assert any("keys not taken" in line for line in product.output)

        key_file(tmp_path, entry("desk", "sr-desk"))
        told_again()
        await_fact(lambda: status()["last_error"] is None)
        assert [status_of(product, key) for key in ("sr-shop", "sr-desk")] == [401, 200]
        if way == "page":
            assert [answer["reloaded"] for answer in answers] == [False, True]


def test_a_worker_that_cannot_know_who_was_revoked_lets_the_others_serve(
    backend: ScriptedBackend, tmp_path: Path
) -> None:
    key_file(tmp_path, entry("shop", "sr-shop") + entry("gone", "sr-gone"))
    told = config(backend, server={"workers": 2}, auth={"keys_file": "keys.toml"})
    with Product.start(tmp_path, told, policy=POLICY) as product:
        key_file(tmp_path, entry("shop", "sr-shop"))
        before = both_have_read(product, tmp_path)
        key_file(tmp_path, "oops")
        victim = min(before)
        os.kill(victim, signal.SIGKILL)
        await_fact(lambda: [line for line in product.output if "worker cannot start" in line])
        assert {status_of(product, "sr-shop") for _ in range(8)} == {200}
        assert {status_of(product, "sr-gone") for _ in range(8)} == {401}

        key_file(tmp_path, entry("shop", "sr-shop"))
        await_fact(lambda: get(product.port, "/router/status").json()["pid"] not in before)
        assert {status_of(product, "sr-gone") for _ in range(8)} == {401}


# --- where operators get in -------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_operators_have_an_address_of_their_own(
    workers: int, backend: ScriptedBackend, tmp_path: Path
) -> None:
    told = config(
        backend,
        server={
            "workers": workers,
            "admin_address": "127.0.0.1:0",
            "admin_key_env": "T_ADMIN",
        },
        auth={"keys_env": "T_KEYS"},
    )
    with Product.start(tmp_path, told, policy=POLICY, env=KEYS) as product:
        [line] = [line for line in product.output if line.startswith("operators' pages on ")]
        operators = int(line.rsplit(":", 1)[1])
        assert operators != product.port
        pages = ["/router/status", "/router/policy", "/dashboard", "/dashboard/api/meta"]
        for _ in range(4):
            for path in [*pages, "/metrics", "/router%2Fstatus", "/%72outer/status"]:
                assert get(product.port, path, ADMIN).status == 404
            for path in ("/router/policy/reload", "/router/explain"):
                assert post(product.port, path, ask(), ADMIN).status == 404
            assert get(operators, "/router/status", ADMIN).json()["ready"]
            assert get(operators, "/router/status", ALICE).status == 401
            assert get(operators, "/metrics").status == 200
            assert post(operators, CHAT, ask(), ALICE).status == 404
            assert get(operators, "/v1/models", ALICE).status == 404
            for port in (operators, product.port):
                assert get(port, "/health").status == 200
        assert get(operators, "/dashboard/api/meta", ALICE).status == 401
        assert post(product.port, CHAT, ask(), ALICE).status == 200
        ran = subprocess.run(
            [
                *(sys.executable, "-m", "router", "status", "--admin-key-env", "T_ADMIN"),
                *("--url", f"http://127.0.0.1:{operators}"),
            ],
            cwd=ROOT,
            env={**os.environ, **KEYS},
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0, ran.stderr
        assert "keys: 1 clients have one" in ran.stdout


# --- what others can reach ---------------------------------------------------------------------


def refused(folder: Path, told: Mapping[str, Any]) -> str:
    """What is said by a router that does not start."""
    folder.mkdir(exist_ok=True)
    (folder / "policy.toml").write_text(POLICY, encoding="utf-8")
    whole = {"policy": {"file": "policy.toml"}, **told}
    path = write_toml(folder / "config.toml", whole)
    ran = subprocess.run(
        [sys.executable, "-m", "router", "serve", "--config", path],
        cwd=ROOT,
        env={**os.environ, **KEYS},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "Traceback" not in ran.stderr
    return ran.stderr


EVERYWHERE = {"host": "0.0.0.0", "port": 0}
CLIENTS = {"keys_env": "T_KEYS"}
OPERATORS = {"admin_key_env": "T_ADMIN"}


@pytest.mark.parametrize(
    ("server", "auth", "found"),
    [
        (EVERYWHERE, {}, ["server.host", "server.host"]),
        (EVERYWHERE, CLIENTS, ["server.host"]),
        ({**EVERYWHERE, **OPERATORS}, {}, ["server.host"]),
        ({**EVERYWHERE, "admin_address": "127.0.0.1:0"}, {}, ["server.host"]),
        ({"admin_address": "0.0.0.0:0"}, CLIENTS, ["server.admin_address"]),
        ({"admin_address": "[::]:0"}, {}, ["server.admin_address"]),
        ({"host": "::", **OPERATORS}, {}, ["server.host"]),
        ({"host": "10.0.0.1", **OPERATORS}, {}, ["server.host"]),
        ({"host": "a-name-of-ours", **OPERATORS}, {}, ["server.host"]),
        ({**EVERYWHERE, **OPERATORS}, {"keys_file": "keys.toml"}, []),
        ({**EVERYWHERE, "admin_address": "127.0.0.1:0"}, CLIENTS, []),
        ({}, {}, []),
        ({"host": "localhost"}, {}, []),
        ({"host": "127.1.2.3", "admin_address": "[::1]:0"}, {}, []),
        ({"host": "::1", "admin_address": "localhost:0"}, {}, []),
    ],
)
def test_what_others_can_reach_has_to_ask_for_a_key(
    tmp_path: Path, server: Any, auth: Any, found: list[str]
) -> None:
    written = {
        "server": server,
        "auth": auth,
        "backends": [{"name": "a", "url": "http://127.0.0.1:9"}],
    }
    told = configs.load(write_toml(tmp_path / "config.toml", written), environ=KEYS)

    assert [mistake.path for mistake in configs.exposed(told)] == found


@pytest.mark.parametrize(
    "table",
    [
        {"server": {"admin_key_env": ""}},
        {"auth": {"keys_env": ""}},
        {"auth": {"keys_file": ""}},
    ],
)
def test_a_source_of_keys_without_a_name_is_a_mistake_and_not_none(
    tmp_path: Path, table: dict[str, Any]
) -> None:
    written = {**table, "backends": [{"name": "a", "url": "http://127.0.0.1:9"}]}
    with pytest.raises(FileFault, match="at least 1 character"):
        configs.load(write_toml(tmp_path / "config.toml", written), environ={"": "x"})


@pytest.mark.parametrize("address", ["127.0.0.1", ":8089", "::1:8089", "a:b", "a:65536", "[::1]"])
def test_an_address_without_host_or_port_is_a_mistake(tmp_path: Path, address: str) -> None:
    written = {
        "server": {"admin_address": address},
        "backends": [{"name": "a", "url": "http://127.0.0.1:9"}],
    }
    with pytest.raises(FileFault, match=r"server\.admin_address: is no host:port"):
        configs.load(write_toml(tmp_path / "config.toml", written), environ={})


def test_an_open_router_is_not_started_where_others_can_reach_it(
    backend: ScriptedBackend, tmp_path: Path
) -> None:
    found = refused(tmp_path, config(backend, server=EVERYWHERE))

    assert "others can reach 0.0.0.0, and everybody may ask" in found
    assert "/router/* and the dashboard ask for no key" in found
    assert found.count("--insecure") == 2


@pytest.mark.parametrize(
    ("args", "env"), [(["--insecure"], {}), ([], {"SCENARIO_ROUTER_SERVER__INSECURE": "true"})]
)
def test_unless_that_is_meant(
    backend: ScriptedBackend, tmp_path: Path, args: list[str], env: dict[str, str]
) -> None:
    told = config(backend, server=EVERYWHERE)
    with Product.start(tmp_path, told, policy=POLICY, args=args, env=env) as product:
        assert status_of(product, "whoever") == 200
        product.stop()
        warned = [line for line in product.output if line.startswith("insecure: ")]
        assert warned == [
            "insecure: others can reach 0.0.0.0, and everybody may ask\n",
            "insecure: others can reach 0.0.0.0, and /router/* and the dashboard ask for no key\n",
        ]


def test_keys_that_cannot_be_read_are_told_before_anything_listens(
    backend: ScriptedBackend, tmp_path: Path
) -> None:
    key_file(tmp_path, '[keys.a]\nhash = "key-in-plain"\n')

    found = refused(tmp_path, config(backend, auth={"keys_file": "keys.toml"}))

    assert "line 3: keys.a.hash" in found
    assert "key-in-plain" not in found


# --- the commands ------------------------------------------------------------------------------


@pytest.fixture
def folder(backend: ScriptedBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A deployment that is not running; its secrets are not known here."""
    (tmp_path / "policy.toml").write_text(POLICY, encoding="utf-8")
    told = config(
        backend,
        server={"admin_key_env": "T_ADMIN"},
        auth={"keys_file": "keys.toml"},
        policy={"file": "policy.toml"},
    )
    write_toml(tmp_path / "config.toml", told)
    monkeypatch.chdir(tmp_path)
    return tmp_path


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def ran(*words: str) -> tuple[int, str, str]:
        code = commands.run(words)
        out, err = capsys.readouterr()
        return code, out, err

    return ran


def test_a_key_is_made_shown_once_and_listed_by_name(folder: Path, run: Run) -> None:
    code, key, note = run(
        *("keys", "add", "shop", "--scenario", "faq", "--scenario", "chat", "--pool", "default"),
        *("--requests-per-minute", "60", "--streams", "8", "--expires", "2w"),
    )
    assert code == 0
    assert key.startswith("sr-")
    assert "only time" in note
    text = (folder / "keys.toml").read_text()
    assert key.strip() not in text
    assert (folder / "keys.toml").stat().st_mode & 0o777 == 0o600

    assert run("keys", "add", "plain")[0] == 0
    code, table, _ = run("keys", "list")
    assert code == 0
    head, shop, plain = table.splitlines()
    assert head.split() == ["NAME", "CREATED", "EXPIRES", "SCENARIOS", "POOLS", "LIMITS"]
    assert "faq, chat" in shop
    assert "requests_per_minute=60 streams=8" in shop
    assert plain.split()[0] == "plain"
    assert "never" in plain

    listed = json.loads(run("keys", "list", "--json")[1])
    assert [key["name"] for key in listed["keys"]] == ["shop", "plain"]
    assert "hash" not in listed["keys"][0]
    assert "sha256" not in table + json.dumps(listed)

    code, told, _ = run("keys", "revoke", "shop", "--json")
    assert (code, json.loads(told)["revoked"]) == (0, True)
    assert run("keys", "revoke", "shop")[0] == 1


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["add", "a b"], 1, "is no name for a key"),
        (["add", "a", "--expires", "yesterday"], 2, "no time to come"),
        (["add", "a", "--expires", "2020-01-01"], 2, "no time to come"),
        (["add", "a", "--streams", "0"], 1, "keys.a.streams"),
        (["rotate", "nobody"], 1, "there is no key 'nobody'; there are: none"),
        (["list"], 1, "cannot be read"),
        (["list", "--config", "other.toml"], 2, "names no file of keys"),
    ],
)
def test_a_mistake_is_told_and_nothing_is_written(
    folder: Path, run: Run, words: list[str], code: int, told: str
) -> None:
    got, out, err = run("keys", *words)

    assert (got, out) == (code, "")
    assert told in err
    assert not (folder / "keys.toml").exists()


def test_check_finds_names_that_lead_nowhere_and_keys_that_open_too_much(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("T_ADMIN", "sr-both")
    key_file(folder, entry("shop", "sr-both", 'scenarios = ["fqa", "chat"]\npools = ["bigg"]'))

    code, told, _ = run("check")

    assert code == 1
    assert "keys.toml: line 4: keys.shop.scenarios: no such scenario 'fqa'; did you mean" in told
    assert "keys.toml: line 5: keys.shop.pools: no such pool 'bigg'; did you mean 'big'?" in told
    assert "server.admin_key_env: the same key opens both" in told

    (folder / "keys.toml").unlink()
    assert "keys.toml: cannot be read" in run("check")[1]
    key_file(folder, entry("shop", "sr-shop", 'scenarios = ["faq", "chat"]'))
    code, told, _ = run("check")
    assert (code, told.splitlines()[-1]) == (0, "sound")


def test_check_finds_what_others_can_reach_without_a_key(
    backend: ScriptedBackend, tmp_path: Path, run: Run
) -> None:
    (tmp_path / "policy.toml").write_text(POLICY, encoding="utf-8")
    told = config(backend, server=EVERYWHERE, policy={"file": "policy.toml"})
    path = str(write_toml(tmp_path / "config.toml", told))

    code, found, _ = run("check", "--config", path)

    assert code == 1
    assert f"fault: {path}: server.host: others can reach 0.0.0.0" in found


def test_explain_shows_what_a_key_would_get(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("T_ADMIN", "x")
    key_file(folder, entry("shop", "sr-shop", 'scenarios = ["faq", "chat"]'))

    code, told, _ = run("explain", "--key", "shop", "--text", "Some python.")
    assert code == 0
    assert "because     code is not for this key" in told
    assert "key         shop  (scenarios faq, chat)" in told

    code, _, err = run("explain", "--key", "nix", "--text", "Hi")
    assert (code, err) == (1, "there is no key 'nix'; there are: shop\n")
