"""The learned stage: scores of a text under weights that were fitted from examples.

In: a folded text. Out: for each scenario how likely it is, and how likely the turn is one
that says nothing without the turn before it, or one for which thinking pays. Pure Python
and no numpy: fitting (`router.fit`) happens elsewhere, and what serves needs one sum.

The weights of a key are packed into one integer, 32 bits a column, so that all columns are
added up at once: a fifth of the time of a loop over columns.
"""

from __future__ import annotations

import struct
from itertools import repeat
from math import sqrt
from typing import NamedTuple

import msgspec

from router.classify import grams
from router.classify.weights import Weights

_OFFSET = 1 << 15
#: keys that nearly every text has: its two ends and its shape
_COMMON_KEYS = 8
#: known keys beyond those from which a text is judged in full
_WELL_KNOWN = 6
_JOINT = "\t"  # no key has one inside


class Reading(NamedTuple):
    """What the learned stage makes of one text."""

    log_odds: tuple[float, ...]  # by scenario, up to a constant
    follows: float  # how likely it is to say nothing without the turn before
    think_score: float


class Learned:
    """Weights, ready to serve."""

    def __init__(self, weights: Weights) -> None:
        self.weights = msgspec.structs.replace(weights, keys=(), rows=b"")  # packed below
        self.scenarios = weights.scenarios
        columns = len(weights.scenarios) + 2
        self._unpack = struct.Struct(f"<{columns + 1}I").unpack
        self._size = 4 * (columns + 1)
        shared: dict[str, str] = {}  # a word stands in many pairs
        packed: dict[grams.Key, int] = {}
        row = struct.Struct(f"<{columns}h")
        pack = struct.Struct(f"<{columns + 1}I").pack
        for number, written in enumerate(weights.keys):
            first, joint, second = written.partition(_JOINT)
            first = shared.setdefault(first, first)
            key = (first, shared.setdefault(second, second)) if joint else first
            values = row.unpack_from(weights.rows, number * row.size)
            packed[key] = int.from_bytes(pack(*[v + _OFFSET for v in values], 1), "little")
        self._packed = packed

    def read(self, text: str, chars: int) -> Reading:
        """`text` folded; `chars` the length of the whole text, if this is a part."""
        weights = self.weights
        keys = grams.of(text, chars)
        total = sum(map(self._packed.get, keys, repeat(0)))
        *sums, known = self._unpack(total.to_bytes(self._size, "little"))
        scale, shift = weights.unit / sqrt(len(keys)), known * _OFFSET
        scores = [
            constant + (value - shift) * scale
            for value, constant in zip(sums, weights.constant, strict=True)
        ]
        *own, follow, think = scores
        share = familiarity(known)
        slope = weights.slope * share
        log_odds = [
            slope * score + offset for score, offset in zip(own, weights.offsets, strict=True)
        ]
        follows = weights.follows.probability(follow) if weights.follows is not None else 0.0
        return Reading(tuple(log_odds), follows, think)


def familiarity(known: int) -> float:
    """How far a text with so many known keys is judged by them, 0..1.

    Of a text in no known words only its shape would speak, and with a loud voice.
    """
    return min(1.0, max(0.0, (known - _COMMON_KEYS) / _WELL_KNOWN))


def key_text(key: grams.Key) -> str:
    """A key as `Weights` keeps it."""
    return key if isinstance(key, str) else _JOINT.join(key)
