"""The bench for replayable cases: it carries out what a case says and notices what is wrong.

Where it needs a product it takes none: the client talks to the first upstream itself,
so a case about passing bytes on holds and one about changing them does not.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from router import policy
from tests.support import caseverify
from tests.support.casefile import Case, numbers, outgoing, overridden
from tests.support.casejudge import CHECKS, compare
from tests.support.casemap import Settings, field_matches, policy_text, settings
from tests.support.caserun import Proxy
from tests.support.caseverify import verify, verify_patiently
from tests.support.filewrites import pieces, write_file
from tests.support.paths import MISSING, lookup, same
from tests.support.rawclient import exchange, request_bytes
from tests.support.redisstand import RedisStand
from tests.support.script import (
    CLOSE,
    Step,
    chat_ok,
    delta,
    pause,
    reply_json,
    stream_head,
    stream_of,
)
from tests.support.scripted import ScriptedBackend
from tests.support.sdkclient import sdk_chat
from tests.test_cases import BESIDE, OWN

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "qwen3-0.6b", "messages": [{"role": "user", "content": "hi"}]}


class NoProxy:
    """Nothing between: the port is the first upstream's own."""

    def __init__(self, folder: Path, given: Settings) -> None:
        folder.mkdir(parents=True)
        self.port = int(given.config["backends"][0]["url"].rsplit(":", 1)[1])
        self.policy_path = folder / "policy.toml"
        self.log_dir = folder
        self.pid = 1
        self.output: list[str] = ["policy.toml: warning: nothing reads it"]

    def records(self) -> list[dict[str, Any]]:
        return [{"request_id": "case-r1-0", "outcome": "ok", "input_tokens": 9}]

    def signal(self, number: int) -> None:
        self.output.append(f"signal {number}")

    def wait_exit(self, timeout_s: float) -> int | None:
        return None

    def stop(self) -> int:
        return 0


def no_proxy(folder: Path, given: Settings) -> Proxy:
    return NoProxy(folder, given)


def case(
    steps: list[Step],
    *must: Mapping[str, Any],
    request: Mapping[str, Any] | None = None,
    **more: Any,
) -> Case:
    return Case.of(
        {
            "id": "T",
            "title": "made here",
            "request": {
                "path": CHAT,
                "headers": {"X-Team": "t-{i}"},
                "body": BODY,
                **(request or {}),
            },
            "backend": {"nodes": [{"id": "a", "dialect": "vllm", "steps": steps}]},
            "expect": {"must": must},
            **more,
        }
    )


def at_client(check: str, **arguments: Any) -> dict[str, Any]:
    return {"at": "client", "check": check, **arguments}


def at_backend(check: str, **arguments: Any) -> dict[str, Any]:
    return {"at": "backend", "check": check, **arguments}


def at_log(check: str, **arguments: Any) -> dict[str, Any]:
    return {"at": "log", "check": check, **arguments}


# --- verdicts ------------------------------------------------------------------------


@pytest.mark.parametrize("client", ["raw", "openai"])
def test_a_case_about_passing_on_holds_with_nothing_between(client: str, tmp_path: Path) -> None:
    given = case(
        [stream_head(), delta(content="The "), pause(5), *stream_of("Rhine.")[1:]],
        at_client("status", equals=200),
        at_client("body_same_as_backend"),
        at_client("text", equals="The Rhine."),
        at_client("text_length", equals=10),
        at_client("completes"),
        at_client("sse_last", equals="[DONE]"),
        at_client("no_sse_field", field="id"),
        at_client("frame_delay_ms", max=10_000),
        at_client("header", name="Content-Type", contains="event-stream"),
        at_client("header", name="Content-Encoding", absent=True),
        at_backend("requests", equals=1),
        at_backend("req_json_same", paths=["messages", "model", "top_k"]),
        at_backend("req_body_len_matches"),
        at_backend("req_header", name="X-Team", equals="t-0"),
        at_backend("req_header_count", name="Content-Length", equals=1),
        at_log("record", count=1, fields={"outcome": "ok", "prompt_tokens": 9}),
        at_log("total", equals=1),
        request={"body": {**BODY, "stream": True}},
        client=client,
    )

    assert verify(given, tmp_path, no_proxy) == []


