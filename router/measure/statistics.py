"""What samples say, and how sure that is. Numbers in, numbers out; no clock, no randomness.

Intervals here come in two kinds, and each says which it is:

* *always valid*: may be looked at after every observation, and looking may decide when to stop.
  Over the whole run, the chance that the interval ever misses the truth is at most `alpha`.
  What `ab` and online experiments use.
* *fixed*: for a sample whose size was settled beforehand. Narrower; what `bench` prints.

Sources. Means: the mixture of scale-invariant likelihood ratios of Lai (1976), "On confidence
sequences", as given in Wang & Ramdas (2024), "Anytime-valid t-tests and confidence sequences for
Gaussian means with unknown variance": exact for normal observations (so for logarithms of
log-normal times), and for others it tends to the asymptotic confidence sequence of Waudby-Smith,
Arbour, Sinha, Kennedy & Ramdas (2024), "Time-uniform central limit theory and asymptotic confidence
sequences". Ratios of means: the same, turned around as by Fieller (1954). Proportions: mixtures of
binomial likelihoods (Robbins 1970; Howard, Ramdas, McAuliffe & Sekhon 2021), exact at any size.
Percentiles: the latter, turned around (Howard & Ramdas 2022). Saved shares: the bootstrap-t
(Efron & Tibshirani 1993, chapter 12).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

ALPHA = 0.05
#: where always valid intervals of means are narrowest, in pairs or in observations an arm
PLANNED = 200
#: clusters that one arm remembers; one that comes back after it was forgotten counts as another
_CLUSTERS = 100_000
#: below that, a resampled share says nothing
_LEAST_CLUSTERS = 10
#: Jeffreys' prior of a binomial and a trinomial
_JEFFREYS = 0.5
_STEPS = 40
#: observations of an arm (or pairs) before intervals that are only nearly exact say anything
_LEAST = 20


class Verdict(StrEnum):
    """What is known of B against A."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "no difference"
    NOT_YET = "not yet"

    @property
    def is_settled(self) -> bool:
        return self is not Verdict.NOT_YET


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """B against A: a ratio B/A (`none` is 1) or a difference B - A (`none` is 0).

    `low` and `high` are 0 or -inf, and inf, as long as nothing can be said.
    """

    value: float
    low: float
    high: float
    n: int  # pairs, or observations of the smaller arm
    none: float  # what no effect is

    def verdict(self, *, margin: float, is_lower_better: bool) -> Verdict:
        """`margin` is the smallest effect that matters: 0.05 of a ratio is 5 % either way.

        Better or worse: the interval leaves no effect out, and the estimate is at least `margin`.
        No difference: the whole interval is nearer to no effect than `margin`. So an effect that
        is real but does not matter ends as no difference. With no effect at all, "better" or
        "worse" ever comes out with a chance of at most the interval's alpha.
        """
        down, up = (1 / (1 + margin), 1 + margin) if self.none else (-margin, margin)
        if down < self.low and self.high < up:
            return Verdict.SAME
        if self.high < self.none and self.value <= down:
            return Verdict.BETTER if is_lower_better else Verdict.WORSE
        if self.low > self.none and self.value >= up:
            return Verdict.WORSE if is_lower_better else Verdict.BETTER
        return Verdict.NOT_YET


# --- sums that grow by one observation ----------------------------------------------------


