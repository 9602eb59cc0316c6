"""What a pattern cannot do without: is there a way through it that avoids certain letters?

In: an RE2 expression and letters. Out: yes or no. Knows as much of the syntax as that
takes: alternatives, groups, classes, escapes, and what may be left out.
"""

from __future__ import annotations

import re
from collections.abc import Collection

_GROUP = re.compile(r"\((?:\?(?:P?<\w+>|[a-zA-Z-]*:))?")
_FLAGS = re.compile(r"\(\?[a-zA-Z-]*\)")
_CLASS = re.compile(r"\[(\^?)(\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*)\]", re.S)
_ESCAPE = re.compile(
    r"\\(?:[pP]\{\^?\w+\}|[pP]\w|x\{[0-9A-Fa-f]+\}|x[0-9A-Fa-f]{2}|Q.*?\\E|.)", re.S
)
_TIMES = re.compile(r"(?:([*?]|\{0[,}])|[+{])(?:\d*,?\d*\})?\??")


def every_way_needs(pattern: str, letters: Collection[str]) -> bool:
    """Whether no text without these letters can be matched."""
    needs, _ = _alternatives(pattern, 0, letters)
    return needs


def _alternatives(pattern: str, at: int, letters: Collection[str]) -> tuple[bool, int]:
    """From here to the end of the group; and where that is."""
    needs = True
    while True:
        branch, at = _branch(pattern, at, letters)
        needs = needs and branch
        if at >= len(pattern) or pattern[at] == ")":
            return needs, at
        at += 1  # past the |


def _branch(pattern: str, at: int, letters: Collection[str]) -> tuple[bool, int]:
    needs = False
    while at < len(pattern) and pattern[at] not in "|)":
        atom, at = _atom(pattern, at, letters)
        if times := _TIMES.match(pattern, at):
            atom = atom and times[1] is None
            at = times.end()
        needs = needs or atom
    return needs, at


def _atom(pattern: str, at: int, letters: Collection[str]) -> tuple[bool, int]:
    if flags := _FLAGS.match(pattern, at):
        return False, flags.end()
    if group := _GROUP.match(pattern, at):
        needs, at = _alternatives(pattern, group.end(), letters)
        return needs, at + 1
    if escape := _ESCAPE.match(pattern, at):
        return False, escape.end()
    if members := _CLASS.match(pattern, at):
        is_plain = not members[1] and not re.search(r"[\\:-]", members[2])
        return is_plain and set(members[2]) <= set(letters), members.end()
    return pattern[at] in letters, at + 1
