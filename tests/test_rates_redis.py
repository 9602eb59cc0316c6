"""Rates in a real Redis: counted together by several routers, and what happens while it fails."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis
from structlog.testing import capture_logs

from router import config, rates_redis, redisurl
from router.keyring import Allowance
from router.rates_redis import RedisRates
from router.redisclient import RedisClient
from router.toll import Toll
from tests.support.clocks import RealClock
from tests.support.rawclient import HOST
from tests.support.redisserver import redis_server, until
from tests.support.redisstand import RedisStand, free_port

DOCUMENT = Path("docs/rates.md").read_text(encoding="utf-8")
TEN = Allowance(requests_per_minute=10)


def toll(allowance: Allowance, tokens: int = 0, name: str = "shop") -> Toll:
    made = Toll(name, allowance)
    made.tokens = tokens
    return made


async def ask(store: RedisRates, tolled: Toll) -> str:
    """What it was refused for; nothing where it was let in."""
    told: asyncio.Future[Toll] = asyncio.get_running_loop().create_future()
    store.ask(tolled, told.set_result)
    standing = (await told).standing
    assert standing is not None
    return standing.refused


if shutil.which("redis-server"):  # runs where a Redis is offered

    @pytest.fixture
    def stand(tmp_path: Path) -> Iterator[RedisStand]:
        with RedisStand(tmp_path / "redis") as running:
            yield running

    @pytest.fixture
    def server(stand: RedisStand) -> Iterator[redis.Redis]:
        """The server as others see it."""
        with redis.Redis.from_url(stand.url, decode_responses=True) as client:
            yield client

    class Routers:
        def __init__(self) -> None:
            self.open: list[RedisRates] = []

        async def start(self, url: str, *, timeout_ms: float = 200) -> RedisRates:
            told = config.Affinity(store="redis", timeout_ms=timeout_ms, prefix="r")
            store = rates_redis.opened(told, RealClock(), {"REDIS_URL": url})
            assert isinstance(store, RedisRates)
            await store.start()
            self.open.append(store)
            return store

    @pytest.fixture
    async def routers() -> AsyncIterator[Routers]:
        running = Routers()
        yield running
        for store in running.open:
            await store.close()

    async def test_routers_together_let_in_what_one_would(
        routers: Routers, stand: RedisStand
    ) -> None:
        stores = [await routers.start(stand.url) for _ in range(3)]

        asked = [ask(stores[number % 3], toll(TEN)) for number in range(30)]
        told = await asyncio.gather(*asked)

        assert sorted(told) == [""] * 10 + ["requests"] * 20
        assert [store.local for store in stores] == [0, 0, 0]

    async def test_places_are_counted_over_all_of_them_and_given_back_at_once(
        routers: Routers, stand: RedisStand
    ) -> None:
        one, other = await routers.start(stand.url), await routers.start(stand.url)
        two = Allowance(streams=2)
        first, second = toll(two), toll(two)
        assert [await ask(one, first), await ask(other, second)] == ["", ""]
        assert await ask(one, toll(two)) == "streams"

        other.over(second)
        other.settle(second, 0)

        for _ in range(2000):  # until it has told so
            if await ask(one, toll(two)) == "":
                break
        else:
            raise AssertionError("no place was given back")

    async def test_a_key_has_one_entry_with_an_end_and_keys_without_limits_none(
        routers: Routers, stand: RedisStand, server: redis.Redis
    ) -> None:
        store = await routers.start(stand.url)
        await ask(store, toll(TEN, name="a/b"))
        assert list(stand.keys()) == ["r:rate:a%2Fb"]
        assert 0 < stand.keys()["r:rate:a%2Fb"] <= 67  # six seconds to be full again, and a minute

        await ask(store, toll(Allowance(tokens_per_day=100), 10, name="day"))

        assert 60 < stand.keys()["r:rate:day"] <= 86_400 + 60
        assert set(server.hgetall("r:rate:day")) == {"r", "t", "d", "u"}

    async def test_a_request_is_one_command_and_what_it_used_goes_along_with_the_next(
        routers: Routers, stand: RedisStand, server: redis.Redis
    ) -> None:
        store = await routers.start(stand.url)
        allowance = Allowance(tokens_per_minute=1_000_000)
        await ask(store, toll(allowance))  # sends the script
        server.config_resetstat()

        for _ in range(20):
            tolled = toll(allowance, 100)
            assert await ask(store, tolled) == ""
            store.over(tolled)
            store.settle(tolled, 70)

        await until(lambda: server.hget("r:rate:shop", "u") == str(20 * 70))
        calls = server.info("commandstats")
        assert "cmdstat_eval" not in calls
        assert calls["cmdstat_evalsha"]["calls"] <= 21

    async def test_a_request_that_nobody_waits_for_any_more_costs_nothing(
        routers: Routers, stand: RedisStand, server: redis.Redis
    ) -> None:
        store = await routers.start(stand.url)
        allowance = Allowance(tokens_per_day=1000, streams=5)
        told: list[Toll] = []
        question = store.ask(toll(allowance, 100), told.append)
        assert question is not None
        await asyncio.sleep(0)  # it is on its way
        question.cancel()

        kept = toll(allowance, 10)
        assert await ask(store, kept) == ""
        await until(lambda: server.hget("r:rate:shop", "u") == "10")

        assert told == []
        assert kept.is_shared

    async def test_a_server_that_does_not_know_the_script_is_sent_it(
        routers: Routers, stand: RedisStand, server: redis.Redis
    ) -> None:
        store = await routers.start(stand.url)
        assert await ask(store, toll(TEN)) == ""
        server.script_flush()

        told = [await ask(store, toll(TEN)) for _ in range(10)]

        assert told == [""] * 9 + ["requests"]
        assert (store.local, store.status()["faults"]) == (0, 0)

    async def test_while_it_is_gone_this_process_goes_on_from_what_it_knows(
        routers: Routers, stand: RedisStand
    ) -> None:
        store = await routers.start(stand.url)
        other = await routers.start(stand.url)
        for number in range(6):
            assert await ask([store, other][number % 2], toll(TEN)) == ""
        last = await ask(store, toll(TEN))

        with capture_logs() as lines:
            stand.stop()
            told = [await ask(store, toll(TEN)) for _ in range(8)]
            await until(lambda: not store.status()["is_ok"])
            stand.start()
            for _ in range(2000):
                if store.status()["is_ok"]:
                    break
                await asyncio.sleep(0.005)

        assert [last, *told] == [""] * 4 + ["requests"] * 5  # ten in all
        assert store.local == 8
        events = [line["event"] for line in lines]
        assert events.count("rates are not shared: Redis fails") >= 1
        assert "rates are shared again" in events

    async def test_what_was_used_meanwhile_is_told_when_it_is_back(
        routers: Routers, stand: RedisStand, server: redis.Redis
    ) -> None:
        store = await routers.start(stand.url)
        stand.stop()
        tolled = toll(Allowance(tokens_per_day=1000), 100)
        assert await ask(store, tolled) == ""
        store.over(tolled)
        store.settle(tolled, 640)
        stand.start()

        await until(lambda: server.hget("r:rate:shop", "u") == "640")

        assert await ask(store, toll(Allowance(tokens_per_day=640))) == "budget"

    async def test_nobody_waits_longer_than_the_deadline(
        routers: Routers, stand: RedisStand
    ) -> None:
        store = await routers.start(stand.url, timeout_ms=50)
        stand.freeze()
        tolled = toll(TEN)

        assert await ask(store, tolled) == ""
        assert (store.local, tolled.is_shared) == (1, False)
        stand.thaw()
        for _ in range(2000):
            if tolled.is_shared:  # its answer came after all, and counts
                break
            await asyncio.sleep(0.005)
        assert tolled.is_shared

    async def test_a_refusal_is_no_reason_to_ask_each_time(
        routers: Routers, stand: RedisStand, server: redis.Redis
    ) -> None:
        store = await routers.start(stand.url)
        assert await ask(store, toll(TEN)) == ""
        server.config_set("maxmemory", 1)

        spent = toll(TEN, 100)
        told = [await ask(store, tolled) for tolled in [spent, *(toll(TEN) for _ in range(19))]]
        store.over(spent)
        store.settle(spent, 640)

        assert told == [""] * 9 + ["requests"] * 11
        assert store.local == 20
        assert not store.status()["is_ok"]
        assert store.status()["faults"] < 20
        server.config_set("maxmemory", 0)
        await until(lambda: server.hget("r:rate:shop", "u") == "640")  # it was not forgotten

    async def test_a_user_needs_no_more_rights_than_the_documents_say(
        routers: Routers, stand: RedisStand, server: redis.Redis
    ) -> None:
        rights = "+eval +evalsha +get +hgetall +hset +hdel +pexpire +time"
        server.execute_command(  # type: ignore[no-untyped-call]  # the package's own
            "ACL", "SETUSER", "router", "on", ">pw", "~r:*", *rights.split()
        )
        store = await routers.start(stand.url.replace("redis://", "redis://router:pw@"))

        assert await ask(store, toll(TEN)) == ""
        assert (store.local, store.status()["faults"]) == (0, 0)
        assert rights in DOCUMENT

    async def test_another_kind_of_value_is_left_alone(
        routers: Routers, stand: RedisStand, server: redis.Redis
    ) -> None:
        server.set("r:rate:shop", "somebody else's")
        store = await routers.start(stand.url)

        told = [await ask(store, toll(TEN)) for _ in range(11)]

        assert told == [""] * 10 + ["requests"]
        assert store.local == 11
        assert await ask(store, toll(TEN, name="other")) == ""
        assert store.local == 11

    async def test_a_process_that_died_gives_its_places_back_in_time(
        stand: RedisStand, server: redis.Redis
    ) -> None:
        one = Allowance(streams=1)
        now = 1_000_000_000_000_000
        address = redisurl.parse(stand.url)

        def store(at: list[int]) -> RedisRates:
            return RedisRates(
                lambda: RedisClient(address, connections=1, connect_s=2),
                config.Affinity(store="redis", timeout_ms=500, prefix="r"),
                RealClock(),
                now_us=lambda: at[0],
            )

        clock = [now]
        dead, alive = store(clock), store(clock)
        await dead.start()
        await alive.start()
        assert await ask(dead, toll(one)) == ""
        await dead._link.close()  # as if killed: it says nothing any more

        assert await ask(alive, toll(one)) == "streams"
        clock[0] += 31_000_000

        assert await ask(alive, toll(one)) == ""
        assert len([name for name in server.hgetall("r:rate:shop") if name[:2] == "s:"]) == 1
        await alive.close()

    async def test_keys_are_spread_over_a_cluster(routers: Routers, tmp_path: Path) -> None:
        options = ["--cluster-enabled", "yes", "--cluster-port"]
        bus = str(free_port())
        with (
            redis_server(tmp_path / "one", *options, str(free_port())) as one,
            redis_server(tmp_path / "two", *options, bus) as two,
            redis.Redis(port=one, decode_responses=True) as first,
            redis.Redis(port=two, decode_responses=True) as second,
        ):
            for node, words in (
                (first, ("CLUSTER ADDSLOTSRANGE", 0, 8191)),
                (second, ("CLUSTER ADDSLOTSRANGE", 8192, 16383)),
                (first, ("CLUSTER MEET", HOST, two, bus)),
            ):
                node.execute_command(*words)
            await until(
                lambda: all(n.cluster("INFO")["cluster_state"] == "ok" for n in (first, second))
            )
            store = await routers.start(f"redis+cluster://{HOST}:{one}", timeout_ms=2000)

            told = await asyncio.gather(
                *(ask(store, toll(TEN, name=f"key-{n % 8}")) for n in range(96))
            )

            assert sorted(told) == [""] * 80 + ["requests"] * 16
            assert store.local == 0
            assert min(int(str(first.dbsize())), int(str(second.dbsize()))) > 0
