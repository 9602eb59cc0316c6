"""Secrets that are planted wherever a request can carry one are in no file and on no output, and
those of the deployment in no answer and no list of processes."""

from __future__ import annotations

import gzip
import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from router.redaction import redact
from tests.support.product import Product
from tests.support.rawclient import RawConnection, exchange, request_bytes
from tests.support.script import RESET, chat_ok, delta, reply_json, stream_head
from tests.support.scripted import ScriptedBackend
from tests.test_body import written

CHAT = "/v1/chat/completions"
#: of deployments and headers: they are nobody's prompt, and in no file whatever the log keeps
KEYS = {
    "client_key": "sk-client-4f9a8b7c6d5e4f3a2b1c",
    "wrong_key": "sk-wrong-0a1b2c3d4e5f60718293",
    "backend_key": "sk-backend-99887766554433221100",
    "admin_key": "adm1n-k3y-0123456789",
    "redis_password": "r3dis-Passw0rd",
    "cookie": "sid-5e55ion-c00kie",
    "api_key_header": "hdr-4p1-k3y-777",
    "query": "qu3ry-s3cret-888",
    "error_body": "sk-leaked-by-backend-1234567890",
    "tools": "sk-tool-abcdefabcdef123456",
    "session": "s3ssi0n-of-john@corp.example",
    "stop": "st0p-w0rd-999",
}
#: in what is said; redaction knows each
SAID = {
    "api_key": "sk-proj-A1b2C3d4E5f6G7h8I9j0",
    "password": "hunter2-Tr0ub4dor",
    "card": "4111 1111 1111 1111",
    "id": "11010519491231002X",
    "mobile": "13812345678",
    "email": "jane.doe@corp.example",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
}
MARKER = "蓝鲸在午夜唱歌"
PROMPT = (
    f"{MARKER}. key {SAID['api_key']} password={SAID['password']} card {SAID['card']} "
    f"身份证{SAID['id']} 手机{SAID['mobile']} mail {SAID['email']} token {SAID['jwt']}"
)
POLICY = """
schema = 1
default_scenario = "chat"
[scenarios.chat]
preset.stop = { fill = ["x"] }
[scenarios.lost]
pool = "gone"
"""
LEAK = {"error": {"message": f"no such key {KEYS['error_body']}", "type": "t",
                  "code": f"bad {KEYS['error_body']}"}}  # fmt: skip
#: what each word in a question leads to
RULES: list[dict[str, Any]] = [
    {"when": {"body_text": "ECHO"}, "steps": [chat_ok(f"You said: {PROMPT}")]},
    {"when": {"body_text": "REFUSE"}, "steps": [reply_json(LEAK, 400)]},
    {"when": {"body_text": "CRASH"}, "steps": [reply_json(LEAK, 500)]},
    {"when": {"body_text": "PLAIN"},
     "steps": [{"do": "head", "status": 500, "headers": {"Content-Type": "text/plain"},
                "framing": "close"},
               {"do": "send", "text": KEYS["error_body"]}, {"do": "end"}]},
    {"when": {"body_text": "MIDWAY"},
     "steps": [stream_head(), delta(content="x"), {"do": "sse", "data": LEAK}, RESET]},
    {"when": {"body_text": "HELD"},
     "steps": [stream_head(), delta(content="x"), {"do": "wait_disconnect", "max_ms": 20_000}]},
]  # fmt: skip
ASKED = {"model": "auto", "messages": [{"role": "user", "content": "What is this?"}]}
WORDS = ("ECHO", "REFUSE", "CRASH", "PLAIN", "MIDWAY", "fine")


@pytest.fixture(scope="module")
def backend() -> Iterator[ScriptedBackend]:
    with ScriptedBackend() as running:
        running.set_script([chat_ok("Fine.")], rules=RULES)
        yield running


