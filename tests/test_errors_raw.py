"""Every way to fail, over raw sockets: one shape for all errors, and nothing leaks through them."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.demo import record_of
from tests.support.product import Product
from tests.support.rawclient import (
    HOST,
    RawConnection,
    RawReply,
    ReplyReader,
    chunked,
    exchange,
    request_bytes,
    sse_payloads,
)
from tests.support.script import (
    CLOSE,
    RESET,
    Step,
    chat_ok,
    delta,
    reply_json,
    stream_head,
)
from tests.support.scripted import ScriptedBackend

CHAT = "/v1/chat/completions"
MODEL = "qwen3-0.6b"
ASK: dict[str, Any] = {"model": "auto", "messages": [{"role": "user", "content": "Name a river."}]}
STREAM = {**ASK, "stream": True}
SILENCE: Step = {"do": "wait_disconnect", "max_ms": 60_000}
LIMIT = 1 << 20
KEYS = {"ROUTER_TEST_KEYS": "alice=key-of-alice,bob=key-of-bob"}


@pytest.fixture(scope="module")
def shared_backend() -> Iterator[ScriptedBackend]:
    with ScriptedBackend() as running:
        yield running


@pytest.fixture(scope="module")
def product(
    shared_backend: ScriptedBackend, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Product]:
    config = {
        "server": {"body_limit_mb": LIMIT >> 20, "header_limit_kb": 64},
        "backends": [{"name": "one", "url": shared_backend.url, "model": MODEL}],
        "log": {"flush_ms": 10},
    }
    with Product.start(tmp_path_factory.mktemp("errors"), config) as running:
        yield running


@pytest.fixture(scope="module")
def strict(
    shared_backend: ScriptedBackend, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Product]:
    """Asks for keys, allows no bypass, and speaks to a server that refuses unknown names."""
    config = {
        "server": {"allow_policy_off": False},
        "auth": {"keys_env": "ROUTER_TEST_KEYS"},
        "backends": [
            {
                "name": "one",
                "url": shared_backend.url,
                "model": MODEL,
                "dialect": "transformers",
            }
        ],
    }
    with Product.start(tmp_path_factory.mktemp("strict"), config, env=KEYS) as running:
        yield running


@pytest.fixture
def backend(shared_backend: ScriptedBackend) -> ScriptedBackend:
    shared_backend.set_script([chat_ok("The Rhine.")])
    shared_backend.requests.clear()
    return shared_backend


def post(body: Any, headers: dict[str, str] | None = None, path: str = CHAT) -> bytes:
    return request_bytes("POST", path, headers, body)


def the_error(reply: RawReply, status: int, code: str | int | None) -> dict[str, Any]:
    """The error object of this reply, after what holds for all of them."""
    assert reply.status == status, reply.text
    assert reply.ended_properly
    assert (reply.header("content-type") or "").startswith("application/json")
    [(name, error)] = reply.json().items()
    assert name == "error"
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert isinstance(error["type"], str)
    assert error["message"]
    tells_nothing_inside(reply)
    return dict(error)


def tells_nothing_inside(reply: RawReply) -> None:
    text = reply.text + "".join(f"{name}: {value}\n" for name, value in reply.headers)
    for inside in ("127.0.0.1", "Traceback", 'File "', "key-of-alice"):
        assert inside not in text


# --- the client's own mistakes ---------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages": [',
        b"",
        b"[]",
        b'"text"',
        b"null",
        b"<xml/>",
        b'{"model": "auto", "model": "auto", "messages": []}',
        b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}',
        b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"messages": [], "temperature": NaN}',
    ],
    ids=["cut", "none", "list", "text", "null", "xml", "double", "latin-1", "deep", "NaN"],
)
def test_what_is_not_a_json_object_is_refused(
    product: Product, backend: ScriptedBackend, body: bytes
) -> None:
    reply = exchange(product.port, post(body, {"Content-Length": str(len(body))}))

    error = the_error(reply, 400, "invalid_json")
    assert error["type"] == "invalid_request_error"
    assert backend.requests == []


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": {}}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"content": "hi"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [5]}]}, "messages[0].content[0]"),
        ({"model": ["auto"]}, "model"),
        ({"stream": 1}, "stream"),
        ({"extra_body": [1]}, "extra_body"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(
    product: Product, backend: ScriptedBackend, change: dict[str, Any], param: str
) -> None:
    reply = exchange(product.port, post({**ASK, **change}))

    error = the_error(reply, 400, "invalid_value")
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert backend.requests == []


def test_messages_must_be_there(product: Product) -> None:
    assert the_error(exchange(product.port, post({})), 400, "invalid_value")["param"] == "messages"


@pytest.mark.parametrize("model", ["gpt-4o", "auto:nothing", "AUTO", "Qwen3-0.6B", "x\r\ny: z"])
def test_an_unknown_model_is_told_from_a_known_one(product: Product, model: str) -> None:
    reply = exchange(product.port, post({**ASK, "model": model}))

    error = the_error(reply, 404, "model_not_found")
    assert error["param"] == "model"
    assert "auto" in error["message"]  # it says what there is


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/nothing"),
        ("POST", "/v1/nothing"),
        ("POST", "/v1/chat/completions/more"),
        ("GET", "/v1/files"),
        ("POST", "/v1/batches"),
        ("GET", "/%2e%2e/%2e%2e/etc/passwd"),
        ("GET", "/../../etc/passwd"),
    ],
)
def test_there_is_nothing_at_other_paths(
    product: Product, backend: ScriptedBackend, method: str, path: str
) -> None:
    the_error(exchange(product.port, request_bytes(method, path)), 404, "not_found")
    assert backend.requests == []


@pytest.mark.parametrize(
    "raw",
    [
        post(ASK),
        post(b"{"),
        post(ASK, {"Content-Encoding": "br"}),
        post(b"", {"Content-Length": str(LIMIT + 1)}),
        request_bytes("GET", "/nothing"),
        request_bytes("GET", "/v1/models"),
        request_bytes("POST", "/health"),
        b"hello\r\n\r\n",
    ],
    ids=["answer", "400", "415", "413", "404", "page", "405", "no http"],
)
def test_every_reply_can_be_named(product: Product, backend: ScriptedBackend, raw: bytes) -> None:
    assert exchange(product.port, raw).header("x-request-id")


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (post(b"{"), "invalid_json"),
        (post(ASK, {"Content-Encoding": "br"}), "unsupported_content_encoding"),
        (post(b"", {"Content-Length": str(LIMIT + 1)}), "request_too_large"),
        (b"hello\r\n\r\n", "invalid_http"),
    ],
)
def test_a_refusal_is_recorded_under_the_id_that_it_was_answered_with(
    product: Product, raw: bytes, code: str
) -> None:
    request_id = exchange(product.port, raw).header("x-request-id")

    assert record_of(product, str(request_id))["error_code"] == code


@pytest.mark.parametrize("path", ["/health", "/nothing"])
def test_a_page_does_not_tell_what_it_is_made_with(product: Product, path: str) -> None:
    server = exchange(product.port, request_bytes("GET", path)).header("server") or ""

    assert not set("0123456789") & set(server)
    assert "aiohttp" not in server


def test_every_reply_carries_the_id_that_was_sent(product: Product) -> None:
    """So that a user's report can be found, also when the request was refused."""
    given = {"x-request-id": "raw-mine"}
    refused = [
        post(b"{", given),
        post(ASK, {**given, "Content-Encoding": "br"}),
        request_bytes("GET", "/nothing", given),
    ]

    found = [exchange(product.port, raw).header("x-request-id") for raw in refused]

    assert found == ["raw-mine"] * 3


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", CHAT, "POST"),
        ("DELETE", CHAT, "POST"),
        ("GET", "/chat/completions", "POST"),
        ("GET", "/v1/embeddings", "POST"),
        ("POST", "/v1/models", "GET"),
        ("POST", "/health", "GET"),
        ("DELETE", "/router/policy", "GET"),
        ("GET", "/router/explain", "POST"),
    ],
)
def test_the_wrong_method_is_told_the_right_one(
    product: Product, backend: ScriptedBackend, method: str, path: str, allowed: str
) -> None:
    reply = exchange(product.port, request_bytes(method, path))

    the_error(reply, 405, "method_not_allowed")
    assert allowed in (reply.header("allow") or "")
    assert backend.requests == []


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer key-of-mallory"},
        {"Authorization": "Basic key-of-alice"},
        {"Authorization": "Bearer "},
        {"Authorization": "key-of-alice"},
        {"Authorization": "Bearer key-of-alic"},
    ],
)
def test_a_key_is_asked_for_where_there_are_keys(
    strict: Product, backend: ScriptedBackend, headers: dict[str, str]
) -> None:
    the_error(exchange(strict.port, post(ASK, headers)), 401, "invalid_api_key")
    assert backend.requests == []