class Sums:
    """Running sums of one quantity: O(1) an observation, and nothing of it is kept.

    Observations are independent of each other, but for those of one `cluster` (a session, say),
    which may hang together in any way: the variance is then that of clusters.
    """

    __slots__ = ("_clusters", "_remembers", "_sizes2", "_total", "_totals2", "_weighted", "n")

    def __init__(self, values: Iterable[float] = (), *, remembers: int = _CLUSTERS) -> None:
        """`remembers` so many clusters."""
        self._remembers = remembers
        self.n = 0
        self._total = 0.0
        self._totals2 = 0.0  # sum over clusters of (their total)^2
        self._weighted = 0.0  # ... of their total times their size
        self._sizes2 = 0.0  # ... of (their size)^2
        self._clusters: dict[Hashable, tuple[int, float]] = {}
        for value in values:
            self.add(value)

    def __repr__(self) -> str:
        return f"Sums(n={self.n}, mean={self.mean:.4g}, effective={self.effective:.4g})"

    def add(self, value: float, cluster: Hashable = None) -> None:
        size, total = 0, 0.0
        if cluster is not None:
            size, total = self._clusters.pop(cluster, (0, 0.0))
            self._clusters[cluster] = size + 1, total + value
            if len(self._clusters) > self._remembers:
                del self._clusters[next(iter(self._clusters))]
        self.n += 1
        self._total += value
        self._totals2 += 2 * total * value + value * value
        self._weighted += total + value * (size + 1)
        self._sizes2 += 2 * size + 1

    def told(self) -> tuple[int, float, float, float, float]:
        """All but the clusters, to be kept or sent; `plus` takes it."""
        return self.n, self._total, self._totals2, self._weighted, self._sizes2

    def plus(self, told: Sequence[float]) -> None:
        """Add another's sums. A cluster that both have seen counts as two."""
        n, total, totals2, weighted, sizes2 = told
        self.n += int(n)
        self._total += total
        self._totals2 += totals2
        self._weighted += weighted
        self._sizes2 += sizes2

    @property
    def mean(self) -> float:
        return self._total / self.n if self.n else math.nan

    @property
    def effective(self) -> float:
        """As many clusters of equal size would weigh as much; without clusters, n."""
        return self.n * self.n / self._sizes2 if self.n else 0.0

    @property
    def variance_of_mean(self) -> float:
        """inf while there is only one cluster."""
        count = self.effective
        if count <= 1:
            return math.inf
        mean = self.mean
        squares = self._totals2 - 2 * mean * self._weighted + mean * mean * self._sizes2
        return max(0.0, squares) / self.n**2 * count / (count - 1)

    @property
    def spread(self) -> float:
        """The standard deviation that n independent observations with this variance have."""
        return math.sqrt(self.variance_of_mean * self.n)


class PairSums:
    """Running sums of pairs (a, b) of one quantity: what a ratio of totals needs."""

    __slots__ = ("_a", "_aa", "_ab", "_b", "_bb", "n")

    def __init__(self, pairs: Iterable[tuple[float, float]] = ()) -> None:
        self.n = 0
        self._a = self._b = self._aa = self._ab = self._bb = 0.0
        for a, b in pairs:
            self.add(a, b)

    def add(self, a: float, b: float) -> None:
        self.n += 1
        self._a += a
        self._b += b
        self._aa += a * a
        self._ab += a * b
        self._bb += b * b

    def ratio(self, *, alpha: float = ALPHA, planned: int = PLANNED) -> Effect:
        """Total of B through total of A. Always valid."""
        n = self.n
        if n < _LEAST:
            return _unknown_ratio(n)
        a, b = self._a / n, self._b / n
        scale = 1 / (n - 1)
        return _ratio(
            a,
            b,
            (self._aa / n - a * a) * scale,
            (self._ab / n - a * b) * scale,
            (self._bb / n - b * b) * scale,
            width=_width(n, alpha, planned),
            n=n,
        )


# --- means --------------------------------------------------------------------------------


def mean(sums: Sums, *, alpha: float = ALPHA, planned: int = PLANNED) -> Effect:
    """The mean, against 0: of paired differences, for example. Always valid."""
    reach = _reach(sums.variance_of_mean, _width(sums.effective, alpha, planned))
    return _around(sums.mean, reach, sums.n)


def paired_ratio(logs: Sums, *, alpha: float = ALPHA, planned: int = PLANNED) -> Effect:
    """The typical (geometric mean) ratio b/a, from the sums of log(b/a). Always valid.

    For times: what a typical request notices, whatever the few slowest do.
    """
    return _exp(mean(logs, alpha=alpha, planned=planned))


def difference(a: Sums, b: Sums, *, alpha: float = ALPHA, planned: int = PLANNED) -> Effect:
    """Mean of B less mean of A, of two arms without pairs. Always valid."""
    variance = a.variance_of_mean + b.variance_of_mean
    reach = _reach(variance, _width(_harmonic(a, b), alpha, planned))
    return _around(b.mean - a.mean, reach, min(a.n, b.n))


def unpaired_ratio(
    a_logs: Sums, b_logs: Sums, *, alpha: float = ALPHA, planned: int = PLANNED
) -> Effect:
    """The ratio of geometric means of two arms without pairs, from sums of logarithms.

    Always valid.
    """
    return _exp(difference(a_logs, b_logs, alpha=alpha, planned=planned))


