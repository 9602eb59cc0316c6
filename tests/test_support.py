"""The test bench itself: the scripted upstream and the raw client do what they say.

Here they talk to each other with no router between.
"""

from __future__ import annotations

import gzip
import json
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.support.rawclient import (
    RawConnection,
    ReplyReader,
    chunked,
    exchange,
    request_bytes,
    sse_events,
    sse_payloads,
)
from tests.support.script import (
    CLOSE,
    DONE,
    END,
    RESET,
    chat_ok,
    delta,
    reply_json,
    stream_head,
    stream_of,
)
from tests.support.scripted import ScriptedBackend

CHAT = "/v1/chat/completions"
ASK = request_bytes("POST", CHAT, {"X-Note": "n-1"}, {"model": "m", "messages": []})
ASK_STREAM = request_bytes("POST", CHAT, {}, {"model": "m", "messages": [], "stream": True})


@pytest.fixture
def backend() -> Iterator[ScriptedBackend]:
    with ScriptedBackend([chat_ok("The Rhine.")]) as running:
        yield running


def test_a_request_is_recorded_as_it_arrived(backend: ScriptedBackend) -> None:
    reply = exchange(backend.port, ASK)

    assert reply.status == 200
    assert reply.json()["choices"][0]["message"]["content"] == "The Rhine."
    [seen] = backend.requests
    assert (seen.method, seen.path, seen.header("x-note")) == ("POST", CHAT, "n-1")
    assert seen.head + seen.body == ASK
    assert seen.json == {"model": "m", "messages": []}
    assert seen.entity == reply.body


def test_chat_ok_streams_when_the_request_asks_for_it(backend: ScriptedBackend) -> None:
    body = {"messages": [], "stream": True, "stream_options": {"include_usage": True}}
    reply = exchange(backend.port, request_bytes("POST", CHAT, {}, body))

    assert reply.header("content-type") == "text/event-stream"
    events = sse_events(reply.body)
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in events[:-1]) == "The Rhine."
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 2
    assert sse_payloads(reply.body)[-1] == "[DONE]"


def test_the_first_rule_that_fits_answers(backend: ScriptedBackend) -> None:
    refuse, busy = reply_json({}, 422), reply_json({}, 429)
    backend.set_script(
        [chat_ok("fine")],
        rules=[
            {"when": {"body_has": "extra_body"}, "steps": [refuse]},
            {"when": {"body_eq": {"n": 2}, "body_not_eq": {"stream": True}}, "steps": [busy]},
            {"when": {"body_text": "zzz"}, "steps": [busy]},
        ],
    )

    def status(body: object) -> int | None:
        return exchange(backend.port, request_bytes("POST", CHAT, {}, body)).status

    assert status({"extra_body": None}) == 422
    assert status({"n": 2}) == 429
    assert status({"n": 2, "stream": True}) == 200
    assert status({"text": "a zzz b"}) == 429


def test_a_script_without_an_answer_says_so(backend: ScriptedBackend) -> None:
    backend.set_script([])

    assert exchange(backend.port, ASK).status == 500


def test_probes_are_answered_and_not_counted() -> None:
    with ScriptedBackend(models=["one", "two"]) as backend:
        health = exchange(backend.port, request_bytes("GET", "/health"))
        models = exchange(backend.port, request_bytes("GET", "/v1/models"))

        assert (health.status, backend.requests) == (200, [])
        assert [entry["id"] for entry in models.json()["data"]] == ["one", "two"]
        assert [seen.path for seen in backend.probes] == ["/health", "/v1/models"]


def test_one_connection_serves_several_requests(backend: ScriptedBackend) -> None:
    with RawConnection(backend.port) as connection:
        for _ in range(3):
            connection.send(ASK_STREAM)
            reply = connection.read()
            assert (reply.ended_properly, reply.closed) == (True, False)

    assert len(backend.requests) == 3


def test_pipelined_requests_are_answered_in_order(backend: ScriptedBackend) -> None:
    backend.set_script([], rules=[{"when": {}, "steps": [reply_json({"n": 1})]}])
    with RawConnection(backend.port) as connection:
        connection.send(ASK + ASK)
        assert connection.read().json() == {"n": 1}
        assert connection.read().json() == {"n": 1}