def test_a_known_key_opens_and_stays_here(strict: Product, backend: ScriptedBackend) -> None:
    headers = {"Authorization": "Bearer key-of-bob", "x-request-id": "raw-bob"}

    reply = exchange(strict.port, post(ASK, headers))

    assert reply.status == 200
    assert backend.requests[0].header("authorization") is None
    assert record_of(strict, "raw-bob")["key"] == "bob"


# --- sizes ---------------------------------------------------------------------------


def test_a_body_that_is_announced_too_large_is_refused_unread(product: Product) -> None:
    """Not a byte of the body is sent, and the answer comes all the same."""
    reply = exchange(product.port, post(b"", {"Content-Length": str(LIMIT + 1)}), watch_close_s=5)

    the_error(reply, 413, "request_too_large")
    assert reply.closed


def test_a_client_that_asks_first_is_told_no(product: Product) -> None:
    headers = {"Content-Length": str(LIMIT + 1), "Expect": "100-continue"}

    the_error(exchange(product.port, post(b"", headers)), 413, "request_too_large")


def test_a_client_without_a_key_is_told_before_its_body(strict: Product) -> None:
    headers = {"Content-Length": "1000", "Expect": "100-continue"}

    the_error(exchange(strict.port, post(b"", headers)), 401, "invalid_api_key")


