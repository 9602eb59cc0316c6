"""Hypothesis strategies: JSON objects written in every legal way, and cuts of a byte string."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

#: places to cut at, for `cut`
cut_points = st.lists(st.integers(min_value=0, max_value=1 << 16), max_size=12)

# No lone surrogates: they are no text, and have a test of their own.
texts = st.text(st.characters(codec="utf-8"), max_size=12)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(min_value=-(2**63), max_value=2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    texts,
)
json_values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)
json_objects = st.dictionaries(texts, json_values, max_size=5)


def cut(data: bytes, points: Sequence[int]) -> list[bytes]:
    """The data in pieces, none of them empty; each point is taken modulo its length."""
    edges = [0, *sorted(point % (len(data) + 1) for point in points), len(data)]
    return [data[start:end] for start, end in pairwise(edges) if end > start]


@st.composite
def written(draw: st.DrawFn, value: Any) -> bytes:
    """The value as JSON bytes, with any whitespace and any escaping."""
    space = st.text(" \t\r\n", max_size=2)
    is_ascii = draw(st.booleans())

    def text_of(inner: Any) -> str:
        if isinstance(inner, dict):
            members = [
                f"{draw(space)}{text_of(name)}{draw(space)}:{draw(space)}{text_of(entry)}"
                for name, entry in inner.items()
            ]
            return "{" + f"{draw(space)},".join(members) + draw(space) + "}"
        if isinstance(inner, list):
            return "[" + ",".join(draw(space) + text_of(entry) for entry in inner) + "]"
        text = json.dumps(inner, ensure_ascii=is_ascii)
        if isinstance(inner, str) and inner.isascii() and inner.isalnum() and draw(st.booleans()):
            return '"' + "".join(f"\\u{ord(letter):04x}" for letter in inner) + '"'
        return text

    return (draw(space) + text_of(value) + draw(space)).encode()


@st.composite
def written_objects(draw: st.DrawFn) -> tuple[bytes, dict[str, Any]]:
    """A JSON object as bytes, and what it says."""
    value = draw(json_objects)
    return draw(written(value)), value
