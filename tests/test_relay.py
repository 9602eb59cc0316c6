"""An answer on its way back: the same for the client, counted for the record."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router import refusals, relay, sse, wire
from router.frames import frame_in
from router.relay import Stream, Whole, shape_of
from router.tally import Tally
from tests.support.strategies import cut, cut_points


def frame(**members: Any) -> bytes:
    return sse.event(json.dumps(members, ensure_ascii=False).encode())


def delta(**part: Any) -> bytes:
    return frame(id="c", choices=[{"index": 0, "delta": part}])


FINISH = frame(id="c", choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
USAGE = frame(
    id="c",
    choices=[],
    usage={
        "prompt_tokens": 7,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    },
)
USAGE_ON_THE_LAST = frame(
    id="c",
    choices=[{"index": 0, "delta": {}, "finish_reason": "length"}],
    usage={"prompt_tokens": 7, "completion_tokens": 5},
)
DONE = sse.event(b"[DONE]")
FRAMES = [
    delta(role="assistant", content=""),
    delta(content="Hello"),
    delta(content="退款 😀 é"),
    delta(reasoning_content="思考"),
    delta(reasoning="hm", content=None),
    delta(tool_calls=[{"index": 0, "function": {"arguments": "{"}}]),
    delta(content="x" * 300),
    delta(content="crlf").replace(b"\n\n", b"\r\n\r\n"),
    b": keep-alive\n\n",
    b"event: ping\ndata: {}\n\n",
    b"data: not json\n\n",
    frame(type="response.output_text.delta", delta="text"),
]


@st.composite
def answers(draw: st.DrawFn) -> list[bytes]:
    """The frames of a stream, in an order that engines use."""
    frames = draw(st.lists(st.sampled_from(FRAMES), max_size=5))
    frames += draw(st.sampled_from([[], [FINISH], [USAGE_ON_THE_LAST]]))
    frames += draw(st.sampled_from([[], [USAGE]]))
    return frames + draw(st.sampled_from([[], [DONE]]))


def chunked(text: bytes, points: list[int]) -> bytes:
    return b"".join(map(wire.chunk, cut(text, points))) + wire.LAST_CHUNK


def entity_of(raw: bytes) -> bytes:
    """A whole chunked body's text; what follows it, or lacks, is an error."""
    body = wire.ChunkedBody()
    piece = body.feed(raw)
    assert body.close()
    assert not piece.excess
    return b"".join(piece.payloads)


def told(tally: Tally) -> dict[str, Any]:
    names = [
        "answer_chars",
        "reasoning_chars",
        "finish_reason",
        "input_tokens",
        "output_tokens",
        "cached_tokens",
        "reasoning_tokens",
        "has_token",
        "has_done",
        "error",
    ]
    return {name: getattr(tally, name) for name in names}


def relayed(
    pieces: list[bytes], *, cuts_usage: bool = False, adds_done: bool = False, frames: bool = True
) -> tuple[list[bytes], dict[str, Any]]:
    """What the client gets for each read of the backend's socket, and the tally."""
    passage = Stream(Tally(), cuts_usage=cuts_usage, adds_done=adds_done)
    body = wire.ChunkedBody()
    out = [passage.pass_on(piece, body.feed(piece), frames) for piece in pieces]
    assert body.close()
    return out, told(passage.tally)


@given(answers(), cut_points, cut_points)
def test_the_client_gets_what_the_backend_said_however_it_is_cut(
    frames: list[bytes], chunks: list[int], points: list[int]
) -> None:
    text = b"".join(frames)
    raw = chunked(text, chunks)

    out, tally = relayed(cut(raw, points))

    assert entity_of(b"".join(out)) == text
    assert tally == relayed([raw])[1]
    assert b"".join(relayed(cut(raw, points), frames=False)[0]) == text


@given(answers(), cut_points, cut_points)
def test_the_usage_frame_nobody_asked_for_is_taken_out_and_no_other_byte(
    frames: list[bytes], chunks: list[int], points: list[int]
) -> None:
    raw = chunked(b"".join(frames), chunks)

    out, tally = relayed(cut(raw, points), cuts_usage=True)

    assert entity_of(b"".join(out)) == b"".join(f for f in frames if f is not USAGE)
    assert tally == relayed([raw], cuts_usage=False)[1]


