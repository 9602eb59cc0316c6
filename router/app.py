"""Builds everything, passes it down, closes it. The only module that knows all others."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import hmac
import importlib
import os
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from router import config as configs
from router import discovery, trained
from router import policy as policies
from router.affinity import MemoryAffinity
from router.classify import Classifier
from router.classify.learned import Learned
from router.config import Backend, Config
from router.discovery import Resolver
from router.drains import Drains
from router.files import signature_of
from router.fleet import Fleet, Pools, slot_of
from router.health import Rules
from router.journal import FileJournal
from router.keeping import ConfigKeeper, PolicyKeeper, Turns, watch
from router.pipeline import Pipeline
from router.policy import Policy
from router.ports import Affinity, Upstream
from router.retrying import Budget
from router.server.hot import Hub
from router.server.plain import Plain
from router.sessions import MemorySessions
from router.telemetry import Metrics
from router.tomlfile import FileFault
from router.verdict import Live, Slot

if TYPE_CHECKING:
    from router.server.pages import Pages

log = structlog.get_logger(__name__)

#: how often deadlines and idle connections are looked at
_SWEEP_S = 0.25
#: how long ended requests wait at most to be recorded together
_RECORD_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class Edge:
    """The edge's share of the configuration, in the units it works with."""

    head_limit: int
    body_limit: int
    idle_timeout_s: float
    body_timeout_s: float


class SystemClock:
    now = staticmethod(time.time)
    ticks = staticmethod(time.perf_counter)


def slots_of(config: Config, connect: Callable[[Backend], Upstream]) -> dict[str, list[Slot]]:
    """The pools of a configuration, for those who only talk about it."""
    pools: dict[str, list[Slot]] = {}
    for backend in config.backends:
        pools.setdefault(backend.pool, []).append(slot_of(backend, connect(backend)))
    return pools


def learned_from(policy: Policy) -> Learned | None:
    """The learned stage of a policy; None where there is nothing to learn from, or no way to."""
    try:
        weights = trained.weights(policy)
    except trained.FitFailed as fault:
        log.error("requests are classified by words and shapes alone", reason=str(fault))
        return None
    return Learned(weights) if weights is not None else None


def live_of(config: Config, policy: Policy, pools: Mapping[str, Sequence[Slot]]) -> Live:
    """What requests are served by. It learns from the policy's examples, so it may take seconds."""
    learned = learned_from(policy)
    policy = policies.without_examples(policy)
    return Live(
        policy=policy,
        classifier=Classifier(policy, learned),
        pools=pools,
        plans={},
        **_said(config),
    )


def _said(config: Config) -> dict[str, Any]:
    """What requests are served by that the configuration says."""
    return {
        "aliases": frozenset(config.policy.aliases),
        "real_model_bypass": config.policy.real_model_bypass,
        "allow_policy_off": config.server.allow_policy_off,
        "has_keys": config.auth.keys_env is not None,
    }


