"""HTTP messages as wire.py reads them: a whole request, an answer's head.

Structs of msgspec, whose constructors run in C, and so not in a module that is compiled.
"""

from __future__ import annotations

import msgspec

Header = tuple[bytes, bytes]


class Request(msgspec.Struct):
    """One request off the wire; header names in lower case."""

    method: bytes
    target: bytes
    headers: list[Header]
    fields: dict[bytes, bytes]  # the last of each name
    is_http10: bool
    keep_alive: bool
    body: bytes


class AnswerHead(msgspec.Struct):
    """The head of an answer; header names in lower case."""

    status: int
    headers: list[Header]
    fields: dict[bytes, bytes]
    keep_alive: bool
