"""Files of an older schema, as the present one would say them.

In: a file's table, as tomllib or tomlkit reads it. Out: the same with what has got another name
or meaning since, and a sentence for each such thing. In memory whenever a file is read; in the
file itself by `scenario-router migrate`.

A step leads from one schema to the next and knows no other, so a file of any age comes through
all that it lacks. What means the same and was only added to needs no step and no new number: so
it has been since 0.1, and all formats are at 1. docs/upgrading.md tells when a number goes up;
tests/upgrades has files as earlier versions wrote them.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, Literal

from router import __version__, tomlfile
from router.tomlfile import FileFault

Kind = Literal["config", "policy", "keys"]
Table = MutableMapping[str, Any]
#: changes a table of schema N to one of N + 1, in place; what it changed, in words for operators
Step = Callable[[Table], list[str]]

KEY = "schema"
#: of each format, the steps from 1 to 2, from 2 to 3, …
STEPS: dict[Kind, tuple[Step, ...]] = {"config": (), "policy": (), "keys": ()}


def current(kind: Kind) -> int:
    """The schema that this version writes."""
    return len(STEPS[kind]) + 1


def told(table: Table) -> int:
    """The schema that a file says it has; 1 where it says nothing, as files of 0.1 and 0.2 do."""
    found = table.get(KEY, 1)
    return int(found) if _is_number(found) else 0


def upgrade(table: Table, kind: Kind, text: str, name: str) -> list[str]:
    """Make the table one of the present schema, in place; what was changed, in words.

    Raises FileFault for a schema that this version does not know.
    """
    schema, newest = told(table), current(kind)
    if not 1 <= schema <= newest:
        raise FileFault(name, [tomlfile.mistake(text, (KEY,), _unknown(table[KEY], schema, kind))])
    changes = [change for step in STEPS[kind][schema - 1 :] for change in step(table)]
    if schema != newest:
        table[KEY] = newest
    return changes


def outdated(text: str, kind: Kind, name: str) -> str | None:
    """What is to be said of a file with an older schema; None for one of the present.

    Raises FileFault where it cannot be read at all.
    """
    table = tomlfile.table(text, name)
    schema, newest = told(table), current(kind)
    changes = upgrade(table, kind, text, name)
    if schema == newest:
        return None
    read = "; ".join(changes) or "nothing in it has changed its meaning"
    return (
        f"schema {schema} is read as {newest} ({read}); `scenario-router migrate --write` "
        "writes it so"
    )


def kind_of(table: Table) -> Kind | None:
    """What a file is, by its tables; None for neither."""
    if "backends" in table:
        return "config"
    if "scenarios" in table:
        return "policy"
    return "keys" if "keys" in table else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _unknown(found: Any, schema: int, kind: Kind) -> str:
    newest = current(kind)
    if not _is_number(found) or schema < 1:
        return f"{found!r} is no schema: a whole number from 1 to {newest}"
    return (
        f"this file has schema {schema}, and version {__version__} of the router knows up to "
        f"{newest}: it was written for a later version. Install that one, or take the file that "
        "was in use before"
    )
