"""Requests repeated in another arm: after the answer, while nothing else is to do, and marked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from router import logquery
from router.recordfiles import Skipped
from tests.clients.demo import await_fact
from tests.support.product import Product
from tests.support.rawclient import exchange, request_bytes
from tests.support.script import Step, chat_ok, delta, reply_json, stream_head
from tests.support.scripted import ScriptedBackend
from tests.support.trying import POLICY, SLOW, arms, ask, question, session_in, start

SHADOWED = POLICY.split("[experiments.pace.arms.same]")[0].replace(
    "[experiments.pace.guard]", "shadow.share = 1.0\n[experiments.pace.guard]"
)
HELD: list[Step] = [stream_head(), delta(content="…"), {"do": "wait_disconnect", "max_ms": 60_000}]


def answering(*steps: Step) -> list[dict[str, Any]]:
    return [{"when": {"body_eq": {"temperature": SLOW}}, "steps": list(steps)}]


@pytest.fixture
def backend() -> Iterator[ScriptedBackend]:
    rules = answering(chat_ok("one two three four"))
    with ScriptedBackend([chat_ok("one two")], rules=rules) as running:
        yield running


def shadows(product: Product) -> list[dict[str, Any]]:
    return [record for record in product.records() if record["shadow"]]


@pytest.mark.parametrize("stream", [False, True])
def test_each_request_is_repeated_in_the_other_arm_and_counts_for_nothing(
    tmp_path: Path, backend: ScriptedBackend, stream: bool
) -> None:
    with start(tmp_path, backend, SHADOWED) as product:
        raw = [
            request_bytes(
                "POST",
                "/v1/chat/completions",
                {"x-session-id": f"s-{number}", "x-request-id": f"r-{number}"},
                {
                    "messages": [{"role": "user", "content": "Name a river."}],
                    "stream": stream,
                },
            )
            for number in range(6)
        ]
        told = [exchange(product.port, one).header("x-router-experiment") for one in raw]
        found = await_fact(lambda: s if len(s := shadows(product)) == 6 else [])

        assert (
            {f"pace/{record['arm']}" for record in found}
            == set(told)
            == {
                "pace/control",
                "pace/slow",
            }
        )
        by_id = {record["request_id"]: record for record in found}
        for number, arm in enumerate(told):
            record = by_id[f"r-{number}-shadow"]
            assert f"pace/{record['arm']}" != arm
            assert record["output_tokens"] == (4 if record["arm"] == "slow" else 2)
            assert record["stream"] is stream
            assert (record["outcome"], record["finish_reason"]) == ("ok", "stop")
        row = await_fact(lambda: (r := arms(product)["slow"]["shadow"]) and r["pairs"] == 6 and r)
        assert row["ratio"] == 2.0
        counts = [arm["requests"] for arm in arms(product).values()]
        assert sum(counts) == 6
        page = exchange(product.port, request_bytes("GET", "/metrics")).text
        requests = [
            line for line in page.splitlines() if line.startswith("scenario_router_requests_total{")
        ]
        assert sum(float(line.rsplit(" ", 1)[1]) for line in requests) == 6
        lines = b"".join(path.read_bytes() for path in product.log_dir.glob("requests-*"))
        found_rows = logquery.rows(lines.splitlines(), logquery.Choice(), Skipped())
        assert logquery.sums(found_rows)["chat"].count == 6
        sent = sum(seen.json.get("temperature") == SLOW for seen in backend.requests)
        assert (len(backend.requests), sent) == (12, 6)


def test_it_is_given_up_at_once_when_something_real_comes(
    tmp_path: Path, backend: ScriptedBackend
) -> None:
    with start(tmp_path, backend, SHADOWED) as product:
        backend.set_script([chat_ok("one two")], rules=answering(*HELD))
        control = session_in(product, "control")
        ask(product, control)
        _, repeated = backend.wait_requests(2)
        assert repeated.json["temperature"] == SLOW
        assert repeated.peer_closed_at is None
        assert product.get("/router/status")["backends"][0]["inflight"] == 0

        reply = ask(product, control, **{"x-router-policy": "off"})

        assert reply.status == 200
        assert repeated.wait_peer_closed() is not None
        product.wait_records(2)
        assert shadows(product) == []


def test_a_backend_that_takes_one_at_a_time_is_not_busy_for_its_sake(
    tmp_path: Path, backend: ScriptedBackend
) -> None:
    backend.set_script([chat_ok("one two")], rules=answering(*HELD))
    one = {"name": "one", "url": backend.url, "model": "m", "max_inflight": 1}
    with start(tmp_path, backend, SHADOWED, backends=[one], limits={"queue": 0}) as product:
        control = session_in(product, "control")
        ask(product, control)
        backend.wait_requests(2)

        assert exchange(product.port, question(control)).status == 200  # and not 429


def test_a_repetition_that_fails_is_told_in_its_record_alone(
    tmp_path: Path, backend: ScriptedBackend
) -> None:
    refusal = reply_json({"error": {"message": "no"}}, status=400)
    backend.set_script([chat_ok("one two")], rules=answering(refusal))
    with start(tmp_path, backend, SHADOWED) as product:
        for number in range(6):
            exchange(product.port, question(f"s-{number}"))
        found = await_fact(lambda: [s for s in shadows(product) if s["arm"] == "slow"])

        assert all(record["outcome"] == "upstream_error" for record in found)
        assert arms(product)["slow"]["shadow"] is None


def test_without_a_share_nothing_is_repeated(tmp_path: Path, backend: ScriptedBackend) -> None:
    with start(tmp_path, backend, SHADOWED.replace("shadow.share = 1.0", "")) as product:
        for number in range(4):
            ask(product, f"s-{number}")
        product.wait_records(4)
        assert product.stop() == 0

        assert len(backend.requests) == 4
        assert len(product.records()) == 4
