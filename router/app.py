"""Builds everything, passes it down, closes it. The only module that knows all others."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import gc
import importlib
import os
import signal
import socket
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from router import (
    census,
    collector,
    descriptors,
    discovery,
    keyfile,
    nesting,
    reading,
    retention,
    tls,
    trained,
    trials,
)
from router import config as configs
from router import policy as policies
from router.affinity import MemoryAffinity
from router.catalogue import CLOSED, HALF_OPEN, OPEN
from router.census import AtBackend, Census, Place, Report
from router.classify import Classifier
from router.classify.learned import Learned
from router.config import Backend, Config, Server
from router.cors import Cors
from router.discovery import Resolver
from router.drains import Drains
from router.files import Signature, signature_of
from router.fleet import Fleet, Pools, slot_of
from router.health import Health, Rules
from router.journal import BodyJournal, FileJournal
from router.keeping import ConfigKeeper, KeysKeeper, PolicyKeeper, Turns, watch
from router.keyring import Allowance, Keyring
from router.pipeline import Pipeline
from router.policy import Policy
from router.ports import Affinity, Rates, Upstream
from router.ratebook import MemoryRates, WorkersRates
from router.referee import Referee, out_of
from router.retention import Retention
from router.retrying import Budget
from router.server.hot import Hub
from router.server.plain import Door, Plain
from router.sessions import MemorySessions
from router.shadow import Shadows
from router.spending import Spending, Spent
from router.telemetry import Metrics
from router.toll import Toll
from router.toll import told as toll_told
from router.tomlfile import FileFault
from router.tracing import Tracer
from router.trialfiles import TrialFiles
from router.verdict import Live, Slot
from router.visitors import Guard

if TYPE_CHECKING:
    from router.otlp import Exporter
    from router.server.pages import Pages

log = structlog.get_logger(__name__)

#: how often deadlines and idle connections are looked at
_SWEEP_S = 0.25
#: how long ended requests wait at most to be recorded together
_RECORD_PAUSE_S = 0.1
#: how often it is written down what keys have spent of their budgets
_SPENDING_PAUSE_S = 10.0
#: glibc's mallopt: how many heaps there are; from what size on a block is a mapping of its own;
#: how much may be free at the heap's end
_M_ARENA_MAX, _M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -8, -3, -1


@dataclass(frozen=True, slots=True)
class Edge:
    """The edge's share of the configuration, in the units it works with."""

    head_limit: int
    count_limit: int
    line_limit: int
    target_limit: int
    body_limit: int
    inflate_ratio: int
    head_timeout_s: float
    body_timeout_s: float
    request_timeout_s: float
    idle_timeout_s: float
    write_timeout_s: float
    pipelined: int
    connections: int
    per_address: int

    @classmethod
    def of(cls, server: Server) -> Edge:
        return cls(
            head_limit=server.header_limit_kb << 10,
            count_limit=server.header_count,
            line_limit=server.header_line_kb << 10,
            target_limit=server.target_limit_kb << 10,
            body_limit=int(server.body_limit_mb * 2**20),
            inflate_ratio=server.inflate_ratio,
            head_timeout_s=server.head_timeout_s,
            body_timeout_s=server.body_timeout_s,
            request_timeout_s=server.request_timeout_s,
            idle_timeout_s=server.idle_timeout_s,
            write_timeout_s=server.write_timeout_s,
            pipelined=server.pipelined,
            connections=descriptors.connections_that_fit(server.connections),
            per_address=server.connections_per_address,
        )


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


def live_of(
    config: Config,
    policy: Policy,
    pools: Mapping[str, Sequence[Slot]],
    out: Collection[tuple[str, str]] = (),
) -> Live:
    """What requests are served by. It learns from the policy's examples, so it may take seconds.

    `out`: (experiment, arm) of those that were stopped.
    """
    learned = learned_from(policy)
    policy = policies.without_examples(policy)
    return Live(
        policy=policy,
        classifier=Classifier(policy, learned),
        pools=pools,
        plans={},
        trials=trials.of(policy, out),
        **_said(config),
    )