@given(answers(), st.integers(min_value=0), cut_points, st.booleans())
def test_a_broken_off_stream_is_whole_chunks_with_an_error_and_no_done(
    frames: list[bytes], end: int, points: list[int], cuts_usage: bool
) -> None:
    text = b"".join(frame for frame in frames if frame is not DONE)
    raw = chunked(text, points)[: -len(wire.LAST_CHUNK)]
    passage = Stream(Tally(), cuts_usage=cuts_usage, adds_done=True)
    body, out = wire.ChunkedBody(), b""
    for piece in cut(raw[: end % (len(raw) + 1)], points):
        out += passage.pass_on(piece, body.feed(piece), True)

    out += passage.break_off(b'{"error":{"message":"gone"}}', True)

    events = sse.EventSplitter()
    found = events.feed(entity_of(out))
    assert events.held == b""
    assert found[-1].data == b'{"error":{"message":"gone"}}'
    assert b"[DONE]" not in entity_of(out)


@given(answers(), cut_points)
def test_no_whole_frame_is_held_back(frames: list[bytes], points: list[int]) -> None:
    """At every moment the client has all whole frames, and of the open one what has no end yet."""
    text = b"".join(frames)
    passage = Stream(Tally(), cuts_usage=False, adds_done=False)
    body, sent, seen = wire.ChunkedBody(), b"", b""
    for payload in cut(text, points):
        raw = wire.chunk(payload)
        sent += passage.pass_on(raw, body.feed(raw), False)
        seen += payload
        splitter = sse.EventSplitter()
        whole = b"".join(event.raw for event in splitter.feed(seen))
        is_clear = b'"choices": [{' in splitter.held and b'"finish_reason"' not in splitter.held
        wanted = seen if is_clear else whole
        assert sent.startswith(wanted)


def test_the_beginning_of_a_frame_with_choices_goes_out_at_once() -> None:
    passage = Stream(Tally(), cuts_usage=True, adds_done=False)
    body = wire.ChunkedBody()
    first = wire.chunk(delta(content="a long text")[:60])

    assert passage.pass_on(first, body.feed(first), True) == first


def test_a_comment_is_not_held_back() -> None:
    passage = Stream(Tally(), cuts_usage=True, adds_done=False)
    raw = wire.chunk(b": keep-alive\n\n")

    assert passage.pass_on(raw, wire.ChunkedBody().feed(raw), True) == raw


def test_a_usage_frame_cut_anywhere_is_taken_out() -> None:
    text = delta(content="é") + FINISH + USAGE + DONE
    for at in range(len(text)):
        raw = wire.chunk(text[:at]) + wire.chunk(text[at:]) + wire.LAST_CHUNK
        out, tally = relayed([raw[: at + 9], raw[at + 9 :]], cuts_usage=True)
        assert entity_of(b"".join(out)) == delta(content="é") + FINISH + DONE
        assert (tally["input_tokens"], tally["output_tokens"]) == (7, 5)


def test_what_is_counted_is_what_was_said() -> None:
    text = delta(reasoning_content="思考") + delta(content="答え😀") + FINISH + USAGE + DONE

    _, tally = relayed([chunked(text, [])])

    assert tally == {
        "answer_chars": 3,
        "reasoning_chars": 2,
        "finish_reason": "stop",
        "input_tokens": 7,
        "output_tokens": 5,
        "cached_tokens": 4,
        "reasoning_tokens": 2,
        "has_token": True,
        "has_done": True,
        "error": None,
    }


def test_a_role_alone_is_no_token() -> None:
    assert not relayed([chunked(delta(role="assistant", content=""), [])])[1]["has_token"]


