"""What is known of a backend: when it is left alone, and that it always comes back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import health
from router.health import Health, Outcome, Rules, Span

RULES = Rules(failures=3, open_s=5, open_max_s=60, slow_start_s=10, max_ejected=0.5)
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
#: longer than any wait of ours
LONG = 121.0

outcomes = st.sampled_from(OUTCOMES)
pauses = st.floats(0.01, 30)
jumps = st.floats(-1000, 1000)
#: what can happen to a backend: (what, how far the clock goes before it)
happenings = st.sampled_from([*OUTCOMES, "seen up", "seen down", "try"])


def happen(known: Health, what: str, now: float) -> Health:
    match what:
        case "try":
            return known.trying(now)
        case "seen up" | "seen down":
            return known.observed(what == "seen up", what, now)
        case "ok" | "failed" | "busy" | "client":
            return known.after(what, now, RULES)
    raise ValueError(what)


def lives(steps: st.SearchStrategy[float]) -> st.SearchStrategy[tuple[Health, float]]:
    """Healths as they come about, each with the time it is then."""

    def live(happened: Sequence[tuple[str, float]]) -> tuple[Health, float]:
        known, now = Health(), 10_000.0
        for what, passed in happened:
            now += passed
            known = happen(known, what, now)
        return known, now

    return st.lists(st.tuples(happenings, steps), max_size=30).map(live)


def failed(known: Health, *nows: float, may_eject: bool = True) -> Health:
    for now in nows:
        known = known.after("failed", now, RULES, may_eject=may_eject)
    return known


def opened(at: float = 0.0) -> Health:
    return failed(Health(is_known=True), at, at, at)


# --- active checks ----------------------------------------------------------------------


def test_nothing_is_known_at_first_and_that_counts_as_usable() -> None:
    known = Health()

    assert (known.is_up, known.is_known) == (True, False)
    assert (known.is_usable(0), known.state(0), known.share(0, RULES)) == (True, "up", 1)


def test_the_time_of_a_change_stays_until_the_next_change() -> None:
    first = Health().observed(True, "ok", 10.0)
    same = first.observed(True, "ok", 20.0)
    down = same.observed(False, "refused", 30.0)
    still = down.observed(False, "timed out", 40.0)

    assert (first.since, same.since, down.since, still.since) == (10.0, 10.0, 30.0, 30.0)
    assert (still.is_up, still.is_known, still.reason) == (False, True, "timed out")
    assert Health().observed(False, "refused", 5.0).since == 5.0


def test_what_is_down_is_not_used_until_a_check_sees_it_up() -> None:
    down = Health().observed(False, "refused", 0)
    back = down.observed(True, "ok", 1)

    assert (down.is_usable(1000), down.state(1000)) == (False, "down")
    assert (back.is_usable(1), back.state(1)) == (True, "starting")


def test_the_first_check_of_all_is_no_recovery() -> None:
    assert Health().observed(True, "ok", 1).share(1, RULES) == 1


def test_failures_of_what_is_down_anyway_open_nothing() -> None:
    down = Health().observed(False, "refused", 0)

    assert failed(down, 1, 2, 3, 4) == down


def test_a_check_does_not_close_what_requests_have_opened() -> None:
    known = opened(at=0).observed(True, "ok", 1)

    assert known.state(1) == "open"


def test_a_new_process_is_probed_without_waiting_for_the_old_ones_end() -> None:
    gone = opened(at=0).observed(False, "refused", 1)
    back = gone.observed(True, "ok", 2)

    assert (back.state(2), back.is_usable(2)) == ("half-open", True)
    assert not back.trying(2).is_usable(2)


# --- the breaker ------------------------------------------------------------------------


def test_some_failures_in_a_row_open_it_and_an_answer_between_them_does_not() -> None:
    known = failed(Health(), 0, 1)
    assert known.is_usable(1)
    assert failed(known.after("ok", 2, RULES), 3, 4).is_usable(4)

    known = failed(known, 2)
    assert (known.is_usable(2), known.state(2)) == (False, "open")


def test_an_answer_changes_nothing_of_what_is_well() -> None:
    known = Health().observed(True, "ok", 0)

    assert known.after("ok", 1, RULES) is known
    assert known.trying(1) is known


def test_it_is_open_longer_each_time_up_to_a_limit() -> None:
    known, now, lengths = opened(at=0), 0.0, []
    for _ in range(6):
        left = known.back_in_s(now)
        lengths.append(left)
        now += left
        assert known.state(now - 0.01) == "open"
        assert known.state(now) == "half-open"
        known = known.trying(now).after("failed", now, RULES)

    assert lengths == [5, 10, 20, 40, 60, 60]


def test_what_was_under_way_when_it_opened_makes_it_no_longer() -> None:
    known = opened(at=0)

    assert failed(known, 1, 2, 3, 4) == known
    assert known.trying(1) == known


def test_a_relapse_soon_after_the_recovery_counts_on() -> None:
    well = opened(at=0).trying(5).after("ok", 6, RULES)
    relapsed = failed(well.after("ok", 7, RULES), 7, 7, 7)
    settled = failed(well.after("ok", 16, RULES), 17, 17, 17)

    assert relapsed.back_in_s(7) == 10
    assert settled.back_in_s(17) == 5


def test_half_open_lets_exactly_one_request_through_until_its_outcome() -> None:
    known = opened(at=0)
    assert known.is_usable(5)

    known = known.trying(5)
    assert not known.is_usable(5)
    assert known.trying(6) == known

    assert known.after("client", 7, RULES).is_usable(7)
    assert known.after("ok", 7, RULES).state(7) == "starting"
    assert known.after("failed", 7, RULES).state(7) == "open"


def test_a_probe_that_is_never_heard_of_loses_its_place() -> None:
    known = opened(at=0).trying(5)

    assert not known.is_usable(64.9)
    assert known.is_usable(65)


def test_a_busy_answer_to_the_probe_is_no_proof_and_no_failure() -> None:
    known = opened(at=0).trying(5).after("busy", 6, RULES, retry_after_s=3)

    assert (known.state(6), known.is_usable(8.9), known.is_usable(9)) == ("half-open", False, True)


@pytest.mark.parametrize("outcome", ["ok", "failed", "client"])
def test_what_was_sent_before_the_probe_is_not_its_outcome(outcome: Outcome) -> None:
    known = opened(at=2).trying(7)

    assert known.after(outcome, 8, RULES, sent_at=1) == known
    assert known.after(outcome, 8, RULES, sent_at=7) != known


def test_failures_of_the_time_before_a_recovery_are_not_held_against_it() -> None:
    well = opened(at=0).trying(5).after("ok", 6, RULES)
    for _ in range(9):
        well = well.after("failed", 7, RULES, sent_at=1)

    assert well.is_usable(7)


def test_a_last_resort_that_succeeds_closes_it_early() -> None:
    known = opened(at=0)

    assert known.after("ok", 2, RULES, sent_at=1).state(2) == "starting"


@given(
    st.lists(st.tuples(st.sampled_from(["send", "end", "check"]), outcomes, pauses), max_size=60),
    st.data(),
)
def test_never_are_two_probes_under_way_at_once(
    happened: list[tuple[str, Outcome, float]], data: st.DataObject
) -> None:
    known, now = opened(at=0), 0.0
    running: list[tuple[float, Span | None]] = []  # since when; the opening that it probes
    for what, outcome, passed in happened:
        now += passed
        if what == "check":
            known = known.observed(data.draw(st.booleans()), "", now)
        elif what == "send" and known.is_usable(now):
            others = [sent for sent, probed in running if probed and probed is known.opened]
            assert all(now - sent >= 60 for sent in others)
            running.append((now, known.opened))
            known = known.trying(now)
        elif what == "end" and running:
            sent_at, _ = running.pop(data.draw(st.integers(0, len(running) - 1)))
            known = known.after(outcome, now, RULES, sent_at=sent_at)


# --- what asks us to wait ---------------------------------------------------------------


def test_a_retry_after_is_obeyed_and_is_no_fault() -> None:
    known = Health().after("busy", 0, RULES, retry_after_s=4)

    assert (known.state(3.9), known.is_usable(3.9)) == ("waiting", False)
    assert (known.state(4), known.is_usable(4), known.share(4, RULES)) == ("up", True, 1)
    assert known.failures == 0


def test_a_later_longer_wait_extends_it_and_a_shorter_one_does_not_cut_it() -> None:
    known = Health().after("busy", 0, RULES, retry_after_s=10)

    assert known.after("busy", 5, RULES, retry_after_s=20).back_in_s(5) == 20
    assert known.after("busy", 5, RULES, retry_after_s=1).back_in_s(5) == 5


@pytest.mark.parametrize(
    ("asked", "waits"),
    [(None, 1), (0.0, 0), (-5.0, 0), (60.0, 60), (86_400.0, 60), (float("inf"), 60)],
)
def test_a_wait_is_bounded(asked: float | None, waits: float) -> None:
    known = Health().after("busy", 0, RULES, retry_after_s=asked)

    assert known.back_in_s(0) == waits


# --- coming back ------------------------------------------------------------------------


@given(st.floats(0.1, 100), st.lists(st.floats(0, 200), min_size=2))
def test_after_a_recovery_the_share_only_grows(slow_start_s: float, times: list[float]) -> None:
    rules = msgspec.structs.replace(RULES, slow_start_s=slow_start_s)
    well = opened(at=0).trying(5).after("ok", 6, rules)

    shares = [well.share(6 + passed, rules) for passed in sorted(times)]

    assert shares == sorted(shares)
    assert well.share(6, rules) == pytest.approx(0.1)
    assert all(0 < share <= 1 for share in shares)
    assert well.share(6.001 + slow_start_s, rules) == 1


def test_without_a_slow_start_all_of_the_load_is_back_at_once() -> None:
    rules = msgspec.structs.replace(RULES, slow_start_s=0)

    assert opened(at=0).trying(5).after("ok", 6, rules).share(6, rules) == 1


@given(lives(pauses))
def test_whatever_was_it_recovers_on_the_way_that_it_says(lived: tuple[Health, float]) -> None:
    known, now = lived
    known = known.observed(True, "ok", now)
    states = [known.state(now)]
    for _ in range(200):
        now += 1
        if known.is_usable(now):
            known = known.trying(now).after("ok", now, RULES)
        states.append(known.state(now))

    order = ["open", "half-open", "waiting", "starting", "up"]
    ranks = [order.index(state) for state in states]
    # A wait may show between half-open and starting, and before either of them.
    settled = [rank for rank in ranks if order[rank] != "waiting"]
    assert settled == sorted(settled)
    assert states[-1] == "up"


def test_outcomes_count_although_the_clock_was_set_back_before_the_recovery() -> None:
    known = opened(at=1000).trying(1005).after("ok", 1006, RULES)
    for now in (10, 20, 30):
        known = known.after("failed", now, RULES, sent_at=now - 1)

    assert known.state(30) == "open"


def test_a_wait_of_a_time_that_the_clock_was_set_back_before_never_comes_again() -> None:
    known = Health().after("busy", 1000, RULES, retry_after_s=30).observed(True, "ok", 500)
    broken = opened(at=1000).observed(True, "ok", 500)

    assert known.is_usable(1010)
    assert (broken.state(500), broken.state(1001)) == ("half-open", "half-open")


@given(lives(jumps))
def test_a_clock_that_jumps_never_wedges_it(lived: tuple[Health, float]) -> None:
    known, now = lived
    known = known.observed(True, "ok", now)

    now += LONG
    assert known.is_usable(now)
    known = known.trying(now).after("ok", now + 1, RULES, sent_at=now)
    assert known.is_usable(now + 1)
    assert known.after("ok", now + 12, RULES, sent_at=now + 11).state(now + 12) == "up"


@given(lives(pauses), st.floats(0.01, 100_000))
def test_setting_the_clock_back_keeps_nothing_out_longer_than_a_wait_lasts(
    lived: tuple[Health, float], back: float
) -> None:
    known, now = lived

    assert known.back_in_s(now - back) <= 60
    assert 0 < known.share(now - back, RULES) <= 1


# --- the client -------------------------------------------------------------------------


@given(lives(pauses), st.floats(0, 100), st.none() | st.floats(0, 20_000))
def test_a_clients_errors_change_no_health(
    lived: tuple[Health, float], passed: float, sent_at: float | None
) -> None:
    known, then = lived
    now = then + passed

    after = known.after("client", now, RULES, sent_at=sent_at)

    # All that can happen is that the place of a probe, which told nothing, is free again.
    assert msgspec.structs.replace(after, probe=known.probe) == known
    assert after.state(now) == known.state(now)
    assert after.back_in_s(now) <= known.back_in_s(now)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 409, 413, 422, 499, 501, 304])
def test_a_status_that_is_the_clients_doing_says_nothing(status: int) -> None:
    assert health.outcome_of(status) == "client"


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        *((200, "ok"), (204, "ok")),
        *((500, "failed"), (502, "failed"), (504, "failed")),
        *((429, "busy"), (503, "busy")),
    ],
)
def test_what_a_status_says_of_the_backend(status: int, outcome: Outcome) -> None:
    assert health.outcome_of(status) == outcome


# --- a pool -----------------------------------------------------------------------------


@given(
    st.integers(1, 7),
    st.sampled_from([0.0, 0.3, 0.5, 0.9, 1.0]),
    st.lists(st.tuples(st.integers(0, 6), st.sampled_from(["failed", *OUTCOMES]), pauses)),
)
def test_outcomes_alone_never_take_everybody_out(
    count: int, max_ejected: float, happened: list[tuple[int, Outcome, float]]
) -> None:
    rules = msgspec.structs.replace(RULES, failures=1, max_ejected=max_ejected)
    pool, now = [Health()] * count, 0.0
    for index, outcome, passed in happened:
        now += passed
        at = index % count
        may = health.may_eject(pool, now, rules)
        pool[at] = pool[at].trying(now).after(outcome, now, rules, may_eject=may)

        out = sum(known.opened is not None for known in pool)
        assert out <= max_ejected * count
        assert out < count


@given(st.lists(lives(pauses).map(lambda lived: lived[0]), max_size=6))
def test_the_last_one_in_stays_in(pool: list[Health]) -> None:
    now = 20_000.0
    usable = [known for known in pool if known.opened is None and known.is_usable(now)]

    if health.may_eject(pool, now, msgspec.structs.replace(RULES, max_ejected=1)):
        assert len(usable) > 1
    else:
        assert len(usable) <= 1


def test_the_failure_that_makes_room_for_none_is_remembered() -> None:
    known = failed(Health(), 0, 1, 2, 3, may_eject=False)
    assert known.is_usable(3)

    assert not failed(known, 4).is_usable(4)


def test_a_probe_that_fails_keeps_out_what_is_out_already() -> None:
    known = opened(at=0).trying(5)

    assert known.after("failed", 6, RULES, may_eject=False).state(6) == "open"
