"""Experiments on a running router: arms on the wire, a slow one found and stopped, and for good."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from tests.clients.demo import await_fact
from tests.support.product import Product
from tests.support.rawclient import RawConnection, RawReply, exchange, request_bytes
from tests.support.script import chat_ok, reply_json
from tests.support.scripted import ScriptedBackend
from tests.support.trying import (
    ANSWER_MS,
    POLICY,
    SAME,
    SLOW,
    SLOWER_MS,
    answering,
    arms,
    ask,
    paced_backend,
    question,
    start,
)

CLIENTS = 6


@pytest.fixture
def backend() -> Iterator[ScriptedBackend]:
    with paced_backend() as running:
        yield running


def post(product: Product, path: str) -> RawReply:
    return exchange(product.port, request_bytes("POST", path))


def traffic_until(product: Product, is_over: Callable[[], bool], within_s: float = 60.0) -> int:
    """Requests of a session each, some at a time, until something is so; how many it took."""
    numbers, deadline = count(), time.monotonic() + within_s
    stop = False

    def client(name: int) -> int:
        asked = 0
        with RawConnection(product.port) as connection:
            while not stop:
                connection.send(question(f"t{name}-{next(numbers)}"))
                reply = connection.read()
                assert reply.status in (200, 400), reply.text
                asked += 1
        return asked

    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(client, name) for name in range(CLIENTS)]
        try:
            while not is_over():
                assert time.monotonic() < deadline, arms(product)
                time.sleep(0.25)
        finally:
            stop = True
        return sum(one.result() for one in clients)


def sessions_by_arm(product: Product) -> dict[str, str]:
    found: dict[str, str] = {}
    for number in range(200):
        arm = str(ask(product, f"s-{number}").header("x-router-experiment"))
        found.setdefault(arm.partition("/")[2], f"s-{number}")
        if len(found) == 3:
            return found
    raise AssertionError(found)


def test_a_session_stays_in_its_arm_from_the_header_to_the_record(
    tmp_path: Path, backend: ScriptedBackend
) -> None:
    with start(tmp_path, backend) as product:
        sessions = sessions_by_arm(product)
        for arm, session in sessions.items():
            backend.requests.clear()
            reply = ask(product, session, "Name another one.")

            assert reply.header("x-router-experiment") == f"pace/{arm}"
            sent = backend.requests[-1].json.get("temperature")
            assert sent == {"slow": SLOW, "same": SAME, "control": None}[arm]
            explained = exchange(
                product.port,
                request_bytes(
                    "POST",
                    "/router/explain",
                    {"x-session-id": session},
                    {"messages": [{"role": "user", "content": "Name another one."}]},
                ),
            ).json()
            assert explained["experiment"]["arm"] == arm
            request_id = reply.header("x-request-id")
            records = await_fact(
                lambda: [r for r in product.records() if r["request_id"] == request_id]  # noqa: B023
            )
            assert (records[0]["experiment"], records[0]["arm"]) == ("pace", arm)
        assert ask(product, "s-1", "A refund?").header("x-router-experiment") is None
        forced = ask(product, "s-1", **{"x-router-scenario": "chat"})
        assert forced.header("x-router-experiment") is None
        off = ask(product, "s-1", **{"x-router-policy": "off"})
        assert off.header("x-router-experiment") is None
        metrics = exchange(product.port, request_bytes("GET", "/metrics")).text
        told = 'experiment_requests_total{experiment="pace",arm="slow",outcome="ok"}'
        assert f"scenario_router_{told}" in metrics
        assert 'experiment_arm_stopped{experiment="pace",arm="slow"} 0' in metrics


def test_an_arm_that_is_a_tenth_slower_is_found_and_stopped_by_its_rail_for_good(
    tmp_path: Path, backend: ScriptedBackend
) -> None:
    with start(tmp_path, backend, workers=2) as product:
        sessions = sessions_by_arm(product)
        traffic_until(product, lambda: arms(product)["slow"]["state"] == "stopped")

        found = arms(product)
        assert found["same"]["state"] == "running"
        assert "total is" in found["slow"]["stopped"]["because"]
        effect = found["slow"]["effect"]
        assert effect["low"] > 1.01
        # What the machine adds to either answer only makes the ratio smaller.
        assert effect["low"] < SLOWER_MS / ANSWER_MS
        assert effect["ratio"] > 1.01
        # Both workers hear of it, whichever found out.
        await_fact(
            lambda: (
                {
                    str(ask(product, sessions["slow"]).header("x-router-experiment"))
                    for _ in range(12)
                }
                == {"pace/control"}
            )
        )
        backend.requests.clear()
        for _ in range(6):
            ask(product, sessions["slow"])
        assert all("temperature" not in seen.json for seen in backend.requests)
        assert ask(product, sessions["same"]).header("x-router-experiment") == "pace/same"
        assert any("worse than its rail" in line for line in product.output)

    with start(tmp_path, backend) as product:  # a start later, all is as it was
        told = arms(product)
        assert told["slow"]["state"] == "stopped"
        assert told["slow"]["requests"] >= found["slow"]["requests"]
        assert ask(product, sessions["slow"]).header("x-router-experiment") == "pace/control"
        status = product.get("/router/status")["experiments"]
        assert status[0]["arms"][1]["state"] == "stopped"
        # Another experiment: its arm is drawn for again.
        product.policy_path.write_text(POLICY.replace("1.01", "9.0"), encoding="utf-8")
        product.signal(signal.SIGHUP)
        await_fact(lambda: arms(product)["slow"]["state"] == "running")
        assert arms(product)["slow"]["requests"] == 0
        assert ask(product, sessions["slow"]).header("x-router-experiment") == "pace/slow"


def test_an_arm_that_its_backend_refuses_is_stopped(
    tmp_path: Path, backend: ScriptedBackend
) -> None:
    refusal = reply_json({"error": {"message": "no such temperature"}}, status=400)
    backend.set_script([chat_ok("The Danube.")], rules=answering(refusal))

    with start(tmp_path, backend, POLICY.replace("total_ratio = 1.01", "")) as product:
        traffic_until(product, lambda: arms(product)["slow"]["state"] == "stopped")

        found = arms(product)
        assert found["slow"]["error_rate"] == 1
        assert "error answers" in found["slow"]["stopped"]["because"]
        assert found["same"]["state"] == "running"


def test_an_operator_stops_an_arm_and_starts_it_to_be_counted_anew(
    tmp_path: Path, backend: ScriptedBackend
) -> None:
    backend.set_script([chat_ok("The Danube.")])
    with start(tmp_path, backend) as product:
        sessions = sessions_by_arm(product)

        answer = post(product, "/router/experiments/pace/stop?arm=slow").json()
        [experiment] = answer["experiments"]
        assert [arm["state"] for arm in experiment["arms"]] == ["running", "stopped", "running"]
        assert experiment["arms"][1]["stopped"]["because"] == "stopped by command"
        raw = request_bytes(
            "POST",
            "/router/explain",
            {"x-session-id": sessions["slow"]},
            {"messages": [{"role": "user", "content": "Name a river."}]},
        )
        explained = exchange(product.port, raw).json()["experiment"]
        assert explained["arm"] == "control"
        assert explained["because"] == "its session drew slow, which is stopped"
        assert ask(product, sessions["slow"]).header("x-router-experiment") == "pace/control"

        post(product, "/router/experiments/pace/stop")
        assert ask(product, sessions["same"]).header("x-router-experiment") == "pace/control"

        post(product, "/router/experiments/pace/start")
        assert [arm["requests"] for arm in arms(product).values()] == [0, 0, 0]
        assert ask(product, sessions["slow"]).header("x-router-experiment") == "pace/slow"
        await_fact(lambda: arms(product)["slow"]["requests"] == 1)

        for path in ("nope/stop", "pace/stop?arm=nope", "pace/stop?arm=control"):
            reply = post(product, f"/router/experiments/{path}")
            assert reply.status == 404
            assert "There are" in reply.json()["error"]["message"]


def test_a_folder_that_cannot_be_written_costs_no_request_and_is_told(
    tmp_path: Path, backend: ScriptedBackend
) -> None:
    backend.set_script([chat_ok("The Danube.")])
    (tmp_path / "cache").write_text("a file in the place of the folder")
    with start(tmp_path, backend) as product:
        sessions = sessions_by_arm(product)

        answer = post(product, "/router/experiments/pace/stop?arm=slow").json()

        assert "cannot be told" in answer["warning"]
        assert ask(product, sessions["slow"]).header("x-router-experiment") == "pace/control"
        assert json.dumps(arms(product))
