"""Rows as a file: CSV for a spreadsheet, JSON for a program. A few thousand rows at a time."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import orjson

from router.dashboard import queries
from router.dashboard.store import Store

MOST_ROWS = 100_000
MOST_GROUPS = 10_000
TYPES = {"csv": "text/csv; charset=utf-8", "json": "application/json"}
#: what makes a spreadsheet compute a cell instead of showing it
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def pieces(store: Store, sql: str, values: Sequence[Any], kind: str) -> Iterator[bytes]:
    """Requests, by a statement of `queries.requests_sql`."""
    with store.rows(sql, values) as batches:
        is_first = True
        for batch in batches:
            rows = queries.request_rows(batch)
            if kind == "csv":
                yield _csv(rows, queries.REQUEST_COLUMNS, with_head=is_first)
            else:
                yield (b"[" if is_first else b",") + orjson.dumps(rows)[1:-1]
            is_first = False
        if kind == "json":
            yield b"[]" if is_first else b"]"
        elif is_first:
            yield _csv((), queries.REQUEST_COLUMNS, with_head=True)


def whole(rows: Sequence[dict[str, Any]], kind: str) -> bytes:
    """A view of moderate size."""
    if kind == "json":
        return orjson.dumps(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    return _csv(rows, names, with_head=True)


def _csv(rows: Iterable[dict[str, Any]], names: Sequence[str], *, with_head: bool) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    if with_head:
        writer.writerow(_cell(name) for name in names)
    for row in rows:
        writer.writerow(_cell(row.get(name)) for name in names)
    return out.getvalue().encode("utf-8", "replace")


def _cell(value: Any) -> Any:
    """A value that a spreadsheet shows as it is: texts of clients are no formulas."""
    if isinstance(value, (dict, list, tuple)):
        value = orjson.dumps(value).decode()
    elif isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and value.startswith(_FORMULA):
        return "'" + value
    return value
