"""Which backend a session is at: what this process knows, and the store that is nothing more.

A session is at its home (balance.py), which everybody finds by hashing; only exceptions have
to be remembered. Bounded and forgetful: what was not heard of for `ttl_s` is forgotten, and of
too many the longest silent one goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec

from router.ports import Clock

Key = tuple[str, str]  # pool, session
NEVER = float("-inf")


class Known(msgspec.Struct):
    """What is known of one session."""

    last: str | None = None  # the backend that we last saw it served by
    exception: str | None = None  # where it is, if not at home
    used: float = NEVER  # when it was last served or heard of; ticks
    #: the rest is for a store that is shared
    confirmed: float = NEVER  # when the store last said so
    renewed: float = NEVER  # when its life in the store was last prolonged
    is_unsaved: bool = False  # ours differs from the store's
    changes: int = 0  # the number of our latest change: an answer to an older question is void


class Memory:
    """What this process knows of sessions, at most `limit` of them."""

    def __init__(self, clock: Clock, *, ttl_s: float, limit: int) -> None:
        self.ttl_s = ttl_s
        self._clock = clock
        self._limit = limit
        self._known: OrderedDict[Key, Known] = OrderedDict()
        self._changes = 0

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: Key) -> Known | None:
        """None for an unknown or a forgotten one; a look does not prolong anything."""
        known = self._known.get(key)
        if known is not None and self._clock.ticks() - known.used > self.ttl_s:
            del self._known[key]
            return None
        return known

    def touch(self, key: Key) -> Known:
        """The session was just heard of; a new one if it is unknown."""
        known = self.get(key)
        if known is None:
            known = self._known[key] = Known()
            if len(self._known) > self._limit:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        known.used = self._clock.ticks()
        return known

    def last(self, key: Key) -> str | None:
        known = self.get(key)
        return None if known is None else known.last

    def served(self, key: Key, backend: str, *, is_home: bool) -> Known:
        """Take note of a turn; it has other `changes` where the session has moved."""
        known = self.touch(key)
        known.last = backend
        exception = None if is_home else backend
        if known.exception != exception:
            known.exception = exception
            self._changes += 1
            known.changes = self._changes
        return known


class MemoryAffinity:
    """The store of one process. Other processes agree on homes, and do not hear of exceptions."""

    is_shared = False

    def __init__(self, clock: Clock, *, ttl_s: float = 3600.0, limit: int = 100_000) -> None:
        self._memory = Memory(clock, ttl_s=ttl_s, limit=limit)

    def find(self, pool: str, session: str, then: Callable[[str | None], None]) -> None:
        known = self._memory.get((pool, session))
        then(None if known is None else known.exception)

    def last(self, pool: str, session: str) -> str | None:
        return self._memory.last((pool, session))

    def served(self, pool: str, session: str, backend: str, *, is_home: bool) -> None:
        self._memory.served((pool, session), backend, is_home=is_home)

    def status(self) -> dict[str, Any]:
        return status("memory", len(self._memory))

    async def start(self) -> None:
        """Nothing to get ready."""

    async def close(self) -> None:
        """Nothing to close."""


def status(
    store: str,
    sessions: int,
    *,
    is_ok: bool = True,
    faults: int = 0,
    last_fault: str | None = None,
    latency_ms: float | None = None,
) -> dict[str, Any]:
    """How a store tells operators of itself."""
    return {
        "store": store,
        "sessions": sessions,
        "is_ok": is_ok,
        "faults": faults,
        "last_fault": last_fault,
        "latency_ms": latency_ms,
    }
