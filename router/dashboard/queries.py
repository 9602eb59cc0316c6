"""The views: what is asked of the rows, and what the answers look like.

Every statement is written here; values come from `filters` and stay values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from router.dashboard.filters import Asked, micros

#: what did not go well, whoever is to blame; a client that leaves is no error
IS_ERROR = "outcome NOT IN ('ok', 'client_disconnect')"
#: an answer came and had no word in it
_IS_EMPTY = (
    "outcome = 'ok' AND answer_chars = 0 AND finish_reason IS NOT NULL "
    "AND finish_reason <> 'tool_calls'"
)
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
_OWN = "segment, ended, wish, sent_thinking, wished_tokens, sent_tokens"
_TABLE_COLUMNS = ", ".join("began" if name == "ts" else name for name in REQUEST_COLUMNS)
REQUEST_SORTS = tuple(name for name in REQUEST_COLUMNS if name != "warnings")
SESSION_SORTS = ("last", "first", "turns", "moved", "output_tokens", "cached_share", "session")


class Rows(Protocol):
    """Where the rows are; see store.Store."""

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]: ...


def stamp(moment: datetime | None) -> str | None:
    """RFC 3339, UTC, milliseconds, as in the record."""
    if moment is None:
        return None
    return moment.replace(tzinfo=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def known(rows: Rows) -> dict[str, Any]:
    """What there is to choose from, over the whole log."""
    found = rows.query(
        "SELECT min(began), max(began), "
        "list_sort(list_distinct(list(scenario))), list_sort(list_distinct(list(backend))), "
        "list_sort(list_distinct(list(outcome))), list_sort(list_distinct(list(source))), "
        "list_sort(list_distinct(list(key))), list_sort(list_distinct(list(experiment))), "
        "list_sort(list_distinct(list(finish_reason))) FROM ("
        "SELECT min(began) AS began, scenario, backend, outcome, source, key, experiment, "
        "finish_reason FROM requests WHERE NOT shadow GROUP BY ALL UNION ALL "
        "SELECT max(began), NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM requests "
        "WHERE NOT shadow)"
    )[0]
    first, last, *lists = found
    names = (
        "scenarios",
        "backends",
        "outcomes",
        "sources",
        "keys",
        "experiments",
        "finish_reasons",
    )
    told: dict[str, Any] = {"first": stamp(first), "last": stamp(last)}
    for name, values in zip(names, lists, strict=True):
        told[name] = [value for value in values or () if value is not None][:_MAX_GROUPS]
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


def series(rows: Rows, asked: Asked, points: int) -> dict[str, Any]:
    """Figures over time, in steps of equal length; null where nothing was."""
    step = max((asked.end - asked.begin) / points, 0.001)
    step_us = micros(step)
    begin_us = micros(asked.begin)
    bucket = f"least((epoch_us(began) - {begin_us}) // {step_us}, {points - 1})::INTEGER"
    found = rows.query(
        f"SELECT {bucket} AS bucket, count(*), count(*) FILTER ({IS_ERROR}), "
        "quantile_cont(ttft_ms, [0.5, 0.95]), quantile_cont(total_ms, [0.5, 0.95]), "
        "quantile_cont(overhead_ms, [0.5, 0.95]), coalesce(sum(output_tokens), 0)::BIGINT "
        f"FROM requests {asked.where()} GROUP BY bucket",
        asked.values,
    )
    told: dict[str, Any] = {
        "step_s": step,
        "t": [round(asked.begin + number * step, 3) for number in range(points)],
        **{name: [0] * points for name in ("requests", "errors", "output_tokens")},
    }
    kinds = ("ttft", "total", "overhead")
    for kind in kinds:
        told[f"{kind}_p50"], told[f"{kind}_p95"] = [None] * points, [None] * points
    for number, requests, errors, *quantiles, tokens in found:
        told["requests"][number], told["errors"][number] = requests, errors
        told["output_tokens"][number] = tokens
        for kind, pair in zip(kinds, quantiles, strict=True):
            told[f"{kind}_p50"][number], told[f"{kind}_p95"][number] = pair or (None, None)
    shares = rows.query(
        f"SELECT coalesce(scenario, ''), {bucket} AS bucket, count(*) "
        f"FROM requests {asked.where()} GROUP BY ALL ORDER BY ALL",
        asked.values,
    )
    by_scenario: dict[str, list[int]] = {}
    for name, number, requests in shares:
        if name in by_scenario or len(by_scenario) < _MAX_GROUPS:
            by_scenario.setdefault(name, [0] * points)[number] = requests
    return {**told, "by_scenario": by_scenario}


def scenarios(rows: Rows, asked: Asked) -> list[dict[str, Any]]:
    found = rows.query(
        "SELECT scenario, count(*) AS requests, count(*) / sum(count(*)) OVER () AS share, "
        "quantile_cont(ttft_ms, [0.5, 0.95]) AS ttft, "
        "quantile_cont(total_ms, [0.5, 0.95]) AS total, "
        "coalesce(sum(input_tokens), 0)::BIGINT AS input_tokens, "
        "coalesce(sum(output_tokens), 0)::BIGINT AS output_tokens, "
        "coalesce(sum(reasoning_tokens), 0)::BIGINT AS reasoning_tokens, "
        "avg(thinking::INTEGER) AS thinking_share, "
        "count(*) FILTER (finish_reason = 'length') AS truncated, "
        "count(*) FILTER (rescued) AS rescued, "
        f"count(*) FILTER ({_IS_EMPTY}) AS empty, "
        f"count(*) FILTER ({IS_ERROR}) AS errors, "
        "map_from_entries(list_zip([0,1,2,3,4,5,6,7,8,9], ["
        + ", ".join(
            # least() passes over null, and would put those without one in the last bin
            "count(*) FILTER (confidence IS NOT NULL "
            f"AND least(floor(confidence * 10), 9) = {number})"
            for number in range(10)
        )
        + f"])) FROM requests {asked.where()} GROUP BY scenario "
        f"ORDER BY requests DESC, scenario LIMIT {_MAX_GROUPS}",
        asked.values,
    )
    sources: dict[Any, dict[str, int]] = {}
    for name, source, count in rows.query(
        f"SELECT scenario, source, count(*) FROM requests {asked.where('source IS NOT NULL')} "
        "GROUP BY ALL ORDER BY 3 DESC, 2",
        asked.values,
    ):
        sources.setdefault(name, {})[source] = count
    names = (
        "input_tokens",
        "output_tokens",
        "reasoning_tokens",
        "thinking_share",
        "truncated",
        "rescued",
        "empty",
        "errors",
    )
    return [
        {
            "scenario": name,
            "requests": requests,
            "share": share,
            **_pair("ttft", ttft),
            **_pair("total", total),
            **dict(zip(names, rest[:-1], strict=True)),
            "confidence": [rest[-1][number] for number in range(10)],
            "sources": sources.get(name, {}),
        }
        for name, requests, share, ttft, total, *rest in found
    ]


def backends(rows: Rows, asked: Asked) -> dict[str, Any]:
    found = rows.query(
        "SELECT backend, max_by(backend_model, began), max_by(dialect, began), "
        "count(*) AS requests, "
        f"count(*) FILTER ({IS_ERROR}), "
        + ", ".join(
            f"count(*) FILTER (affinity = '{kind}')" for kind in ("hit", "new", "moved", "none")
        )
        + ", sum(cached_tokens) / nullif(sum(input_tokens) FILTER (cached_tokens IS NOT NULL), 0), "
        "quantile_cont(ttft_ms, 0.5), quantile_cont(ttft_ms, 0.95), quantile_cont(tpot_ms, 0.5), "
        "coalesce(sum(output_tokens), 0)::BIGINT "
        f"FROM requests {asked.where('backend IS NOT NULL')} GROUP BY backend "
        f"ORDER BY backend LIMIT {_MAX_GROUPS}",
        asked.values,
    )
    misses = rows.query(
        f"SELECT cache_miss, count(*) FROM requests {asked.where('cache_miss IS NOT NULL')} "
        "GROUP BY ALL ORDER BY 2 DESC, 1",
        asked.values,
    )
    return {
        "rows": [
            {
                "backend": row[0],
                "model": row[1],
                "dialect": row[2],
                "requests": row[3],
                "errors": row[4],
                "affinity": dict(zip(("hit", "new", "moved", "none"), row[5:9], strict=True)),
                "cached_share": row[9],
                "ttft_p50": row[10],
                "ttft_p95": row[11],
                "tpot_p50": row[12],
                "output_tokens": row[13],
                "live": None,
            }
            for row in found
        ],
        "prefix": dict(misses),
    }


def sessions(
    rows: Rows, asked: Asked, *, sort: str, order: str, limit: int, offset: int
) -> dict[str, Any]:
    """One page of sessions; what each was about is asked only of those."""
    where = asked.where("session IS NOT NULL")
    found = rows.query(
        "SELECT session, count(*) AS turns, min(began) AS first, max(began) AS last, "
        "count(*) FILTER (affinity = 'moved') AS moved, "
        "sum(cached_tokens) / nullif(sum(input_tokens) FILTER (cached_tokens IS NOT NULL), 0) "
        "AS cached_share, coalesce(sum(output_tokens), 0)::BIGINT AS output_tokens, "
        f"count(*) OVER () AS total FROM requests {where} GROUP BY session "
        f"ORDER BY {_choice(sort, SESSION_SORTS)} {_order(order)} NULLS LAST, session "
        f"LIMIT {int(limit)} OFFSET {int(offset)}",
        asked.values,
    )
    if not found:
        total = rows.query(f"SELECT count(DISTINCT session) FROM requests {where}", asked.values)
        return {"total": total[0][0], "rows": []}
    names = [row[0] for row in found]
    details: dict[str, tuple[dict[str, int], dict[str, int], dict[str, int]]] = {
        name: ({}, {}, {}) for name in names
    }
    for session, scenario, backend, because, count in rows.query(
        f"SELECT session, scenario, backend, moved_because, count(*) FROM requests {where} "
        f"AND session IN ({', '.join('?' * len(names))}) GROUP BY ALL ORDER BY 5 DESC",
        [*asked.values, *names],
    ):
        for kept, name in zip(details[session], (scenario, backend, because), strict=True):
            if name is not None:
                kept[name] = kept.get(name, 0) + count
    return {
        "total": found[0][7],
        "rows": [
            {
                "session": row[0],
                "turns": row[1],
                "first": stamp(row[2]),
                "last": stamp(row[3]),
                "scenarios": details[row[0]][0],
                "backends": sorted(details[row[0]][1]),
                "moved": row[4],
                "moved_because": details[row[0]][2],
                "cached_share": row[5],
                "output_tokens": row[6],
            }
            for row in found
        ],
    }


def experiments(rows: Rows, asked: Asked) -> list[dict[str, Any]]:
    found = rows.query(
        f"SELECT experiment, arm, count(*), count(*) FILTER ({IS_ERROR}), "
        "quantile_cont(ttft_ms, 0.5), quantile_cont(total_ms, 0.5), avg(output_tokens), "
        "count(*) FILTER (finish_reason = 'length') / nullif(count(finish_reason), 0) "
        f"FROM requests {asked.where('experiment IS NOT NULL')} GROUP BY experiment, arm "
        f"ORDER BY experiment, arm LIMIT {_MAX_GROUPS}",
        asked.values,
    )
    names = (
        "experiment",
        "arm",
        "requests",
        "errors",
        "ttft_p50",
        "total_p50",
        "output_tokens_mean",
        "truncated_share",
    )
    return [{**dict(zip(names, row, strict=True)), "live": None} for row in found]


#: an arm that the policy has, and the range has nothing of
NO_RECORDS: Mapping[str, Any] = {
    "requests": 0,
    "errors": 0,
    "ttft_p50": None,
    "total_p50": None,
    "output_tokens_mean": None,
    "truncated_share": None,
}


def requests(
    rows: Rows, asked: Asked, *, sort: str, order: str, limit: int, offset: int
) -> dict[str, Any]:
    total = rows.query(f"SELECT count(*) FROM requests {asked.where()}", asked.values)[0][0]
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
    stem: str


def request(rows: Rows, request_id: str) -> Kept | None:
    """The last one of this id."""
    names = [row[0] for row in rows.query(f"DESCRIBE SELECT * EXCLUDE ({_OWN}) FROM requests")]
    found = rows.query(
        f"SELECT s.folder, s.stem, r.* EXCLUDE ({_OWN}) FROM requests r "
        "JOIN segments s ON s.id = r.segment WHERE r.request_id = ? "
        "ORDER BY r.began DESC LIMIT 1",
        [request_id],
    )
    if not found:
        return None
    folder, stem, *values = found[0]
    fields = dict(zip(names, values, strict=True))
    began = fields.pop("began")
    return Kept({"ts": stamp(began), **fields}, began, folder, stem)


def _quantiles(pair: Sequence[float] | None) -> dict[str, float | None]:
    p50, p95 = pair or (None, None)
    return {"p50": p50, "p95": p95}


def _pair(name: str, pair: Sequence[float] | None) -> dict[str, float | None]:
    p50, p95 = pair or (None, None)
    return {f"{name}_p50": p50, f"{name}_p95": p95}


def _choice(name: str, choices: Sequence[str]) -> str:
    """A column by its name: one of ours, never a text from outside."""
    return choices[choices.index(name)]


def _order(order: str) -> str:
    return "ASC" if order == "asc" else "DESC"