@settings(max_examples=20, deadline=None)
@given(cut_points)
def test_a_very_long_line_passes_however_it_is_cut(points: list[int]) -> None:
    text = delta(content="x" * (1 << 20)) + delta(content="y") + FINISH + DONE
    raw = chunked(text, [point * 17 for point in points])

    out, tally = relayed(cut(raw, [point * 16 for point in points]), cuts_usage=True)

    assert entity_of(b"".join(out)) == text
    assert tally == relayed([raw])[1]


def test_a_very_long_line_is_counted_the_same_however_it_is_cut() -> None:
    text = delta(content="x" * (2 << 20)) + FINISH
    raw = chunked(text, [])

    assert relayed([raw[:-200], raw[-200:]])[1] == relayed([raw])[1]


def test_a_stream_broken_off_inside_a_very_long_line_still_tells_its_error() -> None:
    passage = Stream(Tally(), cuts_usage=False, adds_done=False)
    raw = wire.chunk(delta(content="x" * (3 << 20))[: 2 << 20])
    out = passage.pass_on(raw, wire.ChunkedBody().feed(raw), True)

    out += passage.break_off(b'{"error":{}}', True)

    assert sse.EventSplitter().feed(entity_of(out))[-1].data == b'{"error":{}}'


@pytest.mark.parametrize(
    ("frames", "adds_done", "has_added"),
    [
        ([delta(content="a"), FINISH], True, True),
        ([delta(content="a"), FINISH], False, False),
        ([delta(content="a"), FINISH, DONE], True, False),
        ([delta(content="a")], True, False),
        ([delta(content="a"), frame(error="it broke")], True, False),
    ],
)
def test_done_is_added_where_a_finished_stream_lacks_it(
    frames: list[bytes], adds_done: bool, has_added: bool
) -> None:
    text = b"".join(frames)
    for points in ([], [len(text)], [10, 20], list(range(1, len(text), 7))):
        out, _ = relayed(cut(chunked(text, points), points), adds_done=adds_done)
        entity = entity_of(b"".join(out))
        assert entity.endswith(DONE) == (has_added or DONE in frames)
        assert entity.count(b"[DONE]") == int(has_added) + (DONE in frames)


def test_an_added_done_is_an_event_of_its_own() -> None:
    text = delta(content="a") + FINISH + b": bye"

    out, _ = relayed([chunked(text, [])], adds_done=True)

    assert sse.EventSplitter().feed(entity_of(b"".join(out)))[-1].data == b"[DONE]"


def test_done_is_added_where_the_connection_ends_the_stream() -> None:
    passage = Stream(Tally(), cuts_usage=False, adds_done=True)
    text = delta(content="a") + FINISH
    out = passage.pass_on(text, wire.UntilCloseBody().feed(text), True) + passage.end(True)

    assert entity_of(out) == text + DONE


def test_a_stream_that_its_connection_ends_gets_its_last_chunk() -> None:
    passage = Stream(Tally(), cuts_usage=True, adds_done=False)
    text = delta(content="a") + b'data: {"id":'
    out = passage.pass_on(text, wire.UntilCloseBody().feed(text), True) + passage.end(True)

    assert entity_of(out) == text


@given(cut_points)
def test_an_error_said_as_text_is_put_in_shape(points: list[int]) -> None:
    text = delta(content="a") + frame(error="it broke")

    out, tally = relayed(cut(chunked(text, points), points))

    *_, last = sse.EventSplitter().feed(entity_of(b"".join(out)))
    assert json.loads(last.data)["error"]["message"] == "it broke"
    assert set(json.loads(last.data)["error"]) == {"message", "type", "param", "code"}
    assert tally["error"] == "it broke"


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": 7, "completion_tokens": 5, "prompt_tokens_details": None},
        {"prompt_tokens": 7, "completion_tokens": 5, "extra": {"deep": [1]}},
        {"prompt_tokens": 7, "completion_tokens": 5, "completion_tokens_details": {}},
        {"input_tokens": 7, "output_tokens": 5},
    ],
)
def test_usage_is_read_in_every_shape_engines_use(usage: dict[str, Any]) -> None:
    _, tally = relayed([chunked(frame(choices=[], usage=usage), [])])

    assert (tally["input_tokens"], tally["output_tokens"]) == (7, 5)


