"""Which backends to try for a request, in which order. Pure.

In: what is known of a pool's backends. Out: their indexes, best first. A permutation
of those that may take the request: losing one backend moves nobody else.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Candidate(msgspec.Struct, frozen=True):
    weight: float
    inflight: int
    max_inflight: int
    is_up: bool


def order(candidates: Sequence[Candidate], turn: int) -> list[int]:
    """Least in flight per weight first, those known to be down last, full ones not at all.

    `turn` is a count of requests: it takes turns where the load is equal. A backend
    that is down stays in as a last resort, since a check may be older than its recovery.
    """
    count = len(candidates)

    def rank(index: int) -> tuple[bool, float, int]:
        candidate = candidates[index]
        load = (candidate.inflight + 1) / candidate.weight
        return (not candidate.is_up, load, (index - turn) % count)

    free = [i for i in range(count) if candidates[i].inflight < candidates[i].max_inflight]
    return sorted(free, key=rank)
