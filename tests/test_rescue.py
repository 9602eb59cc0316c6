"""Two answers joined to one: one id, one role, one end, every tag closed once."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import sse, wire
from router.bridge import MODES, Bridge
from router.message import AnswerHead
from router.relay import Stream
from router.rescue import Joint, SecondTry, added, joined
from router.tally import Tally
from router.wire import Piece
from tests.support.strategies import cut, cut_points, json_values
from tests.support.thoughts import CLOSE, OPEN, chunk, encoded, said_whole, whole
from tests.support.thoughts import joined as heard

Said = dict[str, Any]
DONE = b"[DONE]"
FIRST_USAGE = {"prompt_tokens": 15, "completion_tokens": 64, "total_tokens": 79}
SECOND_USAGE = {"prompt_tokens": 19, "completion_tokens": 5, "total_tokens": 24}
SUM = {"prompt_tokens": 15, "completion_tokens": 69, "total_tokens": 84}
USAGE: Said = {**chunk({}), "choices": [], "usage": FIRST_USAGE}

#: the ends of answers that thought used up, as servers stream them
FIRSTS: dict[str, list[Said]] = {
    "tags": [
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": f"{OPEN}\nWell"}),
        chunk({"content": ", let"}, "length"),
    ],
    "an opening tag": [chunk({"role": "assistant", "content": OPEN}, "length")],
    "half a closing tag": [chunk({"content": f"{OPEN}Well</thi"}), chunk({}, "length")],
    "a closed thought": [chunk({"content": f"{OPEN}Well{CLOSE}\n\n"}), chunk({}, "length")],
    "reasoning": [
        chunk({"role": "assistant", "content": ""}),
        chunk({"reasoning": "Well"}),
        chunk({"reasoning": ", let"}, "length"),
    ],
    "reasoning_content": [
        chunk({"role": "assistant", "content": None}),
        chunk({"reasoning_content": "Well"}),
        chunk({"reasoning_content": ", let"}),
        chunk({}, "length"),
    ],
    "nothing": [chunk({"role": "assistant", "content": ""}), chunk({}, "length")],
}
SECONDS: dict[str, list[Said]] = {
    "plain": [
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "\n\nThe"}),
        chunk({"content": " Rhine."}),
        chunk({"content": ""}, "stop"),
    ],
    "an empty thought": [
        chunk({"role": "assistant"}),
        chunk({"reasoning_content": "\n\n"}),
        chunk({"content": "\n\nThe Rhine."}),
        chunk({}, "stop"),
    ],
    "empty tags": [chunk({"content": f"{OPEN}\n\n{CLOSE}\n\nThe Rhine."}, "stop")],
}


def another_id(documents: list[Said]) -> list[Said]:
    return [{**part, "id": "c-2", "created": 9} for part in documents]


class Told:
    """A client of two streams joined: the events it got of each."""

    def __init__(
        self, first: list[Said], mode: str, *, wants_usage: bool = True, ends: bool = True
    ) -> None:
        self.tally = Tally()
        self.bridge = Bridge(mode, thinking=True)
        self.stream = Stream(
            self.tally,
            cuts_usage=not wants_usage,
            adds_done=True,
            bridge=self.bridge,
            rescues=True,
        )
        datas = [*map(encoded, first), DONE] if ends else [*map(encoded, first)]
        text = b"".join(map(sse.event, datas))
        raw = wire.chunk(text) + wire.LAST_CHUNK
        self.before = events_in(self.stream.pass_on(raw, wire.ChunkedBody().feed(raw), False))
        assert self.stream.is_empty_handed
        self.joint = Joint(self.stream, self.bridge, self.tally)

    def hear(self, second: list[Said]) -> list[bytes]:
        return [
            data
            for part in second
            if (text := self.joint.event(encoded(part)))
            for data in events_in(text)
        ]


def events_in(text: bytes) -> list[bytes]:
    splitter = sse.EventSplitter()
    found = [event.data for event in splitter.feed(text)]
    assert splitter.held == b""
    return found


def read(datas: list[bytes]) -> list[Said]:
    return [json.loads(data) for data in datas if data != DONE]


# --- streams --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("first", FIRSTS.values(), ids=FIRSTS.keys())
@pytest.mark.parametrize("second", SECONDS.values(), ids=SECONDS.keys())
def test_the_client_reads_one_answer(mode: str, first: list[Said], second: list[Said]) -> None:
    told = Told([*first, USAGE], mode)
    after = told.hear(another_id([*second, {**USAGE, "usage": SECOND_USAGE}]))
    end = events_in(told.joint.end(tells_usage=True))

    assert told.joint.is_finished
    assert end[-1] == DONE
    assert [*told.before, *after].count(DONE) == 0
    documents = read([*told.before, *after, *end])
    assert {part["id"] for part in documents} == {"c-1"}
    assert {part["created"] for part in documents} == {7}
    assert sum("role" in c["delta"] for p in documents for c in p["choices"]) <= 1
    [said] = heard(documents).values()
    assert said["finish"] == "stop"
    if "empty tags" in str(second) or mode != "keep":
        assert said["content"].count(OPEN) == said["content"].count(CLOSE)
    assert said["content"].endswith("The Rhine.")
    if mode in ("field", "drop"):
        assert said["content"] == "The Rhine."
    assert documents[-1]["usage"] == SUM
    assert [part for part in documents[:-1] if part.get("usage")] == []


@pytest.mark.parametrize("name", ["tags", "an opening tag", "a closed thought"])
@pytest.mark.parametrize("mode", ["inline", "keep"])
def test_a_tag_that_is_open_is_closed_once(mode: str, name: str) -> None:
    told = Told(FIRSTS[name], mode)

    [said] = heard(read([*told.before, *told.hear(SECONDS["plain"])])).values()

    # A thought of nothing but its tag was never shown where tags are ours.
    tags = 0 if (mode, name) == ("inline", "an opening tag") else 1
    assert (said["content"].count(OPEN), said["content"].count(CLOSE)) == (tags, tags)
    assert said["content"].rpartition(CLOSE)[2].strip() == "The Rhine."


@pytest.mark.parametrize("mode", ["inline", "keep"])
def test_a_tool_call_closes_the_tag_too(mode: str) -> None:
    call = {"index": 0, "id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    told = Told(FIRSTS["tags"], mode)

    after = told.hear([chunk({"role": "assistant", "tool_calls": [call]}), chunk({}, "tool_calls")])

    [said] = heard(read([*told.before, *after])).values()
    assert said["content"].count(OPEN) == said["content"].count(CLOSE) == 1
    assert said["tool_calls"] == [call]
    assert said["finish"] == "tool_calls"


@pytest.mark.parametrize("wants_usage", [True, False])
def test_both_are_counted_and_the_prompt_once(wants_usage: bool) -> None:
    told = Told([*FIRSTS["tags"], USAGE], "field", wants_usage=wants_usage)
    told.hear([*SECONDS["plain"], {**USAGE, "usage": SECOND_USAGE}])

    tally = told.tally
    assert (tally.input_tokens, tally.output_tokens) == (15, 69)
    assert tally.finish_reason == "stop"
    assert tally.reasoning_chars == len("Well, let")
    end = events_in(told.joint.end(tells_usage=wants_usage))
    assert end[-1] == DONE
    assert [part["usage"] for part in read(end)] == ([SUM] if wants_usage else [])


def test_usage_that_is_told_with_every_token_is_counted_once() -> None:
    told = Told([*FIRSTS["tags"], USAGE], "field")
    running = [
        {**part, "usage": {**SECOND_USAGE, "completion_tokens": count}}
        for count, part in enumerate(SECONDS["plain"], 2)
    ]

    told.hear(running)

    assert told.tally.output_tokens == 64 + 5
    assert read(events_in(told.joint.end(tells_usage=True)))[-1]["usage"] == SUM


def test_usage_that_rides_on_the_last_frame_is_added_as_well() -> None:
    first = [*FIRSTS["reasoning_content"][:-1], {**chunk({}, "length"), "usage": FIRST_USAGE}]
    told = Told(first, "field", ends=False)

    told.hear([*SECONDS["plain"][:-1], {**chunk({}, "stop"), "usage": SECOND_USAGE}])

    assert read(events_in(told.joint.end(tells_usage=True)))[-1]["usage"] == SUM


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("first", FIRSTS.values(), ids=FIRSTS.keys())
def test_without_a_second_it_ends_as_it_would_have(
    first: list[Said], mode: str, ends: bool
) -> None:
    told = Told([*first, USAGE], mode, ends=ends)

    got = [*told.before, *events_in(told.joint.as_it_was())]

    assert got[-1] == DONE
    assert got.count(DONE) == 1
    alone = Bridge(mode, thinking=True)
    wanted = []
    for part in [*first, USAGE]:
        data = alone.event(encoded(part))
        if data != b"":
            wanted.append(part if data is None else json.loads(data))
    documents = read(got)
    assert heard(documents) == heard(wanted)
    assert documents[-1]["usage"] == FIRST_USAGE


@pytest.mark.parametrize("data", [b"{", b"null", b"[1]", b'{"error":"it broke"}', b"\xff"])
def test_what_is_no_part_of_an_answer_is_not_passed_on(data: bytes) -> None:
    told = Told(FIRSTS["reasoning"], "field")

    assert told.joint.event(data) == b""
    assert not told.joint.has_spoken
    assert not told.joint.is_finished


@given(st.lists(st.fixed_dictionaries({"choices": json_values, "usage": json_values}), max_size=3))
def test_no_document_makes_it_fall(documents: list[Any]) -> None:
    told = Told(FIRSTS["reasoning"], "inline")
    for document in [*documents, {"choices": [{"delta": 1}, 2, {"delta": {"content": []}}]}]:
        told.joint.event(encoded(document))

    assert events_in(told.joint.end(tells_usage=True))[-1] == DONE


# --- wholes ---------------------------------------------------------------------------------

WHOLES: dict[str, Said] = {
    "tags": {"content": f"{OPEN}\nWell, let"},
    "a closed thought": {"content": f"{OPEN}Well{CLOSE}\n\n"},
    "reasoning": {"content": None, "reasoning": "Well, let"},
    "reasoning_content": {"content": "", "reasoning_content": "Well, let"},
    "nothing": {"content": ""},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("message", WHOLES.values(), ids=WHOLES.keys())
def test_two_wholes_are_one(mode: str, message: Said) -> None:
    first = whole(dict(message), "length", usage=FIRST_USAGE)
    second = {**whole({"content": "\n\nThe Rhine."}, usage=SECOND_USAGE), "id": "c-2", "created": 9}
    bridge = Bridge(mode, thinking=True)
    bridge.turn(first)

    document = joined(first, second, bridge)

    assert (document["id"], document["created"], document["model"]) == ("c-1", 7, "m")
    assert document["usage"] == SUM
    said = said_whole(document)[0]
    assert said["finish"] == "stop"
    content = said["content"]
    assert content.endswith("The Rhine.")
    assert content.count(OPEN) == content.count(CLOSE)
    if mode == "field" or (mode == "keep" and "reasoning" in str(message)):
        assert content == "The Rhine."
        has_thought = "reasoning_content" in said or "reasoning" in said
        assert has_thought == (message != {"content": ""})
    if mode == "drop":
        assert said == {"role": "assistant", "content": "The Rhine.", "finish": "stop"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", WHOLES)
def test_a_whole_says_what_the_stream_says(mode: str, name: str) -> None:
    first = whole(dict(WHOLES[name]), "length")
    bridge = Bridge(mode, thinking=True)
    bridge.turn(first)
    told = Told(FIRSTS[name], mode)

    document = joined(first, whole({"content": "\n\nThe Rhine."}), bridge)

    [said] = heard(read([*told.before, *told.hear(SECONDS["plain"])])).values()
    assert {"role": "assistant", **said} == said_whole(document)[0]


@pytest.mark.parametrize("mode", ["inline", "keep"])
def test_a_thought_in_the_text_stays_before_a_tool_call(mode: str) -> None:
    call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    first = whole({"content": f"{OPEN}Well"}, "length")
    bridge = Bridge(mode, thinking=True)
    bridge.turn(first)

    document = joined(first, whole({"content": None, "tool_calls": [call]}, "tool_calls"), bridge)

    said = said_whole(document)[0]
    assert said["tool_calls"] == [call]
    assert said["content"].split() == [OPEN, "Well", CLOSE] or said["content"].startswith(OPEN)
    assert said["content"].count(OPEN) == said["content"].count(CLOSE) == 1


@given(json_values, json_values)
def test_no_whole_makes_it_fall(choices: Any, usage: Any) -> None:
    first = whole({"content": None, "reasoning": "Well"}, "length", usage=FIRST_USAGE)

    document = joined(first, {"choices": choices, "usage": usage}, Bridge("inline", thinking=True))

    assert document["id"] == "c-1"


@pytest.mark.parametrize(
    ("first", "second", "total"),
    [
        (FIRST_USAGE, SECOND_USAGE, SUM),
        (None, SECOND_USAGE, SECOND_USAGE),
        (FIRST_USAGE, None, FIRST_USAGE),
        (None, None, None),
        ({"prompt_tokens": 1}, {"prompt_tokens": 2, "completion_tokens": 3}, {"prompt_tokens": 1}),
        (FIRST_USAGE, {"completion_tokens": None}, FIRST_USAGE),
    ],
)
def test_the_prompt_is_counted_once(first: Any, second: Any, total: Any) -> None:
    before = json.dumps([first, second])

    assert added(first, second) == total
    assert json.dumps([first, second]) == before


# --- listening to the second ----------------------------------------------------------------

SSE = [(b"content-type", b"text/event-stream")]
JSON = [(b"content-type", b"application/json")]


class Heard:
    """What a SecondTry told."""

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self.overs: list[bytes | None] = []
        self.listener = SecondTry(self.events.append, self.overs.append)


def head(status: int, headers: list[tuple[bytes, bytes]]) -> AnswerHead:
    lines = [b"HTTP/1.1 %d x" % status, *(b"%b: %b" % header for header in headers)]
    return wire.answer_head(b"\r\n".join(lines))


@given(cut_points)
def test_a_stream_is_heard_event_by_event(points: list[int]) -> None:
    told = Heard()
    told.listener.on_head(head(200, SSE), has_more=True)
    pieces = cut(b"data: 1\n\n: hm\n\ndata: 2\n\ndata: [DONE]\n\n", points)

    for at, piece in enumerate(pieces):
        assert told.overs == []
        told.listener.on_piece(piece, Piece([piece], False, at == len(pieces) - 1, b""))

    assert told.events == [b"1", b"2"]
    assert told.overs == [b""]


@given(st.binary(min_size=1, max_size=30), cut_points, st.booleans())
def test_a_whole_is_heard_at_its_end(body: bytes, points: list[int], is_zipped: bool) -> None:
    told = Heard()
    sent = gzip.compress(body) if is_zipped else body
    fields = [*JSON, (b"content-encoding", b"gzip")] if is_zipped else JSON
    told.listener.on_head(head(200, fields), has_more=True)
    for piece in cut(sent, points):
        told.listener.on_piece(piece, Piece([piece], False, False, b""))
    told.listener.on_end()

    assert (told.events, told.overs) == ([], [body])


def test_a_whole_in_one_read_is_heard_once() -> None:
    told = Heard()

    told.listener.on_whole(head(200, JSON), b"{}")

    assert told.overs == [b"{}"]


@pytest.mark.parametrize("status", [204, 400, 422, 500, 503])
@pytest.mark.parametrize("fields", [SSE, JSON])
def test_a_refusal_is_no_answer(status: int, fields: list[tuple[bytes, bytes]]) -> None:
    told = Heard()
    told.listener.on_whole(head(status, fields), b'data: {"choices":[]}\n\n')

    assert (told.events, told.overs) == ([], [None])


def test_a_failure_is_no_answer() -> None:
    told = Heard()
    told.listener.on_head(head(200, SSE), has_more=False)
    told.listener.on_failure(OSError(), may_retry=False)

    assert told.overs == [None]
