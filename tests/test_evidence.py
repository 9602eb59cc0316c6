"""Arms are judged by evidence: sound ones are left alone however often one looks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from router import evidence
from router.evidence import ArmSums
from router.experiment import Experiment, Rails
from router.record import Record

ARMS = {"control": {}, "b": {"preset": {"seed": 1}}}
OFF: dict[str, Any] = {"error_rate": False, "empty_rate": False}


def record(session: int | None = None, **fields: Any) -> Record:
    told = {
        "endpoint": "chat.completions",
        "session": None if session is None else str(session),
        "outcome": "ok",
        "finish_reason": "stop",
        "answer_chars": 9,
        "output_tokens": 20,
        "ttft_ms": 50.0,
        "total_ms": 100.0,
    }
    return Record(**{**told, **fields})


def filled(count: int, **fields: Any) -> ArmSums:
    sums = ArmSums()
    for number in range(count):
        sums.add(record(number, **fields))
    return sums


def rails(**told: Any) -> Rails:
    return Rails.model_validate({**OFF, **told})


# --- what counts as what ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "share"),
    [
        ({"outcome": "upstream_error"}, "error"),
        ({"outcome": "upstream_timeout"}, "error"),
        ({"outcome": "client_error", "status": 400}, "error"),  # a backend refused what we said
        ({"answer_chars": 0}, "empty"),
        ({"finish_reason": "length"}, "truncated"),
    ],
)
def test_what_went_wrong_is_counted_as_that(fields: dict[str, Any], share: str) -> None:
    assert filled(4, **fields).middle(share) == 1
    assert filled(4).middle(share) == 0


def test_who_left_and_who_found_no_place_say_nothing_of_the_arm() -> None:
    sums = filled(3, outcome="client_disconnect")
    for number in range(2):
        sums.add(record(number, outcome="rejected"))

    assert (sums.requests, sums.left, sums.rejected) == (5, 3, 2)
    assert all(total.n == 0 for total in sums.sums.values())


def test_an_answer_of_tools_alone_is_not_empty_and_time_in_line_is_not_the_arms() -> None:
    sums = filled(2, answer_chars=0, finish_reason="tool_calls", total_ms=150.0, queue_ms=50.0)

    assert sums.middle("empty") == 0
    assert sums.middle("total") == pytest.approx(100.0)


def test_what_is_told_and_added_again_is_the_same() -> None:
    one, other = filled(30, total_ms=80.0), filled(20, outcome="upstream_error")
    whole = ArmSums()
    for sums in (one, other):
        whole.plus(sums.told())

    assert whole.requests == 50
    assert whole.middle("error") == 0.4
    assert whole.middle("total") == pytest.approx(80.0)
    assert whole.sums["error"].variance_of_mean > one.sums["error"].variance_of_mean


# --- judging ----------------------------------------------------------------------------------


def lives(random: Random, ratio: float = 1.0, *, sessions: int = 1) -> Iterator[tuple[str, Record]]:
    """Requests of two arms in turn; a session has so many, all of about its own length."""
    lengths: dict[tuple[str, int], float] = {}
    for number in range(100_000):
        arm = ("control", "b")[number % 2]
        session = number // (2 * sessions)
        length = lengths.setdefault((arm, session), random.gauss(4.6, 0.5))
        total = math.exp(length + random.gauss(0, 0.1)) * (ratio if arm == "b" else 1)
        yield arm, record(session, total_ms=total, ttft_ms=total / 2)


def looks_until_breach(
    random: Random, told: Rails, ratio: float, *, limit: int, sessions: int = 1
) -> int | None:
    """Requests until the arm is stopped, looking after every ten; None: it never was."""
    arms = {"control": ArmSums(), "b": ArmSums()}
    for number, (arm, one) in enumerate(lives(random, ratio, sessions=sessions), start=1):
        arms[arm].add(one)
        if number % 10 == 0 and evidence.breach(told, arms["control"], arms["b"], others=1):
            return number
        if number == limit:
            return None
    raise AssertionError("the life was too short")


@pytest.mark.parametrize("sessions", [1, 10])
def test_an_arm_no_worse_than_its_rail_is_seldom_stopped_however_often_one_looks(
    sessions: int,
) -> None:
    random = Random(41 + sessions)
    told = rails(total_ratio=1.0, confidence=0.9)

    alarms = [
        looks_until_breach(random, told, 1.0, limit=800, sessions=sessions) for _ in range(60)
    ]

    # One side of an interval at 10 % is allowed 5 %, which is 3 of 60.
    assert sum(alarm is not None for alarm in alarms) <= 6


def test_an_arm_far_over_its_rail_is_stopped_soon_and_its_reason_told() -> None:
    random = Random(5)
    told = rails(total_ratio=1.1)

    found = [looks_until_breach(random, told, 1.6, limit=4000) for _ in range(10)]

    assert all(found)


def test_nothing_is_judged_before_there_are_enough_requests() -> None:
    told = Rails(min_requests=60)
    broken, sound = filled(59, outcome="upstream_error"), filled(100)

    assert evidence.breach(told, sound, broken, others=1) is None
    broken.add(record(99, outcome="upstream_error"))
    breach = evidence.breach(told, sound, broken, others=1)
    assert breach is not None
    assert (breach.rail, breach.value) == ("error_rate", 1.0)
    assert "error answers are 100.00% above control's" in str(breach)


def test_a_few_failures_on_either_side_stop_nobody() -> None:
    arm, control = filled(200), filled(200)
    for number in range(3):
        arm.add(record(1000 + number, outcome="upstream_error"))

    assert evidence.breach(Rails(), control, arm, others=1) is None


def test_one_talkative_session_is_no_evidence() -> None:
    arm, control = filled(100), filled(100)
    for _ in range(60):
        arm.add(record(5000, outcome="upstream_error"))

    assert arm.middle("error") == pytest.approx(60 / 160)
    assert evidence.breach(Rails(), control, arm, others=1) is None


def test_a_rail_that_is_down_stops_nobody() -> None:
    assert evidence.breach(rails(), filled(100), filled(100, total_ms=1e6), others=1) is None


# --- what is told -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "known"), [(1.0, "no difference"), (0.7, "better"), (1.4, "worse")]
)
def test_the_verdict_is_of_the_goal_against_control(ratio: float, known: str) -> None:
    random = Random(3)
    written = Experiment.model_validate({"scenarios": ["chat"], "arms": ARMS, "margin": 0.1})
    arms = {"control": ArmSums(), "b": ArmSums()}
    for number in range(1200):
        for arm, by in (("control", 1.0), ("b", ratio)):
            total = 100 * math.exp(random.gauss(0, 0.2)) * by
            arms[arm].add(record(number, total_ms=total))

    control, row = evidence.told(written, arms, {})

    assert control["verdict"] is None
    assert row["verdict"] == known
    assert row["effect"]["low"] < ratio < row["effect"]["high"]


def test_an_experiment_that_has_seen_nothing_says_not_yet() -> None:
    written = Experiment.model_validate({"scenarios": ["chat"], "arms": ARMS})

    rows = evidence.told(written, {"control": ArmSums(), "b": ArmSums()}, {"b": {"because": "x"}})

    assert rows[1]["verdict"] == "not yet"
    assert rows[1]["effect"] == {"goal": "total", "ratio": None, "low": None, "high": None}
    assert (rows[1]["state"], rows[1]["stopped"]) == ("stopped", {"because": "x"})
