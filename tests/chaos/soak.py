"""`make soak`: mixed traffic for a long time while everything breaks in turn, and is it as before?

Two routers of two workers each, one of them behind TLS, share a Redis and three engines. At the
end nothing may be lost, each request has its one record, and what lives in a worker (tasks,
connections, objects, descriptors) is what lived in it after the warm-up; memory must not climb.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import ssl
import statistics
import sys
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.chaos import gauge, growth, traffic
from tests.chaos import stand as stands
from tests.chaos.stand import EngineProcess
from tests.chaos.traffic import Line, Told
from tests.support.certificates import Authority, Pair
from tests.support.product import Product, write_toml
from tests.support.rawclient import HOST
from tests.support.redisstand import RedisStand

_SEED = 20_260_730
_LIMIT_S = 30.0
_BACKEND = {**stands.BACKEND, "keepalive_s": 1}
#: how long all is quiet before anything is counted: idle connections to engines are gone by then
_QUIET_S = 3.0
_LOOKS = 5
#: a worker's counts may be so far above those after the warm-up; a leak is one for each fault at
#: the least, and there are dozens
TASKS_SLACK = 3
FILES_SLACK = 8
OBJECTS_SLACK = 20
#: one for each scenario on each backend, each preset that was said, each session: as many as there
#: are of these, and a short run does not meet all of them before it counts
_BY_NEED = frozenset(
    {
        "router.affinity.Known",
        "router.chat.Classification",
        "router.chat.Turn",
        "router.exposition.Histogram",
        "router.prefix.Turn",
        "router.splice.Patch",
        "router.telemetry._Series",
        "router.verdict.Plan",
        "router.verdict.Told",
    }
)
#: sessions are forgotten after that, so that keys in Redis come and go within the run
_TTL_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """How long all takes, and what may be asked of a run of that length."""

    seconds: float  # of traffic, the warm-up included
    warm_s: float
    fault_s: float  # how long each lasts
    calm_s: float  # after each
    clients: int
    #: a worker's memory: MB an hour by the slope, and MB above what it had after the warm-up
    slope_mb_h: float | None
    more_mb: float
    faults: tuple[str, ...] | None = None  # by turns; None: all that there are
    policy: str | None = None  # None: the shipped one


def long(minutes: float) -> Length:
    return Length(
        seconds=minutes * 60,
        warm_s=min(minutes * 60 / 4, 300),
        fault_s=3.0,
        calm_s=5.0,
        clients=24,
        # A kilobyte that stays with each request would be 60 MB an hour. What a heap and its caches
        # still settle after the warm-up has been 4; of a few minutes it is most of any slope.
        slope_mb_h=6.0 if minutes >= 15 else None,
        more_mb=8.0,
    )


#: with nothing to learn from, which takes a slow machine longer than all the rest
_SMALL_POLICY = """
schema = 1
default_scenario = "chat"
[scenarios.chat]
preset.thinking = { fill = false }
[scenarios.faq]
match.keywords = ["退款", "快递", "收到"]
preset.max_new_tokens = { cap = 64 }
[scenarios.code]
match.keywords = ["Python"]
preset.temperature = 0.2
"""
#: for every run of the tests: each kind of fault once, and bounds that a slow machine keeps, too
SHORT = Length(
    seconds=14.0,
    warm_s=3.0,
    fault_s=0.7,
    calm_s=0.3,
    clients=8,
    slope_mb_h=None,
    more_mb=40.0,
    faults=(
        *("an engine is killed", "Redis is frozen", "the policy is broken"),
        *("an engine hangs after its head", "the engine behind TLS is killed"),
        *("backends change", "the log's disk is full", "the edge's certificate is renewed"),
        *("connections that ask nothing", "SIGHUP, five times", "an engine answers garbage"),
    ),
    policy=_SMALL_POLICY,
)


# --- what stands ------------------------------------------------------------------------------


@dataclass(slots=True)
class Stand:
    folder: Path
    engines: Mapping[str, EngineProcess]
    routers: list[Product]
    redis: RedisStand
    authority: Authority
    pair: Pair  # of the second router's edge
    configs: list[dict[str, Any]]
    policy: str
    edition: int = 0

    @property
    def pids(self) -> list[int]:
        """The workers'."""
        return [pid for router in self.routers for pid in children(router.process.pid)]

    def trust(self, router: int) -> ssl.SSLContext | None:
        return self.routers[router].trust

    def write_config(self, backends: Sequence[Mapping[str, Any]] | None = None) -> None:
        """The file of each router, with these backends in place of the usual ones."""
        for router, config in zip(self.routers, self.configs, strict=True):
            value = config if backends is None else {**config, "backends": list(backends)}
            write_toml(router.config_path, value)


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextlib.contextmanager
def standing(folder: Path, policy: str | None) -> Iterator[Stand]:
    authority = Authority(folder / "certificates")
    pair = authority.issue("edge", HOST)
    gauges = folder / "gauge"
    gauges.mkdir()
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(RedisStand(folder / "redis"))
        engines = {
            name: stack.enter_context(
                EngineProcess(name, authority.issue(name, HOST) if name == "c" else None)
            )
            for name in stands.NAMES
        }
        backends = [
            {"name": name, "url": engine.url, "dialect": dialect, **_BACKEND}
            for (name, engine), dialect in zip(
                engines.items(), ("vllm", "llamacpp", "openai"), strict=True
            )
        ]
        backends[-1]["ca_file"] = str(authority.file)
        routers, configs = [], []
        for number in range(2):
            edge = {"tls_cert": str(pair.cert), "tls_key": str(pair.key)} if number else {}
            config: dict[str, Any] = {
                "server": {"workers": 2, "body_limit_mb": 1, "header_limit_kb": 8, **edge},
                "backends": backends,
                "health": stands.HEALTH,
                "affinity": {"store": "redis", "ttl_s": _TTL_S},
                # Every record is looked for in the end, so no file of an hour is packed.
                "log": {"flush_ms": 50, "compress": False},
                "policy": {"settle_ms": 50},
            }
            router = Product.start(
                folder / f"router-{number}",
                config,
                policy=policy,
                env={"REDIS_URL": redis.url, gauge.FOLDER: str(gauges)},
                within=(sys.executable, "-m", "tests.chaos.gauge"),
                timeout_s=60,
            )
            router.trust = authority.trust() if number else None
            routers.append(stack.enter_context(router))
            configs.append(_as_written(router))
        text = routers[0].policy_path.read_text(encoding="utf-8")
        yield Stand(folder, engines, routers, redis, authority, pair, configs, text)