@pytest.mark.parametrize("cut", [CLOSE, RESET], ids=["fin", "rst"])
def test_a_cut_body_is_not_taken_for_a_whole_one(backend: ScriptedBackend, cut: object) -> None:
    assert isinstance(cut, dict)
    backend.set_script([stream_head(), delta(content="a"), cut])

    reply = exchange(backend.port, ASK_STREAM)

    assert reply.status == 200
    assert (reply.ended_properly, reply.closed) == (False, True)
    assert reply.broken
    assert sse_events(reply.body)[0]["choices"][0]["delta"] == {"content": "a"}


def test_a_reset_before_the_head_leaves_no_status(backend: ScriptedBackend) -> None:
    backend.set_script([RESET])

    reply = exchange(backend.port, ASK)

    assert (reply.status, reply.refused, reply.ended_properly) == (None, False, False)


def test_the_body_is_coded_as_the_request_allows(backend: ScriptedBackend) -> None:
    backend.set_script([{"do": "json_negotiated", "codings": ["gzip"], "body": {"a": "ü"}}])

    plain = exchange(backend.port, ASK)
    packed = exchange(backend.port, request_bytes("POST", CHAT, {"Accept-Encoding": "br, gzip"}))

    assert plain.header("content-encoding") is None
    assert plain.json() == {"a": "ü"}
    assert packed.header("content-encoding") == "gzip"
    assert json.loads(gzip.decompress(packed.body)) == {"a": "ü"}
    assert backend.requests[1].entity == packed.body


def test_fill_and_repeat_make_long_bodies(backend: ScriptedBackend) -> None:
    fill = {"do": "fill", "prefix": "<", "char": "y", "count": 10, "suffix": ">", "write_size": 4}
    again = {"do": "repeat", "times": 3, "steps": [{"do": "send", "text": "ab"}]}
    backend.set_script([stream_head(), fill, again, END])

    reply = exchange(backend.port, ASK)

    assert reply.text == "<yyyyyyyyyy>ababab"
    assert [len(frame.data) for frame in backend.requests[0].frames] == [4, 4, 4, 2, 2, 2]


def test_a_backend_can_go_away_and_come_back_on_its_port(backend: ScriptedBackend) -> None:
    with RawConnection(backend.port) as kept:
        kept.send(ASK)
        kept_reply = kept.read()
        backend.set_listen("refuse")
        assert kept.wait_closed(kept_reply, 5)
    assert exchange(backend.port, ASK).refused

    backend.set_listen("normal")

    assert exchange(backend.port, ASK).status == 200


def test_a_backend_can_refuse_from_the_start() -> None:
    with ScriptedBackend([chat_ok("x")], listen="refuse") as backend:
        assert exchange(backend.port, ASK).refused


def test_a_reused_connection_can_be_closed_under_the_next_request() -> None:
    fault = {"close_when": "next_request_arrives", "first_only": True}
    with ScriptedBackend([chat_ok("x")], keepalive=fault) as backend:
        with RawConnection(backend.port) as connection:
            connection.send(ASK)
            assert connection.read().status == 200
            connection.send(ASK)
            assert connection.read().status is None
        with RawConnection(backend.port) as connection:
            for _ in range(2):
                connection.send(ASK)
                assert connection.read().status == 200

        assert len(backend.requests) == 3


def test_an_idle_connection_can_be_closed(backend: ScriptedBackend) -> None:
    backend.set_keepalive(close_after_ms=1)
    with RawConnection(backend.port) as connection:
        connection.send(ASK)
        reply = connection.read()

        assert reply.ended_properly
        assert connection.wait_closed(reply, 5)


def test_the_backend_notes_when_its_peer_leaves(backend: ScriptedBackend) -> None:
    backend.set_script(
        [stream_head(), delta(content="a"), {"do": "wait_disconnect", "max_ms": 1e5}]
    )

    reply = exchange(backend.port, ASK_STREAM, close_after_frames=1)

    [seen] = backend.wait_requests(1)
    closed_at = seen.wait_peer_closed()
    assert closed_at is not None
    assert reply.left_at is not None
    assert reply.started < closed_at
    assert not reply.ended_properly


