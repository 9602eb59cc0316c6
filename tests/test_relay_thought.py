"""A stream with its thought put elsewhere on the way: the same for every cut of its bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import sse, wire
from router.bridge import MODES, Bridge
from router.relay import Stream
from router.tally import Tally
from tests.support.strategies import cut, cut_points
from tests.support.thoughts import OPEN, chunk, encoded, joined

Said = dict[str, Any]
DONE = sse.event(b"[DONE]")
USAGE: Said = {**chunk({}), "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}}
STAND_IN = encoded(chunk({}))
COMMENT = b": a sign of life\n\n"
CALL = [{"index": 0, "id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
#: what comes before an answer, as servers tell it
THOUGHTS: list[list[Said]] = [
    [{"content": OPEN}, {"content": "\nWell"}, {"content": " 好\n</thi"}, {"content": "nk>\n\n"}],
    [{"content": f"{OPEN}\n\n</think>\n\n"}],
    [{"reasoning": "\nWell"}, {"reasoning": " 好\n"}],
    [{"reasoning_content": "Well"}, {"reasoning_content": " 好", "content": None}],
    [],
]
ANSWERS: list[list[Said]] = [
    [{"content": "\n\nThe"}, {"content": " Rhine 😀"}, {"content": f"{OPEN}."}],
    [{"content": "x" * 400}],
    [{"tool_calls": CALL}],
    [],
]


@st.composite
def frames(draw: st.DrawFn, *, ends: bool = True) -> list[bytes]:
    """The events of a stream, comments between them."""
    deltas: list[Said] = draw(st.sampled_from([[], [{"role": "assistant", "content": ""}]]))
    deltas = deltas + draw(st.sampled_from(THOUGHTS)) + draw(st.sampled_from(ANSWERS))
    documents = [chunk(delta) for delta in deltas]
    finish = draw(st.sampled_from(["stop", "length"]))
    documents.append(chunk(draw(st.sampled_from([{}, {"content": ""}])), finish))
    documents += draw(st.sampled_from([[], [USAGE]]))
    events = [sse.event(encoded(part)) for part in documents]
    if draw(st.booleans()):
        events.insert(draw(st.integers(0, len(events))), COMMENT)
    if draw(st.booleans()):
        events = [event.replace(b"\n\n", b"\r\n\r\n") for event in events]
    return [*events, DONE] if ends else events


def chunked(text: bytes, points: list[int]) -> bytes:
    return b"".join(map(wire.chunk, cut(text, points))) + wire.LAST_CHUNK


def made(mode: str, **given: Any) -> Stream:
    flags = {"cuts_usage": False, "adds_done": True, **given}
    return Stream(Tally(), bridge=Bridge(mode, thinking=True), **flags)


def relayed(pieces: list[bytes], stream: Stream) -> list[bytes]:
    """The events that the client gets, framing taken off; what is not whole is an error."""
    body, out = wire.ChunkedBody(), b""
    for piece in pieces:
        out += stream.pass_on(piece, body.feed(piece), True)
    assert body.close()
    if stream.is_empty_handed:
        out += wire.LAST_CHUNK
    return events_of(out)


def events_of(raw: bytes) -> list[bytes]:
    body = wire.ChunkedBody()
    piece = body.feed(raw)
    assert body.close()
    assert not piece.excess
    splitter = sse.EventSplitter()
    events = [event.data for payload in piece.payloads for event in splitter.feed(payload)]
    assert splitter.held == b""
    return events


def documents_in(datas: list[bytes]) -> list[Said]:
    return [json.loads(data) for data in datas if data and data != b"[DONE]"]


def told(tally: Tally) -> tuple[Any, ...]:
    return (
        tally.answer_chars,
        tally.reasoning_chars,
        tally.finish_reason,
        tally.input_tokens,
        tally.output_tokens,
        tally.has_token,
        tally.has_done,
    )


# --- any cut --------------------------------------------------------------------------------


@given(frames(), cut_points, cut_points, st.sampled_from(MODES), st.booleans())
def test_any_cut_gives_the_same_events(
    events: list[bytes], chunks: list[int], points: list[int], mode: str, rescues: bool
) -> None:
    text = b"".join(events)
    one, other = made(mode, rescues=rescues), made(mode, rescues=rescues)

    raw = chunked(text, chunks)
    found = relayed(cut(raw, points), one)

    assert found == relayed([chunked(text, [])], other)
    assert told(one.tally) == told(other.tally)
    assert one.kept_back == other.kept_back


@given(frames(), st.sampled_from(MODES))
def test_every_byte_by_itself_gives_the_same_events(events: list[bytes], mode: str) -> None:
    raw = chunked(b"".join(events), [])

    found = relayed([raw[at : at + 1] for at in range(len(raw))], made(mode))

    assert found == relayed([raw], made(mode))


@given(frames(), cut_points, st.sampled_from(["field", "inline", "drop"]), st.booleans())
def test_the_client_gets_what_the_bridge_says(
    events: list[bytes], points: list[int], mode: str, cuts_usage: bool
) -> None:
    bridge, wanted = Bridge(mode, thinking=True), []
    for event in events:
        data = sse.data_of(event)
        turned = bridge.event(data)
        if not (turned == b"" or (cuts_usage and b'"usage"' in data)):
            wanted.append(data if turned is None else turned)

    raw = chunked(b"".join(events), points)
    found = relayed(cut(raw, points), made(mode, cuts_usage=cuts_usage))

    assert documents_in(found) == documents_in(wanted)
    assert found.count(b"[DONE]") == 1


@given(frames(), cut_points)
def test_what_is_to_be_kept_goes_on_to_the_byte(events: list[bytes], points: list[int]) -> None:
    text = b"".join(events)
    stream, body, out = made("keep"), wire.ChunkedBody(), b""
    for piece in cut(chunked(text, points), points):
        out += stream.pass_on(piece, body.feed(piece), False)

    assert out == text


@given(frames(ends=False), cut_points, st.sampled_from(MODES))
def test_a_missing_done_is_added(events: list[bytes], points: list[int], mode: str) -> None:
    found = relayed([chunked(b"".join(events), points)], made(mode))

    assert found[-1] == b"[DONE]"
    assert found.count(b"[DONE]") == 1


@given(frames(), cut_points, st.sampled_from(MODES))
def test_a_usage_frame_nobody_asked_for_is_cut_and_counted(
    events: list[bytes], points: list[int], mode: str
) -> None:
    stream = made(mode, cuts_usage=True)

    found = relayed(cut(chunked(b"".join(events), points), points), stream)

    assert not [data for data in found if b'"usage"' in data]
    has_usage = any(b'"usage"' in event for event in events)
    assert stream.tally.output_tokens == (5 if has_usage else None)


@given(frames(), st.integers(min_value=0), cut_points, st.sampled_from(MODES))
def test_broken_off_anywhere_the_error_is_an_event_of_its_own(
    events: list[bytes], end: int, points: list[int], mode: str
) -> None:
    raw = chunked(b"".join(events[:-1]), points)[: -len(wire.LAST_CHUNK)]
    stream, body, out = made(mode, adds_done=False), wire.ChunkedBody(), b""
    for piece in cut(raw[: end % (len(raw) + 1)], points):
        out += stream.pass_on(piece, body.feed(piece), True)

    found = events_of(out + stream.break_off(b'{"error":{}}', True))

    assert found[-1] == b'{"error":{}}'
    assert b"[DONE]" not in found


# --- the fast way ---------------------------------------------------------------------------


def sent(stream: Stream, document: Said) -> bytes:
    raw = wire.chunk(sse.event(encoded(document)))
    return stream.pass_on(raw, wire.ChunkedBody().feed(raw), True)


@pytest.mark.parametrize("mode", ["field", "inline", "drop"])
@pytest.mark.parametrize("thought", THOUGHTS)
def test_the_fast_way_is_open_once_the_answer_has_begun(mode: str, thought: list[Said]) -> None:
    stream = made(mode)
    for delta in [{"role": "assistant", "content": ""}, *thought]:
        sent(stream, chunk(delta))
        assert not stream.is_clear
    sent(stream, chunk({"content": "The"}))

    assert stream.is_clear
    token = wire.chunk(sse.event(encoded(chunk({"content": " Rhine"}))))
    assert stream.express(token)
    stream.count()
    assert stream.tally.answer_chars == len("The Rhine")


@pytest.mark.parametrize("delta", [{"reasoning": "hm"}, {"content": " I think"}])
def test_what_may_hold_a_thought_does_not_go_the_fast_way(delta: Said) -> None:
    stream = made("drop")
    sent(stream, chunk({"content": "The"}))

    assert stream.is_clear
    assert not stream.express(wire.chunk(sse.event(encoded(chunk(delta)))))
    out = sent(stream, chunk(delta))
    assert (b"hm" in out, b"I think" in out) == (False, "content" in delta)


@given(frames(), st.sampled_from(MODES), st.booleans())
def test_by_the_fast_way_the_client_reads_the_same(
    events: list[bytes], mode: str, rescues: bool
) -> None:
    """Chunk by chunk, each by the fast way where that is allowed."""
    stream, body, out = made(mode, rescues=rescues), wire.ChunkedBody(), b""
    for event in events:
        raw = wire.chunk(event)
        if stream.is_clear and stream.express(raw):
            out += raw
        else:
            out += stream.pass_on(raw, body.feed(raw), True)
    out += stream.pass_on(wire.LAST_CHUNK, body.feed(wire.LAST_CHUNK), True)
    other = made(mode, rescues=rescues)

    if stream.is_empty_handed:
        out += wire.LAST_CHUNK
    assert events_of(out) == relayed([chunked(b"".join(events), [])], other)
    stream.count()
    assert told(stream.tally) == told(other.tally)


# --- what is kept back for a second try -----------------------------------------------------


@given(frames(), cut_points, st.sampled_from(MODES))
def test_an_end_without_an_answer_is_kept_back(
    events: list[bytes], points: list[int], mode: str
) -> None:
    raw = chunked(b"".join(events), points)
    stream = made(mode, rescues=True)

    found = relayed(cut(raw, points), stream)

    documents = documents_in(found)
    plain = joined(documents_in([sse.data_of(event) for event in events]))[0]
    wants_more = plain["finish"] == "length" and not stream.tally.answer_chars
    if "tool_calls" in plain or any(b"Rhine" in e or b"xxx" in e for e in events):
        wants_more = False
    assert stream.is_empty_handed == wants_more
    if not wants_more:
        assert stream.kept_back == []
        assert found[-1] == b"[DONE]"
        return
    assert b"[DONE]" not in found
    assert all(c["finish_reason"] is None for part in documents for c in part["choices"])
    assert not [part for part in documents if part.get("usage")]
    assert stream.kept_back[-1] == b"[DONE]"
    kept = documents_in(stream.kept_back)
    assert [c["finish_reason"] for part in kept for c in part["choices"]] == ["length"]
    without = relayed([raw], made(mode))
    assert joined(documents + kept) == joined(documents_in(without))


def test_the_words_of_the_frame_that_ends_it_are_not_kept_back() -> None:
    stream = made("field", rescues=True)
    last = {**chunk({"reasoning": "Well"}, "length"), "usage": USAGE["usage"]}

    found = relayed([chunked(sse.event(encoded(last)), [])], stream)

    [document] = documents_in(found)
    assert document["choices"][0]["delta"] == {"reasoning_content": "Well"}
    assert "usage" not in document
    [kept] = documents_in(stream.kept_back)
    assert kept["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "length"}
    assert kept["usage"] == USAGE["usage"]


def test_a_stream_without_a_bridge_keeps_nothing_back() -> None:
    stream = Stream(Tally(), cuts_usage=False, adds_done=True, rescues=True)
    raw = chunked(sse.event(encoded(chunk({}, "length"))), [])

    assert relayed([raw], stream)[-1] == b"[DONE]"
    assert not stream.is_empty_handed


def test_comments_behind_an_end_that_is_kept_back_are_left_out() -> None:
    stream = made("field", rescues=True)
    text = sse.event(encoded(chunk({}, "length"))) + COMMENT + DONE

    assert relayed([chunked(text, [])], stream) == []
    assert stream.kept_back[-1] == b"[DONE]"


# --- a sign of life -------------------------------------------------------------------------


@given(frames(), cut_points, st.sampled_from(MODES))
def test_a_sign_of_life_is_a_chat_frame_between_two_events(
    events: list[bytes], points: list[int], mode: str
) -> None:
    text = b"".join(event for event in events if event is not DONE)
    stream, body, out = made(mode, adds_done=False), wire.ChunkedBody(), b""
    signs = 0
    for piece in cut(chunked(text, points), points):
        out += stream.pass_on(piece, body.feed(piece), True)
        if not body.close():
            sign = stream.keep_alive(True, STAND_IN)
            signs += bool(sign)
            out += sign

    found = events_of(out)

    plain = relayed([chunked(text, [])], made(mode, adds_done=False))
    assert len(documents_in(found)) == len(documents_in(plain)) + signs
    assert joined(documents_in(found)) == joined(documents_in(plain))
    for data in found:
        if data:
            assert json.loads(data)["id"] == "c-1"


def test_a_sign_of_life_says_nothing_and_is_no_comment() -> None:
    stream = made("drop")
    first: Said = {**chunk({"role": "assistant", "content": ""}), "system_fingerprint": "f"}
    sent(stream, first)

    sign = stream.keep_alive(False, b"{}")

    assert sign.startswith(b"data: ")
    [data] = [event.data for event in sse.EventSplitter().feed(sign)]
    assert json.loads(data) == chunk({})
    assert stream.keep_alive(True, b"{}") == wire.chunk(sign)


def test_before_the_first_frame_a_stand_in_is_the_sign() -> None:
    assert made("drop").keep_alive(False, STAND_IN) == sse.event(STAND_IN)


def test_inside_an_event_there_is_no_sign() -> None:
    stream = made("keep")
    for delta in ({"content": "The"}, {"content": " Rhine"}):
        sent(stream, chunk(delta))
    raw = wire.chunk(sse.event(encoded(chunk({"content": "x" * 100})))[:-20])
    body = wire.ChunkedBody()

    assert stream.pass_on(raw, body.feed(raw), True) == raw
    assert stream.keep_alive(True, STAND_IN) == b""


@pytest.mark.parametrize("mode", ["field", "inline", "drop"])
def test_a_thought_behind_the_answer_is_moved_however_its_event_is_cut(mode: str) -> None:
    event = sse.event(encoded(chunk({"reasoning_content": "hm"})))
    whole = passed(mode, [event])

    for at in range(1, len(event)):
        assert passed(mode, [event[:at], event[at:]]) == whole
    assert (b"reasoning_content" in whole) == (mode == "field")


def passed(mode: str, pieces: list[bytes]) -> bytes:
    """What the client gets of these pieces behind an answer that has begun."""
    stream = made(mode)
    for delta in ({"content": "The"}, {"content": " Rhine"}):
        sent(stream, chunk(delta))
    body = wire.ChunkedBody()
    raws = [wire.chunk(piece) for piece in pieces]
    return b"".join(stream.pass_on(raw, body.feed(raw), False) for raw in raws)


def test_progress_is_seen_of_whatever_goes_out() -> None:
    stream, seen = made("drop"), set()
    for delta in ({"role": "assistant"}, {"content": "The"}, {"content": " Rhine"}):
        sent(stream, chunk(delta))
        seen.add(stream.progress)
    token = wire.chunk(sse.event(encoded(chunk({"content": "."}))))
    for _ in range(9):
        assert stream.express(token)
        seen.add(stream.progress)

    assert len(seen) == 12


def test_an_end_that_is_kept_back_is_kept_back_without_its_blank_line_too() -> None:
    stream = made("field", rescues=True)
    text = sse.event(encoded(chunk({}, "length"))) + b"data: [DONE]\n"

    assert relayed([chunked(text, [])], stream) == []


#: what one reader of JSON takes and the other does not
ODD = [b'"x":1e999', b'"x":"\xff"']


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("delta", [{}, {"content": "a"}])
def test_odd_json_beside_an_answer_passes(odd: bytes, delta: Said) -> None:
    stream = made("keep", rescues=True)
    data = b"%b,%b}" % (encoded(chunk(delta, "length"))[:-1], odd)

    assert relayed([chunked(sse.event(data), [])], stream) == [data, b"[DONE]"]
    assert stream.keep_alive(False, STAND_IN) == sse.event(STAND_IN)