def test_chunks_that_add_up_to_too_much_are_refused(
    product: Product, backend: ScriptedBackend
) -> None:
    body = chunked(*[b" " * 65536] * 17)

    reply = exchange(product.port, post(body, {"Transfer-Encoding": "chunked"}))

    the_error(reply, 413, "request_too_large")
    assert backend.requests == []


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_bomb_does_not_go_off(product: Product, backend: ScriptedBackend, coding: str) -> None:
    bomb = gzip.compress(b" " * (64 << 20))
    assert len(bomb) < LIMIT

    reply = exchange(product.port, post(bomb, {"Content-Encoding": coding}))

    the_error(reply, 413, "request_too_large")
    assert backend.requests == []


def test_a_body_of_just_the_limit_is_served(product: Product, backend: ScriptedBackend) -> None:
    text = json.dumps(ASK)
    body = text[:-1] + " " * (LIMIT - len(text)) + "}"

    assert exchange(product.port, post(body)).status == 200
    assert exchange(product.port, post(body + " ")).status == 413
    assert len(backend.requests) == 1


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "snappy"])
def test_an_unknown_coding_is_refused(product: Product, coding: str) -> None:
    reply = exchange(product.port, post(ASK, {"Content-Encoding": coding}))

    the_error(reply, 415, "unsupported_content_encoding")


@pytest.mark.parametrize(
    "body", [gzip.compress(json.dumps(ASK).encode())[:-9], b"no gzip"], ids=["cut", "none"]
)
def test_a_broken_packed_body_is_the_clients_error(product: Product, body: bytes) -> None:
    reply = exchange(product.port, post(body, {"Content-Encoding": "gzip"}))

    assert the_error(reply, 400, reply.json()["error"]["code"])["type"] == "invalid_request_error"


def test_a_head_may_have_60_kib_and_no_more_than_64(
    product: Product, backend: ScriptedBackend
) -> None:
    fits = exchange(product.port, post(ASK, {"X-Long": "a" * (60 << 10)}))
    too_large = exchange(product.port, post(ASK, {"X-Long": "a" * (65 << 10)}))
    many = {f"X-{number}": "a" * 1000 for number in range(70)}

    assert fits.status == 200
    the_error(too_large, 431, "request_head_too_large")
    the_error(exchange(product.port, post(ASK, many)), 431, "request_head_too_large")
    assert len(backend.requests) == 1


