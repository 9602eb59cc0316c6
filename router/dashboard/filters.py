"""What the page asks for, as a condition: a query string in, SQL with its values apart out.

No text of a client or of the page is ever part of the SQL. Pure: `now` is given.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from multidict import MultiMapping

from router.errors import ClientError

#: the value of a filter that means: there is none
NONE = "(none)"
#: filter → column. Repeated, any value fits
_NAMES = {
    "scenario": "scenario",
    "backend": "backend",
    "outcome": "outcome",
    "source": "source",
    "model": "client_model",
    "session": "session",
    "key": "key",
    "experiment": "experiment",
    "arm": "arm",
    "finish_reason": "finish_reason",
}
_SWITCHES = ("stream", "thinking")
#: requests that were repeated in the background count in no view, unless they are asked for
_REPEATS = "shadow"
_AGO = re.compile(r"-(\d{1,6})(s|m|h|d)")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DEFAULT_S = 3600
#: a range up to now begins and ends at round moments, about so many of which are in it
_BEGINS, _ENDS = 120, 1200
_VALUES = 50
_CHARS = 300
#: what DuckDB's timestamps hold, with room
_EARLIEST, _LATEST = 0.0, 32503680000.0


@dataclass(frozen=True, slots=True)
class Asked:
    """The rows that a view is about."""

    begin: float  # epoch seconds
    end: float  # of what is drawn; where that is now, no row is left out for it
    condition: str
    values: tuple[Any, ...]
    is_steady: bool  # asked again in a moment, it is the same range

    def where(self, more: str = "") -> str:
        """The condition, and perhaps another without values of its own."""
        return f"WHERE {self.condition}" + (f" AND {more}" if more else "")


def asked(query: MultiMapping[str], now: float) -> Asked:
    """Raises ClientError for what cannot be understood."""
    is_open = query.get("to", "now") in ("", "now")
    end = _time(query.get("to"), now, now, "to")
    begin = _time(query.get("from"), end - _DEFAULT_S, now, "from")
    if begin > end:
        raise ClientError("`from` is after `to`.", param="from")
    is_fixed = _is_moment(query.get("from"))
    if is_open and begin < end:
        # So the range stands still for a while, and what was found in it needs only to be added to.
        span = end - begin
        end = math.ceil(end / _round(span / _ENDS)) * _round(span / _ENDS)
        if not is_fixed:
            begin = begin // _round(span / _BEGINS) * _round(span / _BEGINS)
    conditions = ["began >= make_timestamp(?)"]
    values: list[Any] = [micros(begin)]
    if not is_open:
        conditions.append("began <= make_timestamp(?)")
        values.append(micros(end))
    for name, column in _NAMES.items():
        if found := _texts(query, name):
            conditions.append(
                _any_of(column, [None if text == NONE else text for text in found], values)
            )
    for name in _SWITCHES:
        if wanted := [_switch(name, text) for text in _texts(query, name)]:
            conditions.append(_any_of(name, wanted, values))  # noqa: PERF401  # fills `values` too
    repeats = [_switch(_REPEATS, text) for text in _texts(query, _REPEATS)] or [False]
    conditions.append(_any_of(_REPEATS, repeats, values))
    if slow := query.get("slow_ms"):
        conditions.append("total_ms >= ?")
        values.append(_number(slow, "slow_ms"))
    if begun := query.get("q", "").strip():
        conditions.append("starts_with(request_id, ?)")
        values.append(begun[:_CHARS])
    is_steady = is_open or (is_fixed and _is_moment(query.get("to")))
    return Asked(begin, end, " AND ".join(conditions), tuple(values), is_steady)


def whole_log() -> Asked:
    """All there is, but for repeats."""
    return Asked(_EARLIEST, _LATEST, f"NOT {_REPEATS}", (), True)


def _round(seconds: float) -> float:
    """The power of two below: of these, any number is exact."""
    return 2.0 ** math.floor(math.log2(seconds))


def micros(seconds: float) -> int:
    return int(seconds * 1e6)


def whole(query: MultiMapping[str], name: str, default: int, least: int, most: int) -> int:
    """A whole number of the query, within bounds. Raises ClientError."""
    text = query.get(name)
    if text is None:
        return default
    if not re.fullmatch(r"\d{1,12}", text):
        raise ClientError(f"`{name}` is a whole number.", param=name)
    return min(max(int(text), least), most)


def one_of(query: MultiMapping[str], name: str, choices: Sequence[str]) -> str:
    """One of some words; the first where nothing is said. Raises ClientError."""
    text = query.get(name, choices[0])
    if text not in choices:
        raise ClientError(f"`{name}` is one of {', '.join(choices)}.", param=name)
    return text


def _texts(query: MultiMapping[str], name: str) -> list[str]:
    found = query.getall(name, [])
    if len(found) > _VALUES or any(len(text) > _CHARS for text in found):
        raise ClientError(f"`{name}` is too much.", param=name)
    return found


def _any_of(column: str, wanted: Sequence[Any], values: list[Any]) -> str:
    named = [value for value in wanted if value is not None]
    parts = []
    if named:
        parts.append(f"{column} IN ({', '.join('?' * len(named))})")
        values.extend(named)
    if len(named) < len(wanted):
        parts.append(f"{column} IS NULL")
    return f"({' OR '.join(parts)})"


def _switch(name: str, text: str) -> bool | None:
    if text not in ("true", "false", NONE):
        raise ClientError(f"`{name}` is true, false or {NONE}.", param=name)
    return None if text == NONE else text == "true"


def _number(text: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ClientError(f"`{name}` is a number.", param=name)
    return value


def _is_moment(text: str | None) -> bool:
    """Whether this is a moment of its own, and not one so long ago."""
    return bool(text) and text != "now" and _AGO.fullmatch(text or "") is None


def _time(text: str | None, default: float, now: float, name: str) -> float:
    if not text or text == "now":
        return default if not text else now
    if ago := _AGO.fullmatch(text):
        found = now - int(ago[1]) * _UNITS[ago[2]]
    else:
        try:
            moment = datetime.fromisoformat(text.replace(" ", "+"))
            found = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            raise ClientError(
                f"`{name}` is a time as 2026-01-31T08:00:00Z, or -15m, -1h, -7d.", param=name
            ) from None
    return min(max(found, _EARLIEST), _LATEST)
