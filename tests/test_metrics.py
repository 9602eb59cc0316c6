"""What is counted, and the page that tells of it, of one worker and of many."""

from __future__ import annotations

import random
import string
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import census
from router.boards import Board
from router.catalogue import METRICS, SECONDS
from router.census import AtBackend, Census, Place, Report
from router.record import Record
from router.telemetry import FORGOTTEN_S, HIDDEN_S, Metrics
from tests.support.prometheus import Page

UP = AtBackend(up=True, state="up", circuit=0, draining=False, inflight=0)


def report(**fields: Any) -> Report:
    told = Report(
        worker=0,
        pid=1,
        at=0.0,
        inflight=0,
        waiting=0,
        sessions=0,
        backends={},
        policy="abc",
        policy_taken_at=0.0,
        is_policy_ok=True,
        is_config_ok=True,
        is_log_ok=True,
        is_redis_ok=None,
    )
    return msgspec.structs.replace(told, **fields)


def page(metrics: Metrics, told: Callable[[], Report] = report, place: Place | None = None) -> Page:
    return Page(Census(metrics, told, place, settle=lambda: None).page())


def observed(*entries: Record) -> Metrics:
    metrics = Metrics()
    for entry in entries:
        metrics.observe(entry, ())
    return metrics


milliseconds = st.one_of(st.none(), st.floats(min_value=0, max_value=200_000))
counts = st.one_of(st.none(), st.integers(0, 100))
finished = st.builds(
    Record,
    scenario=st.sampled_from(["faq", "chat", None]),
    backend=st.sampled_from(["a", "b", None]),
    endpoint=st.sampled_from(["chat.completions", "embeddings", "http"]),
    source=st.sampled_from(["keyword", None]),
    confidence=st.floats(0, 1),
    stream=st.booleans(),
    status=st.sampled_from([200, 502, None]),
    outcome=st.sampled_from(["ok", "client_disconnect", "rejected"]),
    finish_reason=st.sampled_from(["stop", "length", None]),
    affinity=st.sampled_from(["hit", "none"]),
    total_ms=milliseconds,
    ttft_ms=milliseconds,
    tpot_ms=milliseconds,
    overhead_ms=milliseconds,
    queue_ms=st.sampled_from([0.0, 12.0]),
    classify_us=milliseconds,
    input_tokens=counts,
    output_tokens=counts,
    thinking=st.sampled_from([True, False, None]),
    tried=st.sampled_from([(), (("a", "stale"),)]),
)

# --- the page -----------------------------------------------------------------------------


@given(st.lists(finished, max_size=8))
def test_prometheus_reads_the_page_and_nothing_is_counted_twice(entries: list[Record]) -> None:
    read = page(observed(*entries))

    assert {name.removeprefix("scenario_router_") for name in read.families} == {
        name.removesuffix("_total") for name in METRICS
    }
    for name, metric in METRICS.items():
        assert read.families[metric.public.removesuffix("_total")].type == metric.kind
        for labels in read.samples.get(name, {}):
            assert dict(labels).keys() == set(metric.labels)
    assert read.sum("requests_total") == len(entries)
    assert read.sum("session_affinity_total") == len(entries)
    assert read.sum("request_duration_seconds_count") == sum(
        e.total_ms is not None for e in entries
    )
    for name in ("request_duration_seconds", "time_to_first_token_seconds", "overhead_seconds"):
        series: dict[frozenset[tuple[str, str]], list[tuple[float, float]]] = {}
        for labels, value in read.samples.get(f"{name}_bucket", {}).items():
            edge = float(dict(labels)["le"])
            rest = frozenset(pair for pair in labels if pair[0] != "le")
            series.setdefault(rest, []).append((edge, value))
        for rest, buckets in series.items():
            values = [value for _, value in sorted(buckets)]
            assert values == sorted(values)
            assert read.samples[f"{name}_count"][rest] == values[-1]
            assert rest in read.samples[f"{name}_sum"]