def test_the_client_can_leave_before_any_reply(backend: ScriptedBackend) -> None:
    backend.set_script([{"do": "wait_disconnect", "max_ms": 1e5}])

    reply = exchange(backend.port, ASK, close_after_ms=30)

    assert (reply.status, reply.left_at is not None) == (None, True)
    assert backend.wait_requests(1)[0].wait_peer_closed() is not None


def test_a_stopped_script_stops_at_once_when_the_backend_does() -> None:
    backend = ScriptedBackend([stream_head(), {"do": "sleep", "ms": 1e6}]).start()
    with RawConnection(backend.port) as connection:
        connection.send(ASK_STREAM)
        backend.wait_requests(1)
        backend.stop()
        assert not connection.read().ended_properly


def test_a_chunked_request_is_read_whole(backend: ScriptedBackend) -> None:
    headers = {"Transfer-Encoding": "chunked"}
    raw = request_bytes("POST", CHAT, headers, chunked(b'{"a":', b'"b"}'))

    assert exchange(backend.port, raw).status == 200
    assert backend.requests[0].json == {"a": "b"}


def test_two_framings_in_one_request_are_a_fault(backend: ScriptedBackend) -> None:
    headers = {"Content-Length": "6", "Transfer-Encoding": "chunked"}

    reply = exchange(backend.port, request_bytes("POST", CHAT, headers, b"0\r\n\r\nG"))

    assert reply.status is None
    assert "Content-Length" in backend.requests[0].framing_fault


def test_a_client_learns_of_a_refusal_while_it_still_sends() -> None:
    # The peer answers after the head and closes; the body is far from sent.
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(1000)
                peer.sendall(b"HTTP/1.1 413 No\r\nContent-Length: 0\r\n\r\n")
                done.wait(10)

        done = threading.Event()
        thread = threading.Thread(target=refuse)
        thread.start()
        raw = request_bytes("POST", CHAT, {}, b"x" * 20_000_000)
        reply = exchange(listener.getsockname()[1], raw)
        done.set()
        thread.join(10)

    assert reply.status == 413


def test_silence_is_reported_and_not_waited_for(backend: ScriptedBackend) -> None:
    backend.set_script([stream_head(), {"do": "sleep", "ms": 1e6}])

    reply = exchange(backend.port, ASK, timeout_s=0.1)

    assert (reply.status, reply.ended_properly) == (200, False)
    assert "no whole reply" in reply.broken


@pytest.mark.parametrize(
    ("raw", "body", "whole"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", b"abc", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", b"ab", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"", True),
        (b"HTTP/1.1 204 None\r\n\r\n", b"", True),
        (b"HTTP/1.1 200 OK\r\n\r\nto the end", b"to the end", True),
        (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"2;x=1\r\nab\r\n1\r\nc\r\n0\r\nTrailer: t\r\n\r\n",
            b"abc",
            True,
        ),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", b"ab", False),
    ],
    ids=["length", "short", "empty", "no content", "until close", "chunked", "cut chunked"],
)
def test_any_cutting_of_a_reply_reads_the_same(raw: bytes, body: bytes, whole: bool) -> None:
    for size in (1, 2, 3, 7, len(raw)):
        reader = ReplyReader()
        for start in range(0, len(raw), size):
            reader.feed(raw[start : start + size], float(start))
        reader.eof(1e3)

        assert reader.done
        assert (reader.reply.body, reader.reply.ended_properly) == (body, whole), size


def test_a_scripted_stream_reads_as_one(backend: ScriptedBackend) -> None:
    backend.set_script(stream_of("a", "b"))
    first = exchange(backend.port, ASK_STREAM)
    backend.set_script([stream_head(), delta(content="ab"), delta("stop"), DONE, END])
    second = exchange(backend.port, ASK_STREAM)

    def text(body: bytes) -> str:
        return "".join(e["choices"][0]["delta"].get("content", "") for e in sse_events(body))

    assert text(first.body) == text(second.body) == "ab"
