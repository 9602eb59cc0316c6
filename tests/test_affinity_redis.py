"""Sessions in a real Redis: shared by several processes, and what happens while it fails."""

from __future__ import annotations

import asyncio
import shutil
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from router import affinity_redis, config, redisurl
from router.ports import Affinity, Clock
from router.redisurl import RedisAddress
from router.tomlfile import FileFault
from tests.support.clocks import HandClock, RealClock
from tests.support.rawclient import HOST
from tests.support.redisserver import (
    find,
    redis_server,
    told_at_once,
    until,
)
from tests.support.redisstand import RedisStand, free_port

# --- the address --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://h", RedisAddress(kind="single", hosts=(("h", 6379),))),
        (
            "rediss://me:p%40ss%2F@h:7000/3?ca=/ca.pem",
            RedisAddress(
                kind="single",
                hosts=(("h", 7000),),
                user="me",
                password="p@ss/",
                db=3,
                is_tls=True,
                ca="/ca.pem",
            ),
        ),
        (
            "redis+sentinel://:pw@a,b:7001,[::1]:7002/main/2?sentinel_password=x",
            RedisAddress(
                kind="sentinel",
                hosts=(("a", 26379), ("b", 7001), ("::1", 7002)),
                password="pw",
                service="main",
                db=2,
                sentinel_password="x",
            ),
        ),
        (
            "rediss+cluster://a,b:7001",
            RedisAddress(kind="cluster", hosts=(("a", 6379), ("b", 7001)), is_tls=True),
        ),
    ],
)
def test_a_url_says_what_kind_of_redis_it_is(url: str, address: RedisAddress) -> None:
    assert redisurl.parse(url) == address


@pytest.mark.parametrize(
    "url",
    [
        "localhost:6379",
        "http://h",
        "redis+other://h",
        "redis://",
        "redis://h:0",
        "redis://a,b",
        "redis://h/x",
        "redis://me@h",
        "redis://:p#w@h:1x",
        "redis://h?ca=/x",
        "rediss://h?cert=/x",
        "rediss://h?ca",
        "redis+sentinel://h",
        "redis+cluster://h/1",
        "redis://[::1",
    ],
)
def test_a_bad_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"^(must|wants|has|names) "):
        redisurl.parse(url)


@given(st.text("ab:/@,?#[]%&=+ ", max_size=12), st.sampled_from(["redis", "rediss+sentinel"]))
def test_what_is_said_of_a_url_is_no_secret(text: str, scheme: str) -> None:
    secret = "HuNtEr2"
    try:
        told = repr(redisurl.parse(f"{scheme}://u:{secret}@{text}"))
    except ValueError as fault:
        told = str(fault)

    assert secret not in told


