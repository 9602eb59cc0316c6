"""The files in force: watched, taken whole or not at all, told of.

A policy or configuration that cannot be taken leaves the old one in force and says why.
What is built from them is handed in: this module knows no backend and no socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import structlog

from router import keyfile, migration, policycheck, reading, tomlfile
from router import policy as policies
from router.config import Config
from router.files import Signature, signature_of
from router.keyring import Keyring
from router.migration import Kind
from router.pipeline import Pipeline
from router.policy import Policy
from router.telemetry import Metrics
from router.tomlfile import FileFault, Mistake
from router.verdict import Live

log = structlog.get_logger(__name__)

_WATCH_S = 0.25


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

        Not while the first is missing: it is the one that names the others.
        """
        if signature != self._seen:
            self._seen, self._since = signature, now
            return False
        is_there, is_old = bool(signature[0]), signature == self._taken
        if not is_there or is_old or now - self._since < self._settle_s:
            return False
        self._taken = signature
        return True


async def watch(
    files: Callable[[], Iterable[Path]],
    taken: Signature,
    settle_s: float,
    changed: Callable[[], Awaitable[object]],
) -> None:
    """Call `changed` whenever the files have changed and then stood still."""
    settling = Settling(taken, settle_s, time.monotonic())
    while True:
        await asyncio.sleep(_WATCH_S)
        if settling.has_settled(signature_of(files()), time.monotonic()):
            await changed()


def tell_if_outdated(kind: Kind, path: Path, text: str | None = None) -> None:
    """Say so where a file that was taken has an older schema. `text` is what was read of it."""
    with contextlib.suppress(FileFault):  # it has changed again; whoever reads it next is told
        text = tomlfile.read(path) if text is None else text
        told = migration.outdated(text, kind, str(path))
        if told is not None:
            log.warning("a file has an older schema", file=str(path), read=told)


class Turns:
    """One reload at a time.

    Who asks while one runs gets the next, which reads the file anew and is for all who
    wait by then.
    """

    def __init__(self, lock: asyncio.Lock) -> None:
        """`lock` is shared by those that must not run side by side."""
        self._lock = lock
        self._asked = self._answered = 0
        self._answer: str | None = None

    async def take(self, work: Callable[[], Awaitable[str | None]]) -> str | None:
        self._asked += 1
        ticket = self._asked
        async with self._lock:
            if self._answered < ticket:
                asked = self._asked
                self._answer = await work()
                self._answered = asked
            return self._answer


@dataclass
class PolicyKeeper:
    """The policy in force: loads and swaps it, or keeps the old one."""

    path: Path
    pipeline: Pipeline
    metrics: Metrics
    build: Callable[[Policy], Live]  # what requests would be served by; takes its time
    turns: Turns
    files: tuple[Path, ...]  # the policy, and those it names: to be watched
    taken: Signature  # of these, when the policy in force was read
    loaded_at: float = field(default_factory=time.time)
    last_error: str | None = None
    _fault_in_force: str | None = None

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
        faults = list(policycheck.without_backend(policy, self.pipeline.live.pools))
        if not faults:
            live = self.build(policy)
            faults = policycheck.broken(live)
        if faults:
            raise FileFault(policy.name, [finding.mistake for finding in faults])
        return live

    async def reload(self) -> str | None:
        """Take the file as it is now; the fault in words where it cannot be taken."""
        self.last_error = await self.turns.take(self._reload)
        return self.last_error

    async def _reload(self) -> str | None:
        try:
            live = await asyncio.to_thread(self._read)
        except FileFault as fault:
            return self._kept(str(fault))
        except Exception as error:  # a policy, however odd, must not end the watch over it
            log.exception("policy not understood", file=str(self.path))
            return self._kept(f"{self.path}: the router failed on it, its log says more: {error}")
        if live is not None:
            # Its backends are those of now: some may have come or gone while it was built.
            pools = self.pipeline.live.pools
            self.pipeline.live = msgspec.structs.replace(live, pools=pools)
            self._fault_in_force = None
            log.info("policy in force", file=str(self.path), hash=live.policy.hash)
            tell_if_outdated("policy", self.path, live.policy.text)
        elif self._fault_in_force is not None:
            return self._kept(self._fault_in_force)
        self.metrics.count("policy_reload_total", "ok")
        self.loaded_at = time.time()
        return None

    def _kept(self, error: str) -> str:
        self.metrics.count("policy_reload_total", "failed")
        log.warning("policy not taken, the old one stays in force", error=error)
        return error

    def _read(self) -> Live | None:
        in_force = self.pipeline.live
        try:
            policy = reading.elsewhere(policies.load, self.path, lightly=True)
        except FileFault as fault:
            # A file that the policy names may be at fault: then its change is waited for too.
            files = (self.path, *in_force.policy.beside, Path(fault.name))
            self.files = tuple(dict.fromkeys(files))
            raise
        self.files = (self.path, *policy.beside)
        # Touched but not changed, or put back as it was: nothing to build.
        return None if policy.hash == in_force.policy.hash else self.prepared(policy)


