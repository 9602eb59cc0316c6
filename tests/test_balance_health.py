"""Which backends to try, in which order; and what is known of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router import balance
from router.balance import Candidate
from router.health import Health

candidates = st.builds(
    Candidate,
    weight=st.sampled_from([0.5, 1.0, 2.0]),
    inflight=st.integers(0, 5),
    max_inflight=st.integers(1, 5),
    is_up=st.booleans(),
)
pools = st.lists(candidates, max_size=6)
turns = st.integers(min_value=0)


def idle(weight: float = 1.0, *, is_up: bool = True, inflight: int = 0) -> Candidate:
    return Candidate(weight, inflight, 10, is_up)


@given(pools, turns)
def test_the_order_is_a_permutation_of_those_that_have_room(
    pool: list[Candidate], turn: int
) -> None:
    order = balance.order(pool, turn)

    assert sorted(order) == [i for i, c in enumerate(pool) if c.inflight < c.max_inflight]


@given(pools, turns)
def test_what_is_down_comes_last(pool: list[Candidate], turn: int) -> None:
    ups = [pool[index].is_up for index in balance.order(pool, turn)]

    assert ups == sorted(ups, reverse=True)


@given(pools, turns, st.data())
def test_losing_one_backend_changes_no_order_among_the_others_that_load_decides(
    pool: list[Candidate], turn: int, data: st.DataObject
) -> None:
    order = balance.order(pool, turn)
    loads = [(pool[i].inflight + 1) / pool[i].weight for i in order]
    if not order:
        return
    lost = data.draw(st.sampled_from(order))
    down = Candidate(pool[lost].weight, pool[lost].inflight, pool[lost].max_inflight, False)
    without = balance.order([*pool[:lost], down, *pool[lost + 1 :]], turn)

    assert [i for i in without if i != lost] == [i for i in order if i != lost]
    assert len(loads) == len(without)


@given(st.integers(1, 6), turns)
def test_equal_backends_take_turns(count: int, turn: int) -> None:
    pool = [idle()] * count

    firsts = [balance.order(pool, turn + step)[0] for step in range(count)]

    assert sorted(firsts) == list(range(count))


def test_the_least_loaded_for_its_weight_goes_first() -> None:
    pool = [idle(inflight=2), idle(2.0, inflight=2), idle(inflight=1)]

    assert balance.order(pool, 0) == [1, 2, 0]


def test_a_backend_that_is_down_stays_as_a_last_resort() -> None:
    assert balance.order([idle(is_up=False), idle(inflight=9)], 0) == [1, 0]
    assert balance.order([idle(is_up=False)], 0) == [0]


def test_nothing_is_known_at_first_and_that_counts_as_usable() -> None:
    health = Health()

    assert (health.is_up, health.is_known) == (True, False)


def test_the_time_of_a_change_stays_until_the_next_change() -> None:
    first = Health().observed(True, "ok", 10.0)
    same = first.observed(True, "ok", 20.0)
    down = same.observed(False, "refused", 30.0)
    still = down.observed(False, "timed out", 40.0)

    assert (first.since, same.since, down.since, still.since) == (10.0, 10.0, 30.0, 30.0)
    assert (still.is_up, still.is_known, still.reason) == (False, True, "timed out")
    assert Health().observed(False, "refused", 5.0).since == 5.0
