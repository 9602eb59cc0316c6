"""Which backends to try for a request, in which order. Pure.

In: what is known of a pool's backends, and the session a request belongs with. Out: their
indexes, best first. A permutation of those that may take the request.

A session's home is found by weighted rendezvous hashing: every router and worker comes to the
same one without asking anybody, losing a backend moves its own sessions alone, and a new one
gets no session but those it is the home of from now on. A home that is well above its share of
the load is passed over, so that one popular place does not hold up requests while others idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from math import log

import msgspec

# How far above its share a backend may be: times the share, and requests more. The second bound
# is for a session that was there before: its conversation would have to be read anew elsewhere,
# which is worth some waiting. The requests more are what luck alone makes of a few sessions (at
# 24 in flight on three backends, one in seven new sessions would otherwise find its home above
# 1.25 times its share, now hardly any does). Each that is passed over is one that others must be
# told of, and a batching server takes eight more nearly as fast as one.
_BOUND = 1.25, 8.0
_KNOWN_BOUND = 2.0, 8.0


class Candidate(msgspec.Struct, frozen=True):
    """A backend of the pool, as far as the choice depends on it."""

    name: str
    weight: float
    inflight: int
    max_inflight: int
    is_up: bool


def order(
    candidates: Sequence[Candidate],
    turn: int,
    session: str | None = None,
    remembered: str | None = None,
) -> list[int]:
    """Best first; those known to be down last, full ones not at all.

    With a session: the backend that it is `remembered` to have been at, then its home, each
    unless it is too busy; the others follow in the order in which they would be its home.
    Without: least in flight for its weight. `turn` is a count of requests: it takes turns where
    the load is equal. A backend that is down stays in as a last resort, since a check may be
    older than its recovery.
    """
    free = [i for i, c in enumerate(candidates) if c.inflight < c.max_inflight]
    if session is None:
        return _by_load(candidates, free, turn)
    ranked = _by_hash(candidates, free, session)
    up = [index for index in ranked if candidates[index].is_up]
    if len(up) > 1:
        first = _first(candidates, up, remembered)
        if first != ranked[0]:
            ranked.remove(first)
            ranked.insert(0, first)
    return ranked


def home(candidates: Sequence[Candidate], session: str) -> int | None:
    """Where a session belongs among the backends that are up, however busy they are."""
    up = [index for index, candidate in enumerate(candidates) if candidate.is_up]
    return _by_hash(candidates, up, session)[0] if up else None


def _by_load(candidates: Sequence[Candidate], free: list[int], turn: int) -> list[int]:
    count = len(candidates)

    def rank(index: int) -> tuple[bool, float, int]:
        candidate = candidates[index]
        load = (candidate.inflight + 1) / candidate.weight
        return (not candidate.is_up, load, (index - turn) % count)

    return sorted(free, key=rank)


def _by_hash(candidates: Sequence[Candidate], among: list[int], session: str) -> list[int]:
    """Weighted rendezvous order: each backend draws, by its name, how long the session waits.

    The draw is exponential with the weight as its rate, so that the shortest wait is a
    backend's with the probability of its weight in the sum, whoever else is there.
    """
    text = session.encode()
    waits = []
    for index in among:
        candidate = candidates[index]
        draw = _seeded(candidate.name).copy()
        draw.update(text)
        chance = (int.from_bytes(draw.digest(), "big") >> 11) + 0.5
        waits.append((not candidate.is_up, -log(chance * 2**-53) / candidate.weight, index))
    waits.sort()
    return [index for _, _, index in waits]


@lru_cache(maxsize=1024)
def _seeded(name: str) -> blake2b:
    """A hash that has taken in a backend's name; copied, never fed itself."""
    return blake2b(name.encode() + b"\0", digest_size=8)


def _first(candidates: Sequence[Candidate], up: list[int], remembered: str | None) -> int:
    """Of those that are up and have room, in rendezvous order: the one to ask first."""
    load = sum(candidates[index].inflight for index in up) + 1  # this request is one of them
    weights = sum(candidates[index].weight for index in up)

    def has_room(index: int, bound: tuple[float, float]) -> bool:
        times, more = bound
        share = load * candidates[index].weight / weights
        return candidates[index].inflight + 1 <= times * share + more

    for index in up:
        if candidates[index].name == remembered and has_room(index, _KNOWN_BOUND):
            return index
    # One always is: not all can be above their share.
    return next(index for index in up if has_room(index, _BOUND))