class App:
    """One worker: its edge, its backends' connections, its share of the log."""

    def __init__(
        self,
        config: Config,
        config_path: Path,
        *,
        labels: Mapping[str, str] | None = None,
        read: Callable[[], Config] | None = None,
        fallback: Policy | None = None,
        resolve: Resolver | None = None,
    ) -> None:
        """`read` gives the configuration anew, as it was read before; left out: the file alone.

        `fallback` is in force where the policy's file is broken by now: this worker may take
        the place of one that died.
        """
        self.loop = asyncio.get_running_loop()
        self.started_at = time.time()
        self.metrics = Metrics()
        self.policy_path = configs.policy_path(config_path, config)
        taken = signature_of([self.policy_path])
        policy, fault = _first_policy(self.policy_path, fallback)
        taken += signature_of(policy.beside)
        self._tasks: set[asyncio.Task[None]] = set()
        self.fleet = Fleet(
            config,
            config_path,
            drains=Drains(trained.folder(), config_path),
            resolve=resolve or discovery.system_resolver(self.loop),
            spawn=self._spawn,
            labels=labels or {},
        )
        self.journal = FileJournal(
            configs.beside(config_path, config.log.dir),
            flush_s=config.log.flush_ms / 1e3,
            limit=config.log.queue,
            is_enabled=config.log.enabled,
        )
        self.pipeline = Pipeline(
            live_of(config, policy, self.fleet.pools),
            self.journal,
            self.metrics,
            SystemClock(),
            soon=lambda work: self.loop.call_later(_RECORD_PAUSE_S, work),
            sessions=MemorySessions(SystemClock()),
            affinity=_affinity(config),
            rules=_rules(config),
            budget=Budget(config.retry.share, config.retry.least),
            attempts=config.retry.attempts,
            queue=config.limits.queue,
            queue_timeout_s=config.limits.queue_timeout_s,
            keepalive_s=config.server.keepalive_s,
        )
        one_at_a_time = asyncio.Lock()
        self.config_keeper = ConfigKeeper(
            config_path,
            config,
            read or (lambda: configs.load(config_path)),
            self._change_to,
            lambda: self.pipeline.live.policy,
            Turns(one_at_a_time),
        )
        self.keeper = PolicyKeeper(
            self.policy_path,
            self.pipeline,
            self.metrics,
            lambda policy: live_of(self.config, policy, self.pipeline.live.pools),
            Turns(one_at_a_time),
            files=(self.policy_path, *policy.beside),
            taken=taken,
        )
        self.keeper.judge_first()
        if fault is not None:
            log.warning("policy not taken, an older one is in force", error=fault)
            self.keeper.last_error = fault
        self._pages: Pages | None = None
        self.hub = Hub(
            loop=self.loop,
            settings=Edge(
                head_limit=config.server.header_limit_kb << 10,
                body_limit=int(config.server.body_limit_mb * 2**20),
                idle_timeout_s=config.server.idle_timeout_s,
                body_timeout_s=config.server.body_timeout_s,
            ),
            pipeline=self.pipeline,
            plain=Plain(self).page,
            load_pages=self._load_pages,
            keys=_keys(config),
        )
        self._servers: list[asyncio.Server] = []

    @property
    def config(self) -> Config:
        """The one in force."""
        return self.config_keeper.config

    @property
    def slots(self) -> list[Slot]:
        return self.pipeline.live.slots

    def is_ready(self) -> tuple[bool, str]:
        """Whether a request would find a backend, and why not."""
        if self.pipeline.is_draining:
            return False, "shutting down"
        reasons = self.fleet.homeless
        for slot in self.slots:
            if slot.is_draining:
                reasons.append(f"{slot.name}: drained")
            elif slot.health.is_up and slot.health.is_known:
                return True, "ok"
            else:
                reasons.append(f"{slot.name}: {slot.health.reason}")
        return False, "no backend is usable (" + "; ".join(reasons) + ")"

    # ------------------------------------------------------------------ life

    async def start(self, sockets: list[socket.socket]) -> None:
        """Begin to serve on these sockets."""
        self._spawn(self._sweep())
        await self.pipeline.affinity.start()
        await self.fleet.start(self._use)
        for sock in sockets:
            server = await self.loop.create_server(self.hub.connection, sock=sock, backlog=1024)
            self._servers.append(server)
        self._spawn(self._keep_config())
        if self.config.policy.watch:
            settle_s = self.config.policy.settle_ms / 1e3
            keeper = self.keeper
            self._spawn(watch(lambda: keeper.files, keeper.taken, settle_s, self._take_policy))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _load_pages(self, then: Callable[[Any], None]) -> None:
        """Get the operator's pages ready, once, beside the loop; `then` gets their protocol."""

        async def load() -> None:
            if self._pages is None:
                module = await asyncio.to_thread(importlib.import_module, "router.server.pages")
                pages = module.Pages(self)
                await pages.start()
                if self._pages is None:
                    self._pages = pages
                    self.hub.pages = pages.connection
            then(self._pages.connection)

        self._spawn(load())

    async def _sweep(self) -> None:
        active = self.pipeline.active
        while True:
            await asyncio.sleep(_SWEEP_S)
            now = self.loop.time()
            self.fleet.sweep(now, lambda: {id(e.live): e.live for e in active}.values())
            self.hub.check_time()
            self.pipeline.look_around()

    async def check_once(self, slot: Slot) -> None:
        await self.fleet.check_once(slot)

    def mark_down(self, slot: Slot, reason: str) -> None:
        """Somebody knows better than the last check."""
        slot.health = slot.health.observed(False, reason, time.time())

    # ------------------------------------------------------------------ reloads

    async def reload(self) -> str | None:
        """Take both files as they are now; what is wrong with the policy, in words."""
        await self.config_keeper.reload()
        await self._take_policy()
        return self.keeper.last_error

    async def _take_policy(self) -> None:
        before = self.pipeline.live.policy
        await self.keeper.reload()
        if self.config_keeper.last_error and self.pipeline.live.policy is not before:
            await self.config_keeper.reload()  # it may have waited for this policy

    async def _take_config(self) -> None:
        await self.config_keeper.reload()
        if self.keeper.last_error:
            await self.keeper.reload()  # it may have waited for these backends

    async def _keep_config(self) -> None:
        """Follow the file. At first it is read once more: it may have changed since our start.

        For a worker that took the place of one that died, our start is long ago.
        """
        path = self.config_keeper.path
        taken = signature_of([path])
        await self._take_config()
        if self.config.policy.watch:
            settle_s = self.config.policy.settle_ms / 1e3
            await watch(lambda: (path,), taken, settle_s, self._take_config)

    async def _change_to(self, config: Config) -> None:
        await self.fleet.change_to(config)
        self.pipeline.rules = _rules(config)
        self.pipeline.live = msgspec.structs.replace(self.pipeline.live, **_said(config))

    def _use(self, pools: Pools) -> None:
        self.pipeline.live = msgspec.structs.replace(self.pipeline.live, pools=pools)

    # ------------------------------------------------------------------ the end

    async def drain(self, hurry: asyncio.Event) -> None:
        """Nothing new; what runs may finish within the grace, then it is told to end."""
        self.pipeline.is_draining = True
        for server in self._servers:
            server.close()
        self.hub.close_idle()
        deadline = self.loop.time() + self.config.server.grace_s
        while self.pipeline.active and not hurry.is_set() and self.loop.time() < deadline:
            await asyncio.sleep(0.02)
            self.hub.close_idle()
        for exchange in list(self.pipeline.active):
            exchange.end_now()
        await asyncio.sleep(0)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.fleet.close()
        for connection in list(self.hub.connections):
            connection.close_if_idle()
        if self._pages is not None:
            await self._pages.stop()
        await self.pipeline.affinity.close()
        self.pipeline.settle()
        await asyncio.to_thread(self.journal.close)


