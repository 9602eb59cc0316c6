"""Records as rows on a terminal, as many columns as fit; sums by scenario likewise.

What clients wrote is other people's text: nothing in it reaches the terminal as a command.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from router.logquery import Sum
from router.report_text import plain

#: where there is no terminal to ask: a pager scrolls, a file has no edge
_WIDTH = 160
_GAP = 2


class Column(NamedTuple):
    """A column: its name, how wide, how its text is made of a record, how early it has to go."""

    name: str
    width: int
    tell: Callable[[Mapping[str, Any]], Text]
    rank: int = 0  # the highest is the first to go where there is no room
    is_number: bool = False


class _Out(Console):
    """Leaves a closed pipe to whoever runs the command."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console() -> Console:
    """Colours on a terminal alone, and not where NO_COLOR says so."""
    is_sized = sys.stdout.isatty() or "COLUMNS" in os.environ
    return _Out(
        width=None if is_sized else _WIDTH, highlight=False, emoji=False, markup=False,
        soft_wrap=False,
    )  # fmt: skip


def _text(name: str, style: str = "") -> Callable[[Mapping[str, Any]], Text]:
    def tell(record: Mapping[str, Any]) -> Text:
        value = record.get(name)
        return Text("-" if value is None else plain(str(value)), style=style)

    return tell


def _time(record: Mapping[str, Any]) -> Text:
    try:
        at = datetime.fromisoformat(record["ts"]).astimezone()
    except ValueError:
        return Text(plain(str(record["ts"])))
    return Text(f"{at:%m-%d %H:%M:%S}.{at.microsecond // 100_000}", style="dim")


def _milliseconds(name: str) -> Callable[[Mapping[str, Any]], Text]:
    def tell(record: Mapping[str, Any]) -> Text:
        value = record.get(name)
        if not isinstance(value, (int, float)):
            return Text("-", style="dim")
        return Text(f"{value / 1000:.1f} s" if value >= 10_000 else f"{value:.0f} ms")

    return tell


def _outcome(record: Mapping[str, Any]) -> Text:
    outcome, code = plain(str(record.get("outcome"))), record.get("error_code")
    if outcome == "ok":
        return Text("rescued" if record.get("rescued") else "ok", style="green")
    style = "yellow" if outcome == "client_disconnect" else "red"
    return Text(outcome if code is None else f"{outcome}: {plain(str(code))}", style=style)


def _status(record: Mapping[str, Any]) -> Text:
    status = record.get("status")
    if not isinstance(status, int):
        return Text("-", style="dim")
    return Text(str(status), style="red" if status >= 400 else "")


def _thinking(record: Mapping[str, Any]) -> Text:
    return Text({True: "on", False: "off"}.get(record.get("thinking"), "-"))  # type: ignore[arg-type]


COLUMNS = (
    Column("time", 16, _time),
    Column("scenario", 12, _text("scenario", "cyan")),
    Column("backend", 12, _text("backend"), 3),
    Column("status", 6, _status, 2, True),
    Column("ttft", 8, _milliseconds("ttft_ms"), 1, True),
    Column("total", 8, _milliseconds("total_ms"), 0, True),
    Column("in", 6, _text("input_tokens"), 4, True),
    Column("out", 5, _text("output_tokens"), 3, True),
    Column("think", 5, _thinking, 5),
    Column("finish", 10, _text("finish_reason"), 5),
    Column("key", 10, _text("key"), 7),
    Column("session", 16, _text("session"), 8),
    Column("outcome", 14, _outcome),
    Column("id", 24, _text("request_id"), 6),
)


def fitting(width: int, columns: Sequence[Column] = COLUMNS) -> list[Column]:
    """The columns that have room beside each other; what is left over goes to the last."""
    kept = list(columns)
    while len(kept) > 1 and sum(c.width + _GAP for c in kept) > width:
        last = max(reversed(kept), key=lambda column: column.rank)
        if last.rank == 0:
            break
        kept.remove(last)
    return kept


#: how wide a field is, where it is wider than most
_WIDE = {
    "ts": 24, "request_id": 24, "trace_id": 32, "session": 16, "policy": 12, "client_model": 16,
    "backend_model": 20, "params": 60, "signals": 40, "warnings": 40, "outcome": 17,
    "moved_because": 24, "cache_hint": 40,
}  # fmt: skip


def named(fields: Sequence[str]) -> list[Column]:
    """A column for each of these fields of the record."""
    return [Column(n, _WIDE.get(n, max(len(n), 10)), _text(n)) for n in fields]


class Rows:
    """Prints records as they come, under one head, in columns that stay where they are."""

    def __init__(self, out: Console, columns: Sequence[Column]) -> None:
        self._out = out
        self._columns = columns
        self._is_begun = False

    def tell(self, records: Sequence[Mapping[str, Any]]) -> None:
        if not records:
            return
        table = Table(
            box=None, show_header=not self._is_begun, header_style="bold", padding=(0, _GAP, 0, 0),
            pad_edge=False,
        )  # fmt: skip
        self._is_begun = True
        last = len(self._columns) - 1
        room = self._out.width - sum(c.width + _GAP for c in self._columns[:last])
        for at, column in enumerate(self._columns):
            table.add_column(
                column.name,
                width=None if at == last else column.width,
                max_width=max(column.width, room) if at == last else None,
                no_wrap=True,
                overflow="ellipsis",
                justify="right" if column.is_number else "left",
            )
        for record in records:
            table.add_row(*(column.tell(record) for column in self._columns))
        self._out.print(table)


def summary(out: Console, sums: Mapping[str, Sum]) -> None:
    """A row for each scenario, and one for all of them where there are several."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("scenario")
    for name in ("requests", "errors", "ttft p50", "p95", "total p50", "p95", "in", "out"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, own in sums.items():
        table.add_row(
            Text(plain(name), style="cyan"),
            str(own.count),
            Text(str(own.errors), style="red" if own.errors else "dim"),
            *(_ms(times.quantile(q)) for times in (own.ttft, own.total) for q in (0.5, 0.95)),
            str(own.input_tokens),
            str(own.output_tokens),
        )
    out.print(table)
    out.print("times in ms, within 1 %; tokens as the backends told them", style="dim")


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