# --- replies that are no stream ---------------------------------------------------------

REPLY = {
    "choices": [
        {"message": {"content": "答え", "reasoning_content": "hm"}, "finish_reason": "stop"}
    ],
    "usage": {"prompt_tokens": 7, "completion_tokens": 5},
}


def passed_whole(raw: bytes, body: wire.Body, points: list[int], coding: bytes = b"") -> Whole:
    passage = Whole(Tally(), coding)
    out = b""
    for piece in cut(raw, points):
        out += passage.pass_on(piece, body.feed(piece), isinstance(body, wire.ChunkedBody))
    assert out == raw or entity_of(out) == entity_of(raw)
    return passage


@given(cut_points)
def test_a_whole_reply_passes_and_is_read_at_its_end(points: list[int]) -> None:
    text = json.dumps(REPLY).encode()
    for raw, body in (
        (text, wire.LengthBody(len(text))),
        (chunked(text, points), wire.ChunkedBody()),
    ):
        passage = passed_whole(raw, body, points)
        tally = told(passage.tally)
        assert (tally["answer_chars"], tally["reasoning_chars"]) == (2, 2)
        assert (tally["input_tokens"], tally["finish_reason"]) == (7, "stop")


@pytest.mark.parametrize("coding", [b"", b"identity", b"gzip"])
def test_a_compressed_reply_passes_compressed_and_is_read_all_the_same(coding: bytes) -> None:
    text = json.dumps(REPLY).encode()
    raw = gzip.compress(text) if coding == b"gzip" else text

    passage = passed_whole(raw, wire.LengthBody(len(raw)), [5], coding)

    assert passage.tally.output_tokens == 5


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"choices":5}'])
def test_a_reply_that_cannot_be_read_passes_uncounted(raw: bytes) -> None:
    passage = passed_whole(raw, wire.LengthBody(len(raw)), [1])

    assert passage.tally.output_tokens is None


def test_a_reply_ended_by_its_connection_is_read() -> None:
    passage = Whole(Tally(), b"")
    text = json.dumps(REPLY).encode()
    out = passage.pass_on(text, wire.UntilCloseBody().feed(text), True)

    assert entity_of(out + passage.end(True)) == text
    assert passage.tally.output_tokens == 5


# --- errors in every shape ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":{"message":"m","type":"t","param":null,"code":400}}', "m"),
        (b'{"error":{"code":400,"message":"m","type":"exceed_context_size_error"}}', "m"),
        (b'{"error":"m"}', "m"),
        (b'{"detail":"m"}', "m"),
        (b'{"detail":[{"loc":["a"],"msg":"b"}]}', '[{"loc":["a"],"msg":"b"}]'),
        (b'{"object":"error","message":"m","type":"t","param":null,"code":40001}', "m"),
        (b'{"message":"m"}', "m"),
        (b"Internal Server Error", "Internal Server Error"),
        (b"", "The backend answered with status 500."),
        (b"null", None),
        (b"[1]", "[1]"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b'{"error":null}', None),
        (b'{"error":{}}', None),
        (b'"m"', "m"),
    ],
)
def test_every_error_of_a_backend_gets_the_shape_clients_read(
    body: bytes, message: str | None
) -> None:
    error = json.loads(refusals.in_shape(500, body))["error"]

    # One that clients can read already stays as it came, be it without a member they do not need.
    assert set(error) >= {"message", "type", "code"}
    assert isinstance(error["message"], str)
    assert isinstance(error["type"], str)
    assert message is None or error["message"] == message


@given(st.binary(max_size=60), st.sampled_from([400, 422, 500, 503]))
def test_any_error_body_becomes_an_error_object(body: bytes, status: int) -> None:
    error = json.loads(refusals.in_shape(status, body))["error"]

    assert isinstance(error["message"], str)
    assert error["message"]


@pytest.mark.parametrize(
    ("error", "text"),
    [("gone", "gone"), ({"message": "gone"}, "gone"), ({}, ""), ([1], None), (5, None)],
)
def test_an_error_inside_an_answer_is_told_in_whichever_shape(error: Any, text: str | None) -> None:
    told_error = relayed([chunked(frame(error=error), [])])[1]["error"]

    assert isinstance(told_error, str)
    assert text is None or told_error == text