def body(word: str, **members: Any) -> dict[str, Any]:
    tool = {"type": "function", "function": {"name": "f", "description": KEYS["tools"]}}
    return {
        "model": "auto",
        "messages": [{"role": "user", "content": f"{word}: {PROMPT}"}],
        "tools": [tool],
        "user": KEYS["session"],
        "stop": [KEYS["stop"]],
        **members,
    }


def request(name: str, told: Any, *, key: str = "client_key", path: str = CHAT) -> bytes:
    headers = {
        "authorization": f"Bearer {KEYS[key]}",
        "x-api-key": KEYS["api_key_header"],
        "cookie": f"sid={KEYS['cookie']}",
        "x-session-id": KEYS["session"],
        "x-request-id": name,
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }
    return request_bytes("POST", f"{path}?token={KEYS['query']}", headers, told)


def traffic(product: Product) -> None:
    """Good and bad requests of every kind; all are answered or left by then."""
    for word in WORDS:
        for stream in (False, True):
            exchange(product.port, request(f"{word}-{stream}", body(word, stream=stream)))
    port = product.port
    exchange(port, request("wrong", body("fine"), key="wrong_key"))
    exchange(port, request("none", body("fine", model="nobody")))
    exchange(port, request("gone", body("fine", model="auto:lost")))
    exchange(port, request("json", f"{{{KEYS['tools']} {PROMPT}"))
    exchange(port, request("list", [PROMPT]))
    exchange(port, request("odd", body("fine", messages=PROMPT)))
    exchange(port, request("other", {"input": PROMPT}, path="/v1/embeddings"))
    exchange(port, request("lost", body("fine"), path=f"/v1/{KEYS['query']}"))
    exchange(port, b"POST /" + KEYS["query"].encode() + b" HTTP/1.1\r\nx: \x01\r\n\r\n")
    exchange(port, request("left", body("HELD", stream=True)), close_after_frames=1)
    with RawConnection(port) as connection:  # leaves in the middle of its body
        connection.send(request("half", body("fine"))[:-40])
    admin = {"authorization": f"Bearer {KEYS['admin_key']}"}
    for path in ("/router/status", "/router/policy", f"/router/{KEYS['query']}"):
        exchange(port, request_bytes("GET", path, admin))
    exchange(port, request_bytes("POST", "/router/explain", admin, body("ECHO")))
    exchange(port, request_bytes("POST", "/router/explain", {}, body("ECHO")))
    product.signal(signal.SIGHUP)


def told_of(name: str, url: str) -> dict[str, Any]:
    return {"name": name, "url": url, "model": "m", "api_key_env": "T_BACKEND"}


#: of the deployment: no answer to anybody holds one
DEPLOYED = ("client_key", "wrong_key", "backend_key", "admin_key", "redis_password", "cookie",
            "api_key_header")  # fmt: skip
PAGES = (
    "/health", "/ready", "/version", "/metrics", "/v1/models", "/router/status", "/router/policy",
    "/router/experiments", "/dashboard", "/dashboard/api/meta", "/dashboard/api/now",
    "/dashboard/api/backends", "/dashboard/api/sessions?from=-1h", "/dashboard/api/series",
    "/dashboard/api/requests?from=-1h&limit=500", "/dashboard/api/requests/ECHO-True",
    "/dashboard/api/export?view=requests&format=csv&from=-1h", "/nothing",
)  # fmt: skip


def told_by(product: Product) -> Mapping[str, str]:
    """What the router answers on its pages, and to requests that it serves or refuses."""
    admin = {"authorization": f"Bearer {KEYS['admin_key']}"}
    replies = {path: exchange(product.port, request_bytes("GET", path, admin)) for path in PAGES}
    port = product.port
    for word in (*WORDS, "none"):
        model = "nobody" if word == "none" else "auto"
        raw = request(f"again-{word}", body(word, model=model))
        replies[word] = exchange(port, raw.replace(b"\r\n", b"\r\nx-router-debug: true\r\n", 1))
    replies["wrong"] = exchange(port, request("again", body("fine"), key="wrong_key"))
    explained = request_bytes("POST", "/router/explain", {**admin, "cookie": KEYS["cookie"]}, ASKED)
    replies["explain"] = exchange(port, explained)
    return {where: f"{reply.headers} {reply.text}" for where, reply in replies.items()}


