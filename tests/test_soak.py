"""The soak in short, and that its judge would find what it looks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos import growth, soak, traffic
from tests.chaos.soak import Alive, Seen
from tests.chaos.traffic import Question, Told
from tests.support.rawclient import Frame, RawReply


def test_nothing_is_lost_and_nothing_stays_behind_while_all_breaks_in_turn(tmp_path: Path) -> None:
    found, wrong = soak.measure(tmp_path, soak.SHORT)

    assert wrong == []
    assert found["requests"] > 50
    assert len(found["workers"]) == 4
    assert sum(found["faults"].values()) > 3


# --- the judge --------------------------------------------------------------------------------


def one(**changes: Any) -> Alive:
    usual = {
        "pid": 1,
        "rss_mb": 70.0,
        "pss_mb": 50.0,
        "files": 30,
        "threads": 5,
        "tasks": {"App._sweep": 1, "Fleet._check": 3},
        "objects": {"router.server.hot.Connection": 2},
        "all_objects": 1000,
    }
    return Alive(**{**usual, **changes})


def told(**changes: Any) -> Told:
    usual = {
        "kind": "stream",
        "request_id": "a",
        "outcome": "answered",
        "why": "",
        "status": 200,
        "took_s": 0.1,
        "records": "one",
    }
    return Told(**{**usual, **changes})


def run(*, after: Alive | None = None, **changes: Any) -> Seen:
    seen = Seen(before=[one()], after=[after or one()], told=[told()])
    for name, value in changes.items():
        setattr(seen, name, value)
    return seen


def climbing(mb_h: float) -> Callable[[Seen], None]:
    def change(seen: Seen) -> None:
        seen.memory[1].rss += [(at, 70 + at / 3600 * mb_h) for at in range(0, 1500, 5)]

    return change


def test_a_run_that_is_as_before_is_good() -> None:
    seen = run(after=one(files=32, objects={"router.server.hot.Connection": 5}, rss_mb=72.0))
    climbing(1.0)(seen)

    assert soak.faults_of(seen, soak.long(30)) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"after": one(objects={"router.exchange.Exchange": 40})}, "40 router.exchange.Exchange"),
        ({"after": one(tasks={"App._sweep": 1, "Fleet._check": 9})}, "10 tasks, 4 before"),
        ({"after": one(files=60)}, "60 descriptors"),
        ({"after": one(rss_mb=90.0)}, "90.0 MB"),
        ({"after": one(pid=2)}, "a worker died"),
        ({"told": [told(outcome="lost", why="stream: cut")]}, "lost: stream: cut (1)"),
        ({"lasting_keys": 1}, "keys that stay for ever"),
        ({"keys_after": 5000}, "5000 keys"),
        ({"unrecorded": ["stream: 2 records of a"]}, "2 records of a"),
    ],
)
def test_what_is_not_as_before_is_found(changes: dict[str, Any], words: str) -> None:
    (fault,) = soak.faults_of(run(**changes), soak.long(30))

    assert words in fault


def test_memory_that_climbs_is_found() -> None:
    seen = run()
    climbing(20.0)(seen)

    (fault,) = soak.faults_of(seen, soak.long(30))

    assert "climbs by 20.0 MB an hour" in fault


@given(
    slope=st.floats(-10, 10),
    odd=st.dictionaries(st.integers(0, 99), st.floats(-1e6, 1e6), max_size=20),
)
def test_a_fifth_of_the_samples_may_be_anything(slope: float, odd: dict[int, float]) -> None:
    samples = [(float(at), odd.get(at, slope * at)) for at in range(100)]

    assert growth.slope(samples) == pytest.approx(slope, abs=1e-6)


def test_the_slope_of_too_little_is_none() -> None:
    assert growth.slope([]) == growth.slope([(1.0, 2.0)]) == 0.0


# --- records ----------------------------------------------------------------------------------


def record(**changes: Any) -> dict[str, Any]:
    usual = {"request_id": "a", "status": 200, "outcome": "ok", "error_code": None}
    return {**usual, **changes}


@pytest.mark.parametrize(
    ("said", "records", "is_good"),
    [
        (told(), [record()], True),
        (told(), [], False),
        (told(), [record(), record()], False),
        (told(), [record(outcome="upstream_error")], False),
        (told(outcome="failed", why="backend_error"), [record(outcome="upstream_error")], True),
        (told(outcome="failed", why="backend_error"), [record()], False),
        (told(outcome="left"), [record(outcome="client_disconnect")], True),
        (told(outcome="left"), [], False),
        (told(outcome="left", records="one or none"), [], True),
        (
            told(outcome="refused", status=413, why="request_too_large"),
            [record(status=413, outcome="client_error", error_code="request_too_large")],
            True,
        ),
        (told(outcome="refused", status=413, why="request_too_large"), [record()], False),
        (told(request_id=None), [], False),
    ],
)
def test_each_request_has_one_record_that_says_the_same(
    said: Told, records: list[dict[str, Any]], is_good: bool
) -> None:
    seen = run(told=[said])

    soak.compare(records, seen)

    assert (seen.unrecorded == []) is is_good


# --- traffic ----------------------------------------------------------------------------------


def test_all_kinds_are_asked_and_a_seed_asks_the_same() -> None:
    def kinds() -> list[str]:
        random = Random(1)
        return [traffic.question(random, f"id-{number}").kind for number in range(1500)]

    assert kinds() == kinds()
    assert len(set(kinds())) == len(traffic.KINDS)


ERROR = b'{"error": {"message": "m", "type": "t", "param": null, "code": "backend_error"}}'


@pytest.mark.parametrize(
    ("refusal", "status", "body", "outcome"),
    [
        (None, 200, b'{"choices": [1]}', "answered"),
        (None, 502, ERROR, "failed"),
        (None, 500, ERROR.replace(b"backend_error", b"router_error"), "lost"),
        ((502, "backend_error"), 502, ERROR, "refused"),
        ((400, "invalid_json"), 502, ERROR, "lost"),
        ((400, "invalid_json"), 200, b'{"choices": [1]}', "lost"),
        (None, None, b"", "lost"),
    ],
)
def test_what_became_of_a_question_is_judged_by_what_may(
    refusal: tuple[int, str] | None, status: int | None, body: bytes, outcome: str
) -> None:
    question = Question(kind="plain", raw=b"")
    reply = RawReply(status=status, frames=[Frame(1.0, body)], ended_properly=True)

    assert traffic.told(replace(question, refusal=refusal), "a", reply).outcome == outcome