def test_an_error_of_null_is_none() -> None:
    assert relayed([chunked(frame(error=None), [])])[1]["error"] is None


# --- the express ----------------------------------------------------------------------------


def by_express(
    pieces: list[bytes], *, cuts_usage: bool, adds_done: bool
) -> tuple[bytes, Tally, int]:
    """A stream as `upstream` passes it: whole chunks by express wherever that is allowed."""
    body = wire.ChunkedBody()
    passage = Stream(Tally(), cuts_usage=cuts_usage, adds_done=adds_done)
    out, taken, allowed = b"", 0, False
    for data in pieces:
        if allowed and passage.express(data):
            out, taken = out + data, taken + 1
            continue
        out += passage.pass_on(data, body.feed(data), True)
        allowed = body.is_between() and passage.is_clear
    passage.count()
    return out, passage.tally, taken


def held(tally: Tally) -> dict[str, object]:
    """All that a tally holds, whether or not its class is compiled."""
    names = [name for name in dir(tally) if not name.startswith("_")]
    values = {name: getattr(tally, name) for name in names}
    return {name: value for name, value in values.items() if not callable(value)}


@given(frames=answers(), again=st.integers(1, 40), cuts=st.booleans(), adds=st.booleans())
def test_by_express_the_client_and_the_record_get_the_same(
    frames: list[bytes], again: int, cuts: bool, adds: bool
) -> None:
    tokens = [delta(content="a"), *[delta(content=" b")] * again]
    pieces = [wire.chunk(text) for text in [*tokens, *frames]] + [wire.LAST_CHUNK]

    out, tally, taken = by_express(pieces, cuts_usage=cuts, adds_done=adds)

    body = wire.ChunkedBody()
    plain = Stream(Tally(), cuts_usage=cuts, adds_done=adds)
    wanted = b"".join(plain.pass_on(data, body.feed(data), True) for data in pieces)
    assert entity_of(out) == entity_of(wanted)
    assert held(tally) == held(plain.tally)
    assert taken >= again


#: what a token's event holds besides its text: mostly the same all along, and now and then not
BESIDES: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [{}, {}, {}, {"created": 1}, {"logprobs": None}, {"x": '"content":"b"'}]
)
TEXTS = st.one_of(
    st.sampled_from([" b", "", "ä", "好", '"', "\\", "\n", "think", '","content":"c']), st.text()
)


@st.composite
def tokens(draw: st.DrawFn) -> bytes:
    told = draw(
        st.sampled_from(["content", "content", "content", "reasoning", "reasoning_content"])
    )
    part = {told: draw(TEXTS), **draw(st.sampled_from([{}, {}, {"role": "assistant"}]))}
    choices = [{"index": 0, "delta": part, "finish_reason": None}] * draw(
        st.sampled_from([1, 1, 2])
    )
    members = {"id": "c", **draw(BESIDES), "choices": choices}
    apart = draw(st.sampled_from([(",", ":"), (", ", ": ")]))
    is_escaped = draw(st.booleans())
    text = json.dumps(members, ensure_ascii=is_escaped, separators=apart)
    return sse.event(text.encode("utf-8", "surrogatepass"))


@given(events=st.lists(tokens(), min_size=2, max_size=80))
def test_events_that_differ_in_their_text_alone_are_counted_as_all_others(
    events: list[bytes],
) -> None:
    pieces = [wire.chunk(text) for text in [delta(content="a"), *events]] + [wire.LAST_CHUNK]

    out, tally, _ = by_express(pieces, cuts_usage=True, adds_done=True)

    body = wire.ChunkedBody()
    plain = Stream(Tally(), cuts_usage=True, adds_done=True)
    wanted = b"".join(plain.pass_on(data, body.feed(data), True) for data in pieces)
    assert entity_of(out) == entity_of(wanted)
    assert held(tally) == held(plain.tally)


