"""What fitting comes to (`router.fit`), as it is kept in a file."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp

import msgspec

#: changes whenever `Weights` does
FORMAT = 1
#: words for thinking that count; more say no more
MOST_WORDS = 3


class Line(msgspec.Struct, frozen=True):
    """Log-odds as a straight line over a score."""

    slope: float
    offset: float
    words: float = 0.0  # what each of the policy's own words for it adds

    def probability(self, score: float, words: int = 0) -> float:
        return sigmoid(self.slope * score + self.offset + self.words * min(words, MOST_WORDS))


class Weights(msgspec.Struct, frozen=True):
    """A fitted classifier, as it is kept. Columns: the scenarios, follow-up, thinking."""

    format: int
    scenarios: tuple[str, ...]
    keys: tuple[str, ...]  # the parts of a pair joined by a tab
    rows: bytes  # int16, little endian, one row a key
    unit: float  # what one step of a weight is worth
    constant: tuple[float, ...]  # a column's score of a text without known keys
    slope: float  # score → log-odds between scenarios
    offsets: tuple[float, ...]  # by scenario
    follows: Line | None
    thinks: Line | None
    think_from: float  # the likelihood from which thinking is switched on
    abstain_below: float  # a guess less likely than this is none
    measured: Mapping[str, float]  # on examples left out in turn


def sigmoid(x: float) -> float:
    return 1 / (1 + exp(-x)) if x > -700 else 0.0
