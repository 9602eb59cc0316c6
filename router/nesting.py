"""Whether a JSON text is nested too deep, told without reading it. Pure.

What the router reads is refused at some hundred levels in any case, by the decoder and for
nothing. This is for operators whose backends bear less, or get bodies that we do not read: half
a microsecond for a short body, eleven for one of 200 KB.
"""

from __future__ import annotations

from collections.abc import Callable

import re2

_STRING = rb'"(?:[^"\\]|\\[\x00-\xff])*"'
#: automata have a state or two for each level; RE2 builds them as they are met
_MEMORY = 32 << 20


def checker(depth: int) -> Callable[[bytes], bool]:
    """A function that says whether objects and arrays lie more than `depth` deep in a text.

    Of what is no JSON it says either.
    """
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.dot_nl = True
    options.max_mem = _MEMORY
    level = rb"(?:[^\[\]{}\"]|" + _STRING + rb")*"
    pattern = level
    for _ in range(depth):
        pattern = rb"(?:[^\[\]{}\"]|" + _STRING + rb"|[\[{]" + pattern + rb"[\]}])*"
    fits = re2.compile(pattern, options).fullmatch

    def is_too_deep(text: bytes) -> bool:
        if len(text) <= 2 * depth or not _has_more(text, depth):
            return False
        return fits(text) is None

    return is_too_deep


def _has_more(text: bytes, count: int) -> bool:
    """Whether there are more openings than that at all; nearly never, and memchr looks for them."""
    find = text.find
    for opening in (b"{", b"["):
        at = find(opening)
        while at >= 0:
            count -= 1
            if count < 0:
                return True
            at = find(opening, at + 1)
    return False
