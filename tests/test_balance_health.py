"""Which backends to try, in which order."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import balance
from router.balance import Candidate

WEIGHTS = st.sampled_from([0.5, 1.0, 2.0])
NAMES = st.lists(
    st.text("abcdefgh0123456789-", min_size=1, max_size=8), min_size=1, max_size=6, unique=True
)
SESSIONS = st.text("0123456789abcdef", min_size=16, max_size=16)
turns = st.integers(min_value=0)


@st.composite
def pools(draw: st.DrawFn, *, least: int = 0) -> list[Candidate]:
    names = draw(NAMES.filter(lambda names: len(names) >= least))
    return [
        Candidate(
            name,
            draw(WEIGHTS),
            draw(st.integers(0, 5)),
            draw(st.integers(1, 5)),
            draw(st.booleans()),
        )
        for name in names[draw(st.integers(0, len(names) - least)) :]
    ]


def idle(
    weight: float = 1.0, *, name: str = "a", is_up: bool = True, inflight: int = 0
) -> Candidate:
    return Candidate(name, weight, inflight, 1000, is_up)


def five(*weights: float) -> list[Candidate]:
    return [idle(weight, name=f"backend-{n}") for n, weight in enumerate(weights or [1.0] * 5)]


def sessions(count: int) -> list[str]:
    return [f"{number:032x}" for number in range(count)]


def homes(pool: list[Candidate], count: int) -> dict[str, str]:
    """Where each of so many sessions belongs, by the backend's name."""
    found = {session: balance.home(pool, session) for session in sessions(count)}
    return {session: pool[index].name for session, index in found.items() if index is not None}


# --- with or without a session ------------------------------------------------------------


@given(pools(), turns, st.none() | SESSIONS)
def test_the_order_is_a_permutation_of_those_that_have_room(
    pool: list[Candidate], turn: int, session: str | None
) -> None:
    order = balance.order(pool, turn, session)

    assert sorted(order) == [i for i, c in enumerate(pool) if c.inflight < c.max_inflight]


@given(pools(), turns, st.none() | SESSIONS, st.data())
def test_what_is_down_comes_last(
    pool: list[Candidate], turn: int, session: str | None, data: st.DataObject
) -> None:
    remembered = data.draw(st.sampled_from([None, "gone", *(c.name for c in pool)]))
    ups = [pool[index].is_up for index in balance.order(pool, turn, session, remembered)]

    assert ups == sorted(ups, reverse=True)


def test_a_backend_that_is_down_stays_as_a_last_resort() -> None:
    pool = [idle(name="a", is_up=False), idle(name="b", inflight=9)]

    assert balance.order(pool, 0) == [1, 0]
    assert balance.order(pool[:1], 0) == [0]
    assert balance.order(pool[:1], 0, "s", "a") == [0]


# --- without a session --------------------------------------------------------------------


@given(pools(), turns, st.data())
def test_losing_one_backend_changes_no_order_among_the_others_that_load_decides(
    pool: list[Candidate], turn: int, data: st.DataObject
) -> None:
    order = balance.order(pool, turn)
    if not order:
        return
    lost = data.draw(st.sampled_from(order))
    old = pool[lost]
    down = Candidate(old.name, old.weight, old.inflight, old.max_inflight, False)
    without = balance.order([*pool[:lost], down, *pool[lost + 1 :]], turn)

    assert [i for i in without if i != lost] == [i for i in order if i != lost]


@given(st.integers(1, 6), turns)
def test_equal_backends_take_turns(count: int, turn: int) -> None:
    pool = [idle()] * count

    firsts = [balance.order(pool, turn + step)[0] for step in range(count)]

    assert sorted(firsts) == list(range(count))


def test_the_least_loaded_for_its_weight_goes_first() -> None:
    pool = [idle(inflight=2), idle(2.0, inflight=2), idle(inflight=1)]

    assert balance.order(pool, 0) == [1, 2, 0]


# --- a session's home ---------------------------------------------------------------------


@pytest.mark.parametrize("weights", [(1, 1, 1, 1, 1), (1, 2, 1, 2, 2), (0.5, 0.5, 1, 1, 1)])
def test_ten_thousand_sessions_spread_by_weight(weights: tuple[float, ...]) -> None:
    counts = Counter(homes(five(*weights), 10_000).values())

    for candidate in five(*weights):
        share = 10_000 * candidate.weight / sum(weights)
        assert counts[candidate.name] == pytest.approx(share, rel=0.1)