def _affinity(config: Config) -> Affinity:
    """The store of sessions; what speaks to Redis is loaded where there is one."""
    settings = config.affinity
    if settings.store == "memory":
        return MemoryAffinity(SystemClock(), ttl_s=settings.ttl_s, limit=settings.max_sessions)
    from router import affinity_redis

    return affinity_redis.opened(settings, SystemClock(), os.environ)


def _rules(config: Config) -> Rules:
    health = config.health
    return Rules(
        failures=health.failures,
        open_s=health.open_s,
        slow_start_s=health.slow_start_s,
        max_ejected=health.max_ejected,
    )


def _first_policy(path: Path, fallback: Policy | None) -> tuple[Policy, str | None]:
    """The policy to begin with, and what is wrong with the file if it is the fallback."""
    try:
        return policies.load(path, lightly=True), None
    except FileFault as fault:
        if fallback is None:
            raise
        return fallback, str(fault)


def _keys(config: Config) -> Callable[[bytes], str | None] | None:
    """A look-up of client keys that takes the same time for a near miss as for a far one."""
    if config.auth.keys_env is None:
        return None
    pairs = [
        (name.strip(), key.strip().encode())
        for name, _, key in (
            entry.partition("=") for entry in os.environ[config.auth.keys_env].split(",")
        )
        if key.strip()
    ]

    def name_of(given: bytes) -> str | None:
        found = None
        for name, key in pairs:
            if hmac.compare_digest(key, given):
                found = name
        return found

    return name_of


def listen(host: str, port: int, *, shared: bool) -> list[socket.socket]:
    """Bound sockets for a host name; `shared` lets other workers bind the same port."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets = []
    for family, kind, protocol, _, address in found[:1] if port == 0 else found:
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.setblocking(False)
        sockets.append(sock)
    return sockets


def address_of(sock: socket.socket) -> str:
    """The URL of a bound socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve(
    config: Config,
    config_path: Path,
    sockets: list[socket.socket],
    *,
    on_ready: Callable[[App], Any],
    labels: Mapping[str, str] | None = None,
    read: Callable[[], Config] | None = None,
    fallback: Policy | None = None,
    beside: Callable[[App, asyncio.Event], Any] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then drain. A second signal ends the grace.

    `beside` is awaited while serving, with an event that is set when it must end.
    """
    app = App(config, config_path, labels=labels, read=read, fallback=fallback)
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        app.loop.add_signal_handler(number, on_signal)
    app.loop.add_signal_handler(signal.SIGHUP, lambda: app._spawn(_ignoring_result(app.reload())))
    await app.start(sockets)
    _settle_memory()
    on_ready(app)
    companion = asyncio.ensure_future(beside(app, stop)) if beside is not None else None
    await stop.wait()
    log.info("draining", running=len(app.pipeline.active))
    await app.drain(hurry)
    if companion is not None:
        companion.cancel()
        await asyncio.gather(companion, return_exceptions=True)
    await app.close()


def _settle_memory() -> None:
    """Give back what only the start needed, and never look again at what stays."""
    gc.collect()
    gc.freeze()
    with contextlib.suppress(OSError, AttributeError):  # glibc's own; elsewhere there is no need
        ctypes.CDLL(None).malloc_trim(0)


async def _ignoring_result(work: Any) -> None:
    await work
