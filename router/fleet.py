"""The backends of one worker: the ways to them, who is among them, how they are.

In: a configuration, and what names resolve to. Out: pools of slots, changed as a whole. A
backend that goes finishes what it has; one that stays is not disturbed.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog

from router import dialects, discovery, probe, tls
from router.acquaintance import Acquaintances
from router.config import Backend, Config
from router.discovery import Resolver, Sightings
from router.drains import Drains
from router.errors import BackendError, BackendUntrusted
from router.ports import Upstream
from router.upstream import BackendUpstream
from router.verdict import Live, Slot

log = structlog.get_logger(__name__)

Pools = Mapping[str, Sequence[Slot]]

#: how long the start waits for names to resolve; it goes on without them then
_FIRST_LOOKUP_S = 2.0
_DRAINS_S = 0.25
#: an engine that compiles for its first prompt takes that long; then users have to wait with it
_WARM_UP_S = 30.0
#: settings that make another server of it, as far as we know it
_IDENTITY = (
    *("url", "dialect", "model", "context", "api_key_env"),
    *("ca_file", "tls_server_name", "client_cert", "client_key"),
)


def slot_of(backend: Backend, upstream: Upstream) -> Slot:
    """A backend of which nothing is known but what the configuration says."""
    key = os.environ.get(backend.api_key_env, "") if backend.api_key_env else ""
    name = "openai" if backend.dialect == "auto" else backend.dialect
    host = backend.host if ":" not in backend.host else f"[{backend.host}]"
    return Slot(
        name=backend.name,
        upstream=upstream,
        dialect=msgspec.structs.replace(dialects.of(name), context=backend.context),
        model=backend.model,
        is_named=backend.model is not None,
        host=f"{host}:{backend.port}".encode(),
        authorization=f"Bearer {key}".encode() if key else None,
    )


class _Member:
    """A backend in use: its slot and the ways to it."""

    def __init__(
        self,
        backend: Backend,
        origin: str,
        loop: asyncio.AbstractEventLoop,
        holder: tls.Holder | None,
    ) -> None:
        self.origin = origin  # what the configuration calls it
        self.upstream = BackendUpstream(backend, loop, holder)
        # Checks have their own connections: they must neither wait for requests nor
        # count as load.
        self.checks = BackendUpstream(backend, loop, holder)
        self.slot = slot_of(backend, self.upstream)
        self.watch: asyncio.Task[None] | None = None

    @property
    def backend(self) -> Backend:
        return self.upstream.backend

    def settle(self, backend: Backend) -> None:
        """Take settings that leave it the server it is."""
        self.upstream.backend = self.checks.backend = backend

    def close(self) -> None:
        """No new use of its connections; what is in flight goes on."""
        self.upstream.close()
        self.checks.close()

    def sweep(self, now: float) -> None:
        self.upstream.sweep(now)
        self.checks.sweep(now)


class Fleet:
    """Builds the slots of a configuration, looks after them, and changes over to others."""

    def __init__(
        self,
        config: Config,
        config_path: Path,
        *,
        drains: Drains,
        resolve: Resolver,
        spawn: Callable[[Any], asyncio.Task[None]],
        labels: Mapping[str, str],
        contexts: tls.Contexts,
    ) -> None:
        self.config = config
        self._loop = asyncio.get_running_loop()
        self._drains = drains
        self._resolve = resolve
        self._spawn = spawn
        self._labels = labels
        self._contexts = contexts
        self._put: Callable[[Pools], None] = lambda pools: None
        self._joining: list[_Member] = []
        self._leaving: list[_Member] = []
        self._sightings: dict[str, Sightings] = {}  # by host name
        self._lookups: dict[str, asyncio.Task[None]] = {}  # by the backend's name
        self._silent: set[str] = set()  # host names whose last look-up failed
        self._turn = asyncio.Lock()
        self.known = Acquaintances(
            lambda: self.config.health,
            config_path,
            self._checks_of,
            spawn,
        )
        self._members: dict[str, _Member] = {}
        self._members = {backend.name: member for backend, member in self._recruit(config)}
        self._look_at_drains()

    # ------------------------------------------------------------------ who is there

    @property
    def pools(self) -> Pools:
        """The slots by pool; a pool may have none where a name has no address yet."""
        pools: dict[str, list[Slot]] = {backend.pool: [] for backend in self.config.backends}
        for member in self._members.values():
            pools[member.backend.pool].append(member.slot)
        return pools

    @property
    def homeless(self) -> list[str]:
        """Why backends of the configuration have no slot."""
        there = {member.origin for member in self._members.values()}
        return [
            f"{backend.name}: the name {backend.host} has no address"
            for backend in self.config.backends
            if backend.name not in there
        ]

    def origin(self, slot: Slot) -> str:
        """What the configuration calls this backend."""
        member = self._members.get(slot.name)
        return member.origin if member is not None else slot.name

    @property
    def _everybody(self) -> list[_Member]:
        return [*self._members.values(), *self._joining, *self._leaving]

    def _checks_of(self, slot: Slot) -> BackendUpstream:
        return next(member.checks for member in self._everybody if member.slot is slot)

    # ------------------------------------------------------------------ life

    async def start(self, put: Callable[[Pools], None]) -> None:
        """Look after the backends from now on; `put` takes pools into service."""
        self._put = put
        first = [self._loop.create_task(self._look_up(b)) for b in self._searched.values()]
        if first:
            await asyncio.wait(first, timeout=_FIRST_LOOKUP_S)
        for member in self._members.values():
            self._look_after(member)
        self._follow_names()
        self._spawn(self._follow_drains())

    def sweep(self, now: float, lives: Callable[[], Iterable[Live]]) -> None:
        """Deadlines, idle connections, and those who have finished; `lives` are still in use."""
        for member in self._everybody:
            member.sweep(now)
        if self._leaving:
            wanted = {id(slot) for live in lives() for slot in live.slots}
            for member in list(self._leaving):
                if not member.upstream.inflight and id(member.slot) not in wanted:
                    self._leaving.remove(member)
                    log.info("backend gone", backend=member.slot.name)

    def close(self) -> None:
        for member in self._everybody:
            member.close()

    # ------------------------------------------------------------------ changes

    async def change_to(self, config: Config) -> None:
        """Use these backends from now on; what runs on one that goes finishes there."""
        async with self._turn:
            unseen = [b for b in _searched(config).values() if b.host not in self._sightings]
            if unseen:
                await asyncio.wait(
                    [self._loop.create_task(self._ask(b)) for b in unseen],
                    timeout=_FIRST_LOOKUP_S,
                )
            await self._change(config)

    async def _change(self, config: Config) -> None:
        recruited = self._recruit(config)
        members = {backend.name: member for backend, member in recruited}
        old = self._members
        new = [member for name, member in members.items() if old.get(name) is not member]
        await self._meet(new)
        for backend, member in recruited:
            member.settle(backend)
        self._members, self.config = members, config
        self._look_at_drains()
        self._put(self.pools)
        for member in new:
            log.info("backend in use", backend=member.slot.name, url=member.backend.url)
            self._look_after(member)
        for name, member in old.items():
            if members.get(name) is not member:
                self._dismiss(member, is_replaced=name in members)
        self._follow_names()

    async def _meet(self, new: list[_Member]) -> None:
        """Look at backends before requests are given to them.

        They may not be up yet, and what they serve and what kind they are is to be known.
        """
        self._joining = new
        try:
            await asyncio.gather(*(self.check_once(member.slot) for member in new))
        except BaseException:
            for member in new:
                member.close()
            raise
        finally:
            self._joining = []

    def _recruit(self, config: Config) -> list[tuple[Backend, _Member]]:
        """Who is in use under this configuration, with the settings that are then theirs."""
        addresses = {host: seen.addresses for host, seen in self._sightings.items()}
        recruited = []
        for backend, origin in discovery.expanded(config.backends, addresses).values():
            member = self._members.get(backend.name)
            if member is None or _identity(member.backend) != _identity(backend):
                holder = self._contexts.for_backend(backend)
                member = _Member(backend, origin, self._loop, holder)
                member.slot.label = self._labels.get(backend.name)
            member.origin = origin
            recruited.append((backend, member))
        return recruited

    def _dismiss(self, member: _Member, *, is_replaced: bool) -> None:
        if member.watch is not None:
            member.watch.cancel()
        member.slot.is_draining = True  # for requests that still know it
        self.known.forget(member.slot)
        member.close()
        self._leaving.append(member)
        if not is_replaced:
            self._drains.discard(member.slot.name)  # whoever gets the name next begins afresh
        log.info(
            "backend no longer in use",
            backend=member.slot.name,
            url=member.backend.url,
            running=member.upstream.inflight,
        )

    # ------------------------------------------------------------------ names

    @property
    def _searched(self) -> Mapping[str, Backend]:
        return _searched(self.config)

    def _follow_names(self) -> None:
        """Look up what is to be looked up, and nothing else any more."""
        wanted = self._searched
        for name in [name for name in self._lookups if name not in wanted]:
            self._lookups.pop(name).cancel()
        for name in wanted:
            if name not in self._lookups:
                self._lookups[name] = self._spawn(self._follow(name))
        hosts = {backend.host for backend in wanted.values()}
        self._sightings = {h: seen for h, seen in self._sightings.items() if h in hosts}

    async def _follow(self, name: str) -> None:
        while (backend := self._searched.get(name)) is not None:
            await asyncio.sleep(backend.discover_s)
            await self._look_up(backend)

    async def _look_up(self, backend: Backend) -> None:
        """Look its name up, and change over where the addresses have changed."""
        if await self._ask(backend):
            async with self._turn:
                await self._change(self.config)

    async def _ask(self, backend: Backend) -> bool:
        """Whether the name has other addresses than before. Raises nothing."""
        host = backend.host
        try:
            answer: Sequence[str] = await self._resolve(host)
        except (OSError, UnicodeError) as error:
            # Nobody is dropped for it: it may be the name server that is away.
            if host not in self._silent:
                log.warning("name not resolved", backend=backend.name, host=host, error=str(error))
            self._silent.add(host)
            return False
        self._silent.discard(host)
        seen = self._sightings.setdefault(host, Sightings())
        before = seen.addresses
        seen.saw(answer)
        return seen.addresses != before

    # ------------------------------------------------------------------ drains

    def drain(self, name: str) -> tuple[list[Slot], str | None]:
        """Give these backends nothing new; and why other workers cannot be told, if so.

        `name` is a slot's, or a configured one that stands for several.
        """
        slots = self._called(name)
        fault = self._drains.add(name) if slots else None
        self._look_at_drains()
        return slots, fault

    def undrain(self, name: str) -> tuple[list[Slot], str | None]:
        """Give these backends requests again; and why other workers cannot be told, if so."""
        slots = self._called(name)
        faults = [self._drains.discard(called) for called in {name, *(s.name for s in slots)}]
        self._look_at_drains()
        return slots, next(filter(None, faults), None)

    def _called(self, name: str) -> list[Slot]:
        members = self._members.values()
        return [member.slot for member in members if name in (member.slot.name, member.origin)]

    def _look_at_drains(self) -> None:
        names = self._drains.names()
        for member in self._members.values():
            is_draining = member.slot.name in names or member.origin in names
            if is_draining != member.slot.is_draining:
                member.slot.is_draining = is_draining
                log.info(
                    "backend drained" if is_draining else "backend back", backend=member.slot.name
                )

    async def _follow_drains(self) -> None:
        while True:
            await asyncio.sleep(_DRAINS_S)
            self._look_at_drains()

    # ------------------------------------------------------------------ checks

    def _look_after(self, member: _Member) -> None:
        if member.watch is None:
            member.watch = self._spawn(self._check(member.slot))

    async def _check(self, slot: Slot) -> None:
        """Look after one backend: is it up, what does it serve."""
        while True:
            if not slot.is_warming:
                await self.check_once(slot)
            pause = self.config.health.interval_s * random.uniform(0.8, 1.2)
            # A backend that is down is asked more often, so that its return is seen soon.
            await asyncio.sleep(pause if slot.health.is_up else min(pause, 0.5))

    async def check_once(self, slot: Slot) -> None:
        was_up = slot.health.is_up and slot.health.is_known
        is_up, reason = await self._is_up(slot)
        if is_up and (not was_up or slot.model is None or self.known.has_news(slot)):
            await self.known.learn(slot)
        is_back = is_up and not slot.health.is_up
        is_ours = slot.warm_up is not None  # an engine that was started here is warmed up already
        if is_back and self.config.health.warm_up and not is_ours:
            is_up, reason = await self._warm_up(slot)
        slot.health = slot.health.observed(is_up, reason, time.time())
        if is_up != was_up:
            say = log.info if is_up else log.warning
            say("backend is up" if is_up else "backend is down", backend=slot.name, reason=reason)

    async def _warm_up(self, slot: Slot) -> tuple[bool, str]:
        """Have a backend that came back answer once, while requests still prefer others.

        Whatever it answers, it is up: what it is good for then, the breaker finds out.
        """
        slot.health = slot.health.observed(False, "up again, and warming up", time.time())
        began = self._loop.time()
        try:
            answer = await probe.warm_up(
                self._checks_of(slot), slot.model, timeout_s=_WARM_UP_S, key=slot.authorization
            )
        except TimeoutError:
            log.warning("backend is slow to warm up", backend=slot.name, waited_s=_WARM_UP_S)
        except BackendError as fault:
            return False, f"broke off its first answer: {fault}"
        else:
            took_ms = round((self._loop.time() - began) * 1e3)
            log.info("backend warmed up", backend=slot.name, status=answer.status, took_ms=took_ms)
        return True, "ok"

    async def _is_up(self, slot: Slot) -> tuple[bool, str]:
        checks = self._checks_of(slot)
        timeout_s = self.config.health.timeout_s
        try:
            for path in ("/health", "/v1/models"):
                answer = await probe.get(checks, path, timeout_s=timeout_s, key=slot.authorization)
                if answer.status not in (404, 405):
                    break
        except TimeoutError:
            return False, "does not answer"
        except BackendUntrusted as fault:
            return False, fault.message
        except BackendError:
            return False, "cannot be reached"
        if answer.status < 500 and answer.status != 404:
            return True, "ok"
        return False, f"answers with status {answer.status}"


def _identity(backend: Backend) -> list[Any]:
    return [getattr(backend, name) for name in _IDENTITY]


def _searched(config: Config) -> dict[str, Backend]:
    return {backend.name: backend for backend in config.backends if backend.discover}
