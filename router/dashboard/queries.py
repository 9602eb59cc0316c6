"""The views: what is asked of the rows, and what the answers look like.

Every statement is written here; values come from `filters` and stay values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from router.dashboard.filters import Asked, micros, whole_log
from router.dashboard.standing import Rows, Standing
from router.dashboard.tables import Floats, Group, Ints, Spread, Table

#: what did not go well, whoever is to blame; a client that leaves is no error
IS_ERROR = "outcome NOT IN ('ok', 'client_disconnect')"
#: an answer came and had no word in it
_IS_EMPTY = (
    "outcome = 'ok' AND answer_chars = 0 AND finish_reason IS NOT NULL "
    "AND finish_reason <> 'tool_calls'"
)
_ERRORS = f"count(*) FILTER ({IS_ERROR})"
_PAIR = (0.5, 0.95)
_MAX_GROUPS = 200
#: what is live is the last so many seconds, but for the one that is still on its way to the disk
LIVE_S, _LAG_S = 30.0, 1.0

#: a backend that the router has, and the range has nothing of
NO_REQUESTS: Mapping[str, Any] = {
    "backend": None,
    "model": None,
    "dialect": None,
    "requests": 0,
    "errors": 0,
    "affinity": {"hit": 0, "new": 0, "moved": 0, "none": 0},
    "cached_share": None,
    "ttft_p50": None,
    "ttft_p95": None,
    "tpot_p50": None,
    "output_tokens": 0,
    "live": None,
}

REQUEST_COLUMNS = (
    "ts",
    "request_id",
    "scenario",
    "source",
    "confidence",
    "backend",
    "status",
    "outcome",
    "stream",
    "thinking",
    "ttft_ms",
    "total_ms",
    "input_tokens",
    "output_tokens",
    "finish_reason",
    "warnings",
    "rescued",
    "session",
    "client_model",
    "error_code",
    "reasoning_tokens",
    "cached_share",
    "shadow",
)
#: columns that are no fields of the record
_OWN = "segment, piece, ended, wish, sent_thinking, wished_tokens, sent_tokens"
_TABLE_COLUMNS = ", ".join("began" if name == "ts" else name for name in REQUEST_COLUMNS)
REQUEST_SORTS = tuple(name for name in REQUEST_COLUMNS if name != "warnings")
SESSION_SORTS = ("last", "first", "turns", "moved", "output_tokens", "cached_share", "session")


def stamp(moment: datetime | None) -> str | None:
    """RFC 3339, UTC, milliseconds, as in the record."""
    if moment is None:
        return None
    return moment.replace(tzinfo=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


_KNOWN = ("scenario", "backend", "outcome", "source", "key", "experiment", "finish_reason")


def known(rows: Standing) -> dict[str, Any]:
    """What there is to choose from, over the whole log."""
    found = rows.groups(Table(groups=_KNOWN), whole_log())
    told: dict[str, Any] = {
        "first": _stamp_of(min((group.first for group in found), default=None)),
        "last": _stamp_of(max((group.last for group in found), default=None)),
    }
    for at, name in enumerate(_KNOWN):
        values = {group.key[at] for group in found} - {None}
        told[f"{name}s"] = sorted(values)[:_MAX_GROUPS]
    return told


def live(rows: Rows, now: float) -> dict[str, Any]:
    """The last seconds, by the end of requests: a record is written when its request is over."""
    end = now - _LAG_S
    found = rows.query(
        f"SELECT count(*), count(*) FILTER ({IS_ERROR}), quantile_cont(ttft_ms, [0.5, 0.95]), "
        "quantile_cont(total_ms, [0.5, 0.95]), quantile_cont(overhead_ms, [0.5, 0.95]), "
        "coalesce(sum(output_tokens), 0) FROM requests "
        "WHERE NOT shadow AND ended > make_timestamp(?) AND ended <= make_timestamp(?)",
        [micros(end - LIVE_S), micros(end)],
    )[0]
    requests, errors, ttft, total, overhead, tokens = found
    return {
        "t": round(now, 3),
        "window_s": LIVE_S,
        "requests_per_s": requests / LIVE_S,
        "errors_per_s": errors / LIVE_S,
        "in_flight": None,
        "waiting": None,
        "ttft_ms": _quantiles(ttft),
        "total_ms": _quantiles(total),
        "overhead_ms": _quantiles(overhead),
        "output_tokens_per_s": float(tokens) / LIVE_S,
    }


def series(rows: Standing, asked: Asked, points: int) -> dict[str, Any]:
    """Figures over time, in steps of equal length; null where nothing was."""
    step = max((asked.end - asked.begin) / points, 0.001)
    moment = f"(epoch_us(began) - {micros(asked.begin)}) // {micros(step)}"
    bucket = f"least({moment}, {points - 1})::INTEGER"
    kinds = ("ttft", "total", "overhead")
    told: dict[str, Any] = {
        "step_s": step,
        "t": [round(asked.begin + number * step, 3) for number in range(points)],
        **{name: [0] * points for name in ("requests", "errors", "output_tokens")},
    }
    for kind in kinds:
        told[f"{kind}_p50"], told[f"{kind}_p95"] = [None] * points, [None] * points
    over_time = Table(
        groups=(bucket,),
        sums=(_ERRORS, "sum(output_tokens)"),
        spreads=tuple(Spread(of=f"{kind}_ms", at=_PAIR) for kind in kinds),
    )
    for group in rows.found(over_time, asked):
        (number,) = group.key
        errors, tokens = group.sums
        told["requests"][number], told["errors"][number] = group.count, int(errors)
        told["output_tokens"][number] = int(tokens)
        for kind, pair in zip(kinds, group.spreads, strict=True):
            told[f"{kind}_p50"][number], told[f"{kind}_p95"][number] = pair or (None, None)
    shares = rows.found(Table(groups=("coalesce(scenario, '')", bucket)), asked)
    by_scenario: dict[str, list[int]] = {}
    for (name, number), requests in sorted(zip(shares.keys, shares.counts.tolist(), strict=True)):
        if name in by_scenario or len(by_scenario) < _MAX_GROUPS:
            by_scenario.setdefault(name, [0] * points)[number] = requests
    return {**told, "by_scenario": by_scenario}


_BINS = range(10)
_SCENARIOS = Table(
    groups=("scenario",),
    sums=(
        "sum(input_tokens)",
        "sum(output_tokens)",
        "sum(reasoning_tokens)",
        "count(*) FILTER (finish_reason = 'length')",
        "count(*) FILTER (rescued)",
        f"count(*) FILTER ({_IS_EMPTY})",
        _ERRORS,
        "count(*) FILTER (thinking)",
        "count(thinking)",
        # least() passes over null, and would put those without one in the last bin
        *(
            "count(*) FILTER (confidence IS NOT NULL "
            f"AND least(floor(confidence * 10), 9) = {number})"
            for number in _BINS
        ),
    ),
    spreads=(Spread(of="ttft_ms", at=_PAIR), Spread(of="total_ms", at=_PAIR)),
)
_SOURCES = Table(groups=("scenario", "source"), more="source IS NOT NULL")


def scenarios(rows: Standing, asked: Asked) -> list[dict[str, Any]]:
    found = rows.groups(_SCENARIOS, asked)
    total = sum(group.count for group in found)
    sources: dict[Any, dict[str, int]] = {}
    for group in _by_count(rows.groups(_SOURCES, asked)):
        scenario, source = group.key
        sources.setdefault(scenario, {})[source] = group.count
    told = []
    for group in _by_count(found)[:_MAX_GROUPS]:
        numbers = [int(one) for one in group.sums]
        thinking, of_thinking, *bins = numbers[7:]
        ttft, total_ms = group.spreads
        (name,) = group.key
        told.append(
            {
                "scenario": name,
                "requests": group.count,
                "share": group.count / total,
                **_pair("ttft", ttft),
                **_pair("total", total_ms),
                **dict(zip(_SCENARIO_SUMS, numbers, strict=False)),
                "thinking_share": thinking / of_thinking if of_thinking else None,
                "confidence": bins,
                "sources": sources.get(name, {}),
            }
        )
    return told


_SCENARIO_SUMS = (
    "input_tokens",
    "output_tokens",
    "reasoning_tokens",
    "truncated",
    "rescued",
    "empty",
    "errors",
)

_AFFINITIES = ("hit", "new", "moved", "none")
_CACHED = ("sum(cached_tokens)", "sum(input_tokens) FILTER (cached_tokens IS NOT NULL)")
_BACKENDS = Table(
    groups=("backend",),
    sums=(
        _ERRORS,
        "sum(output_tokens)",
        *_CACHED,
        *(f"count(*) FILTER (affinity = '{kind}')" for kind in _AFFINITIES),
    ),
    spreads=(Spread(of="ttft_ms", at=_PAIR), Spread(of="tpot_ms", at=(0.5,))),
    latest=("backend_model", "dialect"),
    more="backend IS NOT NULL",
)
_MISSES = Table(groups=("cache_miss",), more="cache_miss IS NOT NULL")


def backends(rows: Standing, asked: Asked) -> dict[str, Any]:
    told = []
    for group in sorted(rows.groups(_BACKENDS, asked), key=_key)[:_MAX_GROUPS]:
        errors, tokens, cached, of_cached, *affinity = group.sums
        ttft, tpot = group.spreads
        model, dialect = group.latest
        told.append(
            {
                "backend": group.key[0],
                "model": model,
                "dialect": dialect,
                "requests": group.count,
                "errors": int(errors),
                "affinity": dict(zip(_AFFINITIES, map(int, affinity), strict=True)),
                "cached_share": _share(cached, of_cached),
                **_pair("ttft", ttft),
                "tpot_p50": tpot[0] if tpot else None,
                "output_tokens": int(tokens),
                "live": None,
            }
        )
    misses = _by_count(rows.groups(_MISSES, asked))
    return {"rows": told, "prefix": {group.key[0]: group.count for group in misses}}


_SESSIONS = Table(
    groups=("session",),
    sums=("count(*) FILTER (affinity = 'moved')", "sum(output_tokens)", *_CACHED),
    more="session IS NOT NULL",
)
_ABOUT_SESSIONS = ("scenario", "backend", "moved_because")


def sessions(
    rows: Standing, asked: Asked, *, sort: str, order: str, limit: int, offset: int
) -> dict[str, Any]:
    """One page of sessions; what each was about is asked only of those."""
    found = rows.found(_SESSIONS, asked)
    moved, tokens, cached, of_cached = found.sums.T
    columns: Mapping[str, Floats | Ints] = {
        "last": found.last,
        "first": found.first,
        "turns": found.counts,
        "moved": moved,
        "output_tokens": tokens,
        "cached_share": cached / np.where(of_cached > 0, of_cached, np.nan),
    }
    page = found.page(columns.get(sort), order == "desc", limit, offset)
    told = [
        {
            "session": found.keys[at][0],
            "turns": int(found.counts[at]),
            "first": _stamp_of(int(found.first[at])),
            "last": _stamp_of(int(found.last[at])),
            "scenarios": {},
            "backends": [],
            "moved": int(moved[at]),
            "moved_because": {},
            "cached_share": _share(cached[at], of_cached[at]),
            "output_tokens": int(tokens[at]),
        }
        for at in page
    ]
    if told:
        by_name = {row["session"]: row for row in told}
        first, last = int(found.first[page].min()), int(found.last[page].max())
        for session, scenario, backend, because, count in rows.query(
            "SELECT session, scenario, backend, moved_because, count(*) FROM requests "
            f"{asked.where('began BETWEEN make_timestamp(?) AND make_timestamp(?)')} "
            f"AND session IN ({', '.join('?' * len(told))}) GROUP BY ALL ORDER BY 5 DESC",
            [*asked.values, first, last, *by_name],
        ):
            row = by_name[session]
            for kept, name in ((row["scenarios"], scenario), (row["moved_because"], because)):
                if name is not None:
                    kept[name] = kept.get(name, 0) + count
            if backend is not None and backend not in row["backends"]:
                row["backends"].append(backend)
        for row in told:
            row["backends"].sort()
    return {"total": len(found), "rows": told}


_EXPERIMENTS = Table(
    groups=("experiment", "arm"),
    sums=(
        _ERRORS,
        "sum(output_tokens)",
        "count(output_tokens)",
        "count(*) FILTER (finish_reason = 'length')",
        "count(finish_reason)",
    ),
    spreads=(Spread(of="ttft_ms", at=(0.5,)), Spread(of="total_ms", at=(0.5,))),
    more="experiment IS NOT NULL",
)


def experiments(rows: Standing, asked: Asked) -> list[dict[str, Any]]:
    told = []
    for group in sorted(rows.groups(_EXPERIMENTS, asked), key=_key)[:_MAX_GROUPS]:
        errors, tokens, of_tokens, truncated, of_truncated = group.sums
        ttft, total = group.spreads
        told.append(
            {
                "experiment": group.key[0],
                "arm": group.key[1],
                "requests": group.count,
                "errors": int(errors),
                "ttft_p50": ttft[0] if ttft else None,
                "total_p50": total[0] if total else None,
                "output_tokens_mean": _share(tokens, of_tokens),
                "truncated_share": _share(truncated, of_truncated),
                "live": None,
            }
        )
    return told


#: an arm that the policy has, and the range has nothing of
NO_RECORDS: Mapping[str, Any] = {
    "requests": 0,
    "errors": 0,
    "ttft_p50": None,
    "total_p50": None,
    "output_tokens_mean": None,
    "truncated_share": None,
}


_ALL = Table()


def count(rows: Standing, asked: Asked) -> int:
    """Requests in a range."""
    return sum(group.count for group in rows.groups(_ALL, asked))


def requests(
    rows: Standing, asked: Asked, *, sort: str, order: str, limit: int, offset: int
) -> dict[str, Any]:
    total = count(rows, asked)
    sql = requests_sql(asked, sort=sort, order=order, limit=limit, offset=offset)
    return {"total": total, "rows": request_rows(rows.query(sql, asked.values))}


def requests_sql(asked: Asked, *, sort: str, order: str, limit: int, offset: int = 0) -> str:
    """The statement for a page of requests; its values are those of `asked`."""
    column = "began" if sort == "ts" else _choice(sort, REQUEST_SORTS)
    way = _order(order)
    return (
        f"SELECT {_TABLE_COLUMNS} FROM requests {asked.where()} "
        f"ORDER BY {column} {way} NULLS LAST, began {way}, request_id "
        f"LIMIT {int(limit)} OFFSET {int(offset)}"
    )


def request_rows(found: Iterable[tuple[Any, ...]]) -> list[dict[str, Any]]:
    return [{**dict(zip(REQUEST_COLUMNS, row, strict=True)), "ts": stamp(row[0])} for row in found]


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of one request, and where its line is."""

    fields: dict[str, Any]  # by their names in the record
    began: datetime
    folder: str
    name: str


