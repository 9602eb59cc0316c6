"""The client's bytes: only what is edited changes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router import splice
from router.errors import InvalidJson
from tests.support.strategies import (
    json_objects,
    json_values,
    scalars,
    texts,
    written,
    written_objects,
)


def pairs_of(raw: bytes) -> list[tuple[str, Any]]:
    """The members in their order, as the standard library reads them."""
    return list(json.loads(raw).items())


@st.composite
def objects_with_edits(draw: st.DrawFn) -> tuple[bytes, dict[str, Any], dict[str, Any]]:
    """An object's bytes, what it says, and edits by name; None in them removes."""
    raw, value = draw(written_objects())
    known = st.sampled_from(sorted(value)) if value else texts
    edits = draw(st.dictionaries(st.one_of(known, texts), json_values, max_size=4))
    return raw, value, edits


def encoded(edits: dict[str, Any]) -> dict[str, bytes | None]:
    return {
        name: None if value is None else json.dumps(value).encode() for name, value in edits.items()
    }


@given(written_objects())
def test_the_members_are_those_of_the_object_in_its_order(
    written_object: tuple[bytes, dict[str, Any]],
) -> None:
    raw, value = written_object

    members, spans = splice.members(raw)

    assert [(name, json.loads(bytes(text))) for name, text in members.items()] == list(
        value.items()
    )
    assert list(spans) == list(value)
    for name, (key, start, end) in spans.items():
        assert raw[start:end] == bytes(members[name])
        assert json.loads(raw[key:start].rstrip().removesuffix(b":")) == name


@given(written_objects())
def test_no_edits_give_the_same_bytes(written_object: tuple[bytes, dict[str, Any]]) -> None:
    raw, _ = written_object
    _, spans = splice.members(raw)

    assert splice.apply(raw, spans, {}) == raw


@given(objects_with_edits())
def test_the_result_says_what_was_said_with_the_edits_made(
    case: tuple[bytes, dict[str, Any], dict[str, Any]],
) -> None:
    raw, value, edits = case
    _, spans = splice.members(raw)

    result = splice.apply(raw, spans, encoded(edits))

    expected = {name: edits.get(name, entry) for name, entry in value.items()}
    expected |= {name: entry for name, entry in edits.items() if name not in value}
    removed = {name for name, entry in edits.items() if entry is None}
    assert pairs_of(result) == [
        (name, entry) for name, entry in expected.items() if name not in removed
    ]


@given(objects_with_edits())
def test_replacing_members_leaves_every_other_byte(
    case: tuple[bytes, dict[str, Any], dict[str, Any]],
) -> None:
    raw, value, edits = case
    _, spans = splice.members(raw)
    replaced = {
        name: text for name, text in encoded(edits).items() if name in value and text is not None
    }

    result = splice.apply(raw, spans, replaced)

    at, expected = 0, b""
    for name, (_, start, end) in spans.items():
        expected += raw[at:start] + replaced.get(name, raw[start:end])
        at = end
    assert result == expected + raw[at:]


@given(objects_with_edits())
def test_kept_members_keep_their_own_bytes_when_others_are_removed(
    case: tuple[bytes, dict[str, Any], dict[str, Any]],
) -> None:
    raw, value, edits = case
    _, spans = splice.members(raw)
    removed: dict[str, bytes | None] = {name: None for name in edits if name in value}

    result = splice.apply(raw, spans, removed)

    for name, (key, _, end) in spans.items():
        if name not in removed:
            assert raw[key:end] in result
    assert result.startswith(raw[: raw.index(b"{") + 1])


def test_removing_a_later_member_leaves_the_bytes_before_it() -> None:
    raw = b'{ "a": 1,  "b": 2, "c" : 3 }'
    _, spans = splice.members(raw)

    assert splice.apply(raw, spans, {"b": None}) == b'{ "a": 1, "c" : 3 }'


@given(json_objects.filter(bool), st.data())
def test_a_name_given_twice_is_refused(value: dict[str, Any], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(value)))
    again = data.draw(scalars)
    raw = data.draw(written(value)).rstrip()[:-1]
    at_the_end = raw + b"," + json.dumps(name).encode() + b":" + json.dumps(again).encode() + b"}"

    with pytest.raises(InvalidJson) as caught:
        splice.members(at_the_end)

    assert caught.value.param == name


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a":1,"a":1}',
        b'{"a":12,"a":1}',
        b'{"a":1,"a":12}',
        b'{"a":1,"\\u0061":2}',
        b'{"a":"x","b":[1],"a":"x"}',
        b'{"a":{"a":1},"a":{"a":1}}',
    ],
)
def test_a_name_given_twice_is_refused_however_it_is_written(raw: bytes) -> None:
    with pytest.raises(InvalidJson, match="'a' twice"):
        splice.members(raw)


def test_a_name_that_stands_twice_at_different_depths_is_none_given_twice() -> None:
    members, _ = splice.members(b'{"a":{"a":{"a":1}},"b":"a"}')

    assert list(members) == ["a", "b"]


def test_telling_of_a_doubled_name_does_not_copy_the_body_over_and_over() -> None:
    """The rest of the body is not copied once for every name in it."""
    copied = 0

    class Counted(bytes):
        def __getitem__(self, key: Any) -> Any:
            nonlocal copied
            part = super().__getitem__(key)
            copied += len(part) if isinstance(part, bytes) else 0
            return part

    raw = b"{" + b",".join(b'"k%d":1' % (number % 500) for number in range(1000)) + b"}"

    with pytest.raises(InvalidJson, match="'k0' twice"):
        splice.members(Counted(raw))

    assert copied <= 8 * len(raw)


@pytest.mark.parametrize(
    "raw",
    [
        *[b"", b" ", b"[]", b"1", b'"a"', b"null", b"{", b'{"a"}', b'{"a":1,}', b'{"a":1}}'],
        *[
            b"{}{}",
            b"\xef\xbb\xbf{}",
            b'{"a":NaN}',
            b"{'a':1}",
            b'{"a":01}',
            b'{"\xff":1}',
            b"\x00",
        ],
    ],
)
def test_anything_but_one_json_object_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidJson):
        splice.members(raw)


@settings(max_examples=30, deadline=None)
@given(st.integers(min_value=1, max_value=200_000))
def test_any_depth_is_read_or_refused(depth: int) -> None:
    raw = b'{"a":' + b"[" * depth + b"]" * depth + b"}"

    try:
        members, _ = splice.members(raw)
    except InvalidJson as error:
        refusal = error.message
    else:
        refusal = ""
        assert len(bytes(members["a"])) == 2 * depth
    assert not refusal or "deep" in refusal


@given(written_objects(), st.dictionaries(texts, json_values, max_size=3))
def test_merging_changes_a_nested_object(
    written_object: tuple[bytes, dict[str, Any]], edits: dict[str, Any]
) -> None:
    raw, value = written_object
    merged = splice.merge(raw.strip(), encoded(edits))

    expected = {**value, **edits}
    expected = {n: v for n, v in expected.items() if not (n in edits and v is None)}
    assert (json.loads(merged) if merged is not None else {}) == expected


@pytest.mark.parametrize("raw", [None, b"null", b'"x"', b"[1]", b"5"])
def test_merging_into_what_is_no_object_makes_one(raw: bytes | None) -> None:
    assert splice.merge(raw, {"a": b"1", "b": None}) == b'{"a":1}'


def test_merging_everything_away_leaves_nothing() -> None:
    assert splice.merge(b'{ "a": 1 }', {"a": None}) is None
    assert splice.merge(None, {"a": None}) is None