@given(st.lists(finished, max_size=6), st.lists(finished, max_size=6))
def test_asking_in_between_changes_nothing(first: list[Record], then: list[Record]) -> None:
    metrics, others = Metrics(), observed(*first, *then)
    for entry in first:
        metrics.observe(entry, ())
    page(metrics)
    for entry in then:
        metrics.observe(entry, ())

    assert page(metrics).samples == page(others).samples


@pytest.mark.parametrize("text", ['a"b', "a\\b", "a\nb", '退款\\"\n', "a\\nb"])
def test_labels_are_escaped(text: str) -> None:
    read = page(Metrics(), lambda: report(backends={text: UP}))

    assert read.value("backend_up", backend=text) == 1


def test_a_value_on_an_edge_is_in_its_bucket() -> None:
    read = page(observed(Record(scenario="s", backend="b", total_ms=10.0)))

    assert read.value("request_duration_seconds_bucket", le="0.01") == 1
    assert read.value("request_duration_seconds_count") == 1
    assert read.value("request_duration_seconds_sum") == pytest.approx(0.01)


def test_what_presets_did_is_counted_by_scenario_parameter_and_origin() -> None:
    metrics = Metrics()
    actions = (("faq", "top_p", "fill"),)
    for _ in range(3):
        metrics.observe(Record(scenario="faq", source="keyword"), actions)
    for _ in range(2000):  # plans that no two requests share
        metrics.observe(Record(scenario="faq", source="keyword"), (("faq", "seed", "force"),))

    read = page(metrics)

    assert read.value("param_actions_total", scenario="faq", param="top_p", origin="fill") == 3
    assert read.value("param_actions_total", scenario="faq", param="seed", origin="force") == 2000


@pytest.mark.parametrize("value", [1_764_496_148.25, 1_234_567.0, 0.0, 1.0])
def test_a_gauge_is_told_exactly(value: float) -> None:
    """Six digits are not enough for a time since the epoch."""
    read = page(Metrics(), lambda: report(policy_taken_at=value))

    assert read.value("policy_last_reload_timestamp_seconds") == value


@pytest.mark.parametrize(
    ("entry", "count"),
    [
        ({"answer_chars": 0, "endpoint": "chat.completions"}, 1),
        ({"answer_chars": 5, "endpoint": "chat.completions"}, 0),
        ({"answer_chars": 0, "endpoint": "embeddings"}, 0),
        ({"answer_chars": 0, "endpoint": "chat.completions", "finish_reason": "tool_calls"}, 0),
        ({"answer_chars": None, "endpoint": "chat.completions"}, 0),
    ],
)
def test_an_answer_without_content_is_counted_where_there_should_have_been_some(
    entry: dict[str, Any], count: int
) -> None:
    record = msgspec.convert({"scenario": "s", "outcome": "ok", **entry}, Record)

    assert page(observed(record)).value("empty_answer_total", scenario="s") == count


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"error_code": "rate_limit_exceeded"}, "queue_full"),
        ({"error_code": "rate_limit_exceeded", "queue_ms": 30_000.0}, "queue_timeout"),
        ({"error_code": "no_healthy_backend"}, "no_backend"),
        ({"error_code": "whatever it said", "backend": "a"}, "backend_busy"),
        ({"error_code": "something new"}, "other"),
    ],
)
def test_why_a_request_was_turned_away(entry: dict[str, Any], reason: str) -> None:
    read = page(observed(msgspec.convert({"outcome": "rejected", **entry}, Record)))

    assert {k: v for k, v in read.by("rejected_total", "reason").items() if v} == {reason: 1}


# --- what clients and backends invent ----------------------------------------------------------


