"""What is counted by OpenTelemetry's conventions for generative AI."""

from __future__ import annotations

import os
import random
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import census
from router.boards import Board
from router.catalogue import CONVENTIONS, METRICS, Labels
from router.census import Census, Place
from router.exposition import Histogram
from router.record import Record
from router.telemetry import FORGOTTEN_S, Metrics
from tests.test_metrics import counts, milliseconds, report

DURATION = "gen_ai.server.request.duration"
FIRST = "gen_ai.server.time_to_first_token"
EACH = "gen_ai.server.time_per_output_token"
TOKENS = "gen_ai.client.token.usage"
HOST = b"127.0.0.1:8000"

Told = dict[str, dict[Labels, Histogram]]

finished = st.builds(
    Record,
    backend=st.just("a"),
    backend_model=st.sampled_from(["qwen3", None]),
    dialect=st.just("vllm"),
    endpoint=st.sampled_from(["chat.completions", "completions", "embeddings", "path-7"]),
    stream=st.booleans(),
    outcome=st.sampled_from(["ok", "client_error", "client_disconnect", "upstream_error"]),
    error_code=st.sampled_from([None, "backend_error", "words of a backend"]),
    total_ms=milliseconds,
    ttft_ms=milliseconds,
    tpot_ms=milliseconds,
    input_tokens=counts,
    output_tokens=counts,
)


def told(*entries: Record, host: bytes | None = HOST) -> Told:
    metrics = Metrics()
    observe(metrics, *entries, host=host)
    return metrics.counted().conventions


def observe(metrics: Metrics, *entries: Record, host: bytes | None = HOST) -> None:
    for entry in entries:
        metrics.by_conventions().observe(entry, host)


def request(**fields: Any) -> Record:
    usual: dict[str, Any] = {
        "endpoint": "chat.completions",
        "backend": "a",
        "backend_model": "qwen3",
        "dialect": "vllm",
        "outcome": "ok",
        "total_ms": 5.0,
    }
    return Record(**{**usual, **fields})


def many(found: Told, name: str) -> int:
    return sum(sum(histogram.counts) for histogram in found.get(name, {}).values())


def attributes(found: Told, name: str) -> list[dict[str, str]]:
    labels = CONVENTIONS[name].labels
    return [dict(zip(labels, values, strict=True)) for values in found.get(name, {})]


@given(st.lists(finished, max_size=200))
def test_each_value_is_counted_once(entries: list[Record]) -> None:
    found = told(*entries)

    fine = [entry for entry in entries if entry.outcome != "upstream_error" and entry.stream]
    tokens = [n for e in entries for n in (e.input_tokens, e.output_tokens) if n is not None]
    assert many(found, DURATION) == sum(entry.total_ms is not None for entry in entries)
    assert many(found, FIRST) == sum(entry.ttft_ms is not None for entry in fine)
    assert many(found, EACH) == sum(entry.tpot_ms is not None for entry in fine)
    assert many(found, TOKENS) == len(tokens)
    assert sum(h.total for h in found.get(TOKENS, {}).values()) == sum(tokens)
    for name, values in found.items():
        for labels, histogram in values.items():
            assert len(labels) == len(CONVENTIONS[name].labels)
            assert len(histogram.counts) == len(CONVENTIONS[name].buckets) + 1


@given(st.lists(finished, max_size=20), st.lists(finished, max_size=20))
def test_telling_in_between_changes_nothing(first: list[Record], then: list[Record]) -> None:
    metrics = Metrics()
    observe(metrics, *first)
    metrics.counted()
    observe(metrics, *then)
    found, alone = metrics.counted().conventions, told(*first, *then)

    assert found.keys() == alone.keys()
    for name, values in found.items():
        assert values.keys() == alone[name].keys()
        for labels, histogram in values.items():
            assert histogram.counts == alone[name][labels].counts
            assert histogram.total == pytest.approx(alone[name][labels].total)


@pytest.mark.parametrize(
    ("name", "entry", "bounds"),
    [
        (DURATION, {"total_ms": 10.0}, (0.01, 0.02)),
        (FIRST, {"ttft_ms": 60.0}, (0.06, 0.08)),
        (EACH, {"tpot_ms": 75.0}, (0.075, 0.1)),
        (TOKENS, {"input_tokens": 4096}, (4096, 16384)),
    ],
)
def test_a_value_on_an_edge_is_below_it(
    name: str, entry: dict[str, Any], bounds: tuple[float, float]
) -> None:
    ((_, histogram),) = told(request(stream=True, **entry))[name].items()

    at = CONVENTIONS[name].buckets.index(bounds[0])
    assert CONVENTIONS[name].buckets[at + 1] == bounds[1]
    assert histogram.counts[at] == sum(histogram.counts) == 1


