"""What the presets saved, against the same requests as their clients sent them.

One thing is counted: thought that was not asked for and that a preset turned off (or on). How long
it would have been is told by requests that did think, of the same backend's model:

    seen       those that were left to the backend's own default. What it does is what would
               have been done; where it does not think, nothing is saved
    scenario   those of the same scenario that thought
    model      those of any scenario that thought; other work, so the least like it

The last two take it for granted that the backend thinks when nobody says otherwise, as Qwen3 does,
and the answer says so. Where a client had a limit of its own, thought and answer together would
have stayed within it: the mean of that is taken over 20 quantiles of the thoughts that were seen.
What a cap cut off is not counted as saved, since nobody knows how long it would have become: those
answers are told as a number. Nor is thought that a budget of ours cut short where it did happen.
Seconds are tokens times the median time of a token there.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from router.dashboard.filters import Asked
from router.dashboard.standing import Standing
from router.dashboard.tables import Spread, Table

#: thoughts that a figure rests on at the least
LEAST = 20
_GRID = 20
_BASES = ("seen", "scenario", "model")
#: 97.5 % quantile of the normal distribution
_Z = 1.959963984540054

#: tokens of thought: as told, else its share of the characters
_THOUGHT = (
    "coalesce(reasoning_tokens, CASE WHEN reasoning_chars = 0 THEN 0 ELSE round(output_tokens * "
    "reasoning_chars / nullif(reasoning_chars + coalesce(answer_chars, 0), 0)) END)"
)
_DONE = "outcome = 'ok' AND output_tokens IS NOT NULL"
_WAS_THOUGHT = (
    f"{_DONE} AND scenario IS NOT NULL AND coalesce(thinking, true) AND ({_THOUGHT}) IS NOT NULL"
)
_GRID_AT = tuple((number + 0.5) / _GRID for number in range(_GRID))
#: thoughts by the backend's model and by whether they were left to it, of a scenario and of all
_BY_SCENARIO, _BY_MODEL = (
    Table(
        groups=("backend_model", "thinking IS NULL", one),
        sums=(f"sum({_THOUGHT})", f"sum(({_THOUGHT})::DOUBLE ** 2)"),
        spreads=(Spread(of=_THOUGHT, at=_GRID_AT),),
        more=_WAS_THOUGHT,
    )
    for one in ("scenario", "NULL")
)
_PACE = Table(
    groups=("backend",),
    spreads=(Spread(of="tpot_ms", at=(0.5,)),),
    more="tpot_ms IS NOT NULL",
)
_CUT = Table(
    groups=("scenario",),
    sums=(
        "count(*) FILTER (finish_reason = 'length' AND sent_tokens IS NOT NULL "
        "AND (wished_tokens IS NULL OR sent_tokens < wished_tokens))",
    ),
)
_OFF = Table(
    groups=(
        "scenario",
        "backend",
        "backend_model",
        "wish = 'true'",
        # room for a thought within the client's own limit; null: as much as it likes
        "CASE WHEN wished_tokens IS NOT NULL THEN greatest(wished_tokens - output_tokens, 0) END",
    ),
    more=f"{_DONE} AND sent_thinking = 'false' AND coalesce(wish, '') <> 'false'",
)
_ON = Table(
    groups=("scenario", "backend"),
    sums=(f"sum({_THOUGHT})",),
    more=f"{_DONE} AND sent_thinking = 'true' AND wish = 'false'",
)


@dataclass(frozen=True, slots=True)
class Thoughts:
    """How long thoughts were, in tokens."""

    count: int
    mean: float
    deviation: float
    grid: tuple[float, ...]  # the middle of each twentieth
    sums: tuple[float, ...] = field(init=False)  # of the first none, one, two, … of the grid

    def __post_init__(self) -> None:
        object.__setattr__(self, "sums", tuple(accumulate(self.grid, initial=0.0)))

    def within(self, room: int | None) -> float:
        """Mean tokens that a thought would have taken, of so many; null: as it likes."""
        if room is None:
            return self.mean
        below = bisect_left(self.grid, room)
        return (self.sums[below] + room * (_GRID - below)) / _GRID


@dataclass(slots=True)
class Saved:
    """The figures of one scenario."""

    requests: int = 0
    off: int = 0  # thought that nobody asked for, or that was asked for, was turned off
    on: int = 0  # the client did not want one
    estimated: int = 0  # of `off`
    tokens: float = 0.0
    variance: float = 0.0
    seconds: float = 0.0
    is_timed: bool = True
    cut: int = 0  # answers that a cap of ours ended
    bases: dict[str, int] = field(default_factory=dict)  # basis → thoughts
    is_assumed: bool = False  # that the backend thinks by default


def savings(rows: Standing, asked: Asked) -> dict[str, Any]:
    """Per scenario and in all; null with a reason where there is nothing to go by."""
    thoughts = _thoughts(rows, asked)
    pace = _pace(rows, asked)
    found: dict[str | None, Saved] = {}
    for group in sorted(
        rows.groups(_CUT, asked), key=lambda group: (-group.count, group.key[0] or "~")
    ):
        found[group.key[0]] = Saved(requests=group.count, cut=int(group.sums[0]))
    _turned_off(rows, asked, thoughts, pace, found)
    _turned_on(rows, asked, pace, found)
    total = _total(found.values())
    return {
        "rows": [{"scenario": name, **_told(saved)} for name, saved in found.items()],
        "total": _told(total),
        "how": "thought_turned_off",
        "details": {
            "least": LEAST,
            "bases": list(_BASES),
            "assumes": ["thinks_by_default"] if total.is_assumed else [],
            "not_counted": ["cut_answers", "thought_beyond_budget"],
        },
    }


def _thoughts(rows: Standing, asked: Asked) -> Mapping[tuple[str, Any, Any], Thoughts]:
    """By (basis, backend's model, scenario)."""
    found: dict[tuple[str, Any, Any], Thoughts] = {}
    for table, basis in ((_BY_SCENARIO, "scenario"), (_BY_MODEL, "model")):
        for group in rows.groups(table, asked):
            model, was_left, scenario = group.key
            total, squares = group.sums
            if group.count >= LEAST:
                mean = total / group.count
                variance = (squares - total * mean) / (group.count - 1)
                found["seen" if was_left else basis, model, scenario] = Thoughts(
                    group.count, mean, math.sqrt(max(variance, 0.0)), tuple(group.spreads[0] or ())
                )
    return found


def _pace(rows: Standing, asked: Asked) -> Mapping[str | None, float]:
    """Seconds a token takes, by backend."""
    return {
        group.key[0]: group.spreads[0][0] / 1e3
        for group in rows.groups(_PACE, asked)
        if group.spreads[0] is not None
    }


def _basis(
    thoughts: Mapping[tuple[str, Any, Any], Thoughts], model: str | None, scenario: str | None
) -> tuple[str, Thoughts] | None:
    for basis, among in (
        ("seen", scenario),
        ("seen", None),
        ("scenario", scenario),
        ("model", None),
    ):
        if (basis, model, among) in thoughts:
            return basis, thoughts[basis, model, among]
    return None


def _turned_off(
    rows: Standing,
    asked: Asked,
    thoughts: Mapping[tuple[str, Any, Any], Thoughts],
    pace: Mapping[str | None, float],
    found: dict[str | None, Saved],
) -> None:
    """Requests that were told not to think and did not say so themselves."""
    rooms: dict[tuple[Any, ...], list[tuple[int | None, int]]] = {}
    groups = rows.found(_OFF, asked)
    for (*who, room), count in zip(groups.keys, groups.counts.tolist(), strict=True):
        rooms.setdefault(tuple(who), []).append((room, count))
    used: dict[tuple[str | None, int], tuple[Thoughts, int]] = {}
    for (scenario, backend, model, was_wanted), counts in rooms.items():
        saved = found.setdefault(scenario, Saved())
        count = sum(count for _, count in counts)
        saved.off += count
        basis = _basis(thoughts, model, scenario)
        if basis is None:
            continue
        name, seen = basis
        tokens = sum(seen.within(room) * count for room, count in counts)
        saved.estimated += count
        saved.tokens += tokens
        saved.bases[name] = max(saved.bases.get(name, 0), seen.count)
        saved.is_assumed |= name != "seen" and not was_wanted
        _add_time(saved, pace, backend, tokens)
        before = used.get((scenario, id(seen)), (seen, 0))[1]
        used[scenario, id(seen)] = seen, before + count
    for (scenario, _), (seen, count) in used.items():
        # All of them rest on one mean, so its error counts once for each of them.
        found[scenario].variance += (count * seen.deviation) ** 2 / seen.count


def _turned_on(
    rows: Standing,
    asked: Asked,
    pace: Mapping[str | None, float],
    found: dict[str | None, Saved],
) -> None:
    """Requests whose client wanted no thought and got one: that was measured, and costs."""
    for group in rows.groups(_ON, asked):
        (scenario, backend), count, (thought,) = group.key, group.count, group.sums
        saved = found.setdefault(scenario, Saved())
        saved.on += count
        saved.tokens -= float(thought)
        _add_time(saved, pace, backend, -float(thought))


def _add_time(
    saved: Saved, pace: Mapping[str | None, float], backend: str | None, tokens: float
) -> None:
    if backend in pace:
        saved.seconds += tokens * pace[backend]
    elif tokens:
        saved.is_timed = False


def _total(parts: Any) -> Saved:
    total = Saved()
    for part in parts:
        total.requests += part.requests
        total.off += part.off
        total.on += part.on
        total.estimated += part.estimated
        total.tokens += part.tokens
        # Scenarios may rest on the same thoughts, so their errors add up at the worst.
        total.variance = (math.sqrt(total.variance) + math.sqrt(part.variance)) ** 2
        total.seconds += part.seconds
        total.is_timed &= part.is_timed
        total.cut += part.cut
        total.is_assumed |= part.is_assumed
        for name, count in part.bases.items():
            total.bases[name] = max(total.bases.get(name, 0), count)
    return total


def _told(saved: Saved) -> dict[str, Any]:
    why_not = _why_not(saved)
    margin = _Z * math.sqrt(saved.variance)
    is_known = why_not in (None, "some_unknown")
    return {
        "requests": saved.requests,
        "turned_off": saved.off,
        "turned_on": saved.on,
        "estimated": saved.estimated,
        "tokens_saved": _whole(saved.tokens) if is_known else None,
        "tokens_low": _whole(saved.tokens - margin) if is_known else None,
        "tokens_high": _whole(saved.tokens + margin) if is_known else None,
        "seconds_saved": _whole(saved.seconds * 1e3) / 1e3 if is_known and saved.is_timed else None,
        "cut": saved.cut,
        "basis": _weakest(saved.bases),
        "n_basis": saved.bases.get(_weakest(saved.bases) or "", 0),
        "why_not": why_not,
    }


def _whole(value: float) -> int:
    """Rounded; a half is one whatever the order in which its parts were added."""
    return round(round(value, 6))


def _why_not(saved: Saved) -> str | None:
    if not saved.off and not saved.on:
        return "nothing_changed"
    if saved.off and not saved.estimated and not saved.on:
        return "no_thoughts"
    return "some_unknown" if saved.estimated < saved.off else None


def _weakest(bases: Mapping[str, int]) -> str | None:
    named: Sequence[str] = [name for name in _BASES if name in bases]
    return named[-1] if named else None
