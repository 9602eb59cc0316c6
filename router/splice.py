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
#: in a longer object nobody looks which name it is: that would hold up everybody for seconds
_LOOKED_AT = 64 << 10
_COLON = re.compile(rb"[ \t\r\n]*:")
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
    if len(raw) > _LOOKED_AT:
        return InvalidJson(f"The {what} has a key twice.")
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
        elif depth == 1 and _COLON.match(raw, token.end()):
            names.append(b"[" + text + b",null]")
    return b"[" + b",".join(names) + b"]"


def _reason(error: Exception) -> str:
    return "it is nested too deep." if isinstance(error, RecursionError) else f"{error}."


class Patch:
    """Edits worked out for objects with the same member names, to be applied many times."""

    __slots__ = ("removed", "replaced", "suffix")

    def __init__(
        self, replaced: tuple[tuple[str, bytes], ...], removed: frozenset[str], suffix: bytes
    ) -> None:
        """`suffix`: the new members, each with the comma before it."""
        self.replaced = replaced
        self.removed = removed
        self.suffix = suffix

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Patch) and self._parts() == other._parts()

    def _parts(self) -> tuple[object, ...]:
        return self.replaced, self.removed, self.suffix

    def apply(self, raw: bytes, spans: Spans) -> bytes:
        """The object with the edits made; every byte outside the edited members stays."""
        if self.removed:
            return self._without_removed(raw, spans)
        if not spans:
            close = raw.rindex(b"}")
            return raw[:close] + self.suffix[1:] + raw[close:]
        last = next(reversed(spans.values()))[2]
        at = 0
        pieces: list[bytes] = []
        for name, value in self.replaced:  # in the order of the members
            _, start, end = spans[name]
            pieces += (raw[at:start], value)
            at = end
        pieces += (raw[at:last], self.suffix, raw[last:])
        return b"".join(pieces)

    def _without_removed(self, raw: bytes, spans: Spans) -> bytes:
        """Member by member: one that goes takes the separator before it along."""
        values = dict(self.replaced)
        begin = before = raw.index(b"{") + 1
        pieces = [raw[:begin]]
        is_first = True
        for name, (key, start, end) in spans.items():
            if name not in self.removed:
                lead = key if is_first and before != begin else before
                pieces.append(raw[lead:start])
                pieces.append(values.get(name) or raw[start:end])
                is_first = False
            before = end
        pieces.append(self.suffix[1:] if is_first else self.suffix)
        pieces.append(raw[before:])
        return b"".join(pieces)


def patch(spans: Spans, edits: Edits) -> Patch:
    """The edits for objects that have just these members."""
    suffix = [
        b",%b:%b" % (_encode(name), value)
        for name, value in edits.items()
        if value is not None and name not in spans
    ]
    return Patch(
        tuple((name, v) for name in spans if (v := edits.get(name)) is not None),
        frozenset(name for name, value in edits.items() if value is None and name in spans),
        b"".join(suffix),
    )


def apply(raw: bytes, spans: Spans, edits: Edits) -> bytes:
    """The object with `edits` made; every byte outside the edited members stays."""
    return patch(spans, edits).apply(raw, spans) if edits else raw


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
