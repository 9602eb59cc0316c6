"""What an experiment has seen so far, and what follows from it.

In: records of requests that were in an arm. Out: sums by arm; each arm's effect against
control with an interval that holds however often one looks, and the rails it is surely over.
Pure, and none of it is on a request's path.

Sessions are drawn, not requests, so a session is what counts as one observation: its
requests may hang together in any way, and the intervals allow for that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from router.experiment import Experiment, Rails
from router.measure.statistics import (
    Effect,
    Sums,
    Verdict,
    difference,
    paired_ratio,
    proportion_difference,
    ratio_of_means,
    unpaired_ratio,
)
from router.record import Record

#: sessions that one sum tells apart; one that is back after so many others counts as another
_SESSIONS = 2000
#: no sum of logarithms, shares or tokens comes near it, and its square is still a number
_LARGEST = 1e100
_ANSWERING = frozenset({"chat.completions", "completions", "responses"})
#: what is summed up of each request: shares, logarithms of milliseconds, tokens
_SHARES = ("error", "empty", "truncated")
_LOGS = ("ttft", "total")
_QUANTITIES = (*_SHARES, *_LOGS, "output_tokens", "pair")
#: rail → quantity
_RAILS = {
    "error_rate": "error",
    "empty_rate": "empty",
    "truncated_rate": "truncated",
    "ttft_ratio": "ttft",
    "total_ratio": "total",
}


class ArmSums:
    """What became of the requests of one arm."""

    def __init__(self) -> None:
        self.requests = 0
        self.left = 0  # the client went before the end: neither an answer nor a failure
        self.rejected = 0  # the backends were busy, which is no arm's doing
        self.sums = {name: Sums(remembers=_SESSIONS) for name in _QUANTITIES}

    def add(self, record: Record) -> None:
        self.requests += 1
        if record.outcome == "client_disconnect":
            self.left += 1
            return
        if record.outcome == "rejected":
            self.rejected += 1
            return
        session, is_ok = record.session, record.outcome == "ok"
        self.sums["error"].add(float(not is_ok), session)
        if not is_ok:
            return
        if record.endpoint in _ANSWERING and record.answer_chars is not None:
            is_empty = record.answer_chars == 0 and record.finish_reason != "tool_calls"
            self.sums["empty"].add(float(is_empty), session)
        if record.finish_reason is not None:
            self.sums["truncated"].add(float(record.finish_reason == "length"), session)
        if record.output_tokens is not None:
            self.sums["output_tokens"].add(record.output_tokens, session)
        queue_ms = record.queue_ms or 0.0  # in line for others' sake
        for name, took_ms in (("ttft", record.ttft_ms), ("total", record.total_ms)):
            if took_ms is not None and took_ms > queue_ms:
                self.sums[name].add(math.log(took_ms - queue_ms), session)

    def pair(self, ratio: float, session: str | None) -> None:
        """A request that was asked in this arm and in control: tokens through tokens."""
        self.sums["pair"].add(math.log(ratio), session)

    def told(self) -> dict[str, Any]:
        """As JSON has it; `plus` takes it."""
        return {
            "requests": self.requests,
            "left": self.left,
            "rejected": self.rejected,
            **{name: sums.told() for name, sums in self.sums.items()},
        }

    def plus(self, told: Mapping[str, Any]) -> None:
        """Add what another worker has seen."""
        self.requests += told["requests"]
        self.left += told["left"]
        self.rejected += told["rejected"]
        for name, sums in self.sums.items():
            sums.plus(told[name])

    def middle(self, name: str) -> float | None:
        """The mean; of times the geometric one, in milliseconds. None before there is one."""
        sums = self.sums[name]
        if not sums.n:
            return None
        return math.exp(sums.mean) if name in _LOGS else sums.mean


_Count = Annotated[int, Meta(ge=0, le=2**53)]
_Summed = Annotated[float, Meta(ge=-_LARGEST, le=_LARGEST)]
#: what `ArmSums.told` says, so far as its form goes
_Told: Any = msgspec.defstruct(
    "_Told",
    [
        *((name, _Count) for name in ("requests", "left", "rejected")),
        *((name, tuple[_Count, _Summed, _Summed, _Summed, _Summed]) for name in _QUANTITIES),
    ],
)


def is_sound(told: Any) -> bool:
    """Whether these are sums of arms: arm → told. Another version of us may have written others."""
    try:
        arms = msgspec.convert(told, dict[str, _Told])
    except msgspec.ValidationError:
        return False
    sums = [getattr(arm, name) for arm in arms.values() for name in _QUANTITIES]
    # No cluster is smaller than one, nor is a square negative.
    return all(n <= sizes2 and totals2 >= 0 for n, _, totals2, _, sizes2 in sums)


class Breach(NamedTuple):
    """A rail that an arm is surely over."""

    rail: str
    allowed: float
    value: float
    low: float  # at least so much worse than control

    def __str__(self) -> str:
        what, _, kind = self.rail.partition("_")
        if kind == "ratio":
            return (
                f"{what} is {self.value:.3f} of control's, at least {self.low:.3f}: "
                f"more than {self.rail} = {self.allowed:g}"
            )
        return (
            f"{what} answers are {self.value:.2%} above control's, at least {self.low:.2%}: "
            f"more than {self.rail} = {self.allowed:g}"
        )


def effect(control: ArmSums, arm: ArmSums, goal: str, *, alpha: float) -> Effect:
    """The arm's goal as a ratio to control's. Always valid."""
    a, b = control.sums[goal], arm.sums[goal]
    if min(a.n, b.n) == 0:
        return Effect(value=math.nan, low=0, high=math.inf, n=0, none=1)
    compare = unpaired_ratio if goal in _LOGS else ratio_of_means
    return compare(a, b, alpha=alpha)


def verdict(written: Experiment, control: ArmSums, arm: ArmSums) -> tuple[Effect, Verdict]:
    """The effect on the experiment's goal, and what is known of it by now."""
    alpha = (1 - written.guard.confidence) / (len(written.arms) - 1)
    found = effect(control, arm, written.goal, alpha=alpha)
    return found, found.verdict(margin=written.margin, is_lower_better=True)


