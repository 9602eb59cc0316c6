"""Clients without an SDK: `requests`, curl, and bytes written by hand, as tutorials show them."""

from __future__ import annotations

import gzip
import json
import socket
import subprocess
import sys
from typing import Any

import pytest
import requests

from tests.clients.demo import record_of
from tests.support.product import Product
from tests.support.rawclient import HOST, RawConnection, exchange, request_bytes
from tests.support.script import chat_ok
from tests.support.scripted import ScriptedBackend

CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {"model": "auto", "messages": [{"role": "user", "content": "Name a river."}]}
JSON_TYPE = {"Content-Type": "application/json"}


@pytest.fixture
def backend(scripted: ScriptedBackend) -> ScriptedBackend:
    scripted.set_script([chat_ok("The Rhine.")])
    scripted.requests.clear()
    return scripted


@pytest.fixture
def port(backend: ScriptedBackend, scripted_router: Product) -> int:
    return scripted_router.port


def test_a_literal_extra_body_is_flattened_and_said_so(
    backend: ScriptedBackend, scripted_router: Product
) -> None:
    reply = requests.post(
        scripted_router.url + CHAT,
        json={
            **ASK,
            "temperature": 0.9,
            "extra_body": {"enable_thinking": False, "temperature": 0.3, "max_new_tokens": 64},
        },
        headers={"x-request-id": "plain-nested"},
        timeout=10,
    )

    assert reply.status_code == 200
    assert "extra_body was flattened" in reply.headers["x-router-warnings"]
    [seen] = backend.requests
    assert "extra_body" not in seen.json
    assert seen.json["temperature"] == 0.3  # the inner one wins, as in the SDK
    assert seen.json["max_tokens"] == 64
    assert seen.json["chat_template_kwargs"] == {"enable_thinking": False}
    record = record_of(scripted_router, "plain-nested")
    assert "extra_body was flattened" in record["warnings"]


def test_a_real_model_answers_plain_requests(router: Product) -> None:
    with requests.Session() as session:
        reply = session.post(
            router.url + CHAT, json={**ASK, "extra_body": {"max_new_tokens": 4}}, timeout=60
        )
        with session.post(
            router.url + CHAT,
            json={**ASK, "max_tokens": 4, "stream": True},
            stream=True,
            timeout=60,
        ) as streamed:
            lines = [line for line in streamed.iter_lines() if line]

    assert reply.json()["usage"]["completion_tokens"] == 4
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert all(line.startswith(b"data: ") for line in lines)
    assert lines[-1] == b"data: [DONE]"


@pytest.mark.parametrize(
    "headers",
    [{}, {"Content-Type": "application/x-www-form-urlencoded"}, {"Content-Type": "text/plain"}],
    ids=["none", "curl -d", "text"],
)
def test_the_content_type_does_not_matter(
    port: int, backend: ScriptedBackend, headers: dict[str, str]
) -> None:
    reply = exchange(port, request_bytes("POST", CHAT, headers, ASK))

    assert reply.status == 200
    assert backend.requests[0].json["messages"] == ASK["messages"]


@pytest.mark.parametrize("spelled", [r"退款多久到账?", r"\u9000\u6b3e\u591a\u4e45\u5230\u8d26?"])
def test_chinese_is_understood_and_goes_on_as_it_was_spelled(
    port: int, backend: ScriptedBackend, spelled: str
) -> None:
    messages = f'[{{"role": "user", "content": "{spelled}"}}]'
    backend.set_script([chat_ok("三到五个工作日。")])

    reply = exchange(port, request_bytes("POST", CHAT, {}, f'{{"messages": {messages}}}'))

    assert reply.json()["choices"][0]["message"]["content"] == "三到五个工作日。"
    assert reply.header("x-router-scenario") == "faq"
    assert messages.encode() in backend.requests[0].body


def test_a_packed_body_arrives_unpacked(port: int, backend: ScriptedBackend) -> None:
    packed = gzip.compress(json.dumps(ASK).encode())
    headers = {**JSON_TYPE, "Content-Encoding": "gzip"}

    reply = exchange(port, request_bytes("POST", CHAT, headers, packed))

    assert reply.status == 200
    [seen] = backend.requests
    assert seen.json["messages"] == ASK["messages"]
    assert seen.header("content-encoding") is None
    assert seen.header("content-length") == str(len(seen.body))


