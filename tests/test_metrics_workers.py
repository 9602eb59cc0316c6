"""Two real workers behind one port: whichever is asked tells of both, also when one is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.clients.demo import await_fact
from tests.support.pool import CHAT, HOLD, POLICY, pool_of
from tests.support.product import Product
from tests.support.prometheus import Page, page_of
from tests.support.rawclient import RawConnection, exchange, request_bytes
from tests.support.script import Step, chat_ok, delta, reply_json, stream_head
from tests.support.scripted import ScriptedBackend

ASK: dict[str, Any] = {"model": "auto", "messages": [{"role": "user", "content": "Name a river."}]}
HELD: dict[str, Any] = {
    "model": "auto",
    "stream": True,
    "messages": [{"role": "user", "content": HOLD}],
}


@pytest.fixture
def product(tmp_path: Path) -> Iterator[Product]:
    held = [stream_head(), delta(content="…"), {"do": "wait_disconnect", "max_ms": 60_000}]
    rules = [{"when": {"body_text": HOLD}, "steps": held}]
    with ScriptedBackend([chat_ok("The Rhine.")], rules=rules) as backend:
        config = {
            "server": {"workers": 2, "grace_s": 1},
            "backends": [{"name": "one", "url": backend.url, "model": "m"}],
            "log": {"flush_ms": 10},
        }
        with Product.start(tmp_path, config, policy=POLICY) as running:
            yield running


def ask(product: Product) -> int | None:
    return exchange(product.port, request_bytes("POST", CHAT, None, ASK)).status


def status(product: Product) -> dict[str, Any]:
    """A connection of its own each time, so that any worker may answer."""
    found = product.get("/router/status")
    assert isinstance(found, dict)
    return found


def pages_of_both(product: Product) -> list[Page]:
    """Pages until both workers have surely been asked, as the kernel deals connections out."""
    return [page_of(product) for _ in range(12)]


def test_any_worker_tells_of_all_and_counts_outlive_a_kill(product: Product) -> None:
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda _: ask(product), range(60))) == [200] * 60
    await_fact(lambda: page_of(product).sum("requests_total") == 60)
    await_fact(lambda: all(p.sum("requests_total") == 60 for p in pages_of_both(product)))

    with RawConnection(product.port) as first, RawConnection(product.port) as second:
        for connection in (first, second):
            connection.send(request_bytes("POST", CHAT, None, HELD))
        await_fact(lambda: all(p.value("inflight") == 2 for p in pages_of_both(product)))
        assert page_of(product).value("backend_inflight", backend="one") == 2
        told = status(product)
        assert told["inflight"] == told["backends"][0]["inflight"] == 2
        assert sum(worker["inflight"] for worker in told["workers"]) == 2
        assert [worker["worker"] for worker in told["workers"]] == [0, 1]

        victim = told["workers"][0]["pid"]
        os.kill(victim, signal.SIGKILL)
        # At no moment less: not while the place is empty, not when another one has it.
        seen: list[float] = []

        def is_replaced() -> bool:
            try:
                page = page_of(product)
            except (ConnectionError, AssertionError):
                return False  # the kernel had given the connection to the one that was killed
            seen.append(page.sum("requests_total"))
            return page.value("worker_restarts_total") == 1 and page.value("workers") == 2

        await_fact(is_replaced)
    await_fact(lambda: page_of(product).value("inflight") == 0)
    assert min(seen) >= 60
    assert seen == sorted(seen)
    assert victim not in {worker["pid"] for worker in status(product)["workers"]}
    assert ask(product) == 200
    # Those two streams have ended as well, one of them unheard where the killed worker had it.
    await_fact(lambda: all(p.sum("requests_total") >= 61 for p in pages_of_both(product)))


def test_odd_requests_and_odd_answers_add_no_series(tmp_path: Path) -> None:
    """Paths, models, ids, sessions of clients; endings and statuses of a backend."""

    def answer(number: int) -> Step:
        choice = {
            "index": 0,
            "finish_reason": f"end-{number}",
            "message": {"role": "assistant", "content": "x"},
        }
        return reply_json({"choices": [choice], "model": f"m-{number}"}, 299 if number % 2 else 200)

    def throw(product: Product, number: int) -> None:
        backend.set_script([answer(number)])
        odd = {"x-request-id": f"id-{number}", "x-session-id": f"s-{number}"}
        path = f"/v1/path-{number}"
        exchange(product.port, request_bytes("POST", path, odd, ASK))
        exchange(product.port, request_bytes("POST", CHAT, odd, {**ASK, "model": f"m-{number}"}))
        exchange(product.port, request_bytes("POST", f"{CHAT}?x={number}", odd, ASK))
        exchange(product.port, request_bytes(f"M{number}", CHAT, odd, ASK))
        exchange(product.port, request_bytes("POST", f"/v1/embeddings?x={number}", odd, ASK))
        exchange(product.port, b"GET /metrics HTTP/1.1\r\nhost: a\r\nno colon %d\r\n\r\n" % number)

    with ScriptedBackend() as backend:
        config = {"backends": [{"name": "one", "url": backend.url, "model": "m"}]}
        with Product.start(tmp_path, config, policy=POLICY) as product:
            for number in range(4):
                throw(product, number)
            before = page_of(product)
            for number in range(4, 60):
                throw(product, number)
            after = page_of(product)

    assert before.sum("requests_total", finish_reason="other") > 0
    assert after.sum("requests_total", finish_reason="other") >= 60
    assert after.sum("requests_total", status="other") > 0
    # The same series; only buckets of times may have come by that nothing was counted in before.
    assert {name for name in after.samples if "seconds" not in name} == {
        name for name in before.samples if "seconds" not in name
    }
    for name, samples in after.samples.items():
        assert samples.keys() == before.samples[name].keys(), name


def test_a_retry_is_counted_where_the_attempt_failed_and_why(tmp_path: Path) -> None:
    with pool_of("a", "b") as pool, pool.start(tmp_path, settings={"keepalive_s": 4}) as product:
        for session in pool.sessions_of("a", 2):
            headers = {"x-session-id": session}
            exchange(product.port, request_bytes("POST", CHAT, headers, ASK))
        pool["a"].set_keepalive(close_when="next_request_arrives", first_only=True)
        exchange(product.port, request_bytes("POST", CHAT, headers, ASK))
        pool["a"].set_listen("refuse")
        exchange(product.port, request_bytes("POST", CHAT, headers, ASK))

        retries = page_of(product).samples["retries_total"]
        tried = [record["tried"] for record in product.wait_records(4) if record["retries"]]

    assert {frozenset(labels) for labels in retries} == {
        frozenset({("backend", "a"), ("reason", reason)}) for reason in ("stale", "unreachable")
    }
    assert tried[0] == [["a", "stale"]]
    assert tried[1][-1] == ["a", "unreachable"]