def ratio_of_means(a: Sums, b: Sums, *, alpha: float = ALPHA, planned: int = PLANNED) -> Effect:
    """Mean of B through mean of A, of two arms without pairs. Always valid.

    For tokens: what is paid for.
    """
    n = min(a.n, b.n)
    width = _width(_harmonic(a, b), alpha, planned)
    return _ratio(a.mean, b.mean, a.variance_of_mean, 0.0, b.variance_of_mean, width=width, n=n)


def needed(
    spread: float,
    effect: float,
    *,
    alpha: float = ALPHA,
    power: float = 0.8,
    planned: int = PLANNED,
) -> int:
    """About so many pairs until an effect is found with this chance, looked at after each.

    `spread` is the standard deviation of one pair's difference, in the unit of `effect`: of
    log(b/a), with log(1.1) for ten per cent.
    """

    def falls_short(n: int) -> bool:
        sure = _reach(spread**2 / n, _width(n, alpha, planned))
        return sure + _normal_quantile(power) * spread / math.sqrt(n) > abs(effect)

    high = 2
    while falls_short(high):
        high *= 2
        if high > 1 << 40:
            return high
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if falls_short(middle) else (low, middle)
    return high


def _width(n: float, alpha: float, planned: int) -> float:
    """How many variances of the mean lie between it and the interval's ends, always valid.

    With S = sum of x and V = sum of x^2, sqrt(c/(n+c)) * (1 - S^2/((n+c) V))^(-n/2) is the
    likelihood ratio of "mean/deviation is N(0, 1/c), deviation is anything" against "mean is 0",
    and a martingale under the latter: by Ville's inequality it ever reaches 1/alpha with chance
    alpha. Solved for the mean. `c` is chosen so that it is narrowest about `planned`.
    """
    if n <= 1:
        return math.inf
    surprise = -2 * math.log(alpha)
    c = planned / (surprise + math.log(1 + surprise))
    share = 1 - math.exp((math.log(c / (n + c)) - surprise) / n)
    bound = share * (n + c)
    # The variance here has n - 1 below it, and the likelihood's n.
    return (n - 1) * bound / (n - bound) if bound < n else math.inf


def _reach(variance: float, width: float) -> float:
    if math.isinf(variance) or math.isinf(width):
        return math.inf
    return math.sqrt(variance * width)


def _around(middle: float, reach: float, n: int) -> Effect:
    if math.isinf(reach):
        return Effect(value=middle, low=-math.inf, high=math.inf, n=n, none=0)
    return Effect(value=middle, low=middle - reach, high=middle + reach, n=n, none=0)


def _harmonic(a: Sums, b: Sums) -> float:
    """Two arms know as much of their difference as so many pairs; too small an arm, nothing."""
    left, right = a.effective, b.effective
    return 2 * left * right / (left + right) if min(left, right) >= _LEAST else 0.0


def _ratio(a: float, b: float, aa: float, ab: float, bb: float, *, width: float, n: int) -> Effect:
    """b/a with what r the mean of b - r*a may be 0; aa, ab, bb are (co)variances of the means."""
    if a <= 0 or not all(map(math.isfinite, (width, aa, bb))):
        return _unknown_ratio(n)
    square, middle, rest = a * a - width * aa, a * b - width * ab, b * b - width * bb
    root = middle * middle - square * rest
    if square <= 0 or root < 0:
        return Effect(value=b / a, low=0, high=math.inf, n=n, none=1)
    reach = math.sqrt(root)
    low, high = max(0.0, (middle - reach) / square), (middle + reach) / square
    return Effect(value=b / a, low=low, high=high, n=n, none=1)


def _unknown_ratio(n: int) -> Effect:
    return Effect(value=math.nan, low=0, high=math.inf, n=n, none=1)


def _exp(effect: Effect) -> Effect:
    low = math.exp(min(700.0, effect.low))
    high = math.exp(effect.high) if effect.high < 700 else math.inf
    return Effect(value=math.exp(effect.value), low=low, high=high, n=effect.n, none=1)


# --- proportions --------------------------------------------------------------------------


