"""An input of the fuzzer, taken apart: two bytes that choose, and the bytes that are read.

The choosing bytes stand first, so that an input can be written by hand and read by people.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

#: more would be most of the time, for inputs that have been cut everywhere when they were shorter
_MOST_PIECES = 400


class Source(NamedTuple):
    options: int  # eight switches
    seed: int  # where to cut
    raw: bytes

    def has(self, switch: int) -> bool:
        return bool(self.options >> switch & 1)

    def pick(self, count: int, first_switch: int = 0) -> int:
        """A number below `count` out of the switches from `first_switch` on."""
        return (self.options >> first_switch) % count

    def pieces(self) -> Iterator[list[bytes]]:
        """The bytes in pieces, none empty: one by one where they are few, and cut somewhere."""
        return cuttings(self.raw, self.seed)

    def text(self) -> str:
        return self.raw.decode("utf-8", "replace")


def of(data: bytes) -> Source:
    head = data[:2].ljust(2, b"\0")
    return Source(head[0], head[1], data[2:])


def cuttings(raw: bytes, seed: int) -> Iterator[list[bytes]]:
    size = 1 + len(raw) // _MOST_PIECES
    yield [raw[at : at + size] for at in range(0, len(raw), size)]
    if len(raw) > 1:
        draw = random.Random(seed)
        edges = sorted({draw.randrange(1, len(raw)) for _ in range(1 + seed % 5)})
        yield [raw[a:b] for a, b in zip([0, *edges], [*edges, len(raw)], strict=True)]
