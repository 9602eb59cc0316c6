"""What is remembered of sessions on this machine: the scenario each was last in, its last prompt.

Bounded and forgetful: a session not heard of for an hour is forgotten, and of too many the
longest silent one goes first. Of a request's text no more is kept than the beginning of its
first message, to tell where that changed.
"""

from __future__ import annotations

from collections import OrderedDict

from router.ports import Clock
from router.prefix import Turn

_PROMPTS = 5_000


class MemorySessions:
    """Sessions of one process; by their hash."""

    def __init__(self, clock: Clock, *, ttl_s: float = 3600.0, limit: int = 20_000) -> None:
        self._clock = clock
        self._ttl_s = ttl_s
        self._limit = limit
        self._known: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._prompts: OrderedDict[str, Turn] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def scenario(self, session: str) -> str | None:
        """The scenario that a session was last in; None for an unknown or forgotten one."""
        known = self._known.get(session)
        if known is None or self._clock.ticks() - known[1] > self._ttl_s:
            return None
        return known[0]

    def settled(self, session: str, scenario: str) -> None:
        """The session's last turn was of this scenario."""
        self._known[session] = (scenario, self._clock.ticks())
        self._known.move_to_end(session)
        if len(self._known) > self._limit:
            self._known.popitem(last=False)

    def prompt(self, session: str) -> Turn | None:
        """The session's last prompt."""
        return self._prompts.get(session)

    def prompted(self, session: str, turn: Turn) -> None:
        self._prompts[session] = turn
        self._prompts.move_to_end(session)
        if len(self._prompts) > _PROMPTS:
            self._prompts.popitem(last=False)