def proportion(hits: int, n: int, *, alpha: float = ALPHA) -> tuple[float, float]:
    """(low, high) of a chance that was hit so many times of n. Always valid, at any size."""
    if n == 0:
        return 0.0, 1.0
    limit = _mixed(hits, n - hits) + math.log(alpha)

    def is_possible(p: float) -> bool:
        return _loglik(hits, p) + _loglik(n - hits, 1 - p) > limit

    return _outwards(is_possible, hits / n, 0.0, 1.0)


def proportion_difference(
    a_hits: int, a_n: int, b_hits: int, b_n: int, *, alpha: float = ALPHA
) -> Effect:
    """Chance under B less chance under A, of two arms without pairs. Always valid."""
    n = min(a_n, b_n)
    if n == 0:
        return Effect(value=math.nan, low=-1, high=1, n=0, none=0)
    a_misses, b_misses = a_n - a_hits, b_n - b_hits
    limit = _mixed(a_hits, a_misses) + _mixed(b_hits, b_misses) + math.log(alpha)

    def is_possible(difference: float) -> bool:
        def likelihood(p: float) -> float:
            q = p + difference
            return (
                _loglik(a_hits, p)
                + _loglik(a_misses, 1 - p)
                + _loglik(b_hits, q)
                + _loglik(b_misses, 1 - q)
            )

        return _highest(likelihood, max(0.0, -difference), min(1.0, 1 - difference)) > limit

    middle = b_hits / b_n - a_hits / a_n
    low, high = _outwards(is_possible, middle, -1.0, 1.0)
    return Effect(value=middle, low=low, high=high, n=n, none=0)


def paired_proportion_difference(
    only_a: int, only_b: int, n: int, *, alpha: float = ALPHA
) -> Effect:
    """Chance under B less chance under A, of n pairs in which only A or only B hit so often.

    Always valid.
    """
    if n == 0:
        return Effect(value=math.nan, low=-1, high=1, n=0, none=0)
    alike = n - only_a - only_b
    limit = _mixed(only_a, only_b, alike) + math.log(alpha)

    def is_possible(difference: float) -> bool:
        def likelihood(p: float) -> float:
            q = p + difference
            return _loglik(only_a, p) + _loglik(only_b, q) + _loglik(alike, 1 - p - q)

        return _highest(likelihood, max(0.0, -difference), (1 - difference) / 2) > limit

    middle = (only_b - only_a) / n
    low, high = _outwards(is_possible, middle, -1.0, 1.0)
    return Effect(value=middle, low=low, high=high, n=n, none=0)


def _mixed(*counts: int) -> float:
    """Log-likelihood of these counts, mixed over all chances by Jeffreys' prior."""
    kinds, n = len(counts), sum(counts)
    before = math.lgamma(_JEFFREYS * kinds) - kinds * math.lgamma(_JEFFREYS)
    after = sum(math.lgamma(count + _JEFFREYS) for count in counts)
    return before + after - math.lgamma(n + _JEFFREYS * kinds)


def _loglik(count: int, p: float) -> float:
    if count == 0:
        return 0.0
    return count * math.log(p) if p > 0 else -math.inf


def _outwards(
    holds: Callable[[float], bool], middle: float, lowest: float, highest: float
) -> tuple[float, float]:
    """The ends of the interval around `middle` in which a statement holds."""
    ends = []
    for end in (lowest, highest):
        inside, outside = middle, end
        if holds(end):
            ends.append(end)
            continue
        for _ in range(_STEPS):
            between = (inside + outside) / 2
            inside, outside = (between, outside) if holds(between) else (inside, between)
        ends.append(outside)
    return ends[0], ends[1]


def _highest(curve: Callable[[float], float], low: float, high: float) -> float:
    """The top of a concave curve."""
    for _ in range(_STEPS):
        third = (high - low) / 3
        left, right = low + third, high - third
        at_left, at_right = curve(left), curve(right)
        if at_left == at_right == -math.inf:
            return -math.inf
        low, high = (left, high) if at_left < at_right else (low, right)
    return curve((low + high) / 2)