def test_the_attributes_are_those_of_the_conventions() -> None:
    record = request(stream=True, ttft_ms=1.0, tpot_ms=1.0, input_tokens=1, output_tokens=2)
    found = told(record, host=b"[::1]:8000")

    where = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "qwen3",
        "server.address": "::1",
        "server.port": "8000",
        "scenario_router.backend": "a",
    }
    assert attributes(found, DURATION) == [{**where, "error.type": ""}]
    assert attributes(found, FIRST) == attributes(found, EACH) == [where]
    assert attributes(found, TOKENS) == [
        {**where, "gen_ai.token.type": kind} for kind in ("input", "output")
    ]
    assert CONVENTIONS.keys() == {DURATION, FIRST, EACH, TOKENS}
    assert not CONVENTIONS.keys() & METRICS.keys()


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ({"outcome": "ok"}, ""),
        ({"outcome": "client_error", "error_code": "invalid_value"}, ""),
        ({"outcome": "client_disconnect"}, ""),
        ({"outcome": "upstream_timeout", "error_code": "backend_timeout"}, "backend_timeout"),
        ({"outcome": "upstream_error", "error_code": "no_healthy_backend"}, "no_healthy_backend"),
        ({"outcome": "upstream_error", "error_code": "E-4711 of 12:03"}, "upstream_error"),
        ({"outcome": "rejected"}, "rejected"),
    ],
)
def test_what_went_wrong_is_of_a_closed_set(entry: dict[str, Any], error: str) -> None:
    (found,) = attributes(told(request(**entry)), DURATION)

    assert found["error.type"] == error


def test_where_no_backend_was_asked_a_fault_is_counted_and_a_mistake_is_not() -> None:
    nobody: dict[str, Any] = {"backend": None, "backend_model": None, "dialect": None}
    mistake = request(**nobody, outcome="client_error", error_code="model_not_found")
    fault = request(**nobody, outcome="rejected", error_code="rate_limit_exceeded")

    assert told(mistake, host=None) == {}
    (found,) = attributes(told(fault, host=None), DURATION)
    assert found["gen_ai.provider.name"] == "scenario_router"
    assert found["server.address"] == found["server.port"] == found["gen_ai.request.model"] == ""


def test_nothing_that_clients_or_backends_invent_adds_series_without_end() -> None:
    chance = random.Random(7)

    def odd() -> str:
        return "".join(chance.choices(string.printable + "退款", k=12))

    metrics = Metrics()
    for _ in range(5000):
        invented = {"error_code": odd(), "session": odd(), "client_model": odd()}
        observe(metrics, request(endpoint=odd(), outcome="upstream_error", **invented))
    (found,) = attributes(metrics.counted().conventions, DURATION)
    assert (found["gen_ai.operation.name"], found["error.type"]) == ("other", "upstream_error")

    for _ in range(5000):  # models that a backend makes up
        observe(metrics, request(backend_model=odd()))
    assert len(metrics.counted().conventions[DURATION]) <= 1100
    assert many(metrics.counted().conventions, DURATION) == 10_000


def test_who_takes_a_dead_ones_place_goes_on_with_its_counts() -> None:
    place = Place([Board(), Board()], 0)
    first = Metrics(now=7.0)
    observe(first, request(), request())
    Census(first, report, place, settle=lambda: None).look_around()
    place.board.take(os.getpid())

    heir = Metrics(census.counts_on(place), now=99.0)
    observe(heir, request())

    assert many(heir.counted().conventions, DURATION) == 3
    assert heir.counted().since == 7.0
    other = Metrics(census.counts_on(Place(place.boards, 1)))
    assert other.counted().conventions == {}  # each tells its own


def test_a_backend_that_is_gone_is_forgotten_and_may_come_back() -> None:
    metrics = Metrics()
    for name in "ab":
        metrics.observe(request(backend=name), ())
        observe(metrics, request(backend=name))
    metrics.counted()
    for now in (1e9, 1e9 + FORGOTTEN_S + 1):
        metrics.know({"a"}, now)

    def backends() -> set[str]:
        found = attributes(metrics.counted().conventions, DURATION)
        return {one["scenario_router.backend"] for one in found}

    assert backends() == {"a"}
    observe(metrics, request(backend="b"))
    assert backends() == {"a", "b"}
    assert many(metrics.counted().conventions, DURATION) == 2


def test_without_a_collector_nothing_is_counted_by_the_conventions() -> None:
    metrics = Metrics()
    metrics.observe(request(), ())

    assert metrics.counted().conventions == {}