# --- the backend's faults ---------------------------------------------------------


@pytest.mark.parametrize(
    "steps",
    [
        [CLOSE],
        [RESET],
        [{"do": "send", "text": "SSH-2.0-OpenSSH\r\n\r\n"}, CLOSE],
        [{"do": "send", "text": "HTTP/1.1 200 OK\r\nContent-Le"}, CLOSE],
        [{"do": "head", "headers": {"Content-Length": "x"}, "framing": "length"}, CLOSE],
    ],
    ids=["closes", "resets", "no http", "half a head", "no length"],
)
def test_a_backend_that_gives_no_answer_is_a_bad_gateway(
    product: Product, backend: ScriptedBackend, steps: list[Step]
) -> None:
    backend.set_script(steps)

    error = the_error(exchange(product.port, post(ASK)), 502, "backend_error")

    assert error["type"] == "server_error"


@pytest.mark.parametrize(
    ("status", "said", "code", "message"),
    [
        (422, {"detail": "temperature is too hot"}, "backend_error", "temperature is too hot"),
        (400, {"error": "no such thing"}, "backend_error", "no such thing"),
        (500, {"object": "error", "message": "oh no", "code": 500}, "backend_error", "oh no"),
        (
            503,
            {"error": {"code": 503, "message": "Loading model"}},
            "backend_error",
            "Loading model",
        ),
        (
            400,
            {
                "error": {
                    "message": "too long",
                    "type": "invalid_request_error",
                    "param": "messages",
                    "code": "context_length_exceeded",
                }
            },
            "context_length_exceeded",
            "too long",
        ),
    ],
    ids=["FastAPI", "a text", "old vLLM", "llama.cpp", "in shape"],
)
def test_what_a_backend_refuses_keeps_its_status_and_words(
    product: Product,
    backend: ScriptedBackend,
    status: int,
    said: Any,
    code: str | int,
    message: str,
) -> None:
    backend.set_script([reply_json(said, status=status, headers={"Retry-After": "3"})])

    reply = exchange(product.port, post(STREAM))

    assert reply.status == status
    error = reply.json()["error"]
    assert (error["code"], error["message"]) == (code, message)
    assert reply.header("retry-after") == "3"
    tells_nothing_inside(reply)


def test_one_request_too_many_is_told_when_to_come_back(
    backend: ScriptedBackend, tmp_path: Path
) -> None:
    backend.set_script([SILENCE])
    one = {"name": "one", "url": backend.url, "model": MODEL, "max_inflight": 1}
    config = {"backends": [one], "limits": {"queue": 0}}
    with Product.start(tmp_path, config) as product:
        with RawConnection(product.port) as first:
            first.send(post(ASK))
            [waiting] = backend.wait_requests(1)
            refused = exchange(product.port, post(ASK, {"x-request-id": "raw-429"}))
        assert waiting.wait_peer_closed() is not None
        backend.set_script([chat_ok("The Rhine.")])
        served = exchange(product.port, post(ASK))

        error = the_error(refused, 429, "rate_limit_exceeded")
        assert error["type"] == "rate_limit_error"
        assert 1 <= int(refused.header("retry-after") or "") <= 10
        assert record_of(product, "raw-429")["outcome"] == "rejected"
        assert served.status == 200
        assert len(backend.requests) == 2


def test_a_backend_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    with ScriptedBackend(listen="refuse") as backend:
        one = {"name": "one", "url": backend.url, "model": MODEL}
        with Product.start(tmp_path, {"backends": [one]}) as product:
            reply = exchange(product.port, post(ASK, {"x-request-id": "raw-503"}))

            the_error(reply, 503, "no_healthy_backend")
            assert 1 <= int(reply.header("retry-after") or "") <= 10
            assert str(backend.port) not in reply.text
            assert record_of(product, "raw-503")["error_code"] == "no_healthy_backend"