@pytest.mark.parametrize(
    "check",
    [
        at_client("status", equals=503),
        at_client("status_or_close", equals=400),
        at_client("refused_or_status", equals=503),
        at_client("connection_closed", max_ms=50),
        at_client("header", name="Content-Type", equals="text/plain"),
        at_client("body_json", path="choices.0.text", equals="x"),
        at_client("body_contains", text="never said"),
        at_client("body_not_contains", text="Rhine"),
        at_client("decodes_to_json", path="model", equals="x"),
        at_client("text", equals="The Rhone."),
        at_client("tool_calls", equals=[{"name": "x", "arguments": {}}]),
        at_client("usage", equals=None),
        at_client("sse_error_frame"),
        at_client("no_clean_end_without_error"),
        at_client("time_ms", max=0),
        at_client("head_ms", max=0),
        at_client("first_frame_ms", p95=0),
        at_client("frame_delay_ms", max=-1),
        at_client("raises", classes=["APIError"]),
        at_backend("requests", equals=2),
        at_backend("req_json", path="temperature", equals=0.6),
        at_backend("req_json", path="model", absent=True),
        at_backend("req_json_length", path="model", equals=1),
        at_backend("req_header", name="Authorization", equals="Bearer engine"),
        at_backend("req_header_count", name="Content-Length", equals=2),
        at_backend("req_headers_not_contain", text="t-0"),
        at_backend("share", nodes=["a"], max=0.5),
        at_log("record", count=2),
        at_log("record", count=1, fields={"outcome": "upstream_error"}),
        at_log("total", equals=0),
        at_log("contains", text="never said"),
        at_log("not_contains", text="nothing reads"),
        {"at": "proxy", "check": "same_class"},
        {"at": "proxy", "check": "health_ms", "max": -1},
        {"at": "proxy", "check": "exit", "of": "r1", "code": 0},
    ],
    ids=lambda check: f"{check['at']}.{check['check']}",
)
def test_each_check_can_fail(check: Mapping[str, Any], tmp_path: Path) -> None:
    request = {"headers": {"X-Team": "t-{i}", "Authorization": "Bearer client"}}
    given = case([chat_ok("The Rhine.")], check, request=request)
    actions: list[dict[str, Any]] = [{"do": "send", "as": "r1"}]
    if check["check"] == "exit":
        actions = [{"do": "signal", "signal": "TERM"}, {"do": "wait_exit", "as": "r1", "max_ms": 1}]
        actions.append({"do": "send", "as": "r2"})
    given = Case.of({**_as_json(given), "scenario": actions})

    assert [finding.check for finding in verify(given, tmp_path, no_proxy)] == [check]


def _as_json(given: Case) -> dict[str, Any]:
    return {
        "id": given.id,
        "title": given.title,
        "request": given.request,
        "backend": {"nodes": list(given.nodes)},
        "expect": {"must": list(given.must)},
    }


def test_a_broken_stream_is_seen_by_bytes_and_by_the_sdk(tmp_path: Path) -> None:
    given = case(
        [stream_head(), delta(content="The "), pause(5), CLOSE],
        at_client("raises", classes=["APIConnectionError", "RemoteProtocolError"]),
        at_client("no_clean_end_without_error"),
        at_client("text", equals="The "),
        request={"body": {**BODY, "stream": True}},
        client="openai",
    )

    assert verify(given, tmp_path, no_proxy) == []


def test_only_a_missed_time_is_tried_again(tmp_path: Path) -> None:
    slow = case([chat_ok("x")], at_client("time_ms", max=0))
    wrong = case([chat_ok("x")], at_client("time_ms", max=0), at_client("status", equals=1))

    verify_patiently(slow, tmp_path / "slow", no_proxy)
    verify_patiently(wrong, tmp_path / "wrong", no_proxy)

    assert len(list((tmp_path / "slow").iterdir())) == 3
    assert len(list((tmp_path / "wrong").iterdir())) == 1


def test_a_check_that_nobody_knows_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such check"):
        verify(case([chat_ok("x")], at_client("vibes")), tmp_path, no_proxy)
    with pytest.raises(ValueError, match="neither a comparison"):
        compare(1, {"equal": 1}, "a value")


# --- actions -------------------------------------------------------------------------