def _said(config: Config) -> dict[str, Any]:
    """What requests are served by that the configuration says."""
    return {
        "aliases": frozenset(config.policy.aliases),
        "real_model_bypass": config.policy.real_model_bypass,
        "allow_policy_off": config.server.allow_policy_off,
        "has_keys": config.auth.has_keys,
        "messages": config.server.messages,
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
        taken: Signature | None = None,
        resolve: Resolver | None = None,
        place: Place | None = None,
        contexts: tls.Contexts | None = None,
    ) -> None:
        """`read` gives the configuration anew, as it was read before; left out: the file alone.

        `fallback` is in force where the policy's file is broken by now: this worker may take
        the place of one that died. `taken`: of the configuration's file, when it was read.
        `place`: among several workers. `contexts`: likewise, with certificates that were good when
        all of it began.
        """
        self.loop = asyncio.get_running_loop()
        self.started_at = time.time()
        self.metrics = Metrics(census.counts_on(place), now=self.started_at)
        self.policy_path = configs.policy_path(config_path, config)
        self._config_taken = taken
        taken = signature_of([self.policy_path])
        policy, fault = _first_policy(self.policy_path, fallback)
        taken += signature_of(policy.beside)
        self._tasks: set[asyncio.Task[None]] = set()
        self.tls = contexts or tls.Contexts(config_path)
        self.fleet = Fleet(
            config,
            config_path,
            drains=Drains(trained.folder(), config_path),
            resolve=resolve or discovery.system_resolver(self.loop),
            spawn=self._spawn,
            labels=labels or {},
            contexts=self.tls,
        )
        log_folder = configs.beside(config_path, config.log.dir)
        # Two waits between the end of a request and its line on the disk: one interval in all.
        flush_s = config.log.flush_ms / 1e3
        record_pause_s = min(_RECORD_PAUSE_S, flush_s / 2)
        trial_files = TrialFiles(trained.folder(), config_path)
        self.journal = FileJournal(
            log_folder,
            flush_s=flush_s - record_pause_s,
            limit=config.log.queue,
            is_enabled=config.log.enabled,
        )
        self.bodies = _bodies(config, log_folder)
        self.retention = _retention(config, log_folder)
        self.pipeline = Pipeline(
            live_of(config, policy, self.fleet.pools, out_of(policy, trial_files.out())),
            self.journal,
            self.metrics,
            SystemClock(),
            soon=lambda work: self.loop.call_later(record_pause_s, work),
            sessions=MemorySessions(SystemClock()),
            affinity=_affinity(config),
            rates=_rates(config, place),
            rules=_rules(config),
            budget=Budget(config.retry.share, config.retry.least),
            attempts=config.retry.attempts,
            queue=config.limits.queue,
            queue_timeout_s=config.limits.queue_timeout_s,
            keepalive_s=config.server.keepalive_s,
            bodies=self.bodies,
            cors=Cors(config.server.cors_origins) if config.server.cors_origins else None,
        )
        self.exporter = _exporter(config, place)
        if self.exporter is not None:
            if self.exporter.collector.has_traces:
                self.pipeline.tracer = Tracer(config.telemetry.sample, self.exporter.take)
            if self.exporter.collector.has_metrics:
                self.pipeline.conventions = self.metrics.by_conventions()
            for signal_name in self.exporter.dropped:
                self.metrics.follow(
                    "otlp_dropped_total",
                    functools.partial(self.exporter.dropped.__getitem__, signal_name),
                    signal_name,
                )
        self.referee = Referee(self.pipeline, self.metrics, trial_files)
        self.pipeline.observer = self.referee
        if config.server.workers == 1:  # of others' requests a worker knows nothing
            self.pipeline.repeater = Shadows(self.pipeline, self.referee.pair)
        elif any(written.shadow.share for written in policy.file.experiments.values()):
            log.warning("nothing is repeated in another arm: that takes a single worker")
        one_at_a_time = asyncio.Lock()
        self.config_keeper = ConfigKeeper(
            config_path,
            config,
            functools.partial(
                self._read, read or (lambda: reading.elsewhere(configs.load, config_path))
            ),
            self._change_to,
            lambda: self.pipeline.live.policy,
            Turns(one_at_a_time),
        )
        self.keeper = PolicyKeeper(
            self.policy_path,
            self.pipeline,
            self.metrics,
            lambda policy: live_of(
                self.config,
                policy,
                self.pipeline.live.pools,
                out_of(policy, trial_files.out()),
            ),
            Turns(one_at_a_time),
            files=(self.policy_path, *policy.beside),
            taken=taken,
        )
        self.keeper.judge_first()
        if fault is not None:
            log.warning("policy not taken, an older one is in force", error=fault)
            self.keeper.last_error = fault
        keys_path = configs.keys_path(config_path, config)
        self._keys_taken = signature_of([keys_path] if keys_path is not None else [])
        keyring = keyring_of(config, config_path)
        self._spending = Spending(trained.folder(), config_path)
        self._worker = place.number if place is not None else 0
        self.metrics.follow("log_written_total", lambda: self.journal.written)
        self.metrics.follow("log_dropped_total", lambda: self.journal.dropped)
        if (bodies := self.bodies) is not None:
            self.metrics.follow("log_bodies_dropped_total", lambda: bodies.dropped)
        stores = self._in_redis()
        if stores:
            self.metrics.follow(
                "redis_errors_total", lambda: sum(int(of.status()["faults"]) for of in stores)
            )
        rates = self.pipeline.rates
        self.metrics.follow("rates_local_total", lambda: int(rates.status()["local"]))
        self.census = Census(self.metrics, self._report, place, settle=self.pipeline.settle)
        self._pages: Pages | None = None
        server = config.server
        self.guard = _guard(config, server.admin[0] if server.admin is not None else server.host)
        clients = _guard(config, server.host) if not config.auth.has_keys else None
        guards = {Door.ALL: clients, Door.CLIENTS: clients, Door.OPERATORS: self.guard}
        self.hub = Hub(
            loop=self.loop,
            settings=Edge.of(config.server),
            pipeline=self.pipeline,
            plain=Plain(self).page,
            load_pages=self._load_pages,
            keyring=keyring,
            is_too_deep=nesting.checker(depth) if (depth := config.server.json_depth) else None,
            guards=guards,
        )
        self.keys_keeper: KeysKeeper | None = None  # where there is a file of keys
        if keys_path is not None and keyring is not None:
            self.keys_keeper = KeysKeeper(
                keys_path,
                keyring,
                functools.partial(_read_keys, config, config_path),
                self._use_keys,
                lambda: self.pipeline.live.policy,
                self.metrics,
                Turns(asyncio.Lock()),
            )
        #: where we listen, with what serves a connection there
        self._doors: list[tuple[socket.socket, Callable[[], asyncio.Protocol]]] = []
        self._servers: list[asyncio.Server] = []
        self._opening = asyncio.Lock()

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

    def _in_redis(self) -> list[Affinity | Rates]:
        """What is kept there."""
        stores: list[Affinity | Rates] = [self.pipeline.affinity, self.pipeline.rates]
        return [store for store in stores if store.is_shared]

    def _limited(self) -> list[Toll]:
        """What a request of each key with limits would ask by."""
        keyring = self.hub.keyring
        return [
            Toll(grant.name, grant.allowance)
            for grant in (keyring.grants if keyring is not None else ())
            if grant.allowance is not None
        ]

    def _remember_spending(self, rates: MemoryRates) -> None:
        """Budgets are for a day, whenever the router was started."""
        if (spent := self._spending.read()) is not None:
            for name, tokens in spent.tokens.items():
                rates.remember(name, spent.day, tokens)

    async def _keep_spending(self) -> None:
        while True:
            await asyncio.sleep(_SPENDING_PAUSE_S)
            if self._worker == 0:  # the workers have the same to say
                await self._write_spending()

    async def _write_spending(self) -> None:
        before = self._spending.fault
        await asyncio.to_thread(self._spending.write, self._spent_today())
        if self._spending.fault is not None and before is None:
            log.warning("budgets begin anew with a restart", fault=self._spending.fault)

    def _spent_today(self) -> Spent:
        rates = self.pipeline.rates
        found = {
            toll.name: rates.look(toll)
            for toll in self._limited()
            if toll.allowance.tokens_per_day is not None
        }
        day = max((standing.day for standing in found.values()), default=0)
        return Spent(day, {name: one.spent for name, one in found.items() if one.spent})

    def keys_used(self) -> dict[str, dict[str, Any]]:
        """Of each key with limits: them, and what it has used of them, as far as is known here."""
        rates = self.pipeline.rates
        return {one.name: toll_told(one.allowance, rates.look(one)) for one in self._limited()}

    def certificates(self) -> dict[str, Any] | None:
        """Of this worker, for the status; reads the edge's file. None where TLS is not spoken."""
        server = self.config.server
        if not self.tls.files:
            return None
        told: dict[str, Any] = {"edge": None, "last_error": self.tls.last_error}
        if server.tls_cert is not None:
            path = self.config_keeper.path
            told["edge"] = {
                "file": server.tls_cert,
                "asks_clients": server.tls_client_ca is not None,
                **tls.told(server, path),
            }
        return told

    def _report(self) -> Report:
        """How this worker is now."""
        now = time.time()
        pipeline, affinity = self.pipeline, self.pipeline.affinity.status()
        stores = self._in_redis()
        return Report(
            worker=self._worker,
            pid=os.getpid(),
            at=now,
            inflight=len(pipeline.active),
            waiting=len(pipeline.waiting),
            connections=len(self.hub.connections),
            sessions=affinity["sessions"],
            arms={
                f"{name}/{arm}": (name, arm) in self.referee.stopped()
                for name, written in pipeline.live.policy.file.experiments.items()
                for arm in written.arms
            },
            backends={
                slot.name: AtBackend(
                    up=slot.health.is_up and slot.health.is_known,
                    state=slot.health.state(now, pipeline.rules),
                    circuit=_circuit(slot.health, now),
                    draining=slot.is_draining,
                    inflight=slot.upstream.inflight,
                )
                for slot in self.slots
            },
            policy=pipeline.live.policy.hash,
            policy_taken_at=self.keeper.loaded_at,
            is_policy_ok=self.keeper.last_error is None,
            is_config_ok=self.config_keeper.last_error is None,
            is_log_ok=self.journal.fault is None,
            tls_ends_at=self.tls.edge_ends_at,
            is_redis_ok=all(of.status()["is_ok"] for of in stores) if stores else None,
            is_keys_ok=self.keys_keeper.last_error is None if self.keys_keeper else None,
        )

    # ------------------------------------------------------------------ life

    async def start(
        self, sockets: Sequence[socket.socket], admin_sockets: Sequence[socket.socket] = ()
    ) -> None:
        """Begin to serve on these sockets; operators on their own, if they have some."""
        self._spawn(self._sweep())
        self._spawn(self._be_counted())
        if self.exporter is not None:
            self._spawn(self._push(self.exporter))
        if self.retention is not None:
            self.retention.start()
        await asyncio.gather(self.pipeline.affinity.start(), self.pipeline.rates.start())
        if isinstance(self.pipeline.rates, MemoryRates):
            self._remember_spending(self.pipeline.rates)
            self._spawn(self._keep_spending())
        await self.fleet.start(self._use)
        doors = [(sock, Door.CLIENTS if admin_sockets else Door.ALL) for sock in sockets]
        doors += [(sock, Door.OPERATORS) for sock in admin_sockets]
        self._doors = [(sock, functools.partial(self.hub.connection, door)) for sock, door in doors]
        await self._open_edge()
        self._spawn(self._keep_config())
        self._spawn(self._keep_certificates())
        self._spawn(self.referee.run())
        if self.config.policy.watch:
            settle_s = self.config.policy.settle_ms / 1e3
            keeper = self.keeper
            self._spawn(watch(lambda: keeper.files, keeper.taken, settle_s, self._take_policy))
            if (keys := self.keys_keeper) is not None:
                path = keys.path
                self._spawn(watch(lambda: [path], self._keys_taken, settle_s, keys.reload))

    async def _open_edge(self) -> None:
        """Accept connections, with the certificates that are in force now.

        Those that are open go on with theirs. Both listen on the same sockets for a moment, so
        that nobody finds the door closed.
        """
        async with self._opening:
            holder = self.tls.for_edge(self.config.server)
            options: dict[str, Any] = {"backlog": 1024}
            if holder is not None:
                options["ssl"] = holder.context
                options["ssl_handshake_timeout"] = self.config.server.head_timeout_s
                options["ssl_shutdown_timeout"] = tls.SHUTDOWN_S
            opened: list[asyncio.Server] = []
            for sock, connect in self._doors:
                # A server closes its socket at its end, and there may be another one after it.
                mine = sock if holder is None else sock.dup()
                opened.append(await self.loop.create_server(connect, sock=mine, **options))
            for server in self._servers:
                server.close()
            self._servers = opened

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

    async def _be_counted(self) -> None:
        while True:
            try:
                pause_s = self.census.look_around()
            except Exception:  # whatever it is, requests are served all the same
                log.exception("not counted with the other workers")
                pause_s = 60.0
            await asyncio.sleep(pause_s)

    async def _push(self, exporter: Exporter) -> None:
        """The counts to the collector, again and again."""
        while True:
            await asyncio.sleep(self.config.telemetry.metrics_s)
            exporter.push(self.census.told())

    async def check_once(self, slot: Slot) -> None:
        await self.fleet.check_once(slot)

    def mark_down(self, slot: Slot, reason: str) -> None:
        """Somebody knows better than the last check."""
        slot.health = slot.health.observed(False, reason, time.time())

    # ------------------------------------------------------------------ reloads

    async def reload(self) -> str | None:
        """Take all files as they are now; what is wrong with the policy, in words."""
        if self.keys_keeper is not None:
            await self.keys_keeper.reload()
        await self.config_keeper.reload()
        await self._take_policy()
        await self._take_certificates()
        return self.keeper.last_error

    async def _take_certificates(self) -> None:
        if await asyncio.to_thread(self.tls.renew):
            await self._open_edge()

    async def _keep_certificates(self) -> None:
        """Follow the files of certificates, which programs of their own renew.

        At first they are looked at once more: for a worker that took the place of one that died,
        they were read long ago.
        """

        def files() -> tuple[Path, ...]:
            return (self.config_keeper.path, *self.tls.files)  # the first names the others

        taken = signature_of(files())
        await self._take_certificates()
        if self.config.policy.watch:
            settle_s = self.config.policy.settle_ms / 1e3
            await watch(files, taken, settle_s, self._take_certificates)

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
        """Follow the file. It may have changed since it was read for our start.

        For a worker that took the place of one that died, that is long ago.
        """
        path = self.config_keeper.path
        taken = signature_of([path])
        if taken != self._config_taken:
            await self._take_config()
        if self.config.policy.watch:
            settle_s = self.config.policy.settle_ms / 1e3
            await watch(lambda: (path,), taken, settle_s, self._take_config)

    def _read(self, read: Callable[[], Config]) -> Config:
        """The file as it is now, with certificates that can be used. Raises FileFault."""
        config = read()
        self.tls.prepare(config)
        return config

    async def _change_to(self, config: Config) -> None:
        await self.fleet.change_to(config)
        self.tls.keep_only(config)
        self.pipeline.rules = _rules(config)
        self.pipeline.live = msgspec.structs.replace(self.pipeline.live, **_said(config))

    def _use_keys(self, keyring: Keyring) -> None:
        """From the next request on; what is under way was let in by its key and ends."""
        self.hub.keyring = keyring

    def _use(self, pools: Pools) -> None:
        self.pipeline.live = msgspec.structs.replace(self.pipeline.live, pools=pools)

    # ------------------------------------------------------------------ the end

    async def drain(self, hurry: asyncio.Event) -> None:
        """Nothing new; what runs may finish within the grace, then it is told to end."""
        self.pipeline.is_draining = True
        async with self._opening:
            doors, self._doors = self._doors, []
            for server in self._servers:
                server.close()
            for sock, _ in doors:
                sock.close()
        self.hub.close_idle()
        deadline = self.loop.time() + self.config.server.grace_s
        while self.pipeline.active and not hurry.is_set() and self.loop.time() < deadline:
            await asyncio.sleep(0.02)
            self.hub.close_idle()
        for exchange in list(self.pipeline.active):
            exchange.end_now()
        if self.pipeline.repeater is not None:
            self.pipeline.repeater.give_way()
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
        self.pipeline.settle()
        await self.pipeline.affinity.close()
        await self.pipeline.rates.close()
        if not self.pipeline.rates.is_shared:
            await self._write_spending()
        await self.referee.close()
        for part in (self.retention, self.bodies, self.journal):
            if part is not None:
                await asyncio.to_thread(part.close)
        if self.exporter is not None:
            self.exporter.push(self.census.told())
            await asyncio.to_thread(self.exporter.close)
        self.census.leave()