@given(NAMES.filter(lambda names: len(names) > 1), st.data())
def test_a_lost_backend_moves_its_own_sessions_alone(names: list[str], data: st.DataObject) -> None:
    pool = [idle(data.draw(WEIGHTS), name=name) for name in names]
    lost = data.draw(st.sampled_from(names))
    before = homes(pool, 200)
    after = homes([c for c in pool if c.name != lost], 200)
    while_down = homes([idle(c.weight, name=c.name, is_up=c.name != lost) for c in pool], 200)

    assert after == while_down
    assert {s: name for s, name in before.items() if name != lost} == {
        s: after[s] for s, name in before.items() if name != lost
    }


@given(NAMES.filter(lambda names: len(names) > 1), st.data())
def test_a_new_backend_gets_sessions_and_moves_no_other(
    names: list[str], data: st.DataObject
) -> None:
    pool = [idle(data.draw(WEIGHTS), name=name) for name in names]
    new = names[-1]
    before, after = homes(pool[:-1], 200), homes(pool, 200)

    assert all(after[s] in (before[s], new) for s in before)


def test_a_lost_backends_sessions_spread_over_all_the_others() -> None:
    pool = five()
    orphans = [s for s, name in homes(pool, 10_000).items() if name == "backend-0"]
    after = homes(pool[1:], 10_000)
    counts = Counter(after[session] for session in orphans)

    assert all(counts[c.name] == pytest.approx(len(orphans) / 4, rel=0.2, abs=10) for c in pool[1:])


@given(pools(least=1), SESSIONS, turns, st.randoms())
def test_everybody_finds_the_same_home_in_whatever_order_they_list_backends(
    pool: list[Candidate], session: str, turn: int, random: Random
) -> None:
    pool = [Candidate(c.name, c.weight, 0, c.max_inflight, c.is_up) for c in pool]
    shuffled = list(pool)
    random.shuffle(shuffled)

    names = [pool[i].name for i in balance.order(pool, turn, session)]

    assert names == [shuffled[i].name for i in balance.order(shuffled, turn + 1, session)]
    home = balance.home(pool, session)
    assert home is None or pool[home].name == names[0]


def test_homes_are_where_they_were_in_earlier_versions() -> None:
    # Routers of two versions serve the same sessions while one replaces the other.
    assert Counter(homes(five(), 100).values()) == {
        "backend-0": 22,
        "backend-1": 13,
        "backend-2": 21,
        "backend-3": 17,
        "backend-4": 27,
    }


def test_without_a_backend_that_is_up_there_is_no_home() -> None:
    assert balance.home([], "s") is None
    assert balance.home([idle(is_up=False)], "s") is None


# --- a session's way ----------------------------------------------------------------------


def test_a_session_goes_where_it_is_remembered_to_be_then_home() -> None:
    pool = five()
    home = balance.home(pool, "s")
    for candidate in pool:
        order = balance.order(pool, 0, "s", candidate.name)
        names = [pool[index].name for index in order]

        assert names[0] == candidate.name
        assert home in order[:2]


def test_a_session_that_is_remembered_where_it_cannot_be_goes_home() -> None:
    pool = five()
    home = balance.order(pool, 0, "s")
    other = next(index for index in range(5) if index != home[0])
    c = pool[other]
    full = [*pool[:other], Candidate(c.name, 1, 3, 3, True), *pool[other + 1 :]]
    down = [*pool[:other], idle(name=c.name, is_up=False), *pool[other + 1 :]]

    assert balance.order(pool, 0, "s", "gone") == home
    assert balance.order(full, 0, "s", c.name) == [index for index in home if index != other]
    assert balance.order(down, 0, "s", c.name)[0] == home[0]


@given(st.lists(st.tuples(SESSIONS, st.booleans()), max_size=120), st.lists(WEIGHTS, min_size=2))
def test_no_backend_gets_much_more_than_its_share_while_others_have_room(
    arrivals: list[tuple[str, bool]], weights: list[float]
) -> None:
    inflight = [0] * len(weights)
    for session, is_popular in arrivals:
        pool = [
            Candidate(f"backend-{n}", weight, inflight[n], 1000, True)
            for n, weight in enumerate(weights)
        ]
        first = balance.order(pool, 0, "popular" if is_popular else session)[0]
        inflight[first] += 1
        share = sum(inflight) * weights[first] / sum(weights)

        assert inflight[first] <= 1.25 * share + 8


def test_a_session_that_was_there_before_may_wait_longer_than_one_that_was_not() -> None:
    pool = five()[:3]
    home = balance.home(pool, "s")
    assert home is not None

    def first(at_home: int, elsewhere: int, remembered: str | None) -> int:
        inflight = [at_home if index == home else elsewhere for index in range(3)]
        loaded = [idle(name=c.name, inflight=n) for c, n in zip(pool, inflight, strict=True)]
        return balance.order(loaded, 0, "s", remembered)[0]

    assert first(20, 0, None) != home
    assert first(20, 0, pool[home].name) == home
    assert first(20, 20, None) == home
    assert first(200, 0, pool[home].name) != home
