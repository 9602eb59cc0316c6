"""What stands beside inference: health, metrics, explain, policy, shutdown, workers, the log."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from router.commands.schema import schema_of
from tests.clients.demo import await_fact, record_of
from tests.support.product import Product
from tests.support.prometheus import Page
from tests.support.rawclient import (
    RawConnection,
    RawReply,
    exchange,
    request_bytes,
    sse_payloads,
)
from tests.support.script import CLOSE, DONE, END, RESET, Step, chat_ok, delta, stream_head
from tests.support.scripted import ScriptedBackend

CHAT = "/v1/chat/completions"
MODEL = "qwen3-0.6b"
ASK: dict[str, Any] = {"model": "auto", "messages": [{"role": "user", "content": "Name a river."}]}
STREAM = {**ASK, "stream": True}
SILENCE: Step = {"do": "wait_disconnect", "max_ms": 60_000}
KEYS = {"ROUTER_TEST_KEYS": "alice=key-of-alice", "ROUTER_TEST_ADMIN": "key-of-admin"}
POLICY = """
schema = 1
default_scenario = "chat"
[scenarios.chat]
preset.temperature = {temperature}
"""


@pytest.fixture
def backend() -> Iterator[ScriptedBackend]:
    with ScriptedBackend([chat_ok("The Rhine.")]) as running:
        yield running


@pytest.fixture
def product(backend: ScriptedBackend, tmp_path: Path) -> Iterator[Product]:
    with Product.start(tmp_path, in_front_of(backend)) as running:
        yield running


def in_front_of(backend: ScriptedBackend, **fields: Any) -> dict[str, Any]:
    one = {"name": "one", "url": backend.url, "model": MODEL, **fields}
    return {"backends": [one], "log": {"flush_ms": 10}}


def get(product: Product, path: str, headers: Mapping[str, str] | None = None) -> RawReply:
    return exchange(product.port, request_bytes("GET", path, headers))


def post(
    product: Product, path: str, body: Any = b"", headers: Mapping[str, str] | None = None
) -> RawReply:
    return exchange(product.port, request_bytes("POST", path, headers, body))


def policy_hash(product: Product) -> str:
    return str(product.get("/version")["policy"])


# --- health -----------------------------------------------------------------------


def test_ready_follows_the_backend_and_health_does_not(tmp_path: Path) -> None:
    with (
        ScriptedBackend([chat_ok("Yes.")], listen="refuse") as backend,
        Product.start(tmp_path, in_front_of(backend)) as product,
    ):
        before = get(product, "/ready")
        assert before.status == 503
        assert "one" in before.json()["reason"]
        assert "127.0.0.1" not in before.text
        assert get(product, "/health").status == 200

        backend.set_listen("normal")

        await_fact(lambda: get(product, "/ready").status == 200)
        assert post(product, CHAT, ASK).status == 200

        backend.set_listen("refuse")

        await_fact(lambda: get(product, "/ready").status == 503)
        assert get(product, "/health").json() == {"status": "ok"}


def test_version_status_and_headers_agree_on_the_policy(product: Product) -> None:
    version = product.get("/version")
    status = product.get("/router/status")

    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", version["version"])
    assert re.fullmatch(r"[0-9a-f]{12}", version["policy"])
    assert status["policy"]["hash"] == version["policy"]
    assert post(product, CHAT, ASK).header("x-router-policy") == version["policy"]
    [one] = status["backends"]
    assert (one["name"], one["model"], one["inflight"]) == ("one", MODEL, 0)


def test_a_head_request_has_the_headers_and_no_body(product: Product) -> None:
    with RawConnection(product.port) as connection:
        for path in ("/health", "/v1/models"):
            connection.send(request_bytes("HEAD", path))
            reply = connection.read(method="HEAD")
            assert (reply.status, reply.body) == (200, b"")
        connection.send(request_bytes("GET", "/health"))
        assert connection.read(method="GET").json() == {"status": "ok"}


def test_the_dashboard_is_a_page(product: Product) -> None:
    reply = get(product, "/dashboard")

    assert reply.status == 200
    assert (reply.header("content-type") or "").startswith("text/html")
    assert "<title>" in reply.text


# --- metrics -----------------------------------------------------------------------

_SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)*)\})? (\S+)')


def samples(text: str) -> dict[tuple[str, str], float]:
    """The samples of a page in the Prometheus text format; each must belong to a family."""
    kinds: dict[str, str] = {}
    found: dict[tuple[str, str], float] = {}
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in kinds
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            parts = _SAMPLE.fullmatch(line)
            assert parts, line
            name, labels, value = parts[1], parts[2] or "", float(parts[3])
            family = re.sub(r"_(bucket|sum|count)$", "", name)
            assert name in kinds or kinds[family] == "histogram"
            assert (name, labels) not in found
            found[name, labels] = value
    return found


def test_a_page_that_takes_its_time_keeps_its_place_in_line(product: Product) -> None:
    asked = (("GET", "/metrics"), ("GET", "/version"), ("HEAD", "/metrics"), ("GET", "/health"))
    with RawConnection(product.port) as connection:
        connection.send(b"".join(request_bytes(method, path) for method, path in asked))
        replies = [connection.read(method=method) for method, _ in asked]
    with RawConnection(product.port) as leaver:
        leaver.send(request_bytes("GET", "/metrics"))

    assert [reply.status for reply in replies] == [200] * 4
    assert "scenario_router_build_info" in replies[0].text
    assert replies[1].json()["version"]
    assert (replies[2].body, int(replies[2].header("content-length") or 0) > 1000) == (b"", True)
    assert replies[3].json() == {"status": "ok"}
    assert get(product, "/metrics").status == 200
    assert not [line for line in product.output if "page not made" in line]


def test_metrics_are_lawful_and_count(product: Product) -> None:
    post(product, CHAT, ASK)
    post(product, CHAT, STREAM)
    post(product, CHAT, b"{")

    reply = get(product, "/metrics")

    assert (reply.header("content-type") or "").startswith("text/plain; version=0.0.4")
    found = samples(reply.text)
    assert all(name.startswith("scenario_router_") for name, _ in found)
    by_outcome = Page(reply.text).by("requests_total", "outcome")
    assert by_outcome == {"ok": 2, "client_error": 1}
    assert found["scenario_router_backend_up", 'backend="one"'] == 1
    overhead = "scenario_router_overhead_seconds"
    series: dict[str, list[float]] = {}
    for (name, labels), value in found.items():
        if name == f"{overhead}_bucket":
            series.setdefault(re.sub(r',?le="[^"]*"', "", labels), []).append(value)
    assert all(buckets == sorted(buckets) for buckets in series.values())
    counts = {labels: found[f"{overhead}_count", labels] for labels in series}
    assert counts == {labels: buckets[-1] for labels, buckets in series.items()}
    assert sum(counts.values()) == 2  # what was refused never went out


# --- explain -----------------------------------------------------------------------


def asking(content: Any, **fields: Any) -> bytes:
    body = {"model": "auto", "messages": [{"role": "user", "content": content}], **fields}
    return json.dumps(body, ensure_ascii=False).encode()


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}
EXPLAINED = {
    "plain": asking("Name a river."),
    "no model": b'{"messages":[{"role":"user","content":"hi"}]}',
    "a scenario by name": asking("hi", model="auto:faq", max_tokens=9999),
    "the real name": asking("hi", model=MODEL),
    "stream": asking("Where is my order?", stream=True),
    "stream with usage": asking("hi", stream=True, stream_options={"include_usage": True}),
    "stream without usage": asking("hi", stream=True, stream_options={"include_usage": False}),
    "tools": asking("What is the weather?", tools=[TOOL], tool_choice="auto"),
    "a schema": asking("List three rivers.", response_format=SCHEMA, max_tokens=5),
    "chinese": asking("订单号 12345 的快递到哪了？"),
    "escaped": rb'{"messages": [{"role": "user", "content": "\u9000\u6b3e\ud83d\ude00"}]}',
    "digits and spaces": b'{ "temperature" : 0.10,\n"messages":[{"role":"user","content":"hi"}]'
    b', "seed":18014398509481985, "top_p":1.0, "user":null , "logit_bias":{"7":-1E2} }',
    "extra_body": asking("hi", extra_body={"enable_thinking": True, "top_k": 3, "a": [1.50]}),
    "all limits": asking("hi", max_tokens=500, max_completion_tokens=400, max_new_tokens=300),
    "thinking": asking("Prove that 2 is prime. /think", chat_template_kwargs={"x": 1}),
    "effort": asking("hi", reasoning_effort="none", temperature=None),
    "parts": asking([{"type": "text", "text": "def f(): pass"}, {"type": "text", "text": "Why?"}]),
    "a conversation": json.dumps(
        {
            "model": "auto",
            "session_id": "s-1",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "退款"},
                {"role": "assistant", "content": None, "tool_calls": []},
                {"role": "tool", "content": "{}", "tool_call_id": "c"},
                {"role": "user", "content": "And now?"},
            ],
        }
    ).encode(),
}


@pytest.fixture(scope="module", params=["vllm", "llamacpp", "transformers", "flat"])
def dialect_stand(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Product, ScriptedBackend]]:
    with ScriptedBackend([chat_ok("Yes.")]) as backend:
        config = in_front_of(backend, dialect=request.param)
        with Product.start(tmp_path_factory.mktemp(str(request.param)), config) as product:
            yield product, backend


@pytest.mark.parametrize("body", EXPLAINED.values(), ids=EXPLAINED.keys())
def test_explain_shows_the_very_bytes_that_serving_sends(
    dialect_stand: tuple[Product, ScriptedBackend], body: bytes
) -> None:
    product, backend = dialect_stand
    before = len(backend.requests)

    explained = post(product, "/router/explain", body).json()
    assert len(backend.requests) == before  # explaining asks no backend
    reply = post(product, CHAT, body)

    assert reply.status == 200
    assert backend.requests[-1].body == explained["body"].encode()
    assert reply.header("x-router-scenario") == explained["scenario"]
    record = record_of(product, str(reply.header("x-request-id")))
    assert record["source"] == explained["source"]
    assert record["thinking"] == explained["thinking"]
    assert record["warnings"] == explained["warnings"]
    sent = {name: [p["client"], p["sent"], p["origin"]] for name, p in explained["params"].items()}
    if "session_id" in sent:  # the record tells texts of clients by their length
        sent["session_id"][:2] = [v and "[5 bytes]" for v in sent["session_id"][:2]]
    assert record["params"] == sent


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("completions", {"prompt": "Once upon", "max_tokens": 999, "stream": True}),
        ("responses", {"input": "Where is my refund?", "max_output_tokens": 999}),
    ],
)
def test_explain_knows_the_other_text_endpoints(
    product: Product, backend: ScriptedBackend, endpoint: str, body: dict[str, Any]
) -> None:
    explained = post(product, f"/router/explain?endpoint={endpoint}", body).json()
    reply = post(product, f"/v1/{endpoint}", body)

    assert reply.header("x-router-scenario") == explained["scenario"]
    [seen] = backend.requests
    assert seen.body == explained["body"].encode()
    assert seen.path == f"/v1/{endpoint}"


def test_explain_reads_headers_of_any_bytes(product: Product) -> None:
    headers = {"x-session-id": "J\xfcrgen", "x-note": "\xff"}

    explained = post(product, "/router/explain", ASK, headers)
    reply = post(product, CHAT, ASK, {**headers, "x-router-debug": "true"})

    assert explained.status == reply.status == 200
    assert reply.header("x-router-session") == explained.json()["session"]["hash"]


@pytest.mark.parametrize(
    "member",
    [b'"seed": 123456789012345678901234567890', b'"x": "\x97"'],
    ids=["a number beyond 64 bits", "bytes that are no text"],
)
def test_explain_tells_what_no_encoder_likes(product: Product, member: bytes) -> None:
    body = json.dumps(ASK).encode()[:-1] + b", " + member + b"}"

    explained = post(product, "/router/explain", body)

    assert explained.status == 200
    assert member.decode("ascii", "backslashreplace") in explained.json()["body"]


def test_explain_refuses_what_serving_refuses(product: Product) -> None:
    bodies: list[Any] = [b"{", {"messages": []}, {**ASK, "model": "gpt-9"}]
    for body in bodies:
        explained, served = post(product, "/router/explain", body), post(product, CHAT, body)
        assert (explained.status, explained.json()) == (served.status, served.json())


def test_headers_decide_in_explain_as_in_serving(product: Product) -> None:
    headers = {"x-router-scenario": "code", "x-session-id": "s-1"}

    explained = post(product, "/router/explain", ASK, headers).json()
    reply = post(product, CHAT, ASK, {**headers, "x-router-debug": "true"})

    assert (explained["scenario"], explained["source"]) == ("code", "header")
    assert reply.header("x-router-scenario") == "code"
    assert reply.header("x-router-source") == "header"
    assert reply.header("x-router-session") == explained["session"]["hash"]


# --- the policy -------------------------------------------------------------------


def test_the_policy_is_shown_with_its_hash_as_etag(product: Product) -> None:
    reply = get(product, "/router/policy")
    etag = reply.header("etag") or ""

    assert reply.body == product.policy_path.read_bytes()
    assert etag == f'"{policy_hash(product)}"'
    unchanged = get(product, "/router/policy", {"If-None-Match": etag})
    assert (unchanged.status, unchanged.body, unchanged.header("etag")) == (304, b"", etag)
    assert get(product, "/router/policy", {"If-None-Match": '"0123"'}).status == 200


def test_a_policy_is_checked_without_being_taken(product: Product) -> None:
    before = policy_hash(product)
    good = POLICY.format(temperature=0.5)

    valid = post(product, "/router/policy/validate", good)
    invalid = post(product, "/router/policy/validate", good + "preset.tempratur = 1\n")
    no_toml = post(product, "/router/policy/validate", "schema = \n")
    no_text = post(product, "/router/policy/validate", b"\xff\xfe")

    assert valid.status == 200
    assert valid.json()["valid"] is True
    assert valid.json()["scenarios"] == ["chat"]
    assert invalid.status == no_toml.status == no_text.status == 400
    [mistake] = invalid.json()["mistakes"]
    assert mistake["line"] == good.count("\n") + 1
    assert "tempratur" in mistake["path"] + mistake["message"]
    assert no_toml.json()["mistakes"][0]["line"] == 1
    assert policy_hash(product) == before


def test_a_policy_that_no_parser_likes_is_refused_with_its_reason(product: Product) -> None:
    for text in (b"a = " + b"[" * 5000, b"a = " + b"9" * 5000, b"a = {b = " * 2000):
        reply = post(product, "/router/policy/validate", text)

        assert reply.status == 400
        assert reply.json()["mistakes"][0]["message"]


def test_a_reload_takes_a_good_policy_and_keeps_the_old_for_a_bad_one(
    backend: ScriptedBackend, tmp_path: Path
) -> None:
    config = {**in_front_of(backend), "policy": {"watch": False}}
    with Product.start(tmp_path, config, policy=POLICY.format(temperature=0.25)) as product:
        first = policy_hash(product)
        product.policy_path.write_text(POLICY.format(temperature=0.5), encoding="utf-8")
        good = post(product, "/router/policy/reload")
        product.policy_path.write_text(POLICY.format(temperature="hot"), encoding="utf-8")
        bad = post(product, "/router/policy/reload")
        post(product, CHAT, ASK)

        assert good.status == 200
        second = good.json()["hash"]
        assert second != first
        assert bad.status == 400
        assert bad.json()["hash"] == second == policy_hash(product)
        assert product.get("/router/status")["policy"]["last_error"]
        assert backend.requests[0].json["temperature"] == 0.5


@pytest.mark.parametrize("way", ["write", "replace"])
def test_a_changed_file_is_taken_by_itself(
    backend: ScriptedBackend, tmp_path: Path, way: str
) -> None:
    config = {**in_front_of(backend), "policy": {"settle_ms": 50}}
    with Product.start(tmp_path, config, policy=POLICY.format(temperature=0.25)) as product:
        first = policy_hash(product)
        target = product.policy_path
        if way == "write":
            target.write_text(POLICY.format(temperature=0.5), encoding="utf-8")
        else:
            beside = target.with_suffix(".new")
            beside.write_text(POLICY.format(temperature=0.5), encoding="utf-8")
            beside.replace(target)

        await_fact(lambda: policy_hash(product) != first)

        post(product, CHAT, ASK)
        assert backend.requests[0].json["temperature"] == 0.5


def test_a_hangup_signal_reloads(backend: ScriptedBackend, tmp_path: Path) -> None:
    config = {**in_front_of(backend), "policy": {"watch": False}}
    with Product.start(tmp_path, config, policy=POLICY.format(temperature=0.25)) as product:
        first = policy_hash(product)
        product.policy_path.write_text(POLICY.format(temperature=0.5), encoding="utf-8")
        product.signal(signal.SIGHUP)

        await_fact(lambda: policy_hash(product) != first)


def test_the_admin_key_alone_opens_the_operators_pages(
    backend: ScriptedBackend, tmp_path: Path
) -> None:
    config = {
        **in_front_of(backend),
        "server": {"admin_key_env": "ROUTER_TEST_ADMIN"},
        "auth": {"keys_env": "ROUTER_TEST_KEYS"},
    }
    pages = ["/router/status", "/router/policy", "/dashboard/api/meta", "/dashboard/api/requests"]
    disguised = [
        "//router/status",
        "/%72outer/status",
        "/router%2Fstatus",
        "/x/../router/status",
        "//dashboard/api/meta",
        "/dashboard//api/meta",
        "/dashboard/%61pi/meta",
        "/dashboard/static/../api/meta",
        "/dashboard/static/%2e%2e/api/meta",
        "/dashboard/./api/meta",
    ]
    with Product.start(tmp_path, config, env=KEYS) as product:
        for key in (
            "",
            "Bearer key-of-alice",
            "Bearer key-of-admi",
            "Basic key-of-admin",
            "Bearer \xff",
        ):
            headers = {"Authorization": key}
            for path in pages:
                assert get(product, path, headers).status == 401
            for path in disguised:
                assert get(product, path, headers).status in (401, 404)
            for path in ("explain", "policy/reload", "policy/validate"):
                assert post(product, f"/router/{path}", ASK, headers).status == 401
        for path in pages:
            assert get(product, path, {"Authorization": "Bearer key-of-admin"}).status == 200
        # The page's files hold nothing of anybody's; the page asks for the key itself.
        assert get(product, "/dashboard").status == 200
        assert get(product, "/health").status == 200
        assert get(product, "/ready").status in (200, 503)
        assert post(product, CHAT, ASK, {"Authorization": "Bearer key-of-admin"}).status == 401
        assert post(product, CHAT, ASK, {"Authorization": "Bearer key-of-alice"}).status == 200


# --- shutdown ----------------------------------------------------------------------


def test_sigterm_lets_a_running_stream_end_and_takes_nothing_new(
    product: Product, backend: ScriptedBackend
) -> None:
    # More than all buffers on the way hold: it cannot end before the client reads.
    filling = {"do": "repeat", "times": 400, "steps": [delta(content="x" * 100_000)]}
    backend.set_script([stream_head(), filling, delta("stop"), DONE, END])
    with RawConnection(product.port) as connection:
        connection.send(request_bytes("POST", CHAT, {"x-request-id": "drained"}, STREAM))
        backend.wait_requests(1)
        product.signal(signal.SIGTERM)
        await_fact(lambda: get(product, "/health").refused)
        reply = connection.read()

    assert reply.ended_properly
    assert reply.body.endswith(b"data: [DONE]\n\n")
    assert product.process.wait(30) == 0
    record = record_of(product, "drained")
    assert (record["outcome"], record["answer_chars"]) == ("ok", 40_000_000)


def test_after_the_grace_a_stream_is_broken_off_and_says_so(
    backend: ScriptedBackend, tmp_path: Path
) -> None:
    backend.set_script([stream_head(), delta(content="a"), SILENCE])
    config = {**in_front_of(backend), "server": {"grace_s": 0.1}}
    with Product.start(tmp_path, config) as product:
        with RawConnection(product.port) as connection:
            connection.send(request_bytes("POST", CHAT, {"x-request-id": "late"}, STREAM))
            [seen] = backend.wait_requests(1)
            product.signal(signal.SIGTERM)
            reply = connection.read()
            assert connection.wait_closed(reply, 5)

        assert json.loads(sse_payloads(reply.body)[-1])["error"]["message"]
        assert "[DONE]" not in reply.text
        assert seen.wait_peer_closed() is not None
        assert product.process.wait(30) == 0
        assert record_of(product, "late")["outcome"] != "ok"


def test_an_idle_connection_does_not_hold_up_the_end(product: Product) -> None:
    with RawConnection(product.port) as connection:
        connection.send(request_bytes("GET", "/health"))
        reply = connection.read(method="GET")
        product.signal(signal.SIGTERM)

        assert connection.wait_closed(reply, 10)
        assert product.process.wait(30) == 0


# --- workers -----------------------------------------------------------------------


def test_two_workers_share_the_port_and_the_log(backend: ScriptedBackend, tmp_path: Path) -> None:
    config = {**in_front_of(backend), "server": {"workers": 2}}
    with Product.start(tmp_path, config) as product:

        def ask(number: int) -> int | None:
            return post(product, CHAT, ASK, {"x-request-id": f"w-{number}"}).status

        pids: set[int] = set()

        def both_seen() -> bool:
            pids.add(product.get("/router/status")["pid"])
            return len(pids) == 2

        await_fact(both_seen)
        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(ask, range(60))) == [200] * 60
        assert product.stop() == 0

        found = Counter(record["request_id"] for record in product.records())
        assert found == {f"w-{number}": 1 for number in range(60)}
        assert len(list(product.log_dir.glob("requests-*.jsonl"))) <= 2  # an hour may have turned


# --- the log ------------------------------------------------------------------------


def test_each_request_leaves_one_record_whatever_its_fate(
    backend: ScriptedBackend, tmp_path: Path
) -> None:
    config = {
        **in_front_of(backend, timeout_s=0.3),
        "server": {"body_limit_mb": 1},
        "auth": {"keys_env": "ROUTER_TEST_KEYS"},
    }
    key = {"Authorization": "Bearer key-of-alice"}
    fates: list[tuple[list[Step], bytes, str]] = [
        ([chat_ok("a")], request_bytes("POST", CHAT, key, ASK), "ok 200"),
        ([chat_ok("a")], request_bytes("POST", CHAT, key, STREAM), "ok 200"),
        ([chat_ok("a")], request_bytes("POST", "/v1/embeddings", key, {"input": "a"}), "ok 200"),
        ([], request_bytes("POST", CHAT, {}, ASK), "client_error 401"),
        ([], request_bytes("POST", CHAT, key, b"{"), "client_error 400"),
        ([], request_bytes("POST", CHAT, key, {**ASK, "model": "x"}), "client_error 404"),
        (
            [],
            request_bytes("POST", CHAT, {**key, "Content-Encoding": "br"}, ASK),
            "client_error 415",
        ),
        ([], request_bytes("POST", CHAT, {"Content-Length": "9999999"}), "client_error 413"),
        ([], b"hello\r\n\r\n", "client_error 400"),
        ([CLOSE], request_bytes("POST", CHAT, key, ASK), "upstream_error 502"),
        ([SILENCE], request_bytes("POST", CHAT, key, ASK), "upstream_timeout 504"),
        (
            [stream_head(), delta(content="a"), RESET],
            request_bytes("POST", CHAT, key, STREAM),
            "upstream_error 200",
        ),
    ]
    with Product.start(tmp_path, config, env=KEYS) as product:
        for steps, raw, _ in fates:
            backend.set_script(steps)
            exchange(product.port, raw)
        backend.set_script([stream_head(), delta(content="a"), SILENCE])
        exchange(product.port, request_bytes("POST", CHAT, key, STREAM), close_after_frames=1)
        assert backend.requests[-1].wait_peer_closed() is not None
        backend.set_script([stream_head(), delta(content="a"), DONE, SILENCE])  # as the SDK leaves
        exchange(product.port, request_bytes("POST", CHAT, key, STREAM), close_after_frames=2)
        assert backend.requests[-1].wait_peer_closed() is not None
        backend.set_listen("refuse")
        exchange(product.port, request_bytes("POST", CHAT, key, ASK))
        get(product, "/v1/models", key)
        assert product.stop() == 0

        expected = [fate for _, _, fate in fates]
        expected += ["client_disconnect 200", "ok 200", "upstream_error 503"]
        found = [f"{record['outcome']} {record['status']}" for record in product.records()]
        assert Counter(found) == Counter(expected)
        text = "".join(path.read_text() for path in product.log_dir.iterdir())
        assert "key-of-alice" not in text
        assert "Name a river" not in text


def test_a_log_that_cannot_be_written_costs_no_request(
    backend: ScriptedBackend, tmp_path: Path
) -> None:
    in_the_way = tmp_path / "taken"
    in_the_way.write_text("a file where the folder should be")
    config = {**in_front_of(backend), "log": {"dir": str(in_the_way), "flush_ms": 20}}
    with Product.start(tmp_path / "run", config) as product:
        product.log_dir = in_the_way
        statuses = [post(product, CHAT, ASK).status for _ in range(5)]
        fault = await_fact(lambda: product.get("/router/status")["log"]["fault"])
        assert statuses == [200] * 5
        assert fault

        in_the_way.unlink()

        assert len(product.wait_records(5)) == 5  # they had waited
        await_fact(lambda: product.get("/router/status")["log"]["fault"] is None)


def test_a_log_folder_that_is_taken_away_comes_back(
    product: Product, backend: ScriptedBackend
) -> None:
    post(product, CHAT, ASK)
    product.wait_records(1)
    shutil.rmtree(product.log_dir)
    post(product, CHAT, ASK)

    assert len(product.wait_records(1)) == 1


def test_records_obey_the_published_schema(product: Product) -> None:
    post(product, CHAT, ASK)
    post(product, CHAT, {**STREAM, "max_tokens": 5, "metadata": {"session_id": "s"}})
    post(product, CHAT, b"{")
    published = schema_of("record")["$defs"]["Record"]["properties"]

    for record in product.wait_records(3):
        assert set(record) == set(published)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", record["ts"])
        assert record["schema"] == 1