def _guard(config: Config, host: str) -> Guard | None:
    """Who looks at visitors of an address that only this machine can reach."""
    names = config.server.hosts
    return Guard([*names, host]) if names or configs.is_loopback(host) else None


def _affinity(config: Config) -> Affinity:
    """The store of sessions; what speaks to Redis is loaded where there is one."""
    settings = config.affinity
    if settings.store == "memory":
        return MemoryAffinity(SystemClock(), ttl_s=settings.ttl_s, limit=settings.max_sessions)
    from router import affinity_redis

    return affinity_redis.opened(settings, SystemClock(), os.environ)


def _rates(config: Config, place: Place | None) -> Rates:
    """The store of what keys have used: of this process, of all workers, or in Redis."""
    if config.rates_in_redis:
        from router import rates_redis

        return rates_redis.opened(config.affinity, SystemClock(), os.environ)
    if place is not None and place.ledger is not None:
        return WorkersRates(SystemClock(), place.ledger, place.number)
    return MemoryRates(SystemClock())


def _exporter(config: Config, place: Place | None) -> Exporter | None:
    """What tells a collector, if there is one; only then OpenTelemetry is loaded."""
    found = collector.wanted(config.telemetry.otlp_endpoint, os.environ)
    if found is None:
        return None
    if not collector.is_installed():
        # By a variable that was set for everything on this machine: no reason not to serve.
        log.warning(f"no telemetry is sent: it {collector.MISSING}", collector=found.name)
        return None
    from router import otlp

    # A worker's heir is the same instance: it goes on with its counts.
    who = f"{os.getppid()}-{place.number}" if place is not None else str(os.getpid())
    return otlp.Exporter(
        found, limit=config.telemetry.queue, instance=f"{socket.gethostname()}-{who}"
    )