# --- percentiles --------------------------------------------------------------------------


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value that this share of an ordered sample lies below, interpolated; nan of nothing."""
    if not ordered:
        return math.nan
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def percentile_interval(
    ordered: Sequence[float], share: float, *, alpha: float = ALPHA
) -> tuple[float, float]:
    """(low, high) of the percentile of what the ordered sample is from. Fixed; any distribution.

    An end is infinite where the sample is too small to tell it.
    """
    n = len(ordered)
    below = above = 0.0
    low, high = 0, n + 1
    for rank in range(n + 1):  # the chance that exactly `rank` values lie below the percentile
        below += _binomial(rank, n, share)
        if below > alpha / 2:
            break
        low = rank + 1
    for rank in range(n, -1, -1):
        above += _binomial(rank, n, share)
        if above > alpha / 2:
            break
        high = rank
    return _ranked(ordered, low, high)


def percentile_always(
    ordered: Sequence[float], share: float, *, alpha: float = ALPHA
) -> tuple[float, float]:
    """The same, always valid."""
    n = len(ordered)

    def is_possible(rank: int) -> bool:
        chance = _loglik(rank, share) + _loglik(n - rank, 1 - share)
        return _mixed(rank, n - rank) - chance < -math.log(alpha)

    middle = min(n, round(n * share))
    low = high = middle
    while low > 0 and is_possible(low - 1):
        low -= 1
    while high < n and is_possible(high + 1):
        high += 1
    return _ranked(ordered, low, high + 1)


def _ranked(ordered: Sequence[float], low: int, high: int) -> tuple[float, float]:
    """Between the low-th and the high-th smallest value, counted from 1."""
    return (
        ordered[low - 1] if low >= 1 else -math.inf,
        ordered[high - 1] if high <= len(ordered) else math.inf,
    )


def _binomial(hits: int, n: int, p: float) -> float:
    ways = math.lgamma(n + 1) - math.lgamma(hits + 1) - math.lgamma(n - hits + 1)
    return math.exp(ways + _loglik(hits, p) + _loglik(n - hits, 1 - p))


# --- resampling ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The share of A's total that B does not need: 0.6 is 60 % less. Negative: it needs more."""

    share: float
    low: float | None  # None: too few different prompts to tell
    high: float | None
    pairs: int
    clusters: int


def saved(
    pairs: Sequence[tuple[float, float]],
    clusters: Sequence[Hashable],
    *,
    random: Random,
    alpha: float = ALPHA,
    draws: int = 2000,
) -> Saved:
    """1 - total of b / total of a, of pairs whose clusters (prompts) are a sample of many. Fixed.

    Whole clusters are drawn anew, so that repeating a prompt makes the interval no narrower than
    other prompts of its kind would agree to. The same `random` gives the same interval.
    """
    totals: dict[Hashable, list[float]] = {}
    for (a, b), cluster in zip(pairs, clusters, strict=True):
        total = totals.setdefault(cluster, [0.0, 0.0])
        total[0] += a
        total[1] += b
    units = [(a, b) for a, b in totals.values()]
    seen = _log_ratio(units)
    if seen is None:
        return Saved(share=math.nan, low=None, high=None, pairs=len(pairs), clusters=len(units))
    log, error = seen
    low = high = None
    if len(units) >= _LEAST_CLUSTERS:
        drawn = (_log_ratio(random.choices(units, k=len(units))) for _ in range(draws))
        steps = sorted((each[0] - log) / each[1] for each in drawn if each and each[1] > 0)
        if steps and error > 0:
            low = 1 - math.exp(log - percentile(steps, alpha / 2) * error)
            high = 1 - math.exp(log - percentile(steps, 1 - alpha / 2) * error)
        else:
            low = high = 1 - math.exp(log)
    return Saved(share=1 - math.exp(log), low=low, high=high, pairs=len(pairs), clusters=len(units))


def _log_ratio(units: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """log(total b / total a) and its standard error."""
    n = len(units)
    a = sum(unit[0] for unit in units)
    b = sum(unit[1] for unit in units)
    if n < 2 or a <= 0 or b <= 0:
        return None
    squares = sum((unit[1] / b - unit[0] / a) ** 2 for unit in units)
    return math.log(b / a), math.sqrt(squares * n / (n - 1))


def _normal_quantile(share: float) -> float:
    """By bisection of the error function: called a few times a report."""
    low, high = -10.0, 10.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        is_low = (1 + math.erf(middle / math.sqrt(2))) / 2 < share
        low, high = (middle, high) if is_low else (low, middle)
    return (low + high) / 2