def _as_written(router: Product) -> dict[str, Any]:
    return tomllib.loads(router.config_path.read_text(encoding="utf-8"))


# --- what is broken ---------------------------------------------------------------------------

Fault = Callable[[Stand, float], Awaitable[None]]


def _engine_is(mode: str, pause_ms: float = stands.PAUSE_MS) -> Fault:
    async def fault(stand: Stand, seconds: float) -> None:
        stand.engines["a"].be(mode, pause_ms=pause_ms)
        await asyncio.sleep(seconds)
        stand.engines["a"].be("well")

    return fault


async def _killed(stand: Stand, seconds: float) -> None:
    stand.engines["a"].kill()
    await asyncio.sleep(seconds)
    await asyncio.to_thread(stand.engines["a"].start)


async def _secure_engine_killed(stand: Stand, seconds: float) -> None:
    stand.engines["c"].kill()
    await asyncio.sleep(seconds)
    await asyncio.to_thread(stand.engines["c"].start)


async def _silent(stand: Stand, seconds: float) -> None:
    stand.engines["b"].signal(signal.SIGSTOP)
    await asyncio.sleep(seconds)
    stand.engines["b"].signal(signal.SIGCONT)


async def _redis_frozen(stand: Stand, seconds: float) -> None:
    stand.redis.freeze()
    await asyncio.sleep(seconds)
    stand.redis.thaw()


async def _redis_killed(stand: Stand, seconds: float) -> None:
    await asyncio.to_thread(stand.redis.stop)
    await asyncio.sleep(seconds)
    await asyncio.to_thread(stand.redis.start)