@pytest.mark.parametrize("body", [ASK, STREAM], ids=["whole", "stream"])
def test_a_backend_that_stays_silent_times_out(
    backend: ScriptedBackend, tmp_path: Path, body: dict[str, Any]
) -> None:
    backend.set_script([SILENCE])
    one = {"name": "one", "url": backend.url, "model": MODEL, "timeout_s": 0.3}
    with Product.start(tmp_path, {"backends": [one]}) as product:
        reply = exchange(product.port, post(body, {"x-request-id": "raw-504"}))

        the_error(reply, 504, "backend_timeout")
        assert backend.requests[0].wait_peer_closed() is not None
        assert len(backend.requests) == 1  # it may have been carried out: never sent twice
        assert record_of(product, "raw-504")["outcome"] == "upstream_timeout"


@pytest.mark.parametrize("end", [CLOSE, RESET], ids=["closes", "resets"])
def test_a_broken_stream_ends_with_an_error_and_never_as_if_whole(
    product: Product, backend: ScriptedBackend, end: Step
) -> None:
    backend.set_script([stream_head(), delta(content="The Rh"), end])
    request_id = f"raw-broken-{end['do']}"

    with RawConnection(product.port) as client:
        client.send(post(STREAM, {"x-request-id": request_id}))
        reply = client.read()
        # Its end could be read, and nothing had said that the connection would close.
        client.send(post(STREAM, {"x-request-id": f"{request_id}-next"}))
        assert client.read().status == 200

    assert reply.status == 200
    first, last = sse_payloads(reply.body)
    assert json.loads(first)["choices"][0]["delta"]["content"] == "The Rh"
    error = json.loads(last)["error"]
    assert error["code"] == "backend_error"
    assert error["message"]
    assert reply.ended_properly
    tells_nothing_inside(reply)
    record = record_of(product, request_id)
    assert (record["status"], record["outcome"]) == (200, "upstream_error")
    assert record_of(product, f"{request_id}-next")["outcome"] == "upstream_error"


def test_a_stream_that_breaks_inside_a_frame_keeps_the_error_readable(
    product: Product, backend: ScriptedBackend
) -> None:
    half = 'data: {"choices":[{"index":0,"delta":{"content":"The'
    backend.set_script([stream_head(), {"do": "send", "text": half}, RESET])

    reply = exchange(product.port, post(STREAM))

    *_, last = sse_payloads(reply.body)
    assert json.loads(last)["error"]["code"] == "backend_error"
    assert "[DONE]" not in reply.text


def test_an_answer_that_breaks_off_is_never_closed_as_if_whole(
    product: Product, backend: ScriptedBackend
) -> None:
    head = {"Content-Type": "application/json", "Content-Length": "100"}
    backend.set_script(
        [{"do": "head", "headers": head, "framing": "length"}, {"do": "send", "text": '{"a'}, CLOSE]
    )

    reply = exchange(product.port, post(ASK), watch_close_s=5)

    assert not reply.ended_properly
    assert reply.closed


@pytest.mark.parametrize("said", ["out of memory", {"message": "out of memory", "code": 500}])
def test_an_error_inside_a_stream_is_put_into_shape_and_recorded(
    product: Product, backend: ScriptedBackend, said: Any
) -> None:
    backend.set_script([stream_head(), {"do": "sse", "data": {"error": said}}, {"do": "end"}])
    request_id = f"raw-inside-{type(said).__name__}"

    reply = exchange(product.port, post(STREAM, {"x-request-id": request_id}))

    [payload] = sse_payloads(reply.body)
    assert json.loads(payload)["error"]["message"] == "out of memory"
    assert record_of(product, request_id)["outcome"] == "upstream_error"


# --- bytes with bad intent; framing is in test_bad_input.py and test_conformance.py --------------


