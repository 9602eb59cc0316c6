"""What views have found so far: the next time, only the rows that came since are asked for.

In: tables and what they are asked about. Out: groups, as one query over all the rows would give
them, percentiles exact. A page asks the same again and again while the log grows: so over a
million rows most answers take a millisecond or two of a processor, and not the hundred that are
missed by a router on the same machine.

What is kept goes when rows were deleted, when nobody has asked for a while and when it becomes
too much. For a range with more rows than are worth it, the database is asked each time.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from router.dashboard.filters import Asked
from router.dashboard.tables import Floats, Group, Ints, Table, Values

P = ParamSpec("P")
T = TypeVar("T")

#: rows of a range that are worth being kept
MOST_ROWS = 3_000_000
#: of all that is kept
MOST_BYTES = 192 << 20
#: what nobody has asked for so long goes
_IDLE_S = 120.0
#: a group without its figures, roughly
_GROUP_BYTES = 250


@dataclass(frozen=True, slots=True)
class Mark:
    """How far the rows go; whoever has those up to one mark needs only what came after."""

    epoch: int  # another one when rows were deleted
    piece: int


class Rows(Protocol):
    """Where the rows are; see store.Store."""

    @property
    def mark(self) -> Mark: ...

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]: ...

    def columns(self, sql: str, values: Sequence[Any] = ()) -> list[npt.NDArray[Any]]: ...


class Standing:
    """The rows of a store, with what was found in them. Views go one after another."""

    def __init__(
        self, rows: Rows, *, most_rows: int = MOST_ROWS, most_bytes: int = MOST_BYTES
    ) -> None:
        self._rows = rows
        self._most_rows = most_rows
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._kept: dict[tuple[Table, str, tuple[Any, ...]], _Kept] = {}

    def ask(
        self, view: Callable[Concatenate[Standing, P], T], *given: P.args, **named: P.kwargs
    ) -> T:
        """What a view says; from any thread."""
        with self._lock:
            return view(self, *given, **named)

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of one statement, not kept."""
        return self._rows.query(sql, values)

    def groups(self, table: Table, asked: Asked) -> list[Group]:
        """The groups of a table, in no order."""
        return list(self.found(table, asked))

    def found(self, table: Table, asked: Asked) -> Found:
        """Likewise, as arrays."""
        mark = self._rows.mark
        key = table, asked.condition, asked.values
        kept = self._kept.pop(key, None)
        if kept is None or kept.mark.epoch != mark.epoch:
            if not (asked.is_steady and self._is_worth_it(asked)):
                return self._once(table, asked)
            kept = _Kept(Mark(mark.epoch, -1), Found(table))
        if kept.mark != mark:
            sql = table.sql(f"{asked.condition} AND piece > ? AND piece <= ?", is_kept=True)
            span = kept.mark.piece, mark.piece
            kept.found.add(self._rows.columns(sql, [*asked.values, *span]))
            kept.mark, kept.nbytes = mark, kept.found.nbytes
        kept.asked_at = time.monotonic()
        self._kept[key] = kept  # the last asked is the last to go
        self._tidy(kept.asked_at)
        return kept.found

    @property
    def nbytes(self) -> int:
        """Of all that is kept, about."""
        return sum(kept.nbytes for kept in self._kept.values())

    def _once(self, table: Table, asked: Asked) -> Found:
        found = Found(table, is_kept=False)
        found.add(self._rows.columns(table.sql(asked.condition, is_kept=False), asked.values))
        return found

    def _is_worth_it(self, asked: Asked) -> bool:
        """Counted only where there are so many rows at all that it matters."""
        counted = "SELECT count(*) FROM requests"
        if self._rows.query(counted)[0][0] <= self._most_rows:
            return True
        found = self._rows.query(f"{counted} {asked.where()}", asked.values)
        return bool(found[0][0] <= self._most_rows)

    def _tidy(self, now: float) -> None:
        total = self.nbytes
        for key, kept in list(self._kept.items()):
            if total <= self._most_bytes and now - kept.asked_at <= _IDLE_S:
                break
            total -= kept.nbytes
            del self._kept[key]