def test_nothing_that_clients_or_backends_invent_adds_series() -> None:
    chance = random.Random(7)

    def odd() -> str:
        return "".join(chance.choices(string.printable + "退款", k=12))

    metrics = observed(Record(scenario="faq", backend="a", endpoint="other", finish_reason="other"))
    usual: dict[str, Any] = {"scenario": "faq", "backend": "a", "total_ms": 5.0}
    metrics.observe(Record(**usual, endpoint="x", status=7777, finish_reason="y"), ())
    before = page(metrics).series
    for _ in range(20_000):
        entry = Record(
            **usual,
            endpoint=odd(),
            status=chance.randrange(1000, 10**9),
            finish_reason=odd(),
            client_model=odd(),
            backend_model=odd(),
            request_id=odd(),
            session=odd(),
            error_code=odd(),
            lang=odd(),
        )
        metrics.observe(entry, ())

    read = page(metrics)

    assert read.series == before
    assert read.sum("requests_total") == 20_002
    assert read.sum("requests_total", endpoint="other", status="other", finish_reason="other") == (
        20_001
    )


# --- backends that are gone ----------------------------------------------------------------------


def test_a_backend_that_is_gone_is_told_of_for_a_while_and_then_forgotten() -> None:
    now = [1e9]
    metrics = observed(*(Record(scenario="s", backend=name, total_ms=5.0) for name in "ab"))
    backends = {"a": UP, "b": UP}
    counting = Census(
        metrics, lambda: report(backends=backends, at=now[0]), None, settle=lambda: None
    )

    def names() -> set[str]:
        counting.look_around()
        return {labels[1] for labels in metrics.counted().counters["requests_total"]}

    assert names() == {"a", "b"}
    del backends["b"]
    assert names() == {"a", "b"}
    now[0] += HIDDEN_S + 1
    assert names() == {"a", "b"}  # not forgotten, but the clock of the page is the real one
    assert set(Page(counting.page()).by("requests_total", "backend")) == {"a"}
    now[0] += FORGOTTEN_S
    assert names() == {"a"}

    read = Page(counting.page())
    assert read.sum("session_affinity_total") == 2  # what has no backend in it never goes back
    metrics.observe(Record(scenario="s", backend="b", total_ms=5.0), ())
    assert metrics.counted().finished() == 2  # it may come again


def test_one_that_comes_back_in_time_is_not_forgotten() -> None:
    metrics = observed(Record(backend="a"))
    metrics.know([], 0.0)
    metrics.know(["a"], 10.0)
    metrics.know([], 20.0)
    metrics.know([], FORGOTTEN_S + 15.0)

    assert metrics.counted().finished() == 1


# --- boards ---------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=300), max_size=6))
def test_a_board_shows_what_was_pinned_last(sheets: list[bytes]) -> None:
    board = Board(256)
    last = None
    for sheet in sheets:
        has_room = board.pin(sheet)
        assert has_room == (len(sheet) <= 256)
        last = sheet if has_room else last

    read = board.read()

    assert (read.data if read is not None else None) == last


def test_a_sheet_that_was_left_half_written_is_not_read() -> None:
    """As by a kill: the edition is told last, so the one before still holds."""
    board = Board(256)
    board.pin(b"whole")
    edition = board.edition
    board.pin(b"torn")
    board._put(8, edition)

    read = board.read()

    assert read is not None
    assert read.data == b"whole"


# --- several workers -------------------------------------------------------------------------


class Worker:
    """One of several, all in this process."""

    def __init__(self, boards: list[Board], number: int, pid: int) -> None:
        self.place = Place(boards, number)
        self.metrics = Metrics(census.counts_on(self.place))
        self.report = report(
            worker=number, pid=pid, at=time.time(), inflight=2, sessions=5, backends={"a": UP}
        )
        self.census = Census(self.metrics, lambda: self.report, self.place, settle=lambda: None)

    def serve(self, *entries: Record) -> None:
        for entry in entries:
            self.metrics.observe(entry, ())

    def page(self) -> Page:
        return Page(self.census.page())


def two() -> tuple[list[Board], Worker, Worker]:
    boards = [Board(), Board()]
    workers = Worker(boards, 0, 11), Worker(boards, 1, 22)
    for worker in workers:
        worker.place.board.take(worker.report.pid)  # in place of this process's own
        worker.census.look_around()
    return boards, *workers


