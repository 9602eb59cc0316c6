"""What stands is what one query over all the rows would say, however the rows came."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import MultiDict

from router.dashboard import filters, queries
from router.dashboard.filters import Asked
from router.dashboard.savings import savings
from router.dashboard.standing import Standing
from router.dashboard.store import Store
from router.dashboard.tables import Values
from router.record import Record
from tests.support.logs import NOW, await_true, made, write


def _sessions(sort: str, order: str) -> Callable[[Standing, Asked], Any]:
    return lambda rows, asked: queries.sessions(
        rows, asked, sort=sort, order=order, limit=7, offset=4
    )


AT = (0.0, 0.05, 0.5, 0.95, 1.0)
#: a view as it is asked, and a name for it
VIEWS: dict[str, Callable[[Standing, Asked], Any]] = {
    "scenarios": queries.scenarios,
    "backends": queries.backends,
    "experiments": queries.experiments,
    "savings": savings,
    "series": lambda rows, asked: queries.series(rows, asked, 24),
    "known": lambda rows, asked: queries.known(rows),
    "requests": lambda rows, asked: queries.requests(
        rows, asked, sort="ts", order="desc", limit=5, offset=3
    ),
    **{
        f"sessions by {sort}, {order}": _sessions(sort, order)
        for sort in queries.SESSION_SORTS
        for order in ("asc", "desc")
    },
}


class Counted:
    """A store's rows, and how often all of them were gone through."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.statements: list[str] = []

    @property
    def mark(self) -> Any:
        return self._store.mark

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._store.query(sql, values)

    def columns(self, sql: str, values: Sequence[Any] = ()) -> list[npt.NDArray[Any]]:
        self.statements.append(sql)
        return self._store.columns(sql, values)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    found = Store([tmp_path / "logs"], tmp_path / "cache")
    found.start()
    yield found
    found.close()


def await_read(store: Store, total: int) -> None:
    """All that is on the disk, and no more."""

    def is_read() -> bool:
        store.fresh(0.1, age_s=0)
        return store.progress.is_whole and store.progress.records == total

    await_true(is_read, "all read")


def _about(told: Any) -> Any:
    """Likewise but for the last digits: sums of floats depend on their order."""
    match told:
        case float():
            return float(f"{told:.9g}")
        case dict():
            return {name: _about(one) for name, one in told.items()}
        case list():
            return [_about(one) for one in told]
    return told


def row(number: int) -> Record:
    rng = random.Random(number)
    sent = rng.choice([True, False, None])
    return made(
        number,
        scenario=rng.choice(["faq", "code", "chat", None]),
        source=rng.choice(["learned", "keyword"]),
        confidence=rng.choice([None, rng.random()]),
        backend=rng.choice(["a", "b", None]),
        backend_model=rng.choice(["m", "n"]),
        session=rng.choice([None, *(f"s{one}" for one in range(30))]),
        affinity=rng.choice(["hit", "new", "moved"]),
        moved_because=rng.choice([None, "busy"]),
        experiment=rng.choice([None, "e"]),
        arm=rng.choice(["x", "y"]),
        outcome=rng.choice(["ok", "ok", "ok", "upstream_error"]),
        thinking=rng.choice([True, False, None]),
        params={
            "thinking": (rng.choice([True, False, None]), sent, "fill"),
            "max_new_tokens": (rng.choice([None, 40, 400]), 300, "cap"),
        },
        ttft_ms=rng.choice([None, rng.uniform(1, 900)]),
        tpot_ms=rng.uniform(1, 40),
        total_ms=float(rng.randrange(1, 30)),
        input_tokens=rng.randrange(1000),
        cached_tokens=rng.choice([None, rng.randrange(500)]),
        output_tokens=rng.choice([None, rng.randrange(300)]),
        reasoning_tokens=rng.choice([None, rng.randrange(200)]),
        finish_reason=rng.choice(["stop", "length", None]),
        ago_s=rng.uniform(10, 3000),
    )


def asked(**more: str) -> Asked:
    return filters.asked(MultiDict({"from": "-1h", **more}), NOW)


