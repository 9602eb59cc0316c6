"""A request is never lost to what counts it: journeys with a store that fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from router import app, policy
from router.chat import Endpoint
from router.config import Backend, Config
from router.exchange import Exchange
from router.keyring import Allowance, Grant
from router.message import AnswerHead, Request
from router.pipeline import Pipeline
from router.ports import AnswerListener, Attempt, Order
from router.ratebook import MemoryRates
from router.rates import Standing
from router.record import Record
from router.sessions import MemorySessions
from router.telemetry import Metrics
from router.toll import Toll
from tests.support.clocks import HandClock

POLICY = 'schema = 1\ndefault_scenario = "chat"\n[scenarios.chat]\n'
BODY = b'{"model":"auto","messages":[{"role":"user","content":"Hello."}]}'
ANSWER = b'{"choices":[{"index":0,"message":{"content":"Hi."},"finish_reason":"stop"}]}'
GRANT = Grant("shop", allowance=Allowance(60, 1000, 1000, 5))


class AtOnce:
    """A backend that answers before anybody can wait for it."""

    inflight = 0

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def send(
        self, head: bytes, body: bytes, method: bytes, listener: AnswerListener, **how: Any
    ) -> Attempt:
        listener.on_sent()
        kind = (b"content-type", b"application/json")
        listener.on_whole(AnswerHead(200, [kind], dict([kind]), True), ANSWER)
        return self

    def cancel(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class Client:
    """What it was sent."""

    def __init__(self) -> None:
        self.got = b""
        self.is_over = False

    def write(self, data: bytes) -> None:
        self.got += data

    def finish(self, *, keep: bool) -> None:
        self.is_over = True

    def abort(self) -> None:
        raise AssertionError


class Log:
    def __init__(self) -> None:
        self.records: list[Record] = []

    def write(self, record: Record) -> None:
        self.records.append(record)


class Failing:
    """A store of which one function fails."""

    is_shared = False

    def __init__(self, clock: HandClock, function: str) -> None:
        self._store = MemoryRates(clock)
        self._function = function

    def _that(self, function: str) -> MemoryRates:
        if function == self._function:
            raise RuntimeError("what nobody thought of")
        return self._store

    def look(self, toll: Toll) -> Standing:
        return self._that("look").look(toll)

    def ask(self, toll: Toll, then: Callable[[Toll], None]) -> None:
        self._that("ask").ask(toll, then)

    def over(self, toll: Toll) -> None:
        self._that("over").over(toll)

    def settle(self, toll: Toll, tokens: int) -> None:
        self._that("settle").settle(toll, tokens)

    def status(self) -> dict[str, Any]:
        return self._store.status()

    async def start(self) -> None: ...
    async def close(self) -> None: ...


@pytest.mark.parametrize("function", ["", "look", "ask", "over", "settle"])
def test_whatever_fails_the_request_is_served_and_recorded(function: str) -> None:
    clock, log, client = HandClock(), Log(), Client()
    config = Config.model_validate({"backends": [{"name": "a", "url": "http://h:1", "model": "m"}]})
    live = app.live_of(config, policy.parse(POLICY), app.slots_of(config, AtOnce))
    pipeline = Pipeline(
        live,
        log,
        Metrics(),
        clock,
        lambda work: None,
        MemorySessions(clock),
        rates=Failing(clock, function),
    )
    http = Request(b"POST", b"/v1/chat/completions", [], {}, False, True, BODY)
    exchange = Exchange(
        pipeline, Order(http, Endpoint.CHAT, b"/v1/chat/completions", GRANT), client
    )

    with capture_logs() as lines:
        exchange.start()
        pipeline.settle()

    assert client.got.startswith(b"HTTP/1.1 200")
    assert client.got.endswith(ANSWER)
    assert client.is_over
    (record,) = log.records
    assert (record.status, record.outcome, record.key) == (200, "ok", "shop")
    assert bool(lines) == bool(function)
    assert (b"x-ratelimit-" in client.got) == (function != "look")
