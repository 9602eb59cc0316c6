"""Samples → figures. Pure: what `bench` prints, draws and holds to bounds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random

import msgspec

from router.measure import statistics
from router.measure.asking import Sample

#: the quantities of a request that are summed up, with their unit
QUANTITIES: Mapping[str, Callable[[Sample], float | None]] = {
    "total_ms": lambda sample: sample.total_ms,
    "ttft_ms": lambda sample: sample.ttft_ms,
    "tpot_ms": lambda sample: sample.tpot_ms,
    "output_tokens": lambda sample: sample.output_tokens,
    "overhead_ms": lambda sample: sample.overhead_ms,
}


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity over all requests that were answered."""

    n: int
    avg: float
    min: float
    max: float
    p50: float
    p95: float
    p99: float
    #: 95 % intervals; None: the sample is too small to bound it
    p50_interval: tuple[float | None, float | None]
    p95_interval: tuple[float | None, float | None]
    p99_interval: tuple[float | None, float | None]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What one arm was like."""

    arm: str
    requests: int
    succeeded: int
    success: float  # share
    success_interval: tuple[float, float]
    errors: Mapping[str, int]  # what went wrong → how often
    spreads: Mapping[str, Spread]  # by quantity; those that were seen
    tokens_per_s: float | None  # output, while an answer was being written
    cut: int  # answers that reached a limit of tokens
    empty: int  # answers without any text
    second: int  # answered when asked again: the kept connection had been closed
    warned: int  # replies with x-router-warnings
    scenarios: Mapping[str, int]  # as the router told, or as decided here
    policies: tuple[str, ...]
    late_ms: float  # the longest that this client itself sent after a request was due
    counts_frames: bool  # some token counts are of frames, as the server told no usage


def summary(arm: str, samples: Iterable[Sample]) -> Summary:
    own = [sample for sample in samples if sample.arm == arm]
    good = [sample for sample in own if sample.is_ok]
    spreads = {}
    for name, quantity in QUANTITIES.items():
        values = sorted(value for sample in good if (value := quantity(sample)) is not None)
        if values:
            spreads[name] = spread(values)
    return Summary(
        arm=arm,
        requests=len(own),
        succeeded=len(good),
        success=len(good) / len(own) if own else math.nan,
        success_interval=statistics.proportion(len(good), len(own)),
        errors=dict(Counter(sample.error for sample in own if sample.error).most_common()),
        spreads=spreads,
        tokens_per_s=_pace(good),
        cut=sum(sample.is_cut for sample in good),
        empty=sum(sample.is_empty for sample in good),
        second=sum(sample.is_second for sample in good),
        warned=sum(sample.warnings is not None for sample in good),
        scenarios=dict(Counter(s.scenario for s in good if s.scenario).most_common()),
        policies=tuple(sorted({s.policy for s in good if s.policy})),
        late_ms=max((sample.late_ms for sample in own), default=0.0),
        counts_frames=any(s.output_tokens is not None and not s.has_usage for s in good),
    )


def spread(ordered: Sequence[float]) -> Spread:
    """Of an ordered sample that is not empty."""

    def interval(share: float) -> tuple[float | None, float | None]:
        low, high = statistics.percentile_interval(ordered, share)
        return _finite(low), _finite(high)

    return Spread(
        n=len(ordered),
        avg=sum(ordered) / len(ordered),
        min=ordered[0],
        max=ordered[-1],
        p50=statistics.percentile(ordered, 0.5),
        p95=statistics.percentile(ordered, 0.95),
        p99=statistics.percentile(ordered, 0.99),
        p50_interval=interval(0.5),
        p95_interval=interval(0.95),
        p99_interval=interval(0.99),
    )


def _pace(good: Sequence[Sample]) -> float | None:
    tokens = milliseconds = 0.0
    for sample in good:
        if sample.tpot_ms is not None and sample.output_tokens:
            tokens += sample.output_tokens - 1
            milliseconds += sample.tpot_ms * (sample.output_tokens - 1)
    return 1e3 * tokens / milliseconds if milliseconds else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


# --- two arms --------------------------------------------------------------------------------


class Saving(msgspec.Struct, frozen=True, kw_only=True):
    """What the second arm needs less of one quantity; shares, with a 95 % interval."""

    quantity: str
    share: float
    low: float | None  # None: too few different prompts
    high: float | None
    pairs: int
    prompts: int


class Added(msgspec.Struct, frozen=True, kw_only=True):
    """What the second arm takes longer, in milliseconds: the median over pairs."""

    quantity: str
    median: float
    low: float | None
    high: float | None
    pairs: int


#: what a percentage saved is told of
SAVED = ("total_ms", "ttft_ms", "output_tokens")
ADDED = ("total_ms", "ttft_ms")


def pairs(samples: Iterable[Sample], a: str, b: str) -> list[tuple[Sample, Sample]]:
    """The turns in which both arms were answered, as they came."""
    by_turn: dict[int, dict[str, Sample]] = {}
    for sample in samples:
        by_turn.setdefault(sample.turn, {})[sample.arm] = sample
    return [
        (turn[a], turn[b])
        for turn in by_turn.values()
        if a in turn and b in turn and turn[a].is_ok and turn[b].is_ok
    ]


def savings(both: Sequence[tuple[Sample, Sample]], *, seed: int) -> list[Saving]:
    """The share of A's time and tokens that B does not need."""
    found = []
    for name in SAVED:
        rows = _valued(both, name)
        if rows:
            values = [(a, b) for a, b, _ in rows]
            prompts = [prompt for _, _, prompt in rows]
            seen = statistics.saved(values, prompts, random=Random(seed))
            found.append(
                Saving(
                    quantity=name,
                    share=seen.share,
                    low=seen.low,
                    high=seen.high,
                    pairs=seen.pairs,
                    prompts=seen.clusters,
                )
            )
    return found