@pytest.mark.parametrize(
    "given",
    ["a b", "a\tb", "\xfc-umlaut", "x" * 129, "a\x7fb", ""],
    ids=["space", "tab", "latin-1", "long", "delete", "empty"],
)
def test_an_id_that_does_not_fit_headers_and_logs_is_replaced(
    product: Product, backend: ScriptedBackend, given: str
) -> None:
    reply = exchange(product.port, post(ASK, {"x-request-id": given}))

    if reply.status == 400:  # not lawful in any header
        the_error(reply, 400, "invalid_http")
        assert backend.requests == []
        return
    ours = reply.header("x-request-id")
    assert ours
    assert ours != given
    assert backend.requests[0].all("x-request-id") == [ours]


@pytest.mark.parametrize("given", ["a\rX-Evil: 1", "a\nX-Evil: 1", "a\r\n X-Evil: 1", "a\0b"])
def test_an_id_cannot_add_a_header(product: Product, backend: ScriptedBackend, given: str) -> None:
    reply = exchange(product.port, post(ASK, {"x-request-id": given}))

    the_error(reply, 400, "invalid_http")
    assert reply.header("x-evil") is None
    assert backend.requests == []


def test_a_name_in_the_body_cannot_add_a_header(strict: Product, backend: ScriptedBackend) -> None:
    """This dialect's warnings name the members that its server would refuse."""
    body = {**ASK, "a\r\nX-Evil: 1": 1, "退款": 2}

    reply = exchange(strict.port, post(body, {"Authorization": "Bearer key-of-bob"}))

    assert reply.status == 200
    assert "is refused by" in (reply.header("x-router-warnings") or "")
    assert reply.header("x-evil") is None
    assert "退款" not in backend.requests[0].json


# --- the bypass --------------------------------------------------------------------


def test_with_the_policy_off_the_same_bytes_go_on(
    product: Product, backend: ScriptedBackend
) -> None:
    body = (
        b'{ "messages" : [{"role":"user","content":"\\u9000\\u6b3e refund"}],\n'
        b'  "model":"qwen3-0.6b", "temperature": 0.10, "seed": 18014398509481985,'
        b' "extra_body": {"top_k": 1}, "user": null }'
    )

    reply = exchange(product.port, post(body, {"x-router-policy": "off"}))

    assert reply.status == 200
    assert backend.requests[0].body == body
    assert reply.header("x-router-scenario") is None


def test_the_bypass_can_be_forbidden(strict: Product, backend: ScriptedBackend) -> None:
    headers = {"Authorization": "Bearer key-of-bob", "x-router-policy": "off"}

    the_error(exchange(strict.port, post(ASK, headers)), 403, "forbidden")
    assert backend.requests == []


def test_headers_for_us_alone_go_no_further(product: Product, backend: ScriptedBackend) -> None:
    headers = {
        "x-router-scenario": "faq",
        "x-router-debug": "true",
        "x-stainless-lang": "python",
        "Connection": "keep-alive, x-hop",
        "x-hop": "1",
        "TE": "trailers",
        "Cookie": "a=b",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "x-app": "shop",
    }

    assert exchange(product.port, post(ASK, headers)).status == 200

    names = {name.lower() for name, _ in backend.requests[0].headers}
    assert not names & {"x-hop", "te", "cookie", "x-router-scenario", "x-router-debug"}
    assert not names & {"x-stainless-lang", "transfer-encoding"}
    assert {"traceparent", "x-app", "content-length", "host"} <= names


def test_a_slow_request_is_given_up(backend: ScriptedBackend, tmp_path: Path) -> None:
    config = {
        "server": {"body_timeout_s": 0.2},
        "backends": [{"name": "one", "url": backend.url, "model": MODEL}],
    }
    with Product.start(tmp_path, config) as product, RawConnection(product.port) as connection:
        connection.send(post(b"", {"Content-Length": "100"}) + b"{")
        reply = connection.read()

        the_error(reply, 408, "request_timeout")
        assert backend.requests == []


def test_a_refusal_reaches_a_client_that_writes_everything_before_it_reads(
    product: Product,
) -> None:
    reader = ReplyReader()
    with socket.create_connection((HOST, product.port), 30) as sock:
        sock.sendall(post(b" " * (2 * LIMIT)))
        while data := sock.recv(65536):
            reader.feed(data, 0.0)
    reader.eof(0.0)

    the_error(reader.reply, 413, "request_too_large")
