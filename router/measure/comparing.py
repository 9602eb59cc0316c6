"""Two arms, pair by pair: what B changes, with intervals that may be looked at all the time. Pure.

The intervals of all quantities together are right with 95 %: each has its share of the error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import msgspec

from router.measure import statistics
from router.measure.asking import Sample
from router.measure.statistics import Effect, PairSums, Sums, Verdict

#: how likely any of the intervals of one report is ever wrong
ALPHA = 0.05


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity: how B differs from A. An end that is not known yet is None."""

    quantity: str
    kind: str  # "ratio": B through A; "difference": shares of requests, B less A
    value: float | None
    low: float | None
    high: float | None
    a: float | None  # the average, or the share, under A
    b: float | None
    pairs: int
    margin: float  # the smallest effect that matters
    verdict: Verdict
    likely_pairs: int | None  # about so many in all would show an effect of `margin`


class _Quantity:
    """What is kept of one quantity; `add` gets pairs as they come."""

    is_lower_better = True
    kind = "ratio"

    def add(self, a: Sample, b: Sample) -> None:
        raise NotImplementedError

    def effect(self, alpha: float, planned: int) -> Effect:
        raise NotImplementedError

    def likely(self, alpha: float, margin: float, planned: int) -> int | None:
        return None

    def averages(self) -> tuple[float, float]:
        raise NotImplementedError


class _Time(_Quantity):
    """The typical ratio: of answered pairs."""

    def __init__(self, read: Callable[[Sample], float | None]) -> None:
        self._read = read
        self._logs = Sums()
        self._sides = Sums(), Sums()

    def add(self, a: Sample, b: Sample) -> None:
        left, right = self._read(a), self._read(b)
        if a.is_ok and b.is_ok and left and right and left > 0 and right > 0:
            self._logs.add(math.log(right / left))
            for sums, value in zip(self._sides, (left, right), strict=True):
                sums.add(value)

    def effect(self, alpha: float, planned: int) -> Effect:
        return statistics.paired_ratio(self._logs, alpha=alpha, planned=planned)

    def likely(self, alpha: float, margin: float, planned: int) -> int | None:
        spread = self._logs.spread
        if not 0 < spread < math.inf:
            return None
        return statistics.needed(spread, math.log(1 + margin), alpha=alpha, planned=planned)

    def averages(self) -> tuple[float, float]:
        return self._sides[0].mean, self._sides[1].mean


class _Tokens(_Quantity):
    """The ratio of totals: what is computed and paid for."""

    def __init__(self) -> None:
        self._pairs = PairSums()
        self._sides = Sums(), Sums()

    def add(self, a: Sample, b: Sample) -> None:
        if a.is_ok and b.is_ok and a.output_tokens is not None and b.output_tokens is not None:
            self._pairs.add(a.output_tokens, b.output_tokens)
            self._sides[0].add(a.output_tokens)
            self._sides[1].add(b.output_tokens)

    def effect(self, alpha: float, planned: int) -> Effect:
        return self._pairs.ratio(alpha=alpha, planned=planned)

    def averages(self) -> tuple[float, float]:
        return self._sides[0].mean, self._sides[1].mean


class _Share(_Quantity):
    """How often something is so."""

    kind = "difference"

    def __init__(
        self, read: Callable[[Sample], bool], *, is_lower_better: bool, of_answered: bool
    ) -> None:
        self._read = read
        self._of_answered = of_answered
        self.is_lower_better = is_lower_better
        self._n = self._both = self._only_a = self._only_b = 0

    def add(self, a: Sample, b: Sample) -> None:
        if self._of_answered and not (a.is_ok and b.is_ok):
            return
        left, right = self._read(a), self._read(b)
        self._n += 1
        self._both += left and right
        self._only_a += left and not right
        self._only_b += right and not left

    def effect(self, alpha: float, planned: int) -> Effect:
        return statistics.paired_proportion_difference(
            self._only_a, self._only_b, self._n, alpha=alpha
        )

    def averages(self) -> tuple[float, float]:
        if not self._n:
            return math.nan, math.nan
        return (self._both + self._only_a) / self._n, (self._both + self._only_b) / self._n


class Comparison:
    """Takes samples as they come, in any order; says at any time what is known."""

    def __init__(self, a: str, b: str, *, margin: float, share_margin: float, planned: int) -> None:
        """`margin` is of ratios (0.05: five per cent), `share_margin` of shares (0.05: points)."""
        self._names = a, b
        self._margins = {"ratio": margin, "difference": share_margin}
        self._planned = planned
        self._waiting: dict[int, Sample] = {}
        self.pairs = 0
        self._quantities: Mapping[str, _Quantity] = {
            "ttft": _Time(lambda sample: sample.ttft_ms),
            "total": _Time(lambda sample: sample.total_ms),
            "output_tokens": _Tokens(),
            "cut": _Share(lambda s: s.is_cut, is_lower_better=True, of_answered=True),
            "success": _Share(lambda s: s.is_ok, is_lower_better=False, of_answered=False),
        }

    def add(self, sample: Sample) -> bool:
        """Whether that completed a pair."""
        other = self._waiting.pop(sample.turn, None)
        if other is None:
            self._waiting[sample.turn] = sample
            return False
        a, b = (sample, other) if sample.arm == self._names[0] else (other, sample)
        self.pairs += 1
        for quantity in self._quantities.values():
            quantity.add(a, b)
        return True

    def findings(self) -> list[Finding]:
        """What is known of each quantity that was seen at all."""
        alpha = ALPHA / len(self._quantities)
        found = []
        for name, quantity in self._quantities.items():
            effect = quantity.effect(alpha, self._planned)
            if effect.n == 0:
                continue
            margin = self._margins[quantity.kind]
            verdict = effect.verdict(margin=margin, is_lower_better=quantity.is_lower_better)
            likely = None
            if not verdict.is_settled:
                likely = quantity.likely(alpha, margin, self._planned)
            a, b = quantity.averages()
            found.append(
                Finding(
                    quantity=name,
                    kind=quantity.kind,
                    value=_finite(effect.value),
                    low=_finite(effect.low),
                    high=_finite(effect.high),
                    a=_finite(a),
                    b=_finite(b),
                    pairs=effect.n,
                    margin=margin,
                    verdict=verdict,
                    likely_pairs=likely,
                )
            )
        return found


def is_settled(findings: list[Finding]) -> bool:
    """Whether nothing more is to be learned."""
    return bool(findings) and all(each.verdict.is_settled for each in findings)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