def added(both: Sequence[tuple[Sample, Sample]]) -> list[Added]:
    """The milliseconds that B takes longer than A."""
    found = []
    for name in ADDED:
        steps = sorted(b - a for a, b, _ in _valued(both, name))
        if steps:
            low, high = statistics.percentile_interval(steps, 0.5)
            median = statistics.percentile(steps, 0.5)
            ends = {"low": _finite(low), "high": _finite(high)}
            found.append(Added(quantity=name, median=median, pairs=len(steps), **ends))
    return found


def _valued(both: Sequence[tuple[Sample, Sample]], name: str) -> list[tuple[float, float, int]]:
    quantity = QUANTITIES[name]
    return [
        (left, right, a.prompt)
        for a, b in both
        if (left := quantity(a)) is not None and (right := quantity(b)) is not None
    ]


# --- bounds ----------------------------------------------------------------------------------


class Gates(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds to hold; None is no bound."""

    max_p95_ratio: float | None = None  # p95 of the total time through its average
    min_success: float | None = None
    max_p95_ms: float | None = None
    max_ttft_p95_ms: float | None = None
    min_saved: float | None = None  # share of the first arm's total time


def missed(own: Summary, saving: Sequence[Saving], gates: Gates) -> list[str]:
    """What an arm does not hold to, in words."""
    found = []
    total, first = own.spreads.get("total_ms"), own.spreads.get("ttft_ms")
    if own.requests == 0:
        found.append("no request was made")
    elif own.succeeded == 0:
        found.append("no request succeeded")
    if gates.min_success is not None and own.success < gates.min_success:
        low, high = own.success_interval
        found.append(
            f"success {own.success:.1%} < {gates.min_success:.1%}"
            f" ({own.succeeded} of {own.requests}; 95 %: {low:.1%} to {high:.1%})"
        )
    if total is not None:
        if gates.max_p95_ratio is not None and total.p95 > gates.max_p95_ratio * total.avg:
            ratio = total.p95 / total.avg
            found.append(f"p95 is {ratio:.2f} times the average, > {gates.max_p95_ratio:g}")
        if gates.max_p95_ms is not None and total.p95 > gates.max_p95_ms:
            found.append(f"p95 {total.p95:.0f} ms > {gates.max_p95_ms:g} ms")
    if gates.max_ttft_p95_ms is not None:
        if first is None:
            found.append("no time to the first token was seen")
        elif first.p95 > gates.max_ttft_p95_ms:
            found.append(
                f"p95 to the first token {first.p95:.0f} ms > {gates.max_ttft_p95_ms:g} ms"
            )
    if gates.min_saved is not None:
        time = next((each for each in saving if each.quantity == "total_ms"), None)
        if time is None or not time.share >= gates.min_saved:
            share = "nothing was measured" if time is None else f"{time.share:.1%}"
            found.append(f"time saved: {share}, < {gates.min_saved:.1%}")
    return [f"{own.arm}: {text}" for text in found]
