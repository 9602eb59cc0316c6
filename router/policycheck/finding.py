"""What a check finds in a policy, and where in its text that stands."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from router import tomlfile
from router.policy import Policy
from router.tomlfile import Key, Mistake

#: the line on which another key or table begins; entries of a list begin with a quote
_NEXT = re.compile(r"\s*(\[+\s*)?[A-Za-z0-9_-]+[\w\s.\"'-]*[=\]]")


class Finding(msgspec.Struct, frozen=True):
    """A fault stops a check; a note is worth a look."""

    severity: Literal["fault", "note"]
    mistake: Mistake
    file: str | None = None  # None: the policy itself

    def __str__(self) -> str:
        return f"{self.severity}: {self.file + ': ' if self.file else ''}{self.mistake}"

    def told(self) -> dict[str, Any]:
        """As JSON has it."""
        found = self.mistake
        return {
            "severity": self.severity,
            "file": self.file,
            "line": found.line,
            "path": found.path,
            "message": found.message,
        }


def note(policy: Policy, key: Key, message: str, among: Sequence[str] = ()) -> Finding:
    """`among`: the entries of the list that `key` ends in, to find the one's own line."""
    return Finding("note", placed(policy.text, key, message, among))


def fault(policy: Policy, key: Key, message: str, among: Sequence[str] = ()) -> Finding:
    return Finding("fault", placed(policy.text, key, message, among))


def cut(text: str, chars: int = 60) -> str:
    """A text in quotes, on one line and short enough for a message."""
    line = " ".join(text.split())
    return json.dumps(
        line if len(line) <= chars else line[: chars - 1] + "…",
        ensure_ascii=False,
    )


def placed(text: str, key: Key, message: str, among: Sequence[str] = ()) -> Mistake:
    """A mistake with its line in this text; see `note`."""
    line = tomlfile.line_of(text, key)
    last = key[-1]
    if among and line is not None and isinstance(last, int):
        line = _entry_line(text, line, among, last)
    return Mistake(tomlfile.dotted(key), line, message)


def _entry_line(text: str, start: int, entries: Sequence[str], index: int) -> int:
    """The line of one entry of a list that begins at `start`; that line where it is not found."""
    entry = entries[index]
    spelled = {f'"{entry}"', f"'{entry}'", json.dumps(entry, ensure_ascii=False)}
    before = entries[:index].count(entry)
    for number, line in enumerate(text.splitlines()[start - 1 :], start=start):
        if number > start and _NEXT.match(line):
            break
        before -= sum(line.count(written) for written in spelled)
        if before < 0:
            return number
    return start