def _circuit(health: Health, now: float) -> int:
    """A breaker as the metrics tell it."""
    if health.opened is None:
        return CLOSED
    return OPEN if health.opened.left(now) else HALF_OPEN


def _bodies(config: Config, folder: Path) -> BodyJournal | None:
    told = config.log
    if told.bodies == "off" or not told.enabled:
        return None
    return BodyJournal(
        folder,
        flush_s=told.flush_ms / 1e3,
        limit=told.queue,
        text_limit=told.body_limit_kb << 10,
        share=told.body_share if told.bodies == "sampled" else 1.0,
    )


def _retention(config: Config, folder: Path) -> Retention | None:
    told = config.log
    if not told.enabled:
        return None
    rules = retention.Rules(
        keep_days=told.keep_days,
        keep_mb=told.keep_mb,
        body_keep_days=told.body_keep_days,
        is_packing=told.compress,
    )
    return Retention(folder, rules)


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
        if fallback is not None and policies.is_as_read(fallback, path):
            return fallback, None
        return reading.elsewhere(policies.load, path, lightly=True), None
    except FileFault as fault:
        if fallback is None:
            raise
        return fallback, str(fault)


def keyring_of(config: Config, config_path: Path) -> Keyring | None:
    """The clients' keys as they are now; None where nobody is asked for one. Raises FileFault."""
    return _read_keys(config, config_path) if config.auth.has_keys else None


