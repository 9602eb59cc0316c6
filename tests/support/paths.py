"""Dotted paths into JSON values, and equality as JSON means it.

`messages.0.content` names a member of a list by number. An absent place is
MISSING, which differs from null.
"""

from __future__ import annotations

from typing import Any, Final


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()


def lookup(value: Any, path: str) -> Any:
    """What lies at `path`, or MISSING."""
    for part in path.split("."):
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return MISSING
    return value


def put(value: Any, path: str, new: Any) -> None:
    """Set the place at `path`, making objects on the way."""
    *way, last = path.split(".")
    for part in way:
        value = value[int(part)] if isinstance(value, list) else value.setdefault(part, {})
    if isinstance(value, list):
        value[int(last)] = new
    else:
        value[last] = new


def same(one: Any, other: Any) -> bool:
    """JSON equality: 0 is 0.0, but true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