class Found:
    """The groups of a table so far."""

    def __init__(self, table: Table, *, is_kept: bool = True) -> None:
        self.table = table
        self._is_kept = is_kept
        self._places: dict[tuple[Any, ...], int] = {}
        self.keys: list[tuple[Any, ...]] = []
        self.counts = np.zeros(0, np.int64)
        self.first = np.zeros(0, np.int64)
        self.last = np.zeros(0, np.int64)
        self.sums = np.zeros((0, len(table.sums)))
        self._spreads: list[list[Any]] = [[] for _ in table.spreads]  # Values, or percentiles
        self._latest: list[list[tuple[int, Any]]] = [[] for _ in table.latest]

    def __len__(self) -> int:
        return len(self._places)

    @property
    def nbytes(self) -> int:
        arrays = self.counts.nbytes + self.first.nbytes + self.last.nbytes + self.sums.nbytes
        values = sum(one.nbytes for column in self._spreads for one in column)
        return len(self) * _GROUP_BYTES + arrays + int(values)

    def __iter__(self) -> Iterator[Group]:
        sums = self.sums.tolist()
        counts, first, last = self.counts.tolist(), self.first.tolist(), self.last.tolist()
        for at, key in enumerate(self.keys):
            yield Group(
                key,
                counts[at],
                first[at],
                last[at],
                tuple(sums[at]),
                tuple(self._percentiles(number, at) for number in range(len(self._spreads))),
                tuple(column[at][1] for column in self._latest),
            )

    def _percentiles(self, number: int, at: int) -> list[float] | None:
        if self._is_kept:
            found: list[float] | None = self._spreads[number][at].percentiles(
                self.table.spreads[number].at
            )
            return found
        ready = self._spreads[number][at]
        return None if ready is None else ready.tolist()

    def page(
        self, column: Floats | Ints | None, is_falling: bool, limit: int, offset: int
    ) -> list[int]:
        """Places of a page of groups: by a figure, nan last, then by key; None: by key alone."""
        until = offset + limit
        by_key = self.keys.__getitem__
        if column is None:
            pick = heapq.nlargest if is_falling else heapq.nsmallest
            return pick(until, range(len(self)), key=by_key)[offset:]
        wanted = np.nan_to_num(-column if is_falling else column, nan=np.inf)
        last = np.partition(wanted, until - 1)[until - 1] if until < len(self) else np.inf
        before = np.flatnonzero(wanted < last).tolist()
        # Of thousands with the same figure only the first few are wanted.
        same = np.flatnonzero(wanted == last).tolist()
        before += heapq.nsmallest(until - len(before), same, key=by_key)
        return sorted(before, key=lambda at: (wanted[at], by_key(at)))[offset:until]

    def add(self, columns: Sequence[npt.NDArray[Any]]) -> None:
        """Rows of `table.sql`, of groups that are there already or new."""
        width = len(self.table.groups)
        counts = columns[width]
        is_any = counts > 0  # without groups there is a row of no rows
        keys = list(zip(*(column.tolist() for column in columns[:width]), strict=True))
        if not width:
            keys = [()] * len(counts)
        places = [self._places.setdefault(key, len(self._places)) for key in keys]
        self._grow()
        at = np.array(places, np.int64)
        first, last, *figures = columns[width + 1 :]
        self.first[at] = np.where(is_any, np.minimum(self.first[at], first), self.first[at])
        self.last[at] = np.where(is_any, np.maximum(self.last[at], last), self.last[at])
        self.counts[at] += counts
        for number in range(len(self.table.sums)):
            self.sums[at, number] += figures[number]
        rest = figures[len(self.table.sums) :]
        for spread, column in zip(self._spreads, rest, strict=False):
            self._add_values(spread, places, column.tolist())
        rest = rest[len(self._spreads) :]
        for number, known in enumerate(self._latest):
            values, moments = rest[2 * number].tolist(), rest[2 * number + 1].tolist()
            for place, value, moment in zip(places, values, moments, strict=True):
                if moment > known[place][0]:
                    known[place] = moment, value

    def _add_values(self, spread: list[Any], places: Sequence[int], found: list[Any]) -> None:
        for place, values in zip(places, found, strict=True):
            if not self._is_kept:
                spread[place] = values
            elif values is not None:
                spread[place].add(values)

    def _grow(self) -> None:
        """Room for all groups that have a place."""
        new = len(self._places) - len(self.counts)
        if not new:
            return
        self.keys += list(self._places)[-new:]
        nothing = np.zeros(new, np.int64)
        self.counts = np.concatenate((self.counts, nothing))
        self.first = np.concatenate((self.first, nothing + np.iinfo(np.int64).max))
        self.last = np.concatenate((self.last, nothing))
        self.sums = np.concatenate((self.sums, np.zeros((new, self.sums.shape[1]))))
        for spread in self._spreads:
            spread.extend(Values() if self._is_kept else None for _ in range(new))
        for known in self._latest:
            known.extend((0, None) for _ in range(new))


@dataclass(slots=True)
class _Kept:
    mark: Mark
    found: Found
    nbytes: int = 0
    asked_at: float = 0.0