def _read_keys(config: Config, config_path: Path) -> Keyring:
    path = configs.keys_path(config_path, config)
    limits = config.limits
    default = Allowance(
        limits.requests_per_minute, limits.tokens_per_minute, limits.tokens_per_day, limits.streams
    )
    if path is None:
        found = keyfile.keyring(None, config.auth.keys_env, os.environ)
    else:
        found = reading.elsewhere(keyfile.keyring, path, config.auth.keys_env, dict(os.environ))
    return found.with_default(default)


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


def address_of(sock: socket.socket, *, has_tls: bool = False) -> str:
    """The URL of a bound socket."""
    host, port = sock.getsockname()[:2]
    scheme = "https" if has_tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


async def serve(
    config: Config,
    config_path: Path,
    sockets: Sequence[socket.socket],
    *,
    admin_sockets: Sequence[socket.socket] = (),
    on_ready: Callable[[App], Any],
    labels: Mapping[str, str] | None = None,
    read: Callable[[], Config] | None = None,
    fallback: Policy | None = None,
    taken: Signature | None = None,
    beside: Callable[[App, asyncio.Event], Any] | None = None,
    place: Place | None = None,
    contexts: tls.Contexts | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then drain. A second signal ends the grace.

    `beside` is awaited while serving, with an event that is set when it must end.
    """
    _share_one_heap()
    if config.has_tls:
        _map_large_blocks()
    app = App(
        config,
        config_path,
        labels=labels,
        read=read,
        fallback=fallback,
        taken=taken,
        place=place,
        contexts=contexts,
    )
    del fallback  # its examples are large, and what they came to is in force
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        app.loop.add_signal_handler(number, on_signal)
    app.loop.add_signal_handler(signal.SIGHUP, lambda: app._spawn(_ignoring_result(app.reload())))
    await app.start(sockets, admin_sockets)
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


def _share_one_heap() -> None:
    """Threads only write files here; glibc would give each a heap, a megabyte for nothing."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def _map_large_blocks() -> None:
    """A TLS connection takes 256 KiB to read into, and is to give them back when it ends.

    They are mapped at first; but glibc learns from each that is freed to take the next out of
    the heap, where what lies between them keeps it from shrinking: 4 MiB after a minute of
    clients that come and go. Naming the sizes turns that off; these are where it begins.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 128 << 10)
        libc.mallopt(_M_TRIM_THRESHOLD, 128 << 10)


def _settle_memory() -> None:
    """Give back what only the start needed, and never look again at what stays."""
    gc.collect()
    gc.freeze()
    with contextlib.suppress(OSError, AttributeError):  # glibc's own; elsewhere there is no need
        ctypes.CDLL(None).malloc_trim(0)


async def _ignoring_result(work: Any) -> None:
    await work
