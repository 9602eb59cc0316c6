"""Whether Redis can be asked just now, and how it comes back. Knows nothing of what is kept there.

While it fails nobody waits for it; a look from time to time, each process at a moment of its
own, finds out that it is back. What operators are told of it is kept here: faults, and one line
when it begins to fail and one when that is over.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from router.ports import Clock
from router.redisclient import Answer, Client, Command, RedisFault

log = structlog.get_logger(__name__)

_MISSES = 3  # deadlines in a row that were missed: then it counts as failing
_PATIENCE = 10  # times the deadline, and at least so many seconds: later answers never come
_PATIENCE_S = 0.2
CONNECT_S = 2.0
PAUSE_S = 0.1  # between looks; doubles up to the longest, and is blurred
_LONGEST_PAUSE_S = 1.5
_PROBES = 8  # keys, which a cluster has on several nodes
_SMOOTHING = 0.1
_NOTE_S = 60.0  # between two lines on faults that come one by one
_NEVER = float("-inf")


class Link:
    """The client that works, if any. `connect` makes a new one; of the old nothing is kept."""

    def __init__(
        self,
        connect: Callable[[], Client],
        clock: Clock,
        *,
        timeout_s: float,
        connections: int,
        prefix: str,
        on_down: Callable[[], None],
        what: str = "sessions",
    ) -> None:
        """`what` is kept there, for the program's log."""
        self._connect = connect
        self._clock = clock
        self.timeout_s = timeout_s
        self._patience_s = max(_PATIENCE_S, _PATIENCE * timeout_s)
        self._connections = connections
        self._probes: list[Command] = [("GET", f"{prefix}:probe:{n}") for n in range(_PROBES)]
        self._on_down = on_down
        self._what = what
        self._client: Client | None = None  # None: it is failing
        self._spent: list[Client] = []  # to be closed
        self._has_come_up = asyncio.Event()
        self._has_gone_down = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._misses = 0
        self._missed_at = _NEVER
        self._refusal: RedisFault | None = None
        self._failing_since: float | None = None
        self._noted_at = _NEVER
        self.faults = 0
        self.last_fault: str | None = None
        self.latency_ms: float | None = None

    @property
    def is_up(self) -> bool:
        """It can be asked."""
        return self._client is not None

    @property
    def is_ok(self) -> bool:
        """It can be asked, and told."""
        return self._client is not None and self._refusal is None

    async def until_up(self) -> None:
        await self._has_come_up.wait()

    async def start(self, *steps: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Try to connect, once; then do these steps over and over, whatever came of it."""
        await self._come_up()
        self._tasks = [asyncio.create_task(_forever(step)) for step in (self._watch, *steps)]

    async def close(self) -> None:
        pending = set(self._tasks)
        while pending:
            for task in pending:
                task.cancel()
            # The library loses a cancellation that comes while it looks whether an idle
            # connection is still good; so again, until it is heard.
            _, pending = await asyncio.wait(pending, timeout=PAUSE_S)
        self._tasks = []
        if self._client is not None:
            self._spent.append(self._client)
            self._client = None
        await self._close_spent()

    async def run(self, commands: list[Command]) -> list[Answer] | None:
        """The answers; None where it began to fail meanwhile, and nobody knows what was done."""
        client = self._client
        if client is None:
            return None
        began = self._clock.ticks()
        try:
            answers = await client.run(commands, within_s=self._patience_s)
        except RedisFault as fault:
            if client is self._client:
                self.fail(fault)
            return None
        if client is not self._client:
            return None
        took_s = self._clock.ticks() - began
        if took_s <= self.timeout_s:
            self._misses = 0
        if self.latency_ms is None:
            self.latency_ms = took_s * 1000
        self.latency_ms += _SMOOTHING * (took_s * 1000 - self.latency_ms)
        return answers

    # ------------------------------------------------------------------ what goes wrong

    def note(self, fault: RedisFault) -> None:
        """A fault of one key's, which says nothing of the others."""
        self._count(fault)
        if self._clock.ticks() - self._noted_at > _NOTE_S:
            self._noted_at = self._clock.ticks()
            log.warning(f"a key of {self._what} in Redis cannot be read", fault=str(fault))

    def missed(self) -> None:
        """Somebody waited in vain. Those who waited for the same answer count once."""
        fault = RedisFault("slow", f"no answer within {self.timeout_s * 1000:g} ms")
        self._count(fault)
        if self._clock.ticks() - self._missed_at > self.timeout_s / 2:
            self._missed_at = self._clock.ticks()
            self._misses += 1
        if self._misses >= _MISSES:
            self._go_down(fault)

    def accepted(self) -> None:
        """It took what it was told."""
        self._refusal = None
        self._tell_operators(None)

    def refused(self, fault: RedisFault) -> None:
        """It answers, but would not have what it was told: full, a replica, no permission."""
        is_first = self._refusal is None
        self._refusal = fault
        self._count(fault)
        self._tell_operators(fault)
        if fault.kind == "readonly" and is_first:
            self._go_down(fault)  # another may be the master by now: look anew, once

    def fail(self, fault: RedisFault) -> None:
        """It cannot be asked."""
        self._count(fault)
        self._go_down(fault)

    def _count(self, fault: RedisFault) -> None:
        self.faults += 1
        self.last_fault = str(fault)

    def _go_down(self, fault: RedisFault) -> None:
        if self._client is None:
            return
        self._spent.append(self._client)
        self._client = None
        self._misses = 0
        self._has_come_up.clear()
        self._has_gone_down.set()
        self._tell_operators(fault)
        self._on_down()

    def _tell_operators(self, fault: RedisFault | None) -> None:
        if not self.is_ok and self._failing_since is None:
            self._failing_since = self._clock.ticks()
            log.warning(f"{self._what} are not shared: Redis fails", fault=str(fault))
        elif self.is_ok and self._failing_since is not None:
            after_s = self._clock.ticks() - self._failing_since
            self._failing_since = None
            log.info(
                f"{self._what} are shared again", after_s=round(after_s, 3), faults=self.faults
            )

    # ------------------------------------------------------------------ coming back

    async def _watch(self) -> None:
        """From one failure to the recovery."""
        await self._has_gone_down.wait()
        await self._close_spent()
        pause_s = PAUSE_S
        while not self.is_up:
            await asyncio.sleep(blurred(pause_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            await self._come_up()

    async def _come_up(self) -> None:
        """A new client, if it answers in time: first on one connection, then on all of them."""
        client = self._connect()
        self._spent.append(client)  # until it has proved its worth
        try:
            await self._probe(client, CONNECT_S)
            await asyncio.gather(
                *(self._probe(client, CONNECT_S) for _ in range(self._connections))
            )
            await self._probe(client, self.timeout_s)
        except RedisFault as fault:
            self.last_fault = str(fault)
            self._has_gone_down.set()
            self._tell_operators(fault)
        else:
            self._spent.remove(client)
            self._client = client
            self._has_gone_down.clear()
            self._has_come_up.set()
            self._tell_operators(None)
        await self._close_spent()

    async def _probe(self, client: Client, within_s: float) -> None:
        """A look that needs what requests need: the right to read our keys, wherever they are."""
        for answer in await client.run(self._probes, within_s=within_s):
            if isinstance(answer, RedisFault) and answer.kind != "wrong_type":
                raise answer

    async def _close_spent(self) -> None:
        while self._spent:
            await self._spent.pop().close()


async def _forever(step: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """A step that fails on what nobody thought of is not the end of the others."""
    while True:
        try:
            await step()
        except Exception:
            log.exception("a store in Redis failed on its own")
            await asyncio.sleep(PAUSE_S)


def blurred(pause_s: float) -> float:
    """Those who failed at the same moment do not come back at the same moment."""
    return pause_s * random.uniform(0.5, 1.5)
