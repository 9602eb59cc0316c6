"""The client's JSON object as bytes with spans: change members, keep every other byte.

In: bytes of one JSON object. Out: where each member lies, and the same bytes with
some members replaced, removed or appended. Knows JSON, nothing of chat.

Re-serialising a body loses what the client wrote (`0.10`, `user: null`, 54-bit
seeds, key order) and costs a multiple of this: the object is skimmed once in C
and only the spans of its top-level members are found here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from router.errors import InvalidJson

#: member name → (start of its key's quote, start of its value, end of its value)
Spans = dict[str, tuple[int, int, int]]
#: member name → new value as JSON bytes, or None to remove the member
Edits = Mapping[str, bytes | None]

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode
_OPEN = re.compile(rb"[ \t\r\n]*")
_NEXT = re.compile(rb'[ \t\r\n]*[,{][ \t\r\n]*("(?:[^"\\]|\\.)*")[ \t\r\n]*:[ \t\r\n]*')
_CLOSE = re.compile(rb"[ \t\r\n]*}")


def members(raw: bytes, what: str = "body") -> tuple[dict[str, msgspec.Raw], Spans]:
    """Each member's value (undecoded) and span, in the client's order.

    Raises InvalidJson for anything but one JSON object, and for a name that is
    given twice: backends keep the last, other parsers the first, and a limit that
    is set on one and obeyed on the other is no limit.
    """
    try:
        values = _decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidJson(f"The {what} is not a JSON object: {_reason(error)}") from None
    spans: Spans = {}
    match_next = _NEXT.match
    at = _OPEN.match(raw).end()  # type: ignore[union-attr]  # always matches, maybe nothing
    for name, value in values.items():
        found = match_next(raw, at)
        view = memoryview(value)
        if found is None or not raw.startswith(view, found.end()):
            raise _duplicate(raw, what)
        start = found.end()
        at = start + len(view)
        spans[name] = (found.start(1), start, at)
    if _CLOSE.match(raw, at) is None and values:
        raise _duplicate(raw, what)
    return values, spans


def _duplicate(raw: bytes, what: str) -> InvalidJson:
    seen: set[str] = set()
    for name, _ in msgspec.json.decode(_pairs(raw), type=list[tuple[str, msgspec.Raw]]):
        if name in seen:
            return InvalidJson(f"The {what} has the key {name!r} twice.", param=name)
        seen.add(name)
    return InvalidJson(f"The {what} has a key twice.")


def _pairs(raw: bytes) -> bytes:
    """The names of an object as `[[name, null], …]`, doubles kept; for the error text only."""
    names = []
    depth = 0
    for token in re.finditer(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]', raw):
        text = token[0]
        if text in b"{[":
            depth += 1
        elif text in b"}]":
            depth -= 1
        elif depth == 1 and raw[token.end() :].lstrip()[:1] == b":":
            names.append(b"[" + text + b",null]")
    return b"[" + b",".join(names) + b"]"


def _reason(error: Exception) -> str:
    return "it is nested too deep." if isinstance(error, RecursionError) else f"{error}."


def apply(raw: bytes, spans: Spans, edits: Edits) -> bytes:
    """The object with `edits` made; every byte outside the edited members stays."""
    if not edits:
        return raw
    kept = [span for name, span in spans.items() if edits.get(name, b"") is not None]
    pieces: list[bytes] = []
    if len(kept) == len(spans):
        at = 0
        for name, (_, start, end) in spans.items():
            value = edits.get(name)
            if value is not None:
                pieces.append(raw[at:start])
                pieces.append(value)
                at = end
        last = kept[-1][2] if kept else raw.index(b"{") + 1
        pieces.append(raw[at:last])
    else:
        pieces.append(raw[: raw.index(b"{") + 1])
        before = raw.index(b"{") + 1
        first = True
        for name, (key, start, end) in spans.items():
            if edits.get(name, b"") is None:
                before = end
                continue
            pieces.append(raw[key if first else before : start])
            value = edits.get(name)
            pieces.append(raw[start:end] if value is None else value)
            first, before = False, end
        last = before
    comma = b"," if kept else b""
    for name, value in edits.items():
        if value is not None and name not in spans:
            pieces.append(comma + _encode(name) + b":" + value)
            comma = b","
    tail = max((end for _, _, end in spans.values()), default=raw.index(b"{") + 1)
    pieces.append(raw[tail:])
    return b"".join(pieces)


def merge(raw: bytes | None, edits: Edits) -> bytes | None:
    """A nested object with `edits` made; None in is an empty object, empty out is None.

    A value that is no object is replaced: the member that is being set inside it
    could not live there.
    """
    if raw is not None and raw[:1] == b"{":
        _, spans = members(raw, "nested object")
        merged = apply(raw, spans, edits)
    else:
        merged = apply(b"{}", {}, {name: value for name, value in edits.items() if value})
    return None if merged.strip()[1:-1].strip() == b"" else merged
