"""Requests of a log through another policy: the known rows and no others, the very bytes."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router import forecast, replaying
from router.commands import offline
from router.commands.replay import kept_of, last_records
from router.record import Record
from router.replaying import Replay
from router.verdict import Live
from tests.support.product import ROOT, Product
from tests.support.rawclient import exchange, request_bytes
from tests.support.script import chat_ok
from tests.support.scripted import ScriptedBackend

CHAT = "/v1/chat/completions"
POLICY = """\
schema = 1
default_scenario = "chat"
[defaults.direct]
top_p = 0.8
[scenarios.chat]
preset.thinking = { fill = false }
[scenarios.faq]
match.keywords = ["refund"]
[scenarios.faq.preset]
thinking = { fill = false }
max_new_tokens = { cap = 64 }
"""
#: one word more, and a lower cap
EDITED = POLICY.replace('"refund"', '"refund", "parcel"').replace("64", "32")
#: name → prompt, other members, headers
ASKED: Mapping[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "faq": ("A refund?", {}, {}),
    "faq-own": ("A refund, soon?", {"max_tokens": 20, "temperature": 0.3}, {}),
    "faq-json": ("A refund as JSON?", {"response_format": {"type": "json_object"}}, {}),
    "parcel": ("Where is my parcel?", {}, {"x-session-id": "p"}),
    "chat": ("Hello there", {"stream": True, "seed": 7, "stop": ["\n", "END"]}, {}),
    "forced": ("Hello again", {}, {"x-router-scenario": "faq"}),
    "alias": ("Hello, you", {"model": "auto:faq"}, {}),
    "thinking": ("A refund, why? /think", {}, {}),
}
#: what the edit changes: by the prompts, and where none were kept
BY_BODY = {"faq", "forced", "alias", "parcel"}
BY_FEATURES = {"faq", "forced", "alias"}


class Log:
    """What was asked, what the backend got, and the folder that the router left."""

    def __init__(self, folder: Path, sent: Mapping[str, bytes]) -> None:
        self.folder = folder
        self.sent = sent  # by the request's id
        self.config = folder / "config.toml"

    def keep_bodies(self) -> None:
        """As if the router had kept prompts."""
        for path in (self.folder / "kept").iterdir():
            shutil.copy(path, self.folder / "logs" / path.name)

    def forget_bodies(self) -> None:
        for path in (self.folder / "logs").glob("bodies-*"):
            path.unlink()

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def replay(self, text: str, *args: str) -> tuple[int, dict[str, Any]]:
        policy = self.write("other.toml", text)
        ran = subprocess.run(
            [sys.executable, "-m", "router", "replay", "--config", str(self.config),
             "--policy", str(policy), "--json", *args],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ran.returncode in (0, 1), ran.stderr
        return ran.returncode, json.loads(ran.stdout)

    def live(self, text: str) -> Live:
        policy = self.write("side.toml", text)
        live = offline.live(argparse.Namespace(config=self.config, policy=str(policy)))
        assert live is not None
        return live


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    folder = tmp_path_factory.mktemp("replayed")
    with ScriptedBackend([chat_ok("It is on its way to you.")]) as backend:
        one = {"name": "one", "url": backend.url, "model": "qwen3-0.6b", "dialect": "vllm"}
        config = {"backends": [one], "log": {"flush_ms": 10, "bodies": "on"}}
        with Product.start(folder, config, policy=POLICY) as product:
            for name, (text, members, headers) in ASKED.items():
                body = {"model": "auto", "messages": [{"role": "user", "content": text}]}
                raw = msgspec.json.encode({**body, **members})
                head = {"x-request-id": name, **headers}
                reply = exchange(product.port, request_bytes("POST", CHAT, head, raw))
                assert reply.status == 200, reply.text
            product.wait_records(len(ASKED))
        sent = {str(seen.header("x-request-id")): seen.body for seen in backend.requests}
    (folder / "kept").mkdir()
    for path in (folder / "logs").glob("bodies-*"):
        path.rename(folder / "kept" / path.name)
    return Log(folder, sent)


@pytest.fixture
def with_bodies(log: Log) -> Iterator[Log]:
    log.keep_bodies()
    yield log
    log.forget_bodies()


def differing(told: Mapping[str, Any]) -> set[str]:
    return {row["request_id"] for row in told["rows"]}


def test_the_same_policy_makes_no_difference_with_prompts_or_without(log: Log) -> None:
    for is_kept in (False, True):
        if is_kept:
            log.keep_bodies()
        code, told = log.replay(POLICY)

        assert (code, told["rows"], told["differing"]) == (0, [], 0)
        assert told["requests"] == len(ASKED)
        assert told["reproduced"] == {"as_recorded": len(ASKED), "of": len(ASKED)}
        assert all(f["tokens_change"] == [0, 0, 0] for f in told["forecasts"])
    assert told["by_body"] == len(ASKED)
    log.forget_bodies()


def test_a_known_edit_gives_exactly_the_known_rows(with_bodies: Log) -> None:
    code, told = with_bodies.replay(EDITED)

    assert code == 1
    assert differing(told) == BY_BODY
    rows = {row["request_id"]: row for row in told["rows"]}
    for name in ("faq", "forced", "alias"):
        assert rows[name]["changed"] == {"max_new_tokens": [64, 32]}
    assert rows["parcel"]["before"]["scenario"] == "chat"
    assert rows["parcel"]["after"]["scenario"] == "faq"
    assert rows["parcel"]["changed"] == {"max_new_tokens": [None, 32]}
    moved = {(m["before"], m["after"]): m["requests"] for m in told["scenarios"]}
    assert moved == {("faq", "faq"): 6, ("chat", "faq"): 1, ("chat", "chat"): 1}


def test_without_prompts_the_scenario_stays_and_the_parameters_do_not(log: Log) -> None:
    code, told = log.replay(EDITED)

    assert code == 1
    assert differing(told) == BY_FEATURES
    assert {row["basis"] for row in told["rows"]} == {"features"}
    gone = POLICY.replace("scenarios.faq", "scenarios.help")
    _, told = log.replay(gone)
    assert differing(told) == {"faq", "faq-own", "faq-json", "forced", "alias", "thinking"}
    assert all("no scenario 'faq'" in row["after"]["fault"] for row in told["rows"])


def test_the_limit_and_the_time_choose_the_last_requests(log: Log) -> None:
    _, told = log.replay(EDITED, "--limit", "2")
    assert told["requests"] == 2
    assert differing(told) <= {"alias", "thinking"}

    ran = subprocess.run(
        [sys.executable, "-m", "router", "replay", "--config", str(log.config), "--policy",
         str(log.folder / "other.toml"), "--since", "2999-01-01T00:00:00Z"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 2
    assert "no requests" in ran.stderr


def replayed(log: Log, text: str) -> Replay:
    folder = log.folder / "logs"
    records, _ = last_records(folder, None, 1000)
    kept = kept_of(folder, records)
    return replaying.replay(records, kept, log.live(POLICY), log.live(text))


def test_its_bytes_are_those_that_were_served_and_that_explain_tells(with_bodies: Log) -> None:
    log, found = with_bodies, replayed(with_bodies, EDITED)

    for row in found.rows:
        name = row.record.request_id
        served = json.loads(log.sent[name])
        assert json.loads(row.bodies[0]) == served or name in ("faq-own", "chat"), name
        assert row.is_whole == (name != "chat")  # of its stop words the log has the length
        if name in ("faq", "parcel", "thinking", "forced"):  # the client's bytes are known
            assert row.bodies[0] == log.sent[name], name
        headers = [f"--header={k}:{v}" for k, v in ASKED[name][2].items()]
        ran = subprocess.run(
            [sys.executable, "-m", "router", "explain", "--json", "--config", str(log.config),
             "--policy", str(log.write("edited.toml", EDITED)), *headers],
            cwd=ROOT, capture_output=True, input=row.request.raw, check=True,
        )  # fmt: skip
        explained = json.loads(ran.stdout)
        assert explained["body"].encode() == row.bodies[1], name
        assert explained["scenario"] == row.after.scenario


def test_people_are_told_the_same(with_bodies: Log) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "router", "replay", "--config", str(with_bodies.config),
         "--policy", str(with_bodies.write("edited.toml", EDITED))],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert ran.returncode == 1
    lines = ran.stdout.splitlines()
    for line in (
        "8 requests: 8 by what was said, 0 by their features alone; 0 passed over",
        "of 8 that the first policy served, 8 come out as they were recorded",
        "4 differ",
        "scenario    chat -> faq: 1",
        "parameter   faq max_new_tokens: 64 -> 32: 3",
        "parameter   faq max_new_tokens: – -> 32: 1",
    ):
        assert line in lines
    assert any(line.startswith("request     parcel: chat -> faq") for line in lines)
    assert any(line.startswith("forecast    faq: 7.0 -> 7.0 tokens (as it was)") for line in lines)


def test_some_are_really_sent_as_either_policy_says_them(with_bodies: Log) -> None:
    with ScriptedBackend([chat_ok("It is on its way to you.")]) as backend:
        _, told = with_bodies.replay(EDITED, "--run", "3", "--url", backend.url)

        assert (told["run"]["candidates"], told["run"]["sent"]) == (len(BY_BODY), 3)
        assert told["run"]["failed"] == 0
        bodies = [seen.body for seen in backend.requests]
        rows = {row.record.request_id: row for row in replayed(with_bodies, EDITED).rows}
        chosen = [rows[pair["request_id"]] for pair in told["run"]["pairs"]]
        assert sorted(bodies) == sorted(body for row in chosen for body in row.bodies)
        assert told["run"]["output_tokens"]["ratio"] == 1
        assert told["run"]["total"]["low"] is None  # three pairs are too few


def test_an_experiment_in_the_other_policy_is_told_by_its_arms(with_bodies: Log) -> None:
    arms = (
        '[experiments.short]\nscenarios = ["faq"]\n[experiments.short.arms.control]\n'
        "[experiments.short.arms.b.preset]\nmax_new_tokens = { cap = 16 }\n"
    )

    _, told = with_bodies.replay(POLICY + arms)

    asked = {"faq", "faq-own", "faq-json", "alias", "thinking"}
    assert differing(told) == asked
    for row in told["rows"]:
        arm = row["after"]["arm"]
        assert arm in ("short/control", "short/b")
        if row["request_id"] in ("faq", "alias"):
            assert row["after"]["params"]["max_new_tokens"] == (16 if arm == "short/b" else 64)


@settings(max_examples=30, deadline=None)
@given(cap=st.integers(1, 200), drop=st.sets(st.sampled_from(["top_p", "thinking"])))
def test_rows_differ_where_what_is_sent_differs_and_nowhere_else(
    log: Log, cap: int, drop: set[str]
) -> None:
    lines = [line for line in POLICY.splitlines() if line.split(" ")[0] not in drop]
    found = replayed(log, "\n".join(lines).replace("64", str(cap)))

    for row in found.rows:
        if row.before.scenario == row.after.scenario and not row.after.fault:
            assert bool(row.changed) == (row.bodies[0] != row.bodies[1])
    if cap == 64 and not drop:
        assert found.differing == []


# --- forecasts --------------------------------------------------------------------------------


def answers(count: int, tokens: int, scenario: str = "faq", **fields: Any) -> list[Record]:
    told: dict[str, Any] = {
        "ts": "2026-01-01T00:00:00.000Z",
        "endpoint": "chat.completions",
        "client_model": "auto",
        "backend": "one",
        "dialect": "vllm",
        "scenario": scenario,
        "source": "keyword",
        "thinking": False,
        "outcome": "ok",
        "finish_reason": "stop",
        "output_tokens": tokens,
        "total_ms": 10.0 + 2.0 * tokens,
    }
    return [
        Record(
            **{
                **told,
                "request_id": f"{scenario}-{tokens}-{at}",
                "session": f"{tokens}-{at}",
                **fields,
            }
        )
        for at in range(count)
    ]


def forecast_of(log: Log, records: list[Record], text: str) -> dict[str, forecast.Forecast]:
    found = replaying.replay(records, {}, log.live(POLICY), log.live(text))
    return {guess.scenario: guess for guess in forecast.forecasts(found.rows, Random(1))}


def test_a_lower_cap_cuts_answers_there_and_time_with_them(log: Log) -> None:
    records = answers(30, 60) + answers(30, 20)

    guess = forecast_of(log, records, EDITED)["faq"]  # 64 -> 32

    assert guess.tokens == (40, 26)
    assert guess.ms == pytest.approx((90, 62))
    assert guess.tokens_change is not None
    middle, low, high = guess.tokens_change
    assert middle == pytest.approx(-0.35)
    assert low < middle < high
    assert guess.without_basis == 0


def test_a_higher_cap_leaves_whole_answers_and_has_no_basis_for_cut_ones(log: Log) -> None:
    records = answers(30, 20) + answers(5, 64, finish_reason="length")

    guess = forecast_of(log, records, POLICY.replace("64", "128"))["faq"]

    assert guess.tokens == (20, 20)
    assert (guess.requests, guess.without_basis) == (35, 5)


def test_another_mode_has_no_basis_but_the_logs_own_answers_in_it(log: Log) -> None:
    thinking = POLICY.replace("thinking = { fill = false }\nmax", "thinking = true\nmax")
    asked: dict[str, Any] = {"thinking": True, "params": {"thinking": (True, True, "client")}}
    few = answers(30, 20) + answers(19, 300, **asked)

    assert forecast_of(log, few, thinking)["faq"].without_basis == 30
    enough = answers(30, 20) + answers(25, 300, **asked)
    guess = forecast_of(log, enough, thinking)["faq"]
    assert guess.without_basis == 0
    assert guess.tokens is not None
    assert guess.tokens[1] == pytest.approx(300)


def test_what_failed_and_what_is_alike_is_left_out_or_as_it_was(log: Log) -> None:
    failed = answers(10, 0, outcome="upstream_error", output_tokens=None)

    guess = forecast_of(log, failed + answers(30, 20, scenario="chat"), EDITED)

    assert guess["faq"].tokens is None
    assert guess["faq"].without_basis == 10
    assert guess["chat"].tokens_change == (0, 0, 0)
