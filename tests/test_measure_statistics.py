"""Intervals are as sure as they say, however often they are looked at."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from random import Random
from types import ModuleType

import pytest

from router.measure import statistics
from router.measure.statistics import ALPHA, Effect, PairSums, Sums, Verdict

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("simulate")


def test_of_two_that_are_alike_looking_all_the_time_finds_no_difference(
    simulate: ModuleType,
) -> None:
    for case in simulate.TIMES:
        assert simulate.count(case, runs=100, seed=7).alarm_rate <= ALPHA, case.name
    for case in simulate.CHANCES:
        assert simulate.count(case, runs=4, seed=7).alarm_rate <= ALPHA, case.name


@pytest.mark.parametrize("spread", [0.2, 0.3])
def test_a_shift_of_a_tenth_is_found_at_the_stated_sample_and_lies_in_the_interval(
    simulate: ModuleType, spread: float
) -> None:
    pairs = statistics.needed(spread, math.log(1.1))
    seen = simulate.count(simulate.normal_pairs(spread, pairs), runs=150, seed=8, effect=1.1)

    assert seen.alarm_rate >= 0.8
    assert seen.coverage >= 1 - ALPHA


def test_peeking_at_an_ordinary_interval_would_have_raised_false_alarms() -> None:
    # What the other tests would see if the intervals were those of a t-test.
    random = Random(9)
    alarms = 0
    for _ in range(60):
        sums = Sums()
        for number in range(1, 501):
            sums.add(random.gauss(0, 1))
            if number >= 10 and abs(sums.mean) > 1.96 * math.sqrt(sums.variance_of_mean):
                alarms += 1
                break

    assert alarms / 60 > 4 * ALPHA


def test_the_share_saved_lies_in_its_interval_as_often_as_it_says() -> None:
    random = Random(10)
    held = 0
    for _ in range(150):
        pairs, prompts = [], []
        for prompt in range(20):
            size = random.gauss(5, 0.6)
            for _ in range(2):
                a, b = (math.exp(size + random.gauss(0, 0.3)) for _ in "ab")
                pairs.append((a, 0.4 * b))
                prompts.append(prompt)
        seen = statistics.saved(pairs, prompts, random=Random(1), draws=300)
        assert seen.low is not None
        assert seen.high is not None
        held += seen.low <= 0.6 <= seen.high

    assert held / 150 >= 0.92


def test_the_share_saved_is_the_same_each_time_it_is_asked_for() -> None:
    pairs = [(100.0 + number, 40.0 + number) for number in range(12)]
    first, second = (statistics.saved(pairs, range(12), random=Random(3)) for _ in "ab")

    assert first == second
    assert first.share == pytest.approx(1 - (12 * 40 + 66) / (12 * 100 + 66))


def test_a_few_prompts_repeated_often_are_still_a_few_prompts() -> None:
    seen = statistics.saved([(10.0, 5.0)] * 50, [n % 5 for n in range(50)], random=Random(1))

    assert (seen.share, seen.low, seen.high, seen.clusters) == (0.5, None, None, 5)


def test_percentiles_lie_in_their_intervals() -> None:
    random = Random(11)
    fixed = always = 0
    for _ in range(300):
        values = sorted(random.random() for _ in range(60))
        low, high = statistics.percentile_interval(values, 0.9)
        fixed += low <= 0.9 <= high
        low, high = statistics.percentile_always(values, 0.9)
        always += low <= 0.9 <= high

    assert 0.93 <= fixed / 300 < 1
    assert always / 300 >= fixed / 300


def test_a_small_sample_does_not_know_its_high_percentiles() -> None:
    values = [float(n) for n in range(20)]

    assert statistics.percentile_interval(values, 0.99)[1] == math.inf
    assert statistics.percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert math.isnan(statistics.percentile([], 0.5))


def test_a_session_weighs_as_one_however_many_requests_it_has() -> None:
    alone, together = Sums(), Sums()
    random = Random(12)
    for session in range(30):
        own = random.gauss(0, 1)
        alone.add(own)
        for _ in range(10):
            together.add(own, session)

    assert together.n == 300
    assert together.effective == pytest.approx(30)
    assert together.mean == pytest.approx(alone.mean)
    assert together.variance_of_mean == pytest.approx(alone.variance_of_mean)


def test_what_is_not_known_yet_says_so() -> None:
    nothing = statistics.mean(Sums())

    assert (nothing.low, nothing.high) == (-math.inf, math.inf)
    assert nothing.verdict(margin=0.05, is_lower_better=True) is Verdict.NOT_YET
    assert statistics.paired_ratio(Sums([0.1] * 3)).high == math.inf
    assert PairSums([(1, 1)]).ratio().high == math.inf
    assert statistics.proportion(0, 0) == (0, 1)


@pytest.mark.parametrize(
    ("low", "value", "high", "lower_is_better", "verdict"),
    [
        (0.80, 0.85, 0.90, True, Verdict.BETTER),
        (0.80, 0.85, 0.90, False, Verdict.WORSE),
        (1.10, 1.20, 1.30, True, Verdict.WORSE),
        (0.97, 0.98, 0.99, True, Verdict.SAME),  # real, and too small to matter
        (0.93, 0.97, 0.99, True, Verdict.NOT_YET),  # may matter, may not
        (0.80, 1.00, 1.20, True, Verdict.NOT_YET),
    ],
)
def test_a_verdict_needs_an_effect_that_matters(
    low: float, value: float, high: float, lower_is_better: bool, verdict: Verdict
) -> None:
    effect = Effect(value=value, low=low, high=high, n=100, none=1)

    assert effect.verdict(margin=0.05, is_lower_better=lower_is_better) is verdict


def test_alike_pairs_tell_no_more_than_their_number() -> None:
    seen = statistics.paired_proportion_difference(0, 0, 300)

    assert seen.value == 0
    assert seen.low == pytest.approx(-seen.high)
    assert 0.01 < seen.high < 0.05
