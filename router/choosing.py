"""Which backends a request may go to, best first, out of what is known of them now.

The order itself is balance.py's; here is where health, draining and load come into it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from router import balance, permission
from router.errors import NoBackend, Overloaded
from router.health import Rules
from router.keyring import Grant
from router.verdict import Live, Slot, Verdict


class Choice(NamedTuple):
    slots: list[Slot]  # best first
    home: str | None  # the session's, whether or not it comes first


def pool_of(live: Live, verdict: Verdict | None, grant: Grant | None) -> tuple[str, Sequence[Slot]]:
    """The pool that a request is for. Raises NoBackend, PoolNotAllowed."""
    if verdict is not None:
        pool = verdict.decision.pool
    else:
        pool = permission.default_pool(grant, live.pools)
    slots = live.pools.get(pool)
    if not slots:
        raise NoBackend(f"There is no backend in the pool {pool!r}.")
    return pool, slots


def choice(
    slots: Sequence[Slot],
    turn: int,
    now: float,
    rules: Rules,
    *,
    session: str | None,
    remembered: str | None,
    last: str | None,
) -> Choice:
    """The backends to try. Raises Overloaded where all have what they take, NoBackend for none.

    `now` is the clock of healths; `remembered` is where the session is, if not at home; `last`
    where we saw it ourselves.
    """
    open_ones = [slot for slot in slots if not slot.is_draining]
    if not open_ones:
        raise NoBackend("Every backend of the pool is being drained.")
    if len(open_ones) == 1:
        slot = open_ones[0]
        if slot.upstream.inflight < slot.max_inflight:
            return Choice([slot], slot.name)
        raise Overloaded("The backend is busy; try again shortly.")
    candidates = [
        balance.Candidate(
            slot.name,
            slot.upstream.backend.weight * slot.health.share(now, rules),
            slot.upstream.inflight,
            slot.max_inflight,
            slot.health.is_usable(now),
        )
        for slot in open_ones
    ]
    found = balance.home(candidates, session) if session is not None else None
    home = open_ones[found].name if found is not None else None
    if remembered is None and last == home:
        remembered = last  # its past is there, which is worth more waiting than a first turn
    indexes = balance.order(candidates, turn, session, remembered)
    if not indexes:
        raise Overloaded("Every backend is busy; try again shortly.")
    return Choice([open_ones[index] for index in indexes], home)
