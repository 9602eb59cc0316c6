"""Edits of a JSON object: what comes out says what the standard library's edit says."""

from __future__ import annotations

import json
from typing import Any

from router import splice
from router.errors import InvalidJson
from tests.fuzz import source

VALUES: tuple[bytes | None, ...] = (None, b"1", b'"x"', b'{"a": [1, null]}', b"null")


def check(data: bytes) -> None:
    given = source.of(data)
    raw = given.raw
    try:
        values, spans = splice.members(raw)
    except InvalidJson:
        check_refusal(raw)
        return
    assert list(values) == list(spans)
    for name, (key, start, end) in spans.items():
        assert raw[start:end] == bytes(values[name])
        assert loaded(raw[key:start].rstrip().removesuffix(b":")) == name
    edits: dict[str, bytes | None] = {
        name: VALUES[(given.options + number * given.seed) % len(VALUES)]
        for number, name in enumerate([*values, "new", "model"])
        if (given.seed >> (number % 8)) & 1
    }
    out = splice.apply(raw, spans, edits)
    after, after_spans = splice.members(out)
    wanted = {name: edits.get(name, bytes(value)) for name, value in values.items()}
    wanted |= {name: value for name, value in edits.items() if name not in values}
    kept = {name: value for name, value in wanted.items() if value is not None}
    assert [(name, bytes(value)) for name, value in after.items()] == list(kept.items())
    assert splice.apply(out, after_spans, {}) == out
    if (read := pairs(raw)) is not None:
        assert [name for name, _ in read] == list(values)


def check_refusal(raw: bytes) -> None:
    """What every server reads as one object with names of its own is not refused."""
    read = pairs(raw)
    if read is None or len(dict(read)) != len(read) or b"\\ud" in raw.lower():
        return
    depth = max(raw.count(b"["), raw.count(b"{"))
    assert depth > 100, f"a sound object was refused: {read}"


def pairs(raw: bytes) -> list[tuple[str, Any]] | None:
    """The members as the standard library reads them, where that is strict JSON in UTF-8."""

    def refuse(name: str) -> Any:
        raise ValueError(name)

    try:
        text = raw.decode()
        found = json.loads(text, object_pairs_hook=tuple, parse_constant=refuse)
    except (ValueError, RecursionError):
        return None
    return list(found) if text.lstrip(" \t\r\n").startswith("{") else None


def loaded(raw: bytes) -> Any:
    return json.loads(raw.decode("utf-8", "surrogateescape"))