@pytest.mark.parametrize("more", [{}, {"scenario": "faq"}], ids=["all", "filtered"])
def test_views_that_stand_say_what_a_look_at_all_rows_says(
    store: Store, tmp_path: Path, more: dict[str, str]
) -> None:
    rows = Counted(store)
    standing = Standing(rows)
    total = 0
    for count in (400, 1, 60, 300):
        write(tmp_path / "logs", [row(total + number) for number in range(count)])
        total += count
        await_read(store, total)
        for name, view in VIEWS.items():
            at_once = Standing(store, most_rows=0).ask(view, asked(**more))
            anew = Standing(store).ask(view, asked(**more))
            assert _about(standing.ask(view, asked(**more))) == _about(anew), name
            assert _about(anew) == _about(at_once), name
    before = len(rows.statements)
    for view in VIEWS.values():
        standing.ask(view, asked(**more))
    assert len(rows.statements) == before  # nothing has come since, so nothing was asked


def test_only_rows_that_are_new_are_asked_for(store: Store, tmp_path: Path) -> None:
    rows = Counted(store)
    standing = Standing(rows)
    write(tmp_path / "logs", [row(number) for number in range(50)])
    await_read(store, 50)
    standing.ask(queries.scenarios, asked())
    known = store.mark
    write(tmp_path / "logs", [row(50)])
    await_read(store, 51)
    assert store.mark.piece == known.piece + 1
    assert store.query("SELECT count(*) FROM requests WHERE piece > ?", [known.piece]) == [(1,)]
    found = standing.ask(queries.scenarios, asked())
    assert sum(one["requests"] for one in found) == 51


def test_what_stands_falls_with_the_rows_that_are_gone(store: Store, tmp_path: Path) -> None:
    standing = Standing(store)
    write(tmp_path / "logs", [row(number) for number in range(200)])
    await_read(store, 200)
    standing.ask(queries.scenarios, asked())
    gone = min((tmp_path / "logs").glob("requests-*.jsonl"))
    lost = len(gone.read_bytes().splitlines())
    gone.unlink()
    await_read(store, 200 - lost)
    found = standing.ask(queries.scenarios, asked())
    assert sum(one["requests"] for one in found) == 200 - lost


def test_too_much_is_not_kept(store: Store, tmp_path: Path) -> None:
    write(tmp_path / "logs", [row(number) for number in range(200)])
    await_read(store, 200)
    rows = Counted(store)
    standing = Standing(rows, most_bytes=1)
    for _ in range(2):
        standing.ask(queries.scenarios, asked())
    assert len(rows.statements) == 4  # two tables, each from the beginning again
    assert not standing.nbytes


def test_a_range_up_to_now_stands_still_for_a_while() -> None:
    query = MultiDict({"from": "-1h"})
    now = 1_000_000_000.25
    ranges = {filters.asked(query, now + late / 10).values for late in range(170)}
    assert len(ranges) == 2  # it moves in steps of sixteen seconds
    for late in range(0, 100_000, 777):
        found = filters.asked(query, now + late)
        assert 0 <= now + late - 3600 - found.begin < 3600 / 120
        assert 0 <= found.end - (now + late) < 3600 / 1200


def test_a_range_that_was_named_begins_and_ends_there() -> None:
    query = MultiDict({"from": "2026-11-30T10:00:00.123Z", "to": "2026-11-30T11:00:00.456Z"})
    found = filters.asked(query, time.time())
    assert found.values[:2] == (1_796_032_800_123_000, 1_796_036_400_456_000)
    assert found.is_steady
    assert not filters.asked(MultiDict({"from": "-2h", "to": "-1h"}), time.time()).is_steady


@given(
    pieces=st.lists(
        st.lists(st.sampled_from([0.0, 1.0, 1.5, 7.25, 1e9]) | st.floats(0, 1e6), max_size=40),
        max_size=6,
    )
)
def test_percentiles_are_those_of_all_values(pieces: list[list[float]]) -> None:
    values = Values()
    for piece in pieces:
        values.add(np.array(piece))
    whole = [one for piece in pieces for one in piece]
    if not whole:
        assert values.percentiles(AT) is None
        return
    assert values.percentiles(AT) == pytest.approx(np.quantile(whole, AT).tolist())
