"""Server-sent events without sockets: bytes in, whole events out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import sse
from router.sse import EventSplitter
from tests.support.strategies import cut, cut_points

EVENTS = [
    b'data: {"a":1}\n\n',
    b'data: {"a":1}\r\n\r\n',
    b": keep-alive\n\n",
    b": keep-alive\r\n\r\n",
    b"data: [DONE]\n\n",
    b"event: x\ndata: y\nid: 1\n\n",
    "data: 退款 😀\n\n".encode(),
    b"data: a\ndata: b\n\n",
    b"data:\n\n",
    b"data\n\n",
    b"retry: 100\r\ndata: z\r\n\r\n",
]
streams = st.lists(st.sampled_from(EVENTS), max_size=6)


def split(*pieces: bytes) -> tuple[list[sse.Event], bytes]:
    splitter = EventSplitter()
    events = [event for piece in pieces for event in splitter.feed(piece)]
    return events, splitter.held


@given(streams, st.sampled_from([b"", b"data: hal", b"data: a\n", b"data: a\r\n\r"]), cut_points)
def test_any_way_of_cutting_gives_the_same_events(
    events: list[bytes], rest: bytes, points: list[int]
) -> None:
    stream = b"".join(events) + rest

    found, held = split(*cut(stream, points))

    assert [event.raw for event in found] == events
    assert (found, held) == split(stream)
    assert held == rest


@given(
    st.lists(st.sampled_from([b"d", b"data:", b" ", b"\n", b"\r\n", b"\n\n", b": c"])), cut_points
)
def test_no_byte_is_lost_or_doubled(pieces: list[bytes], points: list[int]) -> None:
    stream = b"".join(pieces)

    found, held = split(*cut(stream, points))

    assert b"".join(event.raw for event in found) + held == stream
    whole, _ = split(stream)
    assert [e.data for e in found if e.data] == [e.data for e in whole if e.data]


@pytest.mark.parametrize(
    ("raw", "data"),
    [
        (b"data: a\n\n", b"a"),
        (b"data:a\n\n", b"a"),
        (b"data:  a \n\n", b" a "),
        (b"data:  a \r\n\r\n", b" a "),
        (b"data: a\ndata: b\n\n", b"a\nb"),
        (b"event: e\ndata: a\n\n", b"a"),
        (b": data: a\n\n", b""),
        (b"data\n\n", b""),
        (b"datax: a\n\n", b""),
        (b"\n\n", b""),
    ],
)
def test_the_data_is_what_a_client_would_read(raw: bytes, data: bytes) -> None:
    assert sse.data_of(raw) == data


def test_an_event_that_is_given_up_is_held_no_longer() -> None:
    splitter = EventSplitter()
    splitter.feed(b"data: ha")

    assert splitter.take_held() == b"data: ha"
    assert splitter.held == b""
    assert [event.raw for event in splitter.feed(b"data: b\n\n")] == [b"data: b\n\n"]


def test_an_event_of_ours_is_one() -> None:
    (event,), held = split(sse.event(b'{"a":1}'))

    assert (event.data, held) == (b'{"a":1}', b"")