def breach(rails: Rails, control: ArmSums, arm: ArmSums, *, others: int) -> Breach | None:
    """The first rail that the arm is over by evidence; None while it may still be sound.

    `others` arms are compared with control: with their rails they share the chance of a
    false alarm that the rails allow over the experiment's whole life.
    """
    set_up = rails.set_up
    if not set_up:
        return None
    alpha = (1 - rails.confidence) / (others * len(set_up))
    for rail, allowed in set_up.items():
        name = _RAILS[rail]
        a, b = control.sums[name], arm.sums[name]
        if min(a.n, b.n) < rails.min_requests:
            continue
        found = unpaired_ratio(a, b, alpha=alpha) if name in _LOGS else _above(a, b, allowed, alpha)
        if found.low > allowed:
            return Breach(rail, allowed, found.value, found.low)
    return None


def _above(a: Sums, b: Sums, allowed: float, alpha: float) -> Effect:
    """How far a share lies above control's.

    By the variance between sessions, and by the counts themselves: the first is blind where
    next to nothing happens, the second to sessions. Only what both agree on counts; the
    second takes milliseconds and is asked last.
    """
    found = difference(a, b, alpha=alpha)
    if found.low <= allowed:
        return found
    hits = (round(sums.mean * sums.n) for sums in (a, b))
    exact = proportion_difference(next(hits), a.n, next(hits), b.n, alpha=alpha)
    return exact if exact.low < found.low else found


def told(
    written: Experiment, arms: Mapping[str, ArmSums], out: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """What operators are told of each arm, in the order of the policy.

    `out`: of the arms that were stopped, since when and why.
    """
    control = arms[written.control]
    rows: list[dict[str, Any]] = []
    for name, given in written.arms.items():
        sums = arms[name]
        row: dict[str, Any] = {
            "arm": name,
            "control": name == written.control,
            "weight": given.weight,
            "state": "stopped" if name in out else "running",
            "stopped": out.get(name),
            "requests": sums.requests,
            "sessions": round(sums.sums["error"].effective, 1),
            "left": sums.left,
            "rejected": sums.rejected,
            **{f"{share}_rate": _rounded(sums.middle(share)) for share in _SHARES},
            **{f"{log}_ms": _rounded(sums.middle(log)) for log in _LOGS},
            "output_tokens": _rounded(sums.middle("output_tokens")),
            "effect": None,
            "verdict": None,
            "shadow": None,
        }
        if not row["control"]:
            found, known = verdict(written, control, sums)
            row["effect"] = {"goal": written.goal, **_interval(found)}
            row["verdict"] = str(known)
            if (pairs := sums.sums["pair"]).n:
                found = paired_ratio(pairs, alpha=1 - written.guard.confidence)
                row["shadow"] = {"goal": "output_tokens", "pairs": pairs.n, **_interval(found)}
        rows.append(row)
    return rows


def _interval(found: Effect) -> dict[str, float | None]:
    ends = (found.low, found.high) if math.isfinite(found.high) else (None, None)
    return {
        "ratio": _rounded(found.value),
        "low": _rounded(ends[0]),
        "high": _rounded(ends[1]),
    }


def _rounded(value: float | None) -> float | None:
    """None where nothing is known: JSON has no number for that."""
    return None if value is None or not math.isfinite(value) else round(value, 4)


def merged(parts: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, ArmSums]:
    """The sums of several workers as one: each part is arm → told."""
    arms = {name: ArmSums() for name in names}
    for part in parts:
        for name, told in part.items():
            if name in arms:
                arms[name].plus(told)
    return arms