def processes(product: Product) -> Mapping[str, str]:
    """The command lines of the router and of all that it has started."""
    parents: dict[str, str] = {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[place.name] = (place / "stat").read_text().rpartition(")")[2].split()[1]
    found = {str(product.process.pid)}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    told = {}
    for pid in found:
        with suppress(OSError):
            told[f"process {pid}"] = Path(f"/proc/{pid}/cmdline").read_text()
    return told


def everything(product: Product) -> Mapping[str, str]:
    """All that the router has written: each file but what the test wrote, and its output."""
    ours = {"config.toml", "policy.toml"}
    files = [p for p in product.folder.rglob("*") if p.is_file() and p.name not in ours]
    told = {
        path.name: (
            gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        ).decode("utf-8", "replace")
        for path in files
    }
    return {**told, "output": "".join(product.output)}


@pytest.mark.parametrize("bodies", ["off", "on"])
def test_no_planted_secret_is_written_anywhere(
    backend: ScriptedBackend, tmp_path: Path, bodies: str
) -> None:
    config = {
        "log": {"flush_ms": 5, "bodies": bodies},
        "server": {"admin_key_env": "T_ADMIN"},
        "auth": {"keys_env": "T_KEYS"},
        "affinity": {"store": "redis", "url_env": "T_REDIS"},
        "retry": {"attempts": 0},
        "health": {"failures": 1000},
        "backends": [
            told_of("a", backend.url),
            {**told_of("b", "http://127.0.0.1:9"), "pool": "gone"},
        ],
    }
    env = {
        "T_ADMIN": KEYS["admin_key"],
        "T_KEYS": f"shop={KEYS['client_key']}",
        "T_BACKEND": KEYS["backend_key"],
        "T_REDIS": f"redis://:{KEYS['redis_password']}@127.0.0.1:9/0",
        "SCENARIO_ROUTER_CACHE": str(tmp_path / "cache"),
    }
    with Product.start(tmp_path, config, policy=POLICY, env=env) as product:
        traffic(product)
        if bodies == "on":
            told = written(product.log_dir, "ECHO-True")
        records = product.wait_records(2 * len(WORDS) + 8)
        outcomes = {record["outcome"] for record in records}
        assert outcomes >= {"ok", "client_error", "upstream_error", "client_disconnect"}
        assert {seen.header("authorization") for seen in backend.requests} == {
            f"Bearer {KEYS['backend_key']}"
        }
        told_to_all = {**told_by(product), **processes(product)}
        assert any("router.dashboard" in told for told in told_to_all.values())
    found = everything(product)

    for where, text in told_to_all.items():
        for name in DEPLOYED:
            assert KEYS[name] not in text, f"{name} is in {where}"
    assert any(name.startswith("requests-") for name in found)
    for where, text in found.items():
        for name, secret in {**KEYS, **SAID}.items():
            assert secret not in text, f"{name} is in {where}"
        if not where.startswith("bodies-"):
            assert MARKER not in text, f"the prompt is in {where}"
    if bodies == "on":
        assert MARKER in told["prompt"][0]["text"]
        assert MARKER in told["answer"]
        assert told["redacted"] == {
            "api_key": 2, "password": 2, "bank_card": 2, "id_card": 2, "phone": 2, "email": 2,
            "token": 2,
        }  # fmt: skip
    else:
        assert not any(name.startswith("bodies-") for name in found)


def test_redaction_knows_all_that_is_said() -> None:
    clean = redact(PROMPT, {})

    assert [name for name, secret in SAID.items() if secret in clean] == []
    assert json.dumps(clean)
