"""An older file's text as this version would write it; whatever else stands in it is kept.

In: the text of a configuration or a policy. Out: another text, comments, order and layout as
they were. Nothing is given back that would be read as anything else than the old text is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import tomlkit

from router import keyfile, migration, tomlfile
from router import policy as policies
from router.config import Config
from router.migration import Kind
from router.tomlfile import FileFault, Mistake


class Migrated(NamedTuple):
    """What a file is, and what becomes of it."""

    kind: Kind
    schema: int  # as it was written, or 1
    is_stated: bool  # whether it said so
    changes: tuple[str, ...]
    text: str


def migrated(text: str, name: str, folder: Path) -> Migrated:
    """The file as this version would write it; raises FileFault where it is none of ours.

    `folder` is where the files that a policy names are.
    """
    table = tomlfile.table(text, name)
    kind = migration.kind_of(table)
    if kind is None:
        wanted = "no configuration ([[backends]]), policy ([scenarios.…]) or keys ([keys.…])"
        raise FileFault(name, [Mistake("", None, wanted)])
    schema, is_stated = migration.told(table), migration.KEY in table
    document = tomlkit.parse(text if is_stated else _stated(text, schema))
    changes = migration.upgrade(document, kind, text, name)
    # Untouched where nothing changed: what a library writes anew is never quite the same.
    new = tomlkit.dumps(document) if changes or schema != migration.current(kind) else text
    if not is_stated:
        new = _stated(text, schema) if new == text else new
    if _read(new, kind, name, folder) != _read(text, kind, name, folder):
        fault = "written anew it would not be read as it is now: this file is to be edited by hand"
        raise FileFault(name, [Mistake("", None, fault)])
    return Migrated(kind, schema, is_stated, tuple(changes), new)


def _read(text: str, kind: Kind, name: str, folder: Path) -> Any:
    """All that the router makes of a text. Raises FileFault."""
    if kind == "policy":
        return policies.parse(text, name, folder, lightly=True).file
    if kind == "keys":
        return keyfile.parse(text, name)
    table = tomlfile.table(text, name)
    migration.upgrade(table, kind, text, name)
    return tomlfile.model(Config, table, text, name)


def _stated(text: str, schema: int) -> str:
    """The text with its schema before the first key or table, and before the comment on that.

    By hand: tomlkit would put it behind that comment, which is about something else.
    """
    lines = text.splitlines(keepends=True)
    first = next(
        (n for n, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#")),
        len(lines),
    )
    at = first
    while at and lines[at - 1].lstrip().startswith("#"):
        at -= 1
    if at == 0:
        at = first  # the comment that opens the file is about the whole of it
    lines.insert(at, f"{migration.KEY} = {schema}\n" + ("\n" if at < len(lines) else ""))
    return "".join(lines)
