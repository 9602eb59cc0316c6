"""The fault table: what is broken while clients ask, and what is put right again."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import stand as stands
from tests.chaos.asking import ask
from tests.chaos.load import CLIENTS
from tests.chaos.stand import Failover, Setup, Stand
from tests.support.redisstand import RedisStand

Act = Callable[[Stand], Awaitable[str]]
_BEFORE_S = 0.8  # so that there are sessions, streams and connections to break
_BROKEN_S = 2.5
_AFTER_S = 1.5
_LEAVING = 500
_JUMP_S = 3600.0
_PLAIN = Setup()


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    name: str
    title: str
    act: Act
    setup: Setup = _PLAIN

    @property
    def quiet(self) -> str:
        """The row that its latency is compared with."""
        if self.setup.store != "memory":
            return "quiet-redis"
        return "quiet"


async def nothing(stand: Stand) -> str:
    await asyncio.sleep(_BEFORE_S + _BROKEN_S)
    return ""


def engine_is(mode: str) -> Act:
    """One of three engines misbehaves, and is well again."""

    async def act(stand: Stand) -> str:
        await asyncio.sleep(_BEFORE_S)
        stand.engines["a"].be(mode)
        await asyncio.sleep(_BROKEN_S)
        stand.engines["a"].be("well")
        await asyncio.sleep(_AFTER_S)
        return ""

    return act


async def engine_killed(stand: Stand) -> str:
    await asyncio.sleep(_BEFORE_S)
    stand.engines["a"].kill()
    await asyncio.sleep(_BROKEN_S)
    await asyncio.to_thread(stand.engines["a"].start)
    await asyncio.sleep(_AFTER_S)
    return "killed, then started again"


async def engine_silent(stand: Stand) -> str:
    await asyncio.sleep(_BEFORE_S)
    stand.engines["a"].signal(signal.SIGSTOP)
    await asyncio.sleep(_BROKEN_S)
    stand.engines["a"].signal(signal.SIGCONT)
    await asyncio.sleep(_AFTER_S)
    return ""


async def clients_leave(stand: Stand) -> str:
    """Many streams are hung up on in their middle; the engines must not compute for them."""
    await asyncio.sleep(_BEFORE_S)
    leaving = [
        ask(
            stand.ports[0],
            request_id=f"leaver-{number}",
            session=f"leaver-{number}",
            turn=1,
            stream=True,
            tokens=500,
            leave_after=2,
        )
        for number in range(_LEAVING)
    ]
    stand.asked += await asyncio.gather(*leaving)
    left = sum(asked.fate == "left" for asked in stand.asked)
    # Theirs would go on for seconds; the others' load is at most one request a client.
    took_s = await asyncio.to_thread(stands.until, lambda: running_in(stand) <= CLIENTS)
    await asyncio.sleep(_AFTER_S)
    return f"{left} left; {took_s:.1f} s later no engine computed for them"


def running_in(stand: Stand) -> int:
    return sum(engine.running() for engine in stand.engines.values())


async def log_full(stand: Stand) -> str:
    log, router = stand.router.log_dir, stand.router
    has_disk = stands.is_small(log)
    await asyncio.sleep(_BEFORE_S)
    if not has_disk:
        stands.limit_files(router.process.pid, stands.log_size(log) // 1024)
    await asyncio.sleep(_BROKEN_S)
    full = (await asyncio.to_thread(stand.status))["log"]
    if has_disk:
        stands.empty_logs(log)
    else:
        stands.limit_files(router.process.pid, None)
    await asyncio.sleep(_AFTER_S)
    after = (await asyncio.to_thread(stand.status))["log"]
    told = "told" if full["fault"] else "NOT told"
    again = "written again" if after["written"] > full["written"] else "NOT written again"
    kind = "disk full" if has_disk else "quota"
    return f"{kind}: {told}, {after['dropped']} lines dropped and counted, {again}"


async def clock_jumps(stand: Stand) -> str:
    await asyncio.sleep(_BEFORE_S)
    for seconds in (_JUMP_S, -_JUMP_S, 0.0):
        stands.shift_clock(stand.folder, seconds)
        await asyncio.sleep(1.0)
    return "an hour on, two back, right again"


async def worker_blocked(stand: Stand) -> str:
    """One of two workers does not run for two seconds, as if something blocked its loop."""
    await asyncio.sleep(_BEFORE_S)
    pid = stand.status()["pid"]
    os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(2.0)
    os.kill(pid, signal.SIGCONT)
    await asyncio.sleep(_AFTER_S)
    return "stopped for 2 s"


async def config_broken(stand: Stand) -> str:
    await asyncio.sleep(_BEFORE_S)
    files = (stand.router.config_path, stand.router.policy_path)
    good = [path.read_text(encoding="utf-8") for path in files]
    for path in files:
        path.write_text("[[[ this is no TOML", encoding="utf-8")
    stand.router.signal(signal.SIGHUP)

    def errors() -> list[str | None]:
        status = stand.status()
        return [status[name]["last_error"] for name in ("config", "policy")]

    await asyncio.to_thread(stands.until, lambda: all(errors()))
    await asyncio.sleep(1.0)
    for path, text in zip(files, good, strict=True):
        path.write_text(text, encoding="utf-8")
    await asyncio.to_thread(stands.until, lambda: not any(errors()))
    await asyncio.sleep(0.5)
    return "both faults told, both taken when mended"


def redis_is(*steps: tuple[Callable[[RedisStand], None], float]) -> Act:
    """Redis is broken step by step, each for a time."""

    async def act(stand: Stand) -> str:
        redis = stand.redis
        assert isinstance(redis, RedisStand)
        await asyncio.sleep(_BEFORE_S)
        for step, seconds in steps:
            await asyncio.to_thread(step, redis)
            await asyncio.sleep(seconds)
        return _told(stand)

    return act


async def redis_fails_over(stand: Stand) -> str:
    redis = stand.redis
    assert isinstance(redis, Failover)
    await asyncio.sleep(_BEFORE_S)
    redis.kill_first()
    took_s = await asyncio.to_thread(stands.until, redis.is_taken_over, 20.0)
    await asyncio.sleep(_AFTER_S)
    return f"the heir took over after {took_s:.1f} s; {_told(stand)}"


def _told(stand: Stand) -> str:
    store = stand.status().get("affinity", {})
    state = "well" if store.get("is_ok") else "failing"
    return f"then {state}, {store.get('faults')} faults counted"


def _delay(redis: RedisStand, seconds: float) -> None:
    redis.delay_s = seconds


_ENGINE = "one of three engines"
_SHARED = Setup(routers=2, store="redis")

ROWS: tuple[Row, ...] = (
    Row("quiet", "nothing", nothing),
    Row("killed", f"{_ENGINE} killed mid-stream", engine_killed),
    Row("hung-before", f"{_ENGINE} hangs before its head", engine_is("hang-before")),
    Row("hung-after", f"{_ENGINE} hangs after its head", engine_is("hang-after")),
    Row("silent", f"{_ENGINE} accepts and is silent", engine_silent),
    Row("reset", f"{_ENGINE} resets connections", engine_is("reset")),
    Row("trickle", f"{_ENGINE} trickles", engine_is("trickle")),
    Row("garbage", f"{_ENGINE} answers garbage", engine_is("garbage")),
    Row("log-full", "the log's disk is full", log_full, Setup(has_small_log=True)),
    Row("clock", "the wall clock jumps", clock_jumps, Setup(has_own_clock=True)),
    Row("blocked", "a worker's loop is blocked", worker_blocked, Setup(workers=2)),
    Row("leaving", f"{_LEAVING} clients leave mid-stream", clients_leave),
    Row("config", "configuration and policy are broken", config_broken),
    Row("quiet-redis", "nothing, with Redis", nothing, _SHARED),
    Row(
        "redis-frozen",
        "Redis is frozen",
        redis_is((RedisStand.freeze, _BROKEN_S), (RedisStand.thaw, _AFTER_S)),
        _SHARED,
    ),
    Row("redis-killed", "Redis is killed", redis_is((RedisStand.stop, _BROKEN_S)), _SHARED),
    Row(
        "redis-restarted",
        "Redis is restarted",
        redis_is((RedisStand.stop, 1.0), (RedisStand.start, _BROKEN_S)),
        _SHARED,
    ),
    Row(
        "redis-slow",
        "Redis answers 500 ms late",
        redis_is(
            (lambda redis: _delay(redis, 0.25), _BROKEN_S),
            (lambda redis: _delay(redis, 0), _AFTER_S),
        ),
        _SHARED,
    ),
    Row(
        "redis-failover",
        "Redis fails over",
        redis_fails_over,
        Setup(routers=2, store="failover"),
    ),
)


def folder_of(row: Row, scratch: Path) -> Path:
    return scratch / row.name