async def _redis_slow(stand: Stand, seconds: float) -> None:
    stand.redis.delay_s = 0.1
    await asyncio.sleep(seconds)
    stand.redis.delay_s = 0.0


async def _disk_full(stand: Stand, seconds: float) -> None:
    for router in stand.routers:
        size = max((path.stat().st_size for path in router.log_dir.glob("requests-*")), default=0)
        for pid in children(router.process.pid):
            stands.limit_files(pid, size >> 10)
    await asyncio.sleep(seconds)
    for pid in stand.pids:
        stands.limit_files(pid, None)


async def _policy_changes(stand: Stand, seconds: float) -> None:
    stand.edition += 1
    for router in stand.routers:
        changed = f"{stand.policy}\n# edition {stand.edition}\n"
        router.policy_path.write_text(changed, encoding="utf-8")
    await asyncio.sleep(seconds)


async def _policy_broken(stand: Stand, seconds: float) -> None:
    for router in stand.routers:
        router.policy_path.write_text("[[[ this is no TOML", encoding="utf-8")
    await asyncio.sleep(seconds)
    for router in stand.routers:
        router.policy_path.write_text(stand.policy, encoding="utf-8")


async def _backends_change(stand: Stand, seconds: float) -> None:
    """One goes, a dead one comes; then it is as before."""
    first, *rest = stand.configs[0]["backends"]
    dead = {**first, "name": "dead", "url": f"http://{HOST}:9"}
    stand.write_config([*rest, dead])
    await asyncio.sleep(seconds)
    stand.write_config()


async def _config_broken(stand: Stand, seconds: float) -> None:
    for router in stand.routers:
        router.config_path.write_text("[[[ this is no TOML", encoding="utf-8")
    await asyncio.sleep(seconds)
    stand.write_config()


async def _hangups(stand: Stand, seconds: float) -> None:
    for _ in range(5):
        for router in stand.routers:
            router.signal(signal.SIGHUP)
        await asyncio.sleep(seconds / 5)


async def _renewed(stand: Stand, seconds: float) -> None:
    stand.edition += 1
    stand.pair.replace_by(stand.authority.issue(f"edge-{stand.edition}", HOST))
    await asyncio.sleep(seconds)


async def _all_hang_up(stand: Stand, seconds: float) -> None:
    """Many connections that ask nothing, speak nonsense or the wrong protocol, and go."""
    loop = asyncio.get_running_loop()
    first_words = (b"", b"GET / HT", b"\x16\x03\x01\x02\x00", b"\x00" * 100, b"POST /v1/chat")
    for router in stand.routers:
        for words in first_words * 6:
            with contextlib.suppress(OSError):
                transport, _ = await loop.create_connection(asyncio.Protocol, HOST, router.port)
                transport.write(words)
                loop.call_later(seconds / 2, transport.abort)
    await asyncio.sleep(seconds)


FAULTS: Mapping[str, Fault] = {
    "an engine is killed": _killed,
    "an engine hangs before its head": _engine_is("hang-before"),
    "an engine hangs after its head": _engine_is("hang-after"),
    "an engine accepts and is silent": _silent,
    "an engine resets connections": _engine_is("reset"),
    "an engine trickles": _engine_is("trickle"),
    "an engine answers garbage": _engine_is("garbage"),
    "an engine is slow": _engine_is("well", pause_ms=100),
    "the engine behind TLS is killed": _secure_engine_killed,
    "Redis is frozen": _redis_frozen,
    "Redis is killed": _redis_killed,
    "Redis is slow": _redis_slow,
    "the log's disk is full": _disk_full,
    "the policy changes": _policy_changes,
    "the policy is broken": _policy_broken,
    "backends change": _backends_change,
    "the configuration is broken": _config_broken,
    "SIGHUP, five times": _hangups,
    "the edge's certificate is renewed": _renewed,
    "connections that ask nothing": _all_hang_up,
}


#: in every warm-up: what a worker began with is frozen out of sight, what it reloads is not
_FIRST = ("the policy changes", "backends change", "SIGHUP, five times")

# --- what is seen -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive:
    """What lives in one worker while all is quiet."""

    pid: int
    rss_mb: float
    pss_mb: float
    files: int
    threads: int
    tasks: dict[str, int]
    objects: dict[str, int]
    all_objects: int


