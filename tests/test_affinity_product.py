"""Sessions stay where their prompts are cached: the running router over scripted backends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.demo import await_fact, record_of
from tests.support.pool import Pool, ask, held, pool_of, question, where
from tests.support.product import Product
from tests.support.rawclient import RawConnection, RawReply

#: well again means well at once, and a check soon sees it
AT_ONCE = {"interval_s": 0.1, "slow_start_s": 0}


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with pool_of("a", "b", "c") as running:
        yield running


@pytest.fixture(scope="module")
def router(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """One for all that breaks nothing; each test has sessions of its own."""
    with pool.start(tmp_path_factory.mktemp("router")) as running:
        yield running


def is_up(product: Product, name: str) -> bool:
    backends = product.get("/router/status")["backends"]
    return bool(next(backend["up"] for backend in backends if backend["name"] == name))


def affinity(reply: RawReply) -> str:
    return str(reply.header("x-router-affinity"))


# --- staying ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "known_by",
    [
        lambda name: {"headers": {"x-session-id": name}},
        lambda name: {"headers": {"x-conversation-id": name}},
        lambda name: {"session_id": name},
        lambda name: {"metadata": {"session_id": name}},
        lambda name: {"user": name},
    ],
    ids=["x-session-id", "x-conversation-id", "session_id", "metadata", "user"],
)
def test_a_session_stays_at_one_backend(router: Product, known_by: Any) -> None:
    names = [f"stays-{number}" for number in range(8)]
    replies: dict[str, list[RawReply]] = {name: [] for name in names}
    for turn in range(1, 6):
        for name in names:
            replies[name].append(ask(router, turns=turn, **known_by(name)))

    places = {name: {where(reply) for reply in told} for name, told in replies.items()}
    assert all(len(place) == 1 for place in places.values())
    assert len(set.union(*places.values())) > 1  # together they are not all at the same one


def test_what_became_of_a_session_is_told_and_recorded(router: Product) -> None:
    told = [ask(router, "told", turns=t, headers={"x-request-id": f"told-{t}"}) for t in (1, 2, 3)]

    assert [affinity(reply) for reply in told] == ["new", "hit", "hit"]
    records = [record_of(router, f"told-{turn}") for turn in (1, 2, 3)]
    assert [record["affinity"] for record in records] == ["new", "hit", "hit"]
    assert {record["session"] for record in records} == {told[0].header("x-router-session")}
    assert {record["backend"] for record in records} == {where(told[0])}


def test_a_conversation_without_a_name_stays_from_its_second_turn_on(router: Product) -> None:
    abouts = [f"nameless thing {number}" for number in range(8)]
    for about in abouts:
        ask(router, about=about)
    turns = {about: [ask(router, about=about, turns=t) for t in (2, 3, 4)] for about in abouts}

    for told in turns.values():
        assert len({where(reply) for reply in told}) == 1
        assert [affinity(reply) for reply in told] == ["hit"] * 3
    assert len({where(told[0]) for told in turns.values()}) > 1


def test_strangers_who_begin_alike_are_no_session(router: Product) -> None:
    told = [ask(router, about="the weather, as everybody does") for _ in range(6)]

    assert Counter(map(where, told)) == {"a": 2, "b": 2, "c": 2}
    assert {affinity(reply) for reply in told} == {"new"}


def test_without_a_session_load_decides(router: Product) -> None:
    with held(router, [None] * 6) as first:
        assert Counter(first) == {"a": 2, "b": 2, "c": 2}
        with held(router, ["one more"]) as [busy]:
            told = {where(ask(router, about=f"load {number}")) for number in range(4)}

            assert told == {"a", "b", "c"} - {busy}


def test_sessions_spread_by_weight(pool: Pool, tmp_path: Path) -> None:
    with (
        pool.start(tmp_path, weights=[3, 1, 1]) as product,
        RawConnection(product.port) as connection,
    ):
        places: Counter[str] = Counter()
        for number in range(500):
            connection.send(question(f"spread-{number}"))
            places[where(connection.read())] += 1

    assert places["a"] == pytest.approx(300, rel=0.15)
    assert places["b"] == pytest.approx(100, rel=0.3)
    assert places["c"] == pytest.approx(100, rel=0.3)


# --- agreeing ---------------------------------------------------------------------------------


def test_routers_and_workers_agree_on_homes_without_a_store(
    pool: Pool, router: Product, tmp_path: Path
) -> None:
    sessions = [f"agreed-{number}" for number in range(20)]
    homes = [pool.home(session) for session in sessions]
    with pool.start(tmp_path, server={"workers": 2}) as other:
        # Each connection is another worker's, or is not: enough of them are of both.
        workers = {other.get("/router/status")["pid"] for _ in range(40)}

        assert len(workers) == 2
        for _ in range(3):
            assert [where(ask(other, session)) for session in sessions] == homes
        assert [where(ask(router, session)) for session in sessions] == homes


# --- moving -----------------------------------------------------------------------------------


def test_the_sessions_of_a_backend_that_dies_move_and_come_home(pool: Pool, tmp_path: Path) -> None:
    sessions = [f"moves-{number}" for number in range(12)]
    homes = {session: pool.home(session) for session in sessions}
    orphans = {session for session in sessions if homes[session] == "b"}
    assert 0 < len(orphans) < len(sessions)
    with pool.start(tmp_path, health=AT_ONCE) as product:
        for session in sessions:
            ask(product, session)
        pool["b"].set_listen("refuse")
        try:
            await_fact(lambda: not is_up(product, "b"))
            away = {s: ask(product, s, turns=2, headers={"x-request-id": s}) for s in sessions}
            again = {s: where(ask(product, s, turns=3)) for s in sessions}
        finally:
            pool["b"].set_listen("normal")

        moved = {session for session, reply in away.items() if affinity(reply) == "moved"}
        assert moved == orphans
        assert {s for s in sessions if record_of(product, s)["affinity"] == "moved"} == orphans
        assert all(where(away[s]) == homes[s] for s in sessions if s not in orphans)
        assert again == {session: where(reply) for session, reply in away.items()}

        # It may take a while until all of its load is back; none is forgotten.
        def is_home(session: str) -> bool:
            return where(ask(product, session, turns=4)) == "b"

        await_fact(lambda: all(map(is_home, sorted(orphans))), timeout_s=20)
        back = {session: ask(product, session, turns=5) for session in sessions}
        assert {session: where(reply) for session, reply in back.items()} == homes
        assert {affinity(reply) for reply in back.values()} == {"hit"}


def test_a_session_stays_where_a_failure_sent_it_since_its_past_is_there_now(
    pool: Pool, tmp_path: Path
) -> None:
    [session] = pool.sessions_of("c", 1, "short")
    with pool.start(tmp_path) as product:
        ask(product, session)
        pool["c"].set_listen("refuse")
        try:
            away = ask(product, session, turns=2)
        finally:
            pool["c"].set_listen("normal")

        assert where(away) != "c"
        assert affinity(away) == "moved"
        why = record_of(product, str(away.header("x-request-id")))["moved_because"]
        assert why == "c failed on this request"
        assert where(ask(product, session, turns=3)) == where(away)


def test_a_home_well_above_its_share_is_passed_over(router: Product, pool: Pool) -> None:
    *crowd, late = pool.sessions_of("a", 21, "crowd")
    with held(router, crowd) as places:
        assert places[:10] == ["a"] * 10
        assert set(places) > {"a"}
        elsewhere = ask(router, late)
        assert where(elsewhere) != "a"
        assert affinity(elsewhere) == "new"

    # The crowd has gone, and the session stays where it is known.
    stays = ask(router, late, turns=2)
    assert (where(stays), affinity(stays)) == (where(elsewhere), "hit")


def test_a_session_that_is_known_at_its_busy_home_waits_there_longer(
    router: Product, pool: Pool
) -> None:
    *crowd, known = pool.sessions_of("b", 16, "known")
    ask(router, known)
    with held(router, crowd) as places:
        assert set(places) > {"b"}  # for a new one it is full
        reply = ask(router, known, turns=2)

    assert (where(reply), affinity(reply)) == ("b", "hit")