def request(rows: Rows, request_id: str) -> Kept | None:
    """The last one of this id."""
    names = [row[0] for row in rows.query(f"DESCRIBE SELECT * EXCLUDE ({_OWN}) FROM requests")]
    found = rows.query(
        f"SELECT s.folder, s.name, r.* EXCLUDE ({_OWN}) FROM requests r "
        "JOIN segments s ON s.id = r.segment WHERE r.request_id = ? "
        "ORDER BY r.began DESC LIMIT 1",
        [request_id],
    )
    if not found:
        return None
    folder, name, *values = found[0]
    fields = dict(zip(names, values, strict=True))
    began = fields.pop("began")
    return Kept({"ts": stamp(began), **fields}, began, folder, name)


def _quantiles(pair: Sequence[float] | None) -> dict[str, float | None]:
    p50, p95 = pair or (None, None)
    return {"p50": p50, "p95": p95}


def _pair(name: str, pair: Sequence[float] | None) -> dict[str, float | None]:
    p50, p95 = pair or (None, None)
    return {f"{name}_p50": p50, f"{name}_p95": p95}


def _key(group: Group) -> tuple[tuple[bool, Any], ...]:
    """For sorting; what has no name comes last."""
    return tuple((one is None, one) for one in group.key)


def _by_count(found: Iterable[Group]) -> list[Group]:
    return sorted(found, key=lambda group: (-group.count, _key(group)))


def _share(part: float, of: float) -> float | None:
    return float(part / of) if of else None


def _stamp_of(micros: int | None) -> str | None:
    return (
        None
        if micros is None
        else stamp(datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros))
    )


def _choice(name: str, choices: Sequence[str]) -> str:
    """A column by its name: one of ours, never a text from outside."""
    return choices[choices.index(name)]


def _order(order: str) -> str:
    return "ASC" if order == "asc" else "DESC"