@dataclass(slots=True)
class Memory:
    """Samples of one worker under load: (seconds, MB)."""

    rss: list[tuple[float, float]] = field(default_factory=list)


def files_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _from(path: Path, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+)", path.read_text(), re.M)
    assert found is not None
    return int(found[1])


def alive(stand: Stand) -> list[Alive]:
    """Of every worker; the least of several looks, since checks of engines come and go."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda pid: _alive(pid, stand.folder / "gauge"), stand.pids))


def _alive(pid: int, folder: Path) -> Alive:
    looks, files = [], []
    for _ in range(_LOOKS):
        looks.append(gauge.ask(pid, folder))
        files.append(files_of(pid))
        time.sleep(0.25)
    return Alive(
        pid=pid,
        rss_mb=stands.rss_mb(pid),
        pss_mb=_from(Path(f"/proc/{pid}/smaps_rollup"), "Pss") / 1024,
        files=min(files),
        threads=_from(Path(f"/proc/{pid}/status"), "Threads"),
        tasks=growth.least([look["tasks"] for look in looks]),
        objects=growth.least([look["objects"] for look in looks]),
        all_objects=min(look["all_objects"] for look in looks),
    )


@dataclass(slots=True)
class Seen:
    """A whole run."""

    told: list[Told] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    before: list[Alive] = field(default_factory=list)  # after the warm-up
    after: list[Alive] = field(default_factory=list)
    memory: dict[int, Memory] = field(default_factory=lambda: defaultdict(Memory))
    keys_before: int = 0
    keys_after: int = 0
    lasting_keys: int = 0  # without an end of their life
    unrecorded: list[str] = field(default_factory=list)
    seconds: float = 0.0


class _Gate:
    """Clients ask while it is open; closing it waits until the last has its answer."""

    def __init__(self) -> None:
        self._is_open = asyncio.Event()
        self._asking = 0
        self._is_quiet = asyncio.Event()
        self.is_over = False

    def open(self) -> None:
        self._is_open.set()

    async def close(self) -> None:
        self._is_open.clear()
        while self._asking:
            self._is_quiet.clear()
            await self._is_quiet.wait()

    async def enter(self) -> None:
        await self._is_open.wait()
        self._asking += 1

    def leave(self) -> None:
        self._asking -= 1
        if not self._asking:
            self._is_quiet.set()


async def run(stand: Stand, length: Length) -> Seen:
    """All of it; what was recorded is looked at when the routers have stopped (`judge_records`)."""
    seen = Seen()
    gate = _Gate()
    clients = [
        asyncio.ensure_future(_client(stand, number, gate, seen))
        for number in range(length.clients)
    ]
    try:
        began = time.monotonic()
        await _make_well(stand)
        gate.open()
        for name in _FIRST:
            await FAULTS[name](stand, length.fault_s)
        await _break_in_turn(stand, length, length.warm_s, Counter())
        seen.before, seen.keys_before, _ = await _quiet(stand, gate)
        watching = asyncio.ensure_future(_watch(stand, seen, length))
        gate.open()
        await _break_in_turn(stand, length, length.seconds - length.warm_s, seen.faults)
        watching.cancel()
        await _make_well(stand)
        seen.after, seen.keys_after, seen.lasting_keys = await _quiet(stand, gate)
        seen.seconds = time.monotonic() - began
        gate.is_over = True
        gate.open()
        await asyncio.gather(*clients)
    finally:
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        await asyncio.sleep(0.1)  # what was hung up is closed before the loop is
    return seen


async def _client(stand: Stand, number: int, gate: _Gate, seen: Seen) -> None:
    random = Random(_SEED + number)
    router = number % len(stand.routers)
    count = 0
    with contextlib.closing(Line(stand.routers[router].port, stand.trust(router))) as line:
        while True:
            await gate.enter()
            try:
                if gate.is_over:
                    return
                name = f"soak-{number}-{count}"
                question = traffic.question(random, name)
                reply = await line.put(question, _LIMIT_S)
                seen.told.append(traffic.told(question, name, reply))
                count += 1
            finally:
                gate.leave()
            if random.random() < 0.1:
                line.close()
            await asyncio.sleep(random.random() * 0.2)


async def _break_in_turn(
    stand: Stand, length: Length, seconds: float, faults: Counter[str]
) -> None:
    """One fault after the other, each put right again, until the time is over."""
    end = time.monotonic() + seconds
    names = length.faults
    if names is None:
        names = tuple(Random(_SEED).sample(list(FAULTS), len(FAULTS)))
    while time.monotonic() < end:
        for name in names:
            await asyncio.sleep(min(length.calm_s, max(0.0, end - time.monotonic())))
            if time.monotonic() + length.fault_s > end:
                return
            await FAULTS[name](stand, length.fault_s)
            faults[name] += 1


async def _make_well(stand: Stand) -> None:
    for engine in stand.engines.values():
        await asyncio.to_thread(engine.make_well)


async def _quiet(stand: Stand, gate: _Gate) -> tuple[list[Alive], int, int]:
    """What lives while nobody asks, and the keys in Redis: how many, how many without an end."""
    await gate.close()
    await asyncio.sleep(_QUIET_S)
    keys = await asyncio.to_thread(stand.redis.keys)
    living = await asyncio.to_thread(alive, stand)
    return living, len(keys), sum(left < 0 for left in keys.values())


async def _watch(stand: Stand, seen: Seen, length: Length) -> None:
    pids, began = stand.pids, time.monotonic()
    while True:
        for pid in pids:
            sample = (time.monotonic() - began, stands.rss_mb(pid))
            seen.memory[pid].rss.append(sample)
        await asyncio.sleep(max(0.5, length.seconds / 400))


def judge_records(stand: Stand, seen: Seen) -> None:
    """Look at what was recorded, now that the routers have stopped."""
    compare((one for router in stand.routers for one in router.records()), seen)


def compare(records: Iterable[Mapping[str, Any]], seen: Seen) -> None:
    """Each request has exactly one record, which says the same as its client."""
    recorded: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for one in records:
        recorded[one["request_id"]].append(one)
    for told in seen.told:
        found = recorded[told.request_id or ""]
        if told.request_id is None or len(found) > 1 or (not found and told.records == "one"):
            seen.unrecorded.append(f"{told.kind}: {len(found)} records of {told.request_id}")
        elif found and not _agree(told, found[0]):
            said = {key: found[0][key] for key in ("status", "outcome", "error_code")}
            seen.unrecorded.append(f"{told.kind}: {told.outcome} {told.why}, recorded as {said}")


def _agree(told: Told, record: Mapping[str, Any]) -> bool:
    outcome = record["outcome"]
    match told.outcome:
        case "answered":
            return bool(outcome == "ok" and record["status"] == 200)
        case "failed":
            return bool(outcome not in ("ok", "client_disconnect"))
        case "refused":
            return bool(record["status"] == told.status and record["error_code"] == told.why)
        case _:
            return True  # who left may have left before, while or after it was answered


# --- judgement --------------------------------------------------------------------------------


def faults_of(seen: Seen, length: Length) -> list[str]:
    """All that is not as it must be; nothing where the run was good."""
    found = [f"lost: {why} ({n})" for why, n in Counter(_losses(seen)).items()]
    found += [f"records: {line}" for line in seen.unrecorded[:20]]
    if len(seen.unrecorded) > 20:
        found.append(f"records: {len(seen.unrecorded) - 20} more")
    if seen.lasting_keys:
        found.append(f"Redis: {seen.lasting_keys} keys that stay for ever")
    if seen.keys_after > 2 * traffic.SESSIONS:
        found.append(f"Redis: {seen.keys_after} keys of {traffic.SESSIONS} sessions")
    pids = [one.pid for one in seen.before]
    if pids != [one.pid for one in seen.after]:
        found.append("a worker died")
        return found
    for before, after in zip(seen.before, seen.after, strict=True):
        found += _grown(before, after, seen.memory[before.pid], length)
    return found


def _losses(seen: Seen) -> Iterator[str]:
    return (told.why for told in seen.told if told.outcome == "lost")


def _grown(before: Alive, after: Alive, memory: Memory, length: Length) -> Iterator[str]:
    who = f"worker {before.pid}"
    for name, (was, now) in growth.more(before.objects, after.objects, OBJECTS_SLACK).items():
        if name not in _BY_NEED:
            yield f"{who}: {now} {name}, {was} before"
    tasks, was_tasks = sum(after.tasks.values()), sum(before.tasks.values())
    if tasks > was_tasks + TASKS_SLACK:
        more = growth.more(before.tasks, after.tasks, 1)
        yield f"{who}: {tasks} tasks, {was_tasks} before; {more}"
    if after.files > before.files + FILES_SLACK:
        yield f"{who}: {after.files} descriptors, {before.files} before"
    if after.rss_mb > before.rss_mb + length.more_mb:
        yield f"{who}: {after.rss_mb:.1f} MB, {before.rss_mb:.1f} before"
    if length.slope_mb_h is not None and (slope := slope_mb_h(memory)) > length.slope_mb_h:
        yield f"{who}: memory climbs by {slope:.1f} MB an hour"


def slope_mb_h(memory: Memory) -> float:
    return growth.slope(memory.rss) * 3600


def figures(seen: Seen, length: Length) -> dict[str, Any]:
    """For the JSON file."""
    kinds: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for told in seen.told:
        kinds[told.kind][told.outcome] += 1
    failures = Counter(told.why for told in seen.told if told.outcome == "failed")
    return {
        "seconds": round(seen.seconds, 1),
        "requests": len(seen.told),
        "faults": dict(seen.faults),
        "kinds": {kind: dict(counts) for kind, counts in sorted(kinds.items())},
        "failures": dict(failures),
        "answer_p50_s": statistics.median(
            [told.took_s for told in seen.told if told.outcome == "answered"] or [0.0]
        ),
        "redis_keys": [seen.keys_before, seen.keys_after],
        "workers": [
            {
                "pid": before.pid,
                "rss_mb": [round(before.rss_mb, 1), round(after.rss_mb, 1)],
                "pss_mb": [round(before.pss_mb, 1), round(after.pss_mb, 1)],
                "slope_mb_h": round(slope_mb_h(seen.memory[before.pid]), 2),
                "files": [before.files, after.files],
                "threads": [before.threads, after.threads],
                "tasks": [sum(before.tasks.values()), sum(after.tasks.values())],
                "objects": [sum(before.objects.values()), sum(after.objects.values())],
                "all_objects": [before.all_objects, after.all_objects],
                "samples": [
                    [round(at), round(mb, 2)] for at, mb in seen.memory[before.pid].rss[::5]
                ],
            }
            for before, after in zip(seen.before, seen.after, strict=False)
        ],
        "faults_found": faults_of(seen, length),
    }


def measure(folder: Path, length: Length) -> tuple[dict[str, Any], list[str]]:
    """The figures, and what is not as it must be."""
    import uvloop

    with standing(folder, length.policy) as stand:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            seen = runner.run(run(stand, length))
        for router in stand.routers:
            router.stop()
        judge_records(stand, seen)
    found = figures(seen, length)
    return found, found["faults_found"]


def print_figures(found: Mapping[str, Any]) -> None:
    print(f"\n{found['requests']} requests in {found['seconds']:.0f} s, {found['faults']}")
    heads = ("answered", "failed", "refused", "left", "lost")
    print(f"{'':<24}" + "".join(f"{head:>10}" for head in heads))
    for kind, counts in found["kinds"].items():
        print(f"{kind:<24}" + "".join(f"{counts.get(head, 0):>10}" for head in heads))
    print(f"failed with {found['failures']}; keys in Redis {found['redis_keys']}")
    for worker in found["workers"]:
        cells = ", ".join(
            f"{name} {worker[name][0]} → {worker[name][1]}"
            for name in ("rss_mb", "pss_mb", "files", "threads", "tasks", "objects")
        )
        print(f"worker {worker['pid']}: {cells}; {worker['slope_mb_h']:+.2f} MB an hour")
    for line in found["faults_found"]:
        print(f"    NOT AS IT MUST BE: {line}")
    print(json.dumps({"good": not found["faults_found"]}), flush=True)
