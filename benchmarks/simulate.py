"""Are the intervals of `ab` and of experiments as sure as they say? Counted on made-up traffic.

Every simulated run is looked at after each pair, from the first on, as an impatient person would,
and is wrong if it was wrong at any look. Seeds are fixed: the same numbers come out each time.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from router.measure import statistics
from router.measure.statistics import Effect, PairSums, Sums

Draw = Callable[[Random], float]
#: what a simulated run gives after each look
Looks = Callable[[Random, int, float], "list[Effect]"]


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    look: Looks  # (random, pairs, log of the planted ratio) → what was seen at each look
    pairs: int


@dataclass(frozen=True, slots=True)
class Count:
    """What came of many runs of one case."""

    runs: int
    alarms: int  # runs in which some look said "no effect" is impossible
    missed: int  # ... in which some look left the planted effect out
    found_after: list[int]  # looks it took, of the runs that found an effect

    @property
    def alarm_rate(self) -> float:
        return self.alarms / self.runs

    @property
    def coverage(self) -> float:
        return 1 - self.missed / self.runs


def count(case: Case, *, runs: int, seed: int, effect: float = 1.0) -> Count:
    """Many runs of a case with a planted ratio B/A."""
    random = Random(seed)
    alarms = missed = 0
    found_after = []
    for _ in range(runs):
        looks = case.look(random, case.pairs, math.log(effect))
        planted = effect if looks[0].none else 0.0
        alarm = next((at for at, seen in enumerate(looks, 1) if _leaves_out(seen, seen.none)), None)
        if alarm is not None:
            alarms += 1
            found_after.append(alarm)
        missed += any(_leaves_out(seen, planted) for seen in looks)
    return Count(runs, alarms, missed, found_after)


def _leaves_out(seen: Effect, value: float) -> bool:
    return not seen.low <= value <= seen.high


# --- traffic: logarithms of times ---------------------------------------------------------


def log_normal(random: Random) -> float:
    return random.gauss(0, 0.3)


def heavy(random: Random) -> float:
    """A Pareto tail without a variance."""
    return math.log(random.paretovariate(1.1))


def stalls(random: Random) -> float:
    """One answer in fifty takes twenty times as long."""
    return random.gauss(0, 0.2) + (3 if random.random() < 0.02 else 0)


def tokens(random: Random) -> float:
    """Lengths of answers, cut at 256."""
    return min(math.log(256), random.gauss(4, 1))


def paired(draw: Draw) -> Looks:
    def look(random: Random, pairs: int, shift: float) -> list[Effect]:
        sums, seen = Sums(), []
        for _ in range(pairs):
            sums.add(draw(random) + shift - draw(random))
            seen.append(statistics.paired_ratio(sums))
        return seen

    return look


def totals(draw: Draw) -> Looks:
    """The ratio of what was used in all; the two of a pair share a prompt."""

    def look(random: Random, pairs: int, shift: float) -> list[Effect]:
        sums, seen = PairSums(), []
        for _ in range(pairs):
            prompt = random.gauss(0, 0.5)
            a, b = (math.exp(prompt + draw(random)) for _ in "ab")
            sums.add(a, b * math.exp(shift))
            seen.append(sums.ratio())
        return seen

    return look


def unpaired(draw: Draw, *, weight: float, session: int = 1) -> Looks:
    """Two arms as online: sessions of up to so many requests that are alike stay at one arm."""

    def look(random: Random, pairs: int, shift: float) -> list[Effect]:
        a, b = Sums(), Sums()
        seen: list[Effect] = []
        while len(seen) < pairs:
            arm = b if random.random() < weight else a
            own = draw(random) if session > 1 else 0.0
            cluster = object() if session > 1 else None
            for _ in range(random.randint(1, session)):
                arm.add(own + draw(random) + (shift if arm is b else 0.0), cluster)
                seen.append(statistics.unpaired_ratio(a, b))
        return seen

    return look


def chances(p: float, *, is_paired: bool) -> Looks:
    """Successes; looked at after every fifth pair, as each look takes milliseconds."""

    def look(random: Random, pairs: int, shift: float) -> list[Effect]:
        hits, only = [0, 0], [0, 0]
        seen: list[Effect] = []
        for number in range(1, pairs + 1):
            a, b = random.random() < p, random.random() < p
            hits[0], hits[1] = hits[0] + a, hits[1] + b
            only[0], only[1] = only[0] + (a > b), only[1] + (b > a)
            if number % 5 == 0:
                seen.append(
                    statistics.paired_proportion_difference(only[0], only[1], number)
                    if is_paired
                    else statistics.proportion_difference(hits[0], number, hits[1], number)
                )
        return seen

    return look


TIMES = (
    Case("pairs, log-normal times", paired(log_normal), 500),
    Case("pairs, Pareto tail 1.1", paired(heavy), 500),
    Case("pairs, stalls of 20 times", paired(stalls), 500),
    Case("pairs, total tokens cut at 256", totals(tokens), 500),
    Case("two arms 1:1, log-normal", unpaired(log_normal, weight=0.5), 1000),
    Case("two arms 9:1, log-normal", unpaired(log_normal, weight=0.1), 1000),
    Case("two arms 9:1, Pareto tail 1.1", unpaired(heavy, weight=0.1), 1000),
    Case("two arms, sessions of 1 to 8", unpaired(log_normal, weight=0.5, session=8), 1500),
)
CHANCES = (
    Case("pairs, success 98 %", chances(0.98, is_paired=True), 300),
    Case("pairs, success 70 %", chances(0.7, is_paired=True), 300),
    Case("two arms, success 98 %", chances(0.98, is_paired=False), 300),
)
#: standard deviations of log(b/a) for which the power at a 10 % shift is told
SPREADS = (0.2, 0.3, 0.5)


def normal_pairs(spread: float, pairs: int) -> Case:
    one = spread / math.sqrt(2)
    return Case(f"log(b/a) spreads by {spread}", paired(lambda r: r.gauss(0, one)), pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    runs = parser.parse_args().runs
    worst = 0.0
    print(f"{'no effect, looked at throughout':<40}{'false alarms':>14}")
    for case in (*TIMES, *CHANCES):
        seen = count(case, runs=runs if case in TIMES else runs // 10, seed=1)
        worst = max(worst, seen.alarm_rate)
        print(f"{case.name:<40}{seen.alarm_rate:>14.1%}", flush=True)
    print(f"\n{'a shift of 10 %':<40}{'pairs':>7}{'found':>8}{'in the interval throughout':>28}")
    for spread in SPREADS:
        pairs = statistics.needed(spread, math.log(1.1))
        seen = count(normal_pairs(spread, pairs), runs=runs, seed=2, effect=1.1)
        row = f"{pairs:>7}{seen.alarm_rate:>8.1%}{seen.coverage:>28.1%}"
        print(f"{normal_pairs(spread, pairs).name:<40}{row}", flush=True)
    return int(worst > statistics.ALPHA)


if __name__ == "__main__":
    sys.exit(main())