def test_pages_and_inference_share_a_connection(port: int, backend: ScriptedBackend) -> None:
    steps: list[tuple[bytes, str]] = [
        (request_bytes("GET", "/v1/models"), "auto:faq"),
        (request_bytes("POST", CHAT, JSON_TYPE, ASK), "The Rhine."),
        (request_bytes("GET", "/health"), "ok"),
        (request_bytes("GET", "/nothing-here"), "/v1/chat/completions"),
        (request_bytes("POST", CHAT, JSON_TYPE, b"{"), "invalid_json"),
        (request_bytes("POST", CHAT, JSON_TYPE, {**ASK, "stream": True}), "[DONE]"),
        (request_bytes("GET", "/version"), "version"),
    ]
    with RawConnection(port) as connection:
        for raw, expected in steps:
            connection.send(raw)
            reply = connection.read(method=raw.split(b" ")[0].decode())
            assert expected in reply.text
            assert reply.ended_properly
            assert not reply.closed

    assert len(backend.requests) == 2


def test_pipelined_requests_are_answered_in_order(port: int, backend: ScriptedBackend) -> None:
    ask = request_bytes("POST", CHAT, JSON_TYPE, ASK)
    with RawConnection(port) as connection:
        connection.send(ask + request_bytes("GET", "/health") + ask)
        replies = [connection.read(method=method) for method in ("POST", "GET", "POST")]

    assert ["The Rhine." in reply.text for reply in replies] == [True, False, True]
    assert replies[1].json() == {"status": "ok"}


def test_a_client_that_leaves_with_a_request_waiting_frees_the_backend(
    port: int, backend: ScriptedBackend
) -> None:
    backend.set_script([{"do": "wait_disconnect", "max_ms": 60_000}])
    ask = request_bytes("POST", CHAT, JSON_TYPE, ASK)
    with RawConnection(port) as connection:
        connection.send(ask)
        [seen] = backend.wait_requests(1)
        connection.send(ask)

    assert seen.wait_peer_closed() is not None


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_of_http_1_0_gets_a_body_that_ends_with_the_connection(
    port: int, backend: ScriptedBackend, stream: bool
) -> None:
    raw = request_bytes("POST", CHAT, JSON_TYPE, {**ASK, "stream": stream})

    reply = exchange(port, raw.replace(b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", 1), watch_close_s=5)

    assert reply.status == 200
    assert "The Rhine." in reply.text
    assert reply.header("transfer-encoding") is None
    assert reply.closed
    assert reply.ended_properly
    if stream:
        assert reply.text.endswith("data: [DONE]\n\n")


def test_a_body_is_asked_for_when_the_client_waits(port: int, backend: ScriptedBackend) -> None:
    body = json.dumps(ASK).encode()
    headers = {**JSON_TYPE, "Expect": "100-continue", "Content-Length": str(len(body))}
    with socket.create_connection((HOST, port), 10) as sock:
        sock.sendall(request_bytes("POST", CHAT, headers))
        interim = sock.recv(65536)
        sock.sendall(body)
        head = sock.recv(65536)

    assert interim == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert head.startswith(b"HTTP/1.1 200")
    [seen] = backend.requests
    assert seen.header("expect") is None


def test_keys_that_nobody_knows_go_on_as_they_came(port: int, backend: ScriptedBackend) -> None:
    """Numbers keep their digits, unknown members their place and their nulls."""
    kept = '"logit_bias": {"5": -1e2},  "user":null , "seed": 9007199254740993'
    made_up = r'"x_made_up": [0.10, {"a": "\u00e9"}]'
    body = f'{{ "messages": {json.dumps(ASK["messages"])}, {kept}, {made_up} }}'

    reply = exchange(port, request_bytes("POST", CHAT, JSON_TYPE, body))

    assert reply.status == 200
    sent = backend.requests[0].body.decode()
    assert kept in sent
    assert made_up in sent


def test_the_status_tells_what_was_learned(router: Product) -> None:
    learned = router.get("/router/status")["policy"]["learned"]
    told = subprocess.run(
        [sys.executable, "-m", "router", "status", "--url", router.url],
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert learned["examples"] > 500
    assert 0.6 < learned["accuracy"] < 1
    assert "learned from examples" in told
