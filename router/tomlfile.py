"""TOML read for people: a mistake is told with file, line, key and a hint.

In: TOML text and the kind of table it must be. Out: the table, or a FileFault with every
mistake found. The parser of the standard library forgets where keys were, so a
mistake's line is looked up again in the text.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from router.tables import Table

Model = TypeVar("Model", bound=Table)
Key = tuple[str | int, ...]

#: the message of a mistake whose key nobody knows; those that are known there follow
UNKNOWN = "unknown key"


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing wrong in a file, as an operator needs to read it."""

    path: str
    line: int | None
    message: str

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        return f"{where}{self.path + ': ' if self.path else ''}{self.message}"


class FileFault(Exception):
    """A file that cannot be used, with all that is wrong in it."""

    def __init__(self, name: str, mistakes: Sequence[Mistake]) -> None:
        self.name = name
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(f"{name}: {mistake}" for mistake in mistakes))

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process is told all of it, and not the text alone."""
        return FileFault, (self.name, self.mistakes)


def read(path: Path) -> str:
    """The text of a file; raises FileFault where it cannot be read."""
    return decoded(read_bytes(path), str(path))


def read_bytes(path: Path) -> bytes:
    """The bytes of a file; raises FileFault where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileFault(str(path), [Mistake("", None, f"cannot be read: {reason}")]) from None


def decoded(data: bytes, name: str) -> str:
    """The text in a file's bytes, its line ends as one character."""
    try:
        return data.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise FileFault(name, [Mistake("", None, f"cannot be read: {error}")]) from None


def table(text: str, name: str) -> dict[str, Any]:
    """The TOML text as a dict."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise FileFault(name, [Mistake("", None, "is nested too deep")]) from None
    except ValueError as error:  # TOMLDecodeError, and numbers of more digits than Python reads
        found = re.search(r"\(at line (\d+)", str(error))
        line = int(found[1]) if found else None
        message = re.sub(r" \(at .*\)$", "", str(error))
        raise FileFault(name, [Mistake("", line, f"not valid TOML: {message}")]) from None


def model(kind: type[Model], value: dict[str, Any], text: str, name: str) -> Model:
    """`value` as a `kind`, every mistake located in `text`."""
    from pydantic import ValidationError  # where nothing is checked, it is not loaded

    try:
        return kind.model_validate(value)
    except ValidationError as error:
        mistakes = [
            mistake(
                text,
                tuple(fault["loc"]),
                UNKNOWN if fault["type"] == "unexpected_keyword_argument" else fault["msg"],
                known=_known(kind, fault["loc"]),
            )
            for fault in error.errors()
        ]
        raise FileFault(name, mistakes) from None


def mistake(text: str, key: Key, message: str, known: Sequence[str] = ()) -> Mistake:
    """A mistake at `key`, with its line and, for an unknown name, the likely right one."""
    if message == UNKNOWN:
        message += suggestion(str(key[-1]), known)
    return Mistake(dotted(key), line_of(text, key), message.removeprefix("Value error, "))


def suggestion(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if near:
        return f" {word!r}; did you mean {near[0]!r}?"
    return f" {word!r}; known here: {', '.join(sorted(known))}" if known else f" {word!r}"


def dotted(key: Key) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).lstrip(".")


def _known(kind: type[Table], key: Key) -> list[str]:
    """The names allowed where `key`'s last part stands."""
    here = kind
    for part in key[:-1]:
        name = here.names().get(str(part))
        inner = _inner_table(get_type_hints(here)[name]) if name else None
        if inner is not None:
            here = inner
    return list(here.names())


def _inner_table(annotation: Any) -> type[Table] | None:
    if isinstance(annotation, type) and issubclass(annotation, Table):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        if (found := _inner_table(argument)) is not None:
            return found
    return None


_HEADER = re.compile(r"^\s*\[(\[?)\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"^\s*([A-Za-z0-9_\-\.\"' ]+?)\s*=")


def line_of(text: str, key: Key) -> int | None:
    """The line where `key`, or the nearest table above it, stands in a TOML text."""
    wanted = [str(part) for part in key if not isinstance(part, int)]
    index = next((part for part in key if isinstance(part, int)), 0)
    best: tuple[int, int] | None = None  # (parts matched, line)
    current: list[str] = []
    counts: dict[tuple[str, ...], int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            current = _parts(header[2])
            if header[1]:
                counts[tuple(current)] = counts.get(tuple(current), -1) + 1
            here = current
        elif found := _KEY.match(line):
            here = current + _parts(found[1])
        else:
            continue
        inside = [counts.get(tuple(current[:end]), index) for end in range(1, len(current) + 1)]
        if any(count != index for count in inside):
            continue
        matched = len(here) if here == wanted[: len(here)] else 0
        if matched and (best is None or matched > best[0]):
            best = (matched, number)
    return best[1] if best else None


def _parts(name: str) -> list[str]:
    return [part.strip().strip("\"'") for part in name.split(".")]