def test_the_configuration_says_what_is_wrong_with_the_url(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(
        '[affinity]\nstore = "redis"\n[[backends]]\nname = "a"\nurl = "http://127.0.0.1:1"\n'
    )

    with pytest.raises(FileFault, match=r"affinity\.url_env.*REDIS_URL is not set"):
        config.load(path, environ={})
    with pytest.raises(FileFault, match=r"affinity\.url_env.*REDIS_URL must begin with") as found:
        config.load(path, environ={"REDIS_URL": "htp://:secret@h"})
    assert "secret" not in str(found.value)
    assert config.load(path, environ={"REDIS_URL": "redis://h"}).affinity.store == "redis"


# --- a real Redis -------------------------------------------------------------------------

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
        """Several processes with one Redis."""

        def __init__(self) -> None:
            self._open: list[Affinity] = []

        async def start(
            self, url: str, *, clock: Clock | None = None, timeout_ms: float = 50
        ) -> Affinity:
            settings = config.Affinity(store="redis", ttl_s=600, timeout_ms=timeout_ms, prefix="r")
            environ = {"REDIS_URL": url}
            store = affinity_redis.opened(settings, clock or RealClock(), environ)
            await store.start()
            self._open.append(store)
            return store

        async def close(self) -> None:
            for store in self._open:
                await store.close()

    @pytest.fixture
    async def routers() -> AsyncIterator[Routers]:
        running = Routers()
        yield running
        await running.close()

    def accepts(server: redis.Redis, *words: str | int) -> bool:
        """Whether it does so; it may not be ready for it yet."""
        try:
            server.execute_command(*words)  # type: ignore[no-untyped-call]  # the package's own
        except redis.ResponseError:
            return False
        return True

    def is_ok(store: Affinity) -> bool:
        return bool(store.status()["is_ok"])

    async def shared(one: Affinity, other: Affinity, session: str = "shared") -> None:
        """What one process is told arrives at the other."""
        one.served("p", session, "b", is_home=False)
        for _ in range(1000):
            if await find(other, session) == "b":
                return
            other.served("p", session, "a", is_home=True)
            session += "+"
            one.served("p", session, "b", is_home=False)
            await asyncio.sleep(0.01)
        raise AssertionError("it never arrived")

    # --- shared ---

    async def test_another_process_hears_of_exceptions_alone(
        routers: Routers, stand: RedisStand
    ) -> None:
        one, other = await routers.start(stand.url), await routers.start(stand.url)
        one.served("p/1", "s", "b", is_home=False)
        one.served("p/1", "t", "a", is_home=True)
        await until(stand.keys)

        assert await find(other, "s", "p/1") == "b"
        assert await find(other, "t", "p/1") is None
        assert other.last("p/1", "s") is None
        assert list(stand.keys()) == ["r:p%2F1:s"]

    async def test_every_key_has_an_end_which_use_puts_off(
        routers: Routers, stand: RedisStand, server: redis.Redis
    ) -> None:
        clock = HandClock()
        store = await routers.start(stand.url, clock=clock)
        store.served("p", "s", "b", is_home=False)
        await until(stand.keys)
        assert 590 < stand.keys()["r:p:s"] <= 600

        server.expire("r:p:s", 300)
        clock.at += 300
        store.served("p", "s", "b", is_home=False)

        await until(lambda: stand.keys()["r:p:s"] > 590)

    async def test_a_session_that_is_home_again_is_no_exception_to_anybody(
        routers: Routers, stand: RedisStand
    ) -> None:
        clock = HandClock()
        one = await routers.start(stand.url, clock=clock)
        other = await routers.start(stand.url, clock=clock)
        one.served("p", "s", "b", is_home=False)
        await until(stand.keys)
        assert await find(other, "s") == "b"

        other.served("p", "s", "a", is_home=True)
        await until(lambda: not stand.keys())
        assert told_at_once(one, "s") == ["b"]  # as it knows no better
        clock.at += 5
        assert told_at_once(one, "s") == ["b"]  # ... but now it asks, behind the request
        one.served("p", "s", "b", is_home=False)  # which changes nothing, so it tells nothing new

        await until(lambda: told_at_once(one, "s") == [None])
        assert stand.keys() == {}

    async def test_most_requests_ask_nobody(
        routers: Routers, stand: RedisStand, server: redis.Redis
    ) -> None:
        store = await routers.start(stand.url)
        await find(store, "s")
        before = server.info("commandstats")["cmdstat_get"]["calls"]

        for _ in range(100):
            assert told_at_once(store, "s") == [None]

        assert server.info("commandstats")["cmdstat_get"]["calls"] == before

    async def test_five_hundred_at_once_share_a_few_connections(
        routers: Routers, stand: RedisStand, server: redis.Redis
    ) -> None:
        store = await routers.start(stand.url, timeout_ms=5000)
        for number in range(500):
            server.set(f"r:p:{number}", f"b{number}", ex=60)

        found = await asyncio.gather(*(find(store, str(number)) for number in range(500)))

        assert found == [f"b{number}" for number in range(500)]
        assert len(server.client_list()) <= 4 + 1

    # --- failing ---

    async def test_a_frozen_redis_keeps_nobody_waiting_and_is_used_again_once_it_thaws(
        routers: Routers, stand: RedisStand
    ) -> None:
        one, other = await routers.start(stand.url), await routers.start(stand.url)
        with capture_logs() as logs:
            stand.freeze()
            assert [await find(one, f"{n}") for n in range(20)] == [None] * 20
            assert not is_ok(one)
            assert told_at_once(one, "another") == [None]
            one.served("p", "s", "b", is_home=False)
            assert told_at_once(one, "s") == ["b"]
            stand.thaw()
            await until(lambda: is_ok(one) and is_ok(other))
            await until(stand.keys)

        assert await find(other, "s") == "b"  # told late
        fails = "sessions are not shared: Redis fails"
        events = [line["event"] for line in logs]
        assert events[0] == fails  # of all its requests, once
        assert events.count(fails) == events.count("sessions are shared again") <= 2
        assert set(events) == {fails, "sessions are shared again"}
        assert one.status()["faults"] > 0

    async def test_a_redis_that_comes_and_goes_is_used_while_it_is_there(
        routers: Routers, stand: RedisStand
    ) -> None:
        one = await routers.start(stand.url)
        for _ in range(2):
            stand.stop()
            assert [await find(one, f"{n}") for n in range(20)] == [None] * 20
            assert not is_ok(one)
            stand.start()
            await until(lambda: is_ok(one))
        other = await routers.start(stand.url)

        await shared(one, other)

    async def test_a_router_starts_without_its_redis_and_finds_it_later(
        routers: Routers, tmp_path: Path
    ) -> None:
        port = free_port()
        store = await routers.start(f"redis://{HOST}:{port}")
        assert not is_ok(store)
        assert told_at_once(store, "s") == [None]
        assert store.status()["last_fault"].startswith("unreachable: ")

        with redis_server(tmp_path / "late", port=port):
            await until(lambda: is_ok(store))

    async def test_a_slow_redis_is_not_waited_for_and_gives_nobody_anothers_answer(
        routers: Routers, stand: RedisStand, server: redis.Redis
    ) -> None:
        for number in range(60):
            server.set(f"r:p:{number}", f"b{number}", ex=60)
        store = await routers.start(stand.url)
        stand.delay_s = 0.1
        for number in range(30):
            lookup = store.find("p", str(number), lambda _: None)
            if lookup is not None and number % 2:
                lookup.cancel()
        found = [await find(store, str(number)) for number in range(30, 60)]
        assert set(found) == {None}
        stand.delay_s = 0.0
        await until(lambda: is_ok(store))

        for number in range(60):
            assert await find(store, str(number)) in (None, f"b{number}")
        fresh = await routers.start(stand.url, timeout_ms=5000)
        assert [await find(fresh, str(n)) for n in range(60)] == [f"b{n}" for n in range(60)]

    async def test_a_full_redis_is_still_asked_and_told_later(
        routers: Routers, stand: RedisStand, server: redis.Redis
    ) -> None:
        store = await routers.start(stand.url)
        server.set("r:p:old", "b", ex=60)
        server.config_set("maxmemory", "1")
        store.served("p", "new", "c", is_home=False)
        await until(lambda: not is_ok(store))

        assert store.status()["last_fault"].startswith("full: ")
        assert await find(store, "old") == "b"
        assert await find(store, "new") == "c"
        server.config_set("maxmemory", "0")
        await until(lambda: is_ok(store))
        assert server.get("r:p:new") == "c"

    async def test_a_replica_that_takes_no_news_is_still_asked(
        routers: Routers, stand: RedisStand, server: redis.Redis
    ) -> None:
        store = await routers.start(stand.url)
        server.set("r:p:old", "b", ex=60)
        server.replicaof(HOST, str(free_port()))
        store.served("p", "new", "c", is_home=False)
        await until(lambda: "readonly: " in str(store.status()["last_fault"]))

        async def knows_old() -> bool:
            return await find(store, "old") == "b"

        for _ in range(200):
            if await knows_old():
                break
            await asyncio.sleep(0.01)
        assert await knows_old()
        server.replicaof("NO", "ONE")
        await until(lambda: is_ok(store))
        assert server.get("r:p:new") == "c"

    async def test_a_redis_that_wants_another_password_is_done_without(
        routers: Routers, stand: RedisStand, server: redis.Redis
    ) -> None:
        server.acl_setuser(
            "app",
            enabled=True,
            passwords=["+good-one"],
            keys=["r:*"],
            commands=["+get", "+set", "+del", "+expire"],
        )
        place = stand.url.removeprefix("redis://")

        with capture_logs() as logs:
            denied = await routers.start(f"redis://app:bad-one@{place}")
            welcome = await routers.start(f"redis://app:good-one@{place}")

        assert (is_ok(denied), is_ok(welcome)) == (False, True)
        assert denied.status()["last_fault"].startswith("denied: ")
        assert "bad-one" not in f"{denied.status()} {logs}"
        await shared(welcome, await routers.start(stand.url))
        assert accepts(server, "ACL SETUSER", "app", ">bad-one")
        await until(lambda: is_ok(denied))

    async def test_rights_that_are_taken_away_are_missed_and_not_waited_for(
        routers: Routers, stand: RedisStand, server: redis.Redis
    ) -> None:
        store = await routers.start(stand.url)
        server.acl_setuser("default", enabled=True, nopass=True, keys=["*"], commands=["-get"])
        assert await find(store, "s") is None
        assert not is_ok(store)
        assert told_at_once(store, "t") == [None]

        server.acl_setuser("default", enabled=True, nopass=True, keys=["*"], commands=["+get"])
        await until(lambda: is_ok(store))

    async def test_what_is_no_name_of_a_backend_is_taken_for_none(
        routers: Routers, stand: RedisStand, server: redis.Redis
    ) -> None:
        store = await routers.start(stand.url)
        server.lpush("r:p:list", "b")
        server.set("r:p:long", "b" * 65)
        server.set("r:p:bytes", b"\xff")

        found = [await find(store, session) for session in ("list", "long", "bytes")]

        assert found == [None] * 3
        assert (store.status()["faults"], is_ok(store)) == (1, True)
        store.served("p", "list", "c", is_home=False)
        await until(lambda: server.type("r:p:list") == "string")

    # --- other kinds ---

    async def test_tls_is_spoken_with_those_who_prove_who_they_are(
        routers: Routers, tmp_path: Path
    ) -> None:
        pem = tmp_path / "cert.pem"
        key = tmp_path / "key.pem"
        words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
        words += " -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
        files = ["-keyout", str(key), "-out", str(pem)]
        made = await asyncio.create_subprocess_exec(
            "openssl", *words.split(), *files, stderr=DEVNULL
        )
        assert await made.wait() == 0
        tls_port = free_port()
        options = ["--tls-port", str(tls_port), "--tls-auth-clients", "no"]
        options += ["--tls-cert-file", str(pem), "--tls-key-file", str(key)]
        with redis_server(tmp_path / "tls", *options):
            good = await routers.start(f"rediss://{HOST}:{tls_port}?ca={pem}", timeout_ms=500)
            bad = await routers.start(f"rediss://{HOST}:{tls_port}", timeout_ms=500)

            assert (is_ok(good), is_ok(bad)) == (True, False)
            assert bad.status()["last_fault"].startswith("unreachable: ")

    async def test_a_cluster_is_asked_where_the_session_is(
        routers: Routers, tmp_path: Path
    ) -> None:
        options = ["--cluster-enabled", "yes", "--cluster-port"]
        bus = str(free_port())
        with (
            redis_server(tmp_path / "one", *options, str(free_port())) as one,
            redis_server(tmp_path / "two", *options, bus) as two,
            redis.Redis(port=one, decode_responses=True) as first,
            redis.Redis(port=two, decode_responses=True) as second,
        ):
            assert accepts(first, "CLUSTER ADDSLOTSRANGE", 0, 8000)
            assert accepts(second, "CLUSTER ADDSLOTSRANGE", 8001, 16383)
            assert accepts(first, "CLUSTER MEET", HOST, two, bus)
            await until(
                lambda: all(n.cluster("INFO")["cluster_state"] == "ok" for n in (first, second))
            )
            url = f"redis+cluster://{HOST}:{one}"
            store = await routers.start(url, timeout_ms=500)
            assert is_ok(store), store.status()
            for number in range(40):
                store.served("p", str(number), f"b{number}", is_home=False)
            await until(lambda: int(str(first.dbsize())) + int(str(second.dbsize())) == 40)

            fresh = await routers.start(url, timeout_ms=500)
            found = [await find(fresh, str(number)) for number in range(40)]

            assert found == [f"b{number}" for number in range(40)]
            assert min(int(str(first.dbsize())), int(str(second.dbsize()))) > 0

    async def test_a_sentinel_tells_of_the_new_master(routers: Routers, tmp_path: Path) -> None:
        guard = tmp_path / "sentinel.conf"
        with (
            redis_server(tmp_path / "one") as one,
            redis_server(tmp_path / "two", "--replicaof", f"{HOST} {one}") as two,
            redis.Redis(port=one, decode_responses=True) as first,
            redis.Redis(port=two, decode_responses=True) as second,
        ):
            guard.write_text(f"sentinel monitor main {HOST} {one} 1\n")
            await until(lambda: second.info("replication")["master_link_status"] == "up")
            with (
                redis_server(tmp_path / "guard", "--sentinel", config=guard) as port,
                redis.Redis(port=port, decode_responses=True) as sentinel,
            ):
                assert accepts(sentinel, "SENTINEL DEBUG", "info-period", 100)
                await until(lambda: sentinel.sentinel_slaves("main"))
                store = await routers.start(f"redis+sentinel://{HOST}:{port}/main", timeout_ms=500)
                assert is_ok(store), store.status()
                store.served("p", "s", "b", is_home=False)
                await until(lambda: second.get("r:p:s") == "b")

                await until(lambda: accepts(sentinel, "SENTINEL FAILOVER", "main"))
                await until(lambda: second.info("replication")["role"] == "master")
                await until(lambda: first.info("replication")["role"] == "slave")
                store.served("p", "t", "b", is_home=False)

                await until(lambda: second.get("r:p:t") == "b" and is_ok(store))
