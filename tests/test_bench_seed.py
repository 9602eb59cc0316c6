"""The arithmetic of the seed figures: what is compared was measured in the same round."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmarks are programs beside the package, so they are imported from their folder."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("seed.figures")


def test_a_ratio_is_taken_inside_a_round(figures: ModuleType) -> None:
    # The second round met a busy neighbour: over all, nothing but the ratio is steady.
    samples = [
        figures.Sample(figure="cap", arm=arm, round=number, seconds=seconds)
        for number, arm, seconds in (
            *((0, "no cap", 8.0), (0, "cap 64", 2.0)),
            *((1, "no cap", 40.0), (1, "cap 64", 10.0)),
            *((2, "no cap", 9.0), (2, "cap 64", 3.0)),
        )
    ]

    [row] = figures.summarise(samples)

    assert row.rounds == 3
    assert row.ratio == figures.Spread(median=4.0, low=3.0, high=4.0)
    assert row.before.seconds == figures.Spread(median=9.0, low=8.0, high=40.0)


def test_a_round_with_one_side_alone_counts_for_nothing(figures: ModuleType) -> None:
    whole = [
        figures.Sample(figure="prefix", arm="new prefix", round=0, seconds=6.0),
        figures.Sample(figure="prefix", arm="same prefix", round=0, seconds=2.0),
    ]
    half = figures.Sample(figure="prefix", arm="new prefix", round=1, seconds=1.0)
    alone = figures.Sample(figure="cap", arm="no cap", round=0, seconds=1.0)

    [row] = figures.summarise([*whole, half, alone])

    assert (row.figure, row.rounds, row.ratio.median) == ("prefix", 1, 3.0)
    assert row.before.seconds.low == 6.0


def test_what_an_engine_does_not_tell_is_a_dash(figures: ModuleType) -> None:
    samples = [
        figures.Sample(figure="engine", arm="first request", round=0, seconds=0.2),
        figures.Sample(figure="engine", arm="a later one", round=0, seconds=0.1),
    ]
    rows = figures.summarise(samples)

    assert "| first request | 0.20 | 0.20..0.20 | - | - | - | - | - | - |" in figures.tables(rows)
    assert figures.ratio_lines(rows, ()) == (
        "engine: first request / a later one = 2.0 (2.0..2.0), first token, random weights"
    )


@pytest.mark.parametrize(("quiet", "counted"), [(3, (3, 5, 4.0)), (2, (5, 5, 2.0))])
def test_busy_rounds_are_left_out_where_three_quiet_ones_remain(
    figures: ModuleType, quiet: int, counted: tuple[int, int, float]
) -> None:
    samples = [
        figures.Sample(figure="cap", arm=arm, round=number, seconds=seconds, foreign=foreign)
        for number in range(5)
        for arm, seconds, foreign in (
            ("no cap", 8.0, 0.01),
            ("cap 64", *((2.0, 0.01) if number < quiet else (4.0, 0.3))),
        )
    ]

    [row] = figures.summarise(samples)

    assert (row.rounds, row.measured, row.ratio.median) == counted