@given(st.lists(st.tuples(st.integers(0, 1), finished), max_size=10))
def test_whichever_worker_is_asked_tells_of_all(served: list[tuple[int, Record]]) -> None:
    _, *workers = two()
    for number, entry in served:
        workers[number].serve(entry)
        workers[number].census.look_around()
    alone = page(observed(*(entry for _, entry in served)))

    pages = [worker.page() for worker in workers]

    for read in pages:
        for name, metric in METRICS.items():
            for part in ("",) if metric.kind == "counter" else ("_count", "_bucket"):
                if metric.kind != "gauge":
                    assert read.samples.get(name + part) == alone.samples.get(name + part)
        assert read.value("inflight") == 4
        assert read.value("workers") == 2
        assert read.by("sessions", "worker") == {"0": 5, "1": 5}


def test_what_was_told_never_goes_back_though_its_worker_dies_unheard() -> None:
    boards, one, other = two()
    one.serve(*[Record(scenario="s", backend="a", total_ms=5.0)] * 7)
    told = one.page().sum("requests_total")
    one.serve(Record(scenario="s", backend="a"))  # dies before anybody is told
    boards[0].leave()

    assert other.page().sum("requests_total") == told
    assert other.page().value("inflight") == 2
    assert other.page().value("workers") == 1

    boards[0].restarted()
    heir = Worker(boards, 0, 33)
    assert other.page().value("inflight") == 2  # what the dead one had under way is not the heir's
    heir.serve(Record(scenario="s", backend="a", total_ms=5.0))

    assert heir.page().sum("requests_total") == told + 1
    assert other.page().sum("requests_total") == told + 1
    assert other.page().sum("request_duration_seconds_count") == told + 1
    assert other.page().value("worker_restarts_total") == 1


def test_counters_that_others_keep_go_on_from_where_the_last_worker_was() -> None:
    boards, one, _ = two()
    one.metrics.follow("log_written_total", lambda: 40)
    one.page()

    heir = Worker(boards, 0, 33)
    heir.metrics.follow("log_written_total", lambda: 2)

    assert heir.page().value("log_written_total") == 42


def test_of_what_workers_see_differently_the_worst_is_told() -> None:
    _, one, other = two()
    replace = msgspec.structs.replace
    one.report.backends = {"a": replace(UP, inflight=3), "b": replace(UP, circuit=2)}
    other.report.backends = {
        "a": replace(UP, inflight=4, up=False, state="down"),
        "b": replace(UP, circuit=1, state="open"),
    }
    other.census.look_around()

    read = one.page()

    assert read.by("backend_inflight", "backend") == {"a": 7, "b": 0}
    assert read.by("backend_up", "backend") == {"a": 0, "b": 1}
    assert read.by("circuit_state", "backend") == {"a": 0, "b": 1}
    live = one.census.live()
    assert (live.backends["a"].state, live.backends["b"].state) == ("down", "open")
    assert [worker.pid for worker in live.workers] == [11, 22]


@pytest.mark.parametrize(
    ("seen", "told"), [((None, None), {}), ((True, True), {"": 1}), ((True, False), {"": 0})]
)
def test_redis_is_up_where_all_workers_find_it_so(
    seen: tuple[bool | None, bool | None], told: dict[str, float]
) -> None:
    _, one, other = two()
    one.report.is_redis_ok, other.report.is_redis_ok = seen
    other.census.look_around()

    assert one.page().by("redis_up", "none") == told


def test_too_much_to_tell_is_said_once_and_no_request_is_the_worse() -> None:
    boards = [Board(64), Board(64)]
    one, other = Worker(boards, 0, 11), Worker(boards, 1, 22)
    one.serve(Record(scenario="s", backend="a"))

    assert one.page().sum("requests_total") == 1
    assert other.page().sum("requests_total") == 0


def test_every_bucket_list_is_in_order() -> None:
    assert all(list(m.buckets) == sorted(set(m.buckets)) for m in METRICS.values())
    assert SECONDS[0] == 0.01