def test_a_scenario_is_carried_out_in_order(tmp_path: Path) -> None:
    given = case(
        [stream_head(), delta(content="a"), CLOSE],
        at_client("status", of=["many", "own", "cut"], equals=200),
        at_client("text", of="own", equals="mine"),
        at_client("refused_or_status", of="down", equals=0),
        at_client("poll_ok", max_ms=5000),
        at_client("no_clean_end_without_error", of=["many", "reset"]),
        at_backend("peer_closed", of="left", max_ms=5000),
        at_backend("req_header", of="many", name="X-Team", contains="t-"),
        at_backend("one_node_per", of="many", key="header:X-Team"),
        at_backend("req_json", of="many", path="n", equals=3),
        scenario=[
            {"do": "send", "as": "many", "count": 6, "concurrency": 3, "vary": {"i": "n % 2"}}
            | {"override": {"body.n": 3}},
            {"do": "send", "as": "own", "backend_steps": [chat_ok("mine")]},
            {"do": "send", "as": "cut"},
            {"do": "backend_steps", "node": "a", "replace_last": {"do": "reset"}},
            {"do": "send", "as": "reset"},
            {"do": "backend_set", "node": "a", "listen": "refuse"},
            {"do": "send", "as": "down"},
            {"do": "parallel", "actions": [
                {"do": "poll", "as": "back", "until_status": 200, "every_ms": 5, "max_ms": 5000},
                {"do": "after", "ms": 20, "action":
                    {"do": "backend_set", "node": "a", "listen": "normal"}},
            ]},
            {"do": "send", "as": "left", "close_after_ms": 50,
             "backend_steps": [{"do": "wait_disconnect", "max_ms": 60_000}]},
        ],
    )  # fmt: skip

    assert verify(given, tmp_path, no_proxy) == []


def test_an_action_that_nobody_knows_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such action"):
        verify(case([chat_ok("x")], scenario=[{"do": "dance"}]), tmp_path, no_proxy)


def test_what_a_case_overrides() -> None:
    request = {"path": CHAT, "headers": {"Accept": "x", "Y": "y"}, "body": {"a": {"b": 1}, "c": 2}}

    changed = overridden(request, {"headers.accept": None, "body.a.b": None, "method": "GET"})
    assert changed == {
        "path": CHAT,
        "method": "GET",
        "headers": {"Y": "y"},
        "body": {"a": {"b": None}, "c": 2},
    }
    assert "body" not in overridden(request, {"body": None})
    assert overridden(request, {"body_text": "no"}).keys() == {"path", "headers", "body_text"}
    assert request["body"] == {"a": {"b": 1}, "c": 2}


def test_generated_bodies_and_sdk_fields_become_bytes() -> None:
    fill = {"kind": "json_fill", "path": "messages.0.content", "char": "a", "count": 5}
    request = {"path": CHAT, "body": BODY, "body_gen": fill, "sdk_extra_body": {"top_k": 4}}

    out = outgoing(request, number=0, label="r1-0")

    assert lookup(out.json, "messages.0.content") == "aaaaa"
    assert b'"top_k": 4' in out.raw
    assert "top_k" not in out.json


def test_numbers_follow_the_formula() -> None:
    assert numbers(4, {}) == [0, 1, 2, 3]
    assert numbers(4, {"i": "n % 2"}) == [0, 1, 0, 1]
    assert numbers(2, {"i": "n + 500"}) == [500, 501]
    with pytest.raises(ValueError, match="formula"):
        numbers(1, {"i": "__import__('os')"})


def test_json_values_are_compared_as_json() -> None:
    assert same({"a": [0, None]}, {"a": [0.0, None]})
    assert not same(True, 1)
    assert not same([1], [1, 2])
    assert lookup({"a": [{"b": None}]}, "a.0.b") is None
    assert lookup({"a": []}, "a.0") is MISSING


# --- names ---------------------------------------------------------------------------


@pytest.mark.parametrize("given", [*OWN, *BESIDE], ids=lambda given: given.id)
def test_every_word_of_every_case_is_known(given: Case) -> None:
    for check in (*given.must, *given.should):
        assert (check["at"], check["check"]) in CHECKS

    made = settings(given.config, {"a": ("http://127.0.0.1:1", "vllm")})

    assert made.config["backends"][0]["name"] == "a"
    if "policy" in given.config:
        policy.parse(policy_text(given.config["policy"]))


