"""Does it grow? A slope that a few odd samples cannot bend. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

#: pairs are as many as the square of the samples
_MOST = 400


def slope(samples: Sequence[tuple[float, float]]) -> float:
    """Theil and Sen's: the median of the slopes between all pairs of (time, value).

    Up to 29 % of the samples may be anything without moving it far. Fewer than two: 0.
    """
    step = max(1, len(samples) // _MOST)
    kept = samples[::step]
    slopes = [
        (late - early) / (t2 - t1)
        for index, (t1, early) in enumerate(kept)
        for t2, late in kept[index + 1 :]
        if t2 > t1
    ]
    return statistics.median(slopes) if slopes else 0.0


def more(before: dict[str, int], after: dict[str, int], slack: int) -> dict[str, tuple[int, int]]:
    """Those of which there are more than before: by more than half, and by more than `slack`.

    A cache that is emptied now and then is caught at any height. What leaks is one more with
    each request or each fault, and soon far beyond that.
    """
    return {
        name: (before.get(name, 0), count)
        for name, count in after.items()
        if count > 1.5 * before.get(name, 0) + slack
    }


def least(counts: Sequence[dict[str, int]]) -> dict[str, int]:
    """The least of each over several looks: what comes and goes is left out."""
    names = {name for one in counts for name in one}
    return {name: min(one.get(name, 0) for one in counts) for name in sorted(names)}
