"""What every store of sessions promises, in memory and in a real Redis."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from random import Random

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from router import affinity_redis, config
from router.affinity import MemoryAffinity
from router.ports import Affinity
from tests.support.clocks import HandClock
from tests.support.redisserver import find, redis_server, until

TTL_S = 600
LIMIT = 50
STORES = ["memory", "redis"] if shutil.which("redis-server") else ["memory"]


class Kept:
    """A store, and time that passes in all of it."""

    def __init__(self, store: Affinity, clock: HandClock, server: redis.Redis | None) -> None:
        self.store = store
        self._clock = clock
        self._server = server
        self._expected: dict[str, str] = {}

    def served(self, session: str, backend: str, *, is_home: bool, pool: str = "p") -> None:
        self.store.served(pool, session, backend, is_home=is_home)
        self._expected.pop(f"r:{pool}:{session}", None)
        if not is_home:
            self._expected[f"r:{pool}:{session}"] = backend

    async def arrived(self) -> None:
        """What was said is in Redis, if there is one."""
        await until(lambda: self._server is None or self._content() == self._expected)

    def _content(self) -> dict[str, str]:
        assert self._server is not None
        values = {str(name): self._server.get(name) for name in self._server.keys("*")}
        return {name: str(value) for name, value in values.items() if value is not None}

    async def pass_time(self, seconds: float) -> None:
        await self.arrived()
        self._clock.at += seconds
        if self._server is None:
            return
        for name in self._server.keys("*"):
            left_ms = self._server.pttl(name) - int(seconds * 1000)
            if left_ms > 0:
                self._server.pexpire(name, left_ms)
            else:
                self._server.delete(name)
                self._expected.pop(str(name))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[redis.Redis | None]:
    if "redis" not in STORES:
        yield None
        return
    with (
        redis_server(tmp_path_factory.mktemp("redis")) as port,
        redis.Redis(port=port, decode_responses=True) as client,
    ):
        yield client


@pytest.fixture(params=STORES)
async def kept(request: pytest.FixtureRequest, server: redis.Redis | None) -> AsyncIterator[Kept]:
    clock = HandClock()
    kind: str = request.param
    settings = config.Affinity.model_validate(
        {"store": kind, "ttl_s": TTL_S, "max_sessions": LIMIT, "prefix": "r", "timeout_ms": 5000}
    )
    environ = {}
    if kind == "redis":
        assert server is not None
        server.flushall()
        port = server.connection_pool.connection_kwargs["port"]
        environ["REDIS_URL"] = f"redis://127.0.0.1:{port}"
    store = affinity_redis.opened(settings, clock, environ)
    await store.start()
    yield Kept(store, clock, server if kind == "redis" else None)
    await store.close()


async def test_an_unknown_session_is_at_home(kept: Kept) -> None:
    assert await find(kept.store, "s") is None
    assert kept.store.last("p", "s") is None


async def test_where_a_session_was_served_is_known_if_that_is_not_its_home(kept: Kept) -> None:
    kept.served("s", "b", is_home=False)
    kept.served("t", "c", is_home=True)

    assert (await find(kept.store, "s"), kept.store.last("p", "s")) == ("b", "b")
    assert (await find(kept.store, "t"), kept.store.last("p", "t")) == (None, "c")


async def test_the_latest_turn_counts(kept: Kept) -> None:
    kept.served("s", "b", is_home=False)
    kept.served("s", "c", is_home=False)
    assert (await find(kept.store, "s"), kept.store.last("p", "s")) == ("c", "c")

    kept.served("s", "a", is_home=True)
    assert (await find(kept.store, "s"), kept.store.last("p", "s")) == (None, "a")
    await kept.arrived()
    await kept.pass_time(100)
    assert await find(kept.store, "s") is None


async def test_pools_are_worlds_apart(kept: Kept) -> None:
    kept.served("s", "b", is_home=False, pool="one")
    kept.served("s", "c", is_home=False, pool="two")

    found = [await find(kept.store, "s", pool) for pool in ("one", "two", "three")]

    assert found == ["b", "c", None]


async def test_a_session_is_forgotten_after_its_time_and_not_before(kept: Kept) -> None:
    kept.served("s", "b", is_home=False)

    await kept.pass_time(TTL_S - 1)
    assert (await find(kept.store, "s"), kept.store.last("p", "s")) == ("b", "b")
    await kept.pass_time(2)
    assert (await find(kept.store, "s"), kept.store.last("p", "s")) == (None, None)


async def test_a_turn_begins_the_time_anew(kept: Kept) -> None:
    kept.served("s", "b", is_home=False)
    await kept.pass_time(TTL_S / 2)
    kept.served("s", "b", is_home=False)
    kept.served("t", "b", is_home=False)  # told behind the other
    await kept.arrived()

    await kept.pass_time(TTL_S - 10)

    assert (await find(kept.store, "s"), kept.store.last("p", "s")) == ("b", "b")


async def test_of_too_many_the_longest_silent_is_forgotten_first(kept: Kept) -> None:
    for number in range(LIMIT):
        kept.served(str(number), "b", is_home=True)
    kept.served("0", "b", is_home=True)
    kept.served("one more", "b", is_home=True)

    known = [str(n) for n in range(LIMIT) if kept.store.last("p", str(n)) is not None]

    assert known == [str(number) for number in range(LIMIT) if number != 1]
    assert kept.store.status()["sessions"] == LIMIT


async def test_each_request_is_told_once_and_a_cancelled_one_never(kept: Kept) -> None:
    kept.served("s", "b", is_home=False)
    told: list[str] = []

    def note(who: str) -> Callable[[str | None], None]:
        return lambda backend: told.append(f"{who} {backend}")

    kept.store.find("p", "s", note("first"))
    kept.store.find("p", "new", note("second"))
    third = kept.store.find("p", "new", note("third"))
    kept.store.find("p", "new", note("fourth"))
    if third is not None:
        third.cancel()
        third.cancel()
    await find(kept.store, "new")

    assert sorted(told) in (
        ["first b", "fourth None", "second None"],
        ["first b", "fourth None", "second None", "third None"],  # at once: too late to cancel
    )
    assert ("third None" in told) == (third is None)


async def test_one_that_is_told_may_cancel_another_and_ask_anew(kept: Kept) -> None:
    told: list[str] = []

    def first(backend: str | None) -> None:
        told.append(f"first {backend}")
        if second is not None:
            second.cancel()
        kept.store.find("p", "new", lambda backend: told.append(f"again {backend}"))

    second = None
    kept.store.find("p", "new", first)
    second = kept.store.find("p", "new", lambda backend: told.append(f"second {backend}"))
    await find(kept.store, "new")

    assert [word for word in told if word != "second None"] == ["first None", "again None"]
    assert ("second None" in told) == (second is None)


async def test_any_history_is_kept_as_a_plain_list_of_turns_has_it(kept: Kept) -> None:
    random = Random(7)
    where: dict[str, str | None] = {}
    for _ in range(300):
        session, backend = random.choice("abcdefgh"), random.choice("xyz")
        is_home = backend == "xyz"[ord(session) % 3]
        kept.served(session, backend, is_home=is_home)
        where[session] = None if is_home else backend
        if random.random() < 0.1:
            await kept.pass_time(random.choice([1, 3, 15]))  # less than TTL_S in all
        asked = random.choice("abcdefgh")
        assert await find(kept.store, asked) == where.get(asked)


async def test_operators_see_the_store(kept: Kept) -> None:
    kept.served("s", "b", is_home=False)
    status = kept.store.status()

    assert (status["sessions"], status["is_ok"], status["faults"]) == (1, True, 0)
    assert set(status) == {"store", "sessions", "is_ok", "faults", "last_fault", "latency_ms"}
    assert kept.store.is_shared == (status["store"] == "redis")


async def test_a_closed_store_keeps_nobody_waiting(kept: Kept) -> None:
    told: list[str | None] = []
    kept.store.find("p", "new", told.append)
    await kept.store.close()
    kept.store.find("p", "newer", told.append)

    assert told == [None, None]


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcdefgh"), st.sampled_from("xy"), st.booleans(), st.integers(0, 30)
        )
    ),
    st.integers(1, 5),
)
def test_memory_is_bounded_and_forgetful(
    turns: list[tuple[str, str, bool, int]], limit: int
) -> None:
    clock = HandClock()
    store = MemoryAffinity(clock, ttl_s=60, limit=limit)
    known: list[tuple[str, str, bool, float]] = []
    for session, backend, is_home, pause in turns:
        clock.at += pause
        store.served("p", session, backend, is_home=is_home)
        known = [turn for turn in known if turn[0] != session]
        known = [*known, (session, backend, is_home, clock.at)][-limit:]
    current: dict[str, tuple[str | None, bool]] = {
        turn[0]: turn[1:3] for turn in known if clock.at - turn[3] <= 60
    }

    for session in "abcdefgh":
        told: list[str | None] = []
        store.find("p", session, told.append)
        at, is_home = current.get(session, (None, True))
        assert told == [None if is_home else at]
        assert store.last("p", session) == at
    assert store.status()["sessions"] == len(current)
