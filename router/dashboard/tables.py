"""How rows are grouped and what is told of a group: figures that can be added to.

A table is written once, by a view, and becomes SQL here; what its answers add up to is
`standing`'s. Pure, and all SQL is the dashboard's own: values are those of what is asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Percentiles of something, over the rows that have it."""

    of: str  # SQL
    at: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A grouping of rows; every group is told how many they are, and when the first and last."""

    groups: tuple[str, ...] = ()  # SQL; nothing: all rows together
    sums: tuple[str, ...] = ()  # SQL of numbers that add up: count(…), sum(…)
    spreads: tuple[Spread, ...] = ()
    latest: tuple[str, ...] = ()  # SQL: as the latest row has it that has any
    more: str = ""  # a further condition

    def sql(self, where: str, *, is_kept: bool) -> str:
        """A row for each group: its key, count, first and last, sums, spreads, latest with when.

        A spread is all its values where they are kept, else its percentiles.
        """
        figures = [
            *self.groups,
            "count(*)",
            "coalesce(epoch_us(min(began)), 0)",
            "coalesce(epoch_us(max(began)), 0)",
            *(f"coalesce({one}, 0)::DOUBLE" for one in self.sums),
            *(_spread(spread, is_kept) for spread in self.spreads),
            *(_latest(one) for one in self.latest),
        ]
        condition = f"{where} AND {self.more}" if self.more else where
        by = f" GROUP BY {', '.join(map(str, range(1, len(self.groups) + 1)))}"
        return f"SELECT {', '.join(figures)} FROM requests WHERE {condition}" + (
            by if self.groups else ""
        )


def _spread(spread: Spread, is_kept: bool) -> str:
    value = f"({spread.of})::DOUBLE"
    if is_kept:
        return f"list({value}) FILTER (({spread.of}) IS NOT NULL)"
    return f"quantile_cont({value}, [{', '.join(map(str, spread.at))}])"


def _latest(one: str) -> str:
    when = f"coalesce(epoch_us(max(began) FILTER ({one} IS NOT NULL)), 0)"
    return f"max_by({one}, began), {when}"


@dataclass(frozen=True, slots=True)
class Group:
    """One group of a table's answer, in the table's order."""

    key: tuple[Any, ...]
    count: int
    first: int  # microseconds since 1970
    last: int
    sums: tuple[float, ...]
    spreads: tuple[list[float] | None, ...]  # None where no row has any
    latest: tuple[Any, ...]


class Values:
    """All values of a spread, in order; new ones wait aside until there are many."""

    #: so many are sorted in among the others at once
    _MANY = 4096

    def __init__(self) -> None:
        self._sorted = np.empty(0)
        self._recent = np.empty(0)

    def add(self, values: Floats) -> None:
        self._recent = np.sort(np.concatenate((self._recent, values)))
        if len(self._recent) >= min(self._MANY, len(self._sorted) // 2):
            self._sorted = np.sort(np.concatenate((self._sorted, self._recent)))
            self._recent = np.empty(0)

    @property
    def nbytes(self) -> int:
        return self._sorted.nbytes + self._recent.nbytes

    def percentiles(self, at: tuple[float, ...]) -> list[float] | None:
        """Between two values as DuckDB's quantile_cont has it."""
        count = len(self._sorted) + len(self._recent)
        if not count:
            return None
        places = np.array(at) * (count - 1)
        below = np.floor(places).astype(np.int64)
        low = self._ranked(below)
        high = self._ranked(np.minimum(below + 1, count - 1))
        found: list[float] = (low + (high - low) * (places - below)).tolist()
        return found

    def _ranked(self, ranks: Ints) -> Floats:
        """The values that have so many before them, of both arrays together."""
        if not len(self._recent):
            return self._sorted[ranks]
        of_recent = np.searchsorted(self._sorted, self._recent) + np.arange(len(self._recent))
        before = np.searchsorted(of_recent, ranks)
        is_recent = of_recent[np.minimum(before, len(of_recent) - 1)] == ranks
        among = np.clip(ranks - before, 0, max(len(self._sorted) - 1, 0))
        recent = self._recent[np.minimum(before, len(self._recent) - 1)]
        if not len(self._sorted):
            return recent
        return np.where(is_recent, recent, self._sorted[among])