def test_of_events_that_are_alike_no_more_is_read_than_their_text() -> None:
    said = [f" {number % 10}" for number in range(100)]
    raw = [delta(content=text) for text in said]
    pieces = [wire.chunk(text) for text in raw]
    body = wire.ChunkedBody()
    passage = Stream(Tally(), cuts_usage=True, adds_done=True)
    passage.pass_on(pieces[0], body.feed(pieces[0]), True)
    shape = shape_of(raw[0], frame_in(sse.data_of(raw[0])))

    assert shape is not None
    assert [shape.text_in(piece) for piece in pieces] == [text.encode() for text in said]
    assert all(passage.express(piece) for piece in pieces[1:])
    passage.count()
    assert passage.tally.answer_chars == sum(map(len, said))


@given(data=st.data())
def test_a_chunk_that_is_not_whole_or_not_one_is_no_express_matter(data: st.DataObject) -> None:
    good = wire.chunk(delta(content="a text"))
    passage = Stream(Tally(), cuts_usage=True, adds_done=True)
    passage.pass_on(good, wire.ChunkedBody().feed(good), True)
    at = data.draw(st.integers(0, len(good)))
    bad = good[:at] + data.draw(st.binary(max_size=3)) + good[at + data.draw(st.integers(0, 3)) :]

    if passage.express(bad):
        body = wire.ChunkedBody()
        piece = body.feed(bad)
        assert piece.is_whole
        assert len(piece.payloads) == 1
        assert len(sse.EventSplitter().feed(piece.payloads[0])) == 1


@pytest.mark.parametrize(
    "data",
    [
        wire.chunk(USAGE),
        wire.chunk(frame(error="out of memory")),
        wire.chunk(delta(content="a") + delta(content="b")),
        wire.chunk(delta(content="a"))[:-1],
        wire.chunk(delta(content="a")[:-1]),
        wire.chunk(delta(content="a")) + b"0",
        b"5\r\ndata:\n\n\r\n",
        b"-6\r\ndata:\n\n\r\n",
        b": 1\n\n",
        wire.LAST_CHUNK,
    ],
)
def test_what_may_have_to_be_cut_or_mended_is_no_express_matter(data: bytes) -> None:
    passage = Stream(Tally(), cuts_usage=True, adds_done=False)

    assert not passage.express(data)


# --- ends by other names ------------------------------------------------------------------------


@given(cut_points)
def test_an_end_by_another_name_gets_the_one_that_clients_know(points: list[int]) -> None:
    end = frame(id="c", choices=[{"index": 0, "delta": {}, "finish_reason": "eos_token"}])

    out, tally = relayed(cut(chunked(delta(content="a") + end + DONE, []), points))

    events = sse.EventSplitter().feed(entity_of(b"".join(out)))
    reasons = [json.loads(e.data)["choices"][0].get("finish_reason") for e in events[:-1]]
    assert reasons == [None, "stop"]
    assert tally["finish_reason"] == "stop"


@pytest.mark.parametrize("between", [b'": "', b'":"'])
def test_an_end_that_comes_in_one_piece_is_no_express_matter(between: bytes) -> None:
    end = frame(id="c", choices=[{"index": 0, "delta": {}, "finish_reason": "max_tokens"}])
    written = end.replace(b'": "', between)
    tokens = [wire.chunk(delta(content="a"))] * 3

    out, tally, _ = by_express(
        [*tokens, wire.chunk(written), wire.LAST_CHUNK], cuts_usage=False, adds_done=True
    )

    assert b'"finish_reason%blength"' % between in out
    assert tally.finish_reason == "length"


def test_what_unpacks_to_more_than_is_looked_at_is_not_looked_at() -> None:
    """A part of it would be taken for the whole."""
    whole, more = b" " * relay.WHOLE_LIMIT, b" " * (relay.WHOLE_LIMIT + 1)

    assert relay.decoded(gzip.compress(whole), b"gzip") == whole
    assert relay.decoded(gzip.compress(more), b"gzip") == b""
    assert relay.decoded(gzip.compress(b"{}")[:-9], b"gzip") == b""