# --- keys ------------------------------------------------------------------------------------


@dataclass
class KeysKeeper:
    """The clients' keys in force: takes a changed file, or keeps what it had."""

    path: Path
    keyring: Keyring
    read: Callable[[], Keyring]  # both sources as they are now; raises FileFault
    use: Callable[[Keyring], None]
    policy: Callable[[], Policy]  # the one in force
    metrics: Metrics
    turns: Turns
    loaded_at: float = field(default_factory=time.time)
    last_error: str | None = None

    def __post_init__(self) -> None:
        self._tell_of_strangers()

    async def reload(self) -> str | None:
        """Take the file as it is now; the fault in words where it cannot be taken."""
        self.last_error = await self.turns.take(self._reload)
        return self.last_error

    async def _reload(self) -> str | None:
        try:
            keyring = await asyncio.to_thread(self.read)
        except FileFault as fault:
            return self._kept(str(fault))
        except Exception as error:  # nothing in a file may end the watch over it
            log.exception("keys not understood", file=str(self.path))
            return self._kept(f"{self.path}: the router failed on it, its log says more: {error}")
        self.keyring = keyring
        self.use(keyring)
        self.loaded_at = time.time()
        self.metrics.count("keys_reload_total", "ok")
        log.info("keys in force", file=str(self.path), keys=len(keyring.grants))
        self._tell_of_strangers()
        return None

    def _tell_of_strangers(self) -> None:
        """A scenario may come with the next policy; one that is misspelt never does."""
        for name, scenario in keyfile.strangers(self.keyring, self.policy().scenarios):
            log.warning("a key is for a scenario that is not there", key=name, scenario=scenario)

    def _kept(self, error: str) -> str:
        self.metrics.count("keys_reload_total", "failed")
        log.warning("keys not taken, the old ones stay in force", error=error)
        return error


# --- the configuration ------------------------------------------------------------------------

#: what is taken while running, besides the backends: whole tables, or single settings of one
_TAKEN = {"health", "policy.aliases", "policy.real_model_bypass"} | {
    "server.allow_policy_off",
    "server.grace_s",
    "server.messages",
}


def taken_from(told: Config, in_force: Config) -> tuple[Config, tuple[str, ...]]:
    """What of a new configuration holds at once, and the settings that wait for a restart."""
    update = {}
    waiting = []
    for table in Config.names().values():
        if table in ("backends", "schema_") or table in _TAKEN:
            continue
        old, new = getattr(in_force, table), getattr(told, table)
        fixed = {
            key: getattr(old, key)
            for key in type(new).names()
            if f"{table}.{key}" not in _TAKEN and getattr(old, key) != getattr(new, key)
        }
        waiting += [f"{table}.{key}" for key in fixed]
        update[table] = new.model_copy(update=fixed)
    return told.model_copy(update=update), tuple(waiting)


@dataclass
class ConfigKeeper:
    """The configuration in force: takes a new one, or keeps the old one."""

    path: Path
    config: Config
    read: Callable[[], Config]  # the file as it is now, with flags and environment
    change_to: Callable[[Config], Awaitable[None]]  # must leave all as it was where it raises
    policy: Callable[[], Policy]  # the one in force
    turns: Turns
    loaded_at: float = field(default_factory=time.time)
    last_error: str | None = None
    waiting: tuple[str, ...] = ()  # settings of the file that need a restart

    async def reload(self) -> str | None:
        """Take the file as it is now; the fault in words where it cannot be taken."""
        self.last_error = await self.turns.take(self._reload)
        return self.last_error

    async def _reload(self) -> str | None:
        try:
            told = await asyncio.to_thread(self.read)
            self._check_pools(told)
            config, waiting = taken_from(told, self.config)
            if config != self.config:
                await self.change_to(config)
        except FileFault as fault:
            return self._kept(str(fault))
        except Exception as error:  # nothing in a file may end the watch over it
            log.exception("configuration not understood", file=str(self.path))
            return self._kept(f"{self.path}: the router failed on it, its log says more: {error}")
        if waiting and waiting != self.waiting:
            log.warning(
                "these settings wait for a restart", file=str(self.path), settings=list(waiting)
            )
        if config != self.config:
            log.info("configuration in force", file=str(self.path))
            tell_if_outdated("config", self.path)
        self.config, self.waiting = config, waiting
        self.loaded_at = time.time()
        return None

    def _check_pools(self, told: Config) -> None:
        faults = policies.missing_pools(self.policy(), {backend.pool for backend in told.backends})
        if faults:
            mistakes = [Mistake("backends", None, text) for text in faults.values()]
            raise FileFault(str(self.path), mistakes)

    def _kept(self, error: str) -> str:
        log.warning("configuration not taken, the old one stays in force", error=error)
        return error
