"""Builds everything, passes it down, closes it. The only module that knows all others."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import hmac
import importlib
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from router import config as configs
from router import dialects, policycheck, probe, trained
from router import policy as policies
from router.acquaintance import Acquaintances
from router.classify import Classifier
from router.classify.learned import Learned
from router.config import Backend, Config
from router.errors import BackendError
from router.journal import FileJournal
from router.pipeline import Pipeline
from router.policy import Policy
from router.ports import Upstream
from router.server.hot import Hub
from router.server.plain import Plain
from router.sessions import MemorySessions
from router.telemetry import Metrics
from router.tomlfile import FileFault
from router.upstream import BackendUpstream
from router.verdict import Live, Slot

if TYPE_CHECKING:
    from router.server.pages import Pages

log = structlog.get_logger(__name__)

#: how often deadlines and idle connections are looked at
_SWEEP_S = 0.25
_WATCH_S = 0.25
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
    """The pools of a configuration."""
    pools: dict[str, list[Slot]] = {}
    for backend in config.backends:
        key = os.environ.get(backend.api_key_env, "") if backend.api_key_env else ""
        name = "openai" if backend.dialect == "auto" else backend.dialect
        host = backend.host if ":" not in backend.host else f"[{backend.host}]"
        slot = Slot(
            name=backend.name,
            upstream=connect(backend),
            dialect=msgspec.structs.replace(dialects.of(name), context=backend.context),
            model=backend.model,
            is_named=backend.model is not None,
            host=f"{host}:{backend.port}".encode(),
            authorization=f"Bearer {key}".encode() if key else None,
        )
        pools.setdefault(backend.pool, []).append(slot)
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
        aliases=frozenset(config.policy.aliases),
        real_model_bypass=config.policy.real_model_bypass,
        allow_policy_off=config.server.allow_policy_off,
        has_keys=config.auth.keys_env is not None,
        plans={},
    )


#: what tells one state of files from another; of a file that is not there: nothing
Signature = tuple[tuple[int, ...], ...]


def signature_of(files: Iterable[Path]) -> Signature:
    return tuple(map(_state_of, files))


def _state_of(path: Path) -> tuple[int, ...]:
    """Of the file that a path leads to in the end, through whatever links."""
    try:
        stat = path.stat()
    except OSError:
        return ()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


class Settling:
    """Tells when files have changed and then stood still: whoever writes them may need a while.

    By looking and not by kernel events: renames, symlink swaps and delete-and-create
    all look the same from here.
    """

    def __init__(self, taken: Signature, settle_s: float, now: float) -> None:
        """`taken`: the files as they were just before they were last read."""
        self._taken = self._seen = taken
        self._settle_s = settle_s
        self._since = now

    def has_settled(self, signature: Signature, now: float) -> bool:
        """Whether the files are to be read now; then they are taken for read.

        Not while the first is missing, which is the policy.
        """
        if signature != self._seen:
            self._seen, self._since = signature, now
            return False
        is_there, is_old = bool(signature[0]), signature == self._taken
        if not is_there or is_old or now - self._since < self._settle_s:
            return False
        self._taken = signature
        return True


@dataclass
class PolicyKeeper:
    """The policy in force: loads, watches and swaps it, or keeps the old one."""

    path: Path
    config: Config
    pipeline: Pipeline
    metrics: Metrics
    files: tuple[Path, ...]  # the policy, and those it names: to be watched
    taken: Signature  # of these, when the policy in force was read
    loaded_at: float = field(default_factory=time.time)
    last_error: str | None = None
    _fault_in_force: str | None = None
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _asked: int = 0
    _answered: int = 0

    def judge_first(self) -> None:
        """Run the tests of the policy that we start with.

        There is none to fall back on, and no service is worse than a misread question: so
        it serves, and whoever looks after it is told.
        """
        broken = policycheck.broken(self.pipeline.live)
        for finding in broken:
            log.warning("a test of the policy fails", test=str(finding.mistake))
        if broken:
            fault = FileFault(str(self.path), [finding.mistake for finding in broken])
            self._fault_in_force = self.last_error = str(fault)

    def prepared(self, policy: Policy) -> Live:
        """What requests would be served by under this policy; raises FileFault with why not.

        Takes its time, so not on the loop.
        """
        pools = self.pipeline.live.pools
        faults = list(policycheck.without_backend(policy, pools))
        if not faults:
            live = live_of(self.config, policy, pools)
            faults = policycheck.broken(live)
        if faults:
            raise FileFault(policy.name, [finding.mistake for finding in faults])
        return live

    async def reload(self) -> str | None:
        """Take the file as it is now; the fault in words where it cannot be taken.

        One at a time. Who asks while one runs gets the next, which reads the file anew and
        is for all who wait by then.
        """
        self._asked += 1
        ticket = self._asked
        async with self._turn:
            if self._answered < ticket:
                asked = self._asked
                self.last_error = await self._reload()
                self._answered = asked
            return self.last_error

    async def _reload(self) -> str | None:
        try:
            live = await asyncio.to_thread(self._read)
        except FileFault as fault:
            return self._kept(str(fault))
        except Exception as error:  # a policy, however odd, must not end the watch over it
            log.exception("policy not understood", file=str(self.path))
            return self._kept(f"{self.path}: the router failed on it, its log says more: {error}")
        if live is not self.pipeline.live:
            self.pipeline.live = live
            self._fault_in_force = None
            log.info("policy in force", file=str(self.path), hash=live.policy.hash)
        elif self._fault_in_force is not None:
            return self._kept(self._fault_in_force)
        self.metrics.policy_reloads.add(("ok",))
        self.loaded_at = time.time()
        return None

    def _kept(self, error: str) -> str:
        self.metrics.policy_reloads.add(("failed",))
        log.warning("policy not taken, the old one stays in force", error=error)
        return error

    def _read(self) -> Live:
        in_force = self.pipeline.live
        try:
            policy = policies.load(self.path, lightly=True)
        except FileFault as fault:
            # A file that the policy names may be at fault: then its change is waited for too.
            files = (self.path, *in_force.policy.beside, Path(fault.name))
            self.files = tuple(dict.fromkeys(files))
            raise
        self.files = (self.path, *policy.beside)
        # Touched but not changed, or put back as it was: nothing to build.
        return in_force if policy.hash == in_force.policy.hash else self.prepared(policy)

    async def watch(self, settle_s: float) -> None:
        """Reload whenever the file has changed and then stood still."""
        settling = Settling(self.taken, settle_s, time.monotonic())
        while True:
            await asyncio.sleep(_WATCH_S)
            if settling.has_settled(signature_of(self.files), time.monotonic()):
                await self.reload()


class App:
    """One worker: its edge, its backends' connections, its share of the log."""

    def __init__(
        self,
        config: Config,
        config_path: Path,
        *,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self.config = config
        self.loop = asyncio.get_running_loop()
        self.started_at = time.time()
        self.metrics = Metrics()
        self.policy_path = configs.policy_path(config_path, config)
        taken = signature_of([self.policy_path])
        policy = policies.load(self.policy_path, lightly=True)
        taken += signature_of(policy.beside)
        self.upstreams: list[BackendUpstream] = []
        self._probes: dict[str, BackendUpstream] = {}
        pools = slots_of(config, self._connect)
        for slot in (slot for pool in pools.values() for slot in pool):
            slot.label = (labels or {}).get(slot.name)
        self.journal = FileJournal(
            configs.beside(config_path, config.log.dir),
            flush_s=config.log.flush_ms / 1e3,
            limit=config.log.queue,
            is_enabled=config.log.enabled,
        )
        self.pipeline = Pipeline(
            live_of(config, policy, pools),
            self.journal,
            self.metrics,
            SystemClock(),
            soon=lambda work: self.loop.call_later(_RECORD_PAUSE_S, work),
            sessions=MemorySessions(SystemClock()),
            queue=config.limits.queue,
            queue_timeout_s=config.limits.queue_timeout_s,
            keepalive_s=config.server.keepalive_s,
        )
        self.keeper = PolicyKeeper(
            self.policy_path,
            config,
            self.pipeline,
            self.metrics,
            files=(self.policy_path, *policy.beside),
            taken=taken,
        )
        self.keeper.judge_first()
        self.known = Acquaintances(
            config, config_path, lambda slot: self._probes[slot.name], self._spawn
        )
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
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._probed = asyncio.Event()

    def _connect(self, backend: Backend) -> BackendUpstream:
        upstream = BackendUpstream(backend, self.loop)
        self.upstreams.append(upstream)
        # Checks have their own connections: they must neither wait for requests nor
        # count as load.
        self._probes[backend.name] = BackendUpstream(backend, self.loop)
        return upstream

    @property
    def slots(self) -> list[Slot]:
        return self.pipeline.live.slots

    def is_ready(self) -> tuple[bool, str]:
        """Whether a request would find a backend, and why not."""
        if self.pipeline.is_draining:
            return False, "shutting down"
        if any(slot.health.is_up and slot.health.is_known for slot in self.slots):
            return True, "ok"
        reasons = [f"{slot.name}: {slot.health.reason}" for slot in self.slots]
        return False, "no backend is usable (" + "; ".join(reasons) + ")"

    # ------------------------------------------------------------------ life

    async def start(self, sockets: list[socket.socket]) -> None:
        """Begin to serve on these sockets."""
        for sock in sockets:
            server = await self.loop.create_server(self.hub.connection, sock=sock, backlog=1024)
            self._servers.append(server)
        self._spawn(self._sweep())
        if self.config.policy.watch:
            self._spawn(self.keeper.watch(self.config.policy.settle_ms / 1e3))
        for slot in self.slots:
            self._spawn(self._check(slot))

    def _spawn(self, work: Any) -> None:
        task: asyncio.Task[None] = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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
        while True:
            await asyncio.sleep(_SWEEP_S)
            now = self.loop.time()
            for upstream in (*self.upstreams, *self._probes.values()):
                upstream.sweep(now)
            self.hub.check_time()
            self.pipeline.look_around()

    async def _check(self, slot: Slot) -> None:
        """Look after one backend: is it up, what does it serve."""
        health = self.config.health
        while True:
            await self.check_once(slot)
            pause = health.interval_s * random.uniform(0.8, 1.2)
            # A backend that is down is asked more often, so that its return is seen soon.
            await asyncio.sleep(pause if slot.health.is_up else min(pause, 0.5))

    async def check_once(self, slot: Slot) -> None:
        was_up = slot.health.is_up and slot.health.is_known
        is_up, reason = await self._ask(slot)
        slot.health = slot.health.observed(is_up, reason, time.time())
        if is_up != was_up:
            say = log.info if is_up else log.warning
            say("backend is up" if is_up else "backend is down", backend=slot.name, reason=reason)
        if is_up and (not was_up or slot.model is None or self.known.has_news(slot)):
            await self.known.learn(slot)

    def mark_down(self, slot: Slot, reason: str) -> None:
        """Somebody knows better than the last check."""
        slot.health = slot.health.observed(False, reason, time.time())

    async def _ask(self, slot: Slot) -> tuple[bool, str]:
        upstream = self._probes[slot.name]
        timeout_s = self.config.health.timeout_s
        try:
            for path in ("/health", "/v1/models"):
                answer = await probe.get(
                    upstream, path, timeout_s=timeout_s, key=slot.authorization
                )
                if answer.status not in (404, 405):
                    break
        except TimeoutError:
            return False, "does not answer"
        except BackendError:
            return False, "cannot be reached"
        if answer.status < 500 and answer.status != 404:
            return True, "ok"
        return False, f"answers with status {answer.status}"

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
        for upstream in (*self.upstreams, *self._probes.values()):
            upstream.close()
        for connection in list(self.hub.connections):
            connection.close_if_idle()
        if self._pages is not None:
            await self._pages.stop()
        self.pipeline.settle()
        await asyncio.to_thread(self.journal.close)


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
    beside: Callable[[App, asyncio.Event], Any] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then drain. A second signal ends the grace.

    `beside` is awaited while serving, with an event that is set when it must end.
    """
    app = App(config, config_path, labels=labels)
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        app.loop.add_signal_handler(number, on_signal)
    app.loop.add_signal_handler(
        signal.SIGHUP, lambda: app._spawn(_ignoring_result(app.keeper.reload()))
    )
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


def set_up_log() -> None:
    """The program's own log: one line an event on stderr, colours on a terminal only."""
    renderer: Any = (
        structlog.dev.ConsoleRenderer()
        if sys.stderr.isatty()
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