def test_an_unknown_hint_is_an_error() -> None:
    with pytest.raises(ValueError, match="no such hint"):
        settings({"limits": {"spoons": 3}}, {})
    with pytest.raises(ValueError, match="no such hint"):
        settings({"policy": {"mood": "good"}}, {})


def test_meanings_find_their_fields() -> None:
    record = {"outcome": "rejected", "thinking": "off", "params": {"top_p": [0, 1, "force"]}}

    assert field_matches(record, "outcome", "proxy_error")
    assert not field_matches(record, "outcome", "ok")
    assert field_matches(record, "thinking", "off")
    assert field_matches(record, "original.top_p", 0)
    assert not field_matches(record, "original.top_k", 0)


# --- parts ---------------------------------------------------------------------------


def test_the_sdk_gets_what_a_raw_client_gets() -> None:
    refusal = reply_json({"error": {"message": "too long"}}, status=400)
    with ScriptedBackend([refusal]) as backend:
        raw = exchange(backend.port, request_bytes("POST", CHAT, {}, BODY))
        reply, view = sdk_chat(backend.port, {"X-Note": "n"}, BODY, {"top_k": 2})

        assert (reply.status, reply.body) == (raw.status, raw.body)
        assert "BadRequestError" in view.error_classes
        assert "too long" in str(view.error)
        assert backend.requests[1].header("x-note") == "n"
        assert backend.requests[1].json == {**BODY, "top_k": 2}


def test_the_sdk_meets_a_refusal() -> None:
    with ScriptedBackend(listen="refuse") as backend:
        reply, view = sdk_chat(backend.port, {}, BODY)

    assert reply.refused
    assert "APIConnectionError" in view.error_classes


@pytest.mark.parametrize(
    "how",
    [
        {"how": "in_place"},
        {"how": "in_place_pieces", "split": [0.3, 0.6], "pause_ms": 1},
        {"how": "rename"},
        {"how": "delete_create"},
        {"how": "symlink_swap"},
    ],
    ids=lambda how: str(how["how"]),
)
def test_a_file_is_saved_in_every_way(how: Mapping[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("old")
    for text in ("a = 1\nb = 2\nc = 3\n", "d = 4\ne = 5\nf = 6\n"):
        write_file(path, text, how)

        assert path.read_text() == text
    assert path.is_symlink() == (how["how"] == "symlink_swap")


def test_a_file_is_cut_at_the_ends_of_lines() -> None:
    text = "a = 1\nb = 2\nc = 3\n"

    assert pieces(text, [0.34, 0.67]) == ["a = 1\nb = 2\n", "c = 3\n", ""]


def test_a_half_written_policy_is_toml_but_not_the_new_policy() -> None:
    text = policy_text({"mode": "force", "set": {"temperature": 0.2}})

    first, second, third = pieces(text, [0.34, 0.67])

    assert "temperature" in third
    assert "temperature" not in first + second
    policy.parse(first + second)


def test_all_checks_are_registered_by_importing_one_module() -> None:
    places = {at for at, _ in CHECKS}

    assert caseverify.verify is verify
    assert places == {"client", "backend", "log", "proxy", "redis"}


if shutil.which("redis-server"):  # runs where a Redis is offered

    def test_the_redis_stand_keeps_delays_and_counts(tmp_path: Path) -> None:
        with RedisStand(tmp_path) as stand:
            assert stand.keys() == {}
            _set(stand, "alpha", seconds=90)
            stand.delay_s = 0.001
            _set(stand, "beta")
            stand.freeze()
            stand.thaw()
            keys = stand.keys()

            assert keys.keys() == {"alpha", "beta"}
            assert 0 < keys["alpha"] <= 90
            assert keys["beta"] == -1

    def _set(stand: RedisStand, key: str, seconds: int | None = None) -> None:
        port = int(stand.url.rsplit(":", 1)[1].split("/")[0])
        life = "" if seconds is None else f" EX {seconds}"
        with socket.create_connection(("127.0.0.1", port), 5) as sock:
            sock.sendall(f"SET {key} x{life}\r\n".encode())
            assert sock.recv(100) == b"+OK\r\n"
