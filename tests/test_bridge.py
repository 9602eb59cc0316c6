"""Where a thought stands: the same in a stream as in a whole, whichever server told it how."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.bridge import MODES, Bridge, document_in, says_something, sees
from tests.support.strategies import json_objects, json_values
from tests.support.thoughts import (
    CLOSE,
    OPEN,
    chunk,
    cut_points,
    cut_text,
    encoded,
    joined,
    plain_texts,
    said_texts,
    said_whole,
    tagged_texts,
    whole,
)

#: how servers tell a thought
FORMS = ("tags", "reasoning", "reasoning_content")
CALLS = [{"index": 0, "id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
#: what may stand in a stream's first document beside the role
FIRSTS: list[dict[str, Any] | None] = [
    None,
    {"role": "assistant"},
    {"role": "assistant", "content": ""},
    {"role": "assistant", "content": None},
]
Said = dict[str, Any]


@st.composite
def told(draw: st.DrawFn) -> tuple[list[Said], Said]:
    """An answer as one server tells it: the documents of its stream, and its whole document."""
    form = draw(st.sampled_from(FORMS))
    thought, answer = draw(plain_texts), draw(plain_texts)
    message: Said = {"content": answer or draw(st.sampled_from(["", None]))}
    if form == "tags":
        content = f"{OPEN}{thought}{CLOSE}{answer}"
        message["content"] = content
        deltas: list[Said] = [{"content": piece} for piece in cut_text(content, draw(cut_points))]
    else:
        message[form] = thought or draw(st.sampled_from(["", None]))
        deltas = [{form: piece} for piece in cut_text(thought, draw(cut_points))]
        beside: list[Said] = [{}, {"content": None}, {"content": ""}]
        with_content = draw(st.sampled_from(beside))
        deltas = [{**delta, **with_content} for delta in deltas]
        deltas += [{"content": piece} for piece in cut_text(answer, draw(cut_points))]
    finish = draw(st.sampled_from(["stop", "length"]))
    if draw(st.booleans()):
        finish = "tool_calls"
        message["tool_calls"] = CALLS
        deltas.append({"tool_calls": CALLS})
    first = draw(st.sampled_from(FIRSTS))
    if first is not None:
        deltas.insert(0, first)
    return in_a_stream(draw, deltas, finish), whole(message, finish)


def in_a_stream(draw: st.DrawFn, deltas: list[Said], finish: str) -> list[Said]:
    """The documents; the end on one of its own or on the last that says something."""
    if not deltas or draw(st.booleans()):
        deltas = [*deltas, draw(st.sampled_from([{}, {"content": ""}]))]
    return [chunk(delta) for delta in deltas[:-1]] + [chunk(deltas[-1], finish)]


def turned(documents: list[Said], bridge: Bridge) -> list[Said]:
    """What the client gets of a stream."""
    out = []
    for document in documents:
        data = encoded(document)
        got = bridge.event(data)
        if got != b"":
            out.append(json.loads(data if got is None else got))
    return out


def in_whole(document: Said, bridge: Bridge) -> dict[int, Said]:
    document = copy.deepcopy(document)
    bridge.turn(document)
    return said_whole(document)


# --- a stream says what the whole says ------------------------------------------------------


@given(told(), st.sampled_from(MODES), st.sampled_from([True, None]))
def test_a_stream_says_what_the_whole_says(
    answer: tuple[list[Said], Said], mode: str, thinking: bool | None
) -> None:
    documents, document = answer

    of_stream = joined(turned(documents, Bridge(mode, thinking=thinking)))
    of_whole = in_whole(document, Bridge(mode, thinking=thinking))

    for said in (of_stream[0], of_whole[0]):
        said.pop("role", None)  # some servers leave it out of their streams
    assert of_stream == of_whole


@given(st.lists(told(), min_size=2, max_size=3), st.sampled_from(MODES), st.randoms())
def test_choices_do_not_mix(answers: list[tuple[list[Said], Said]], mode: str, dice: Any) -> None:
    queues = []
    for index, (documents, document) in enumerate(answers):
        document["choices"][0]["index"] = index
        for part in documents:
            part["choices"][0]["index"] = index
        queues.append(list(documents))
    mixed = []
    while any(queues):
        mixed.append(dice.choice([queue for queue in queues if queue]).pop(0))
    together = {**answers[0][1], "choices": [doc["choices"][0] for _, doc in answers]}

    bridge = Bridge(mode, thinking=True, is_single=False)
    of_stream = joined(turned(mixed, bridge))
    of_whole = in_whole(together, Bridge(mode, thinking=True, is_single=False))

    for said in (*of_stream.values(), *of_whole.values()):
        said.pop("role", None)
    assert of_stream == of_whole
    assert not bridge.is_settled


@given(plain_texts, plain_texts, st.sampled_from(FORMS), st.sampled_from(MODES))
def test_each_mode_puts_the_thought_where_it_says(
    thought: str, answer: str, form: str, mode: str
) -> None:
    message = {"content": answer, form: thought}
    if form == "tags":
        message = {"content": f"{OPEN}{thought}{CLOSE}{answer}"}
    document = whole(dict(message))

    Bridge(mode, thinking=True).turn(document)

    had_thought = form == "tags" or thought
    clean, rest = thought.strip(), answer.lstrip() if had_thought else answer
    said = document["choices"][0]["message"]
    if mode == "keep":
        assert said == {"role": "assistant", **message}
        return
    wanted: Said = {"role": "assistant", "content": rest}
    if clean and mode == "inline":
        wanted["content"] = f"{OPEN}\n{clean}\n{CLOSE}\n\n{rest}"
    elif clean and mode == "field":
        wanted["reasoning_content"] = clean
    empty = {name: value for name, value in message.items() if not value}
    assert said == {**empty, **wanted}


# --- what is left as it came ----------------------------------------------------------------


@given(told(), st.sampled_from([True, False, None]))
def test_kept_is_kept_to_the_byte(answer: tuple[list[Said], Said], thinking: bool | None) -> None:
    documents, document = answer
    bridge = Bridge("keep", thinking=thinking)

    assert [bridge.event(encoded(part)) for part in documents] == [None] * len(documents)
    assert not Bridge("keep", thinking=thinking).turn(document)


@given(said_texts.map(str.strip), said_texts.map(str.strip), st.sampled_from(FIRSTS))
def test_a_thought_that_is_in_its_field_stays_there_to_the_byte(
    thought: str, answer: str, first: Said | None
) -> None:
    deltas: list[Said] = [first] if first is not None else []
    deltas += [{"reasoning_content": word} for word in thought.split()]
    deltas += [{"content": word} for word in answer.split()]
    documents = [*map(chunk, deltas), chunk({}, "stop")]
    bridge = Bridge("field", thinking=True)

    assert [bridge.event(encoded(part)) for part in documents] == [None] * len(documents)


@pytest.mark.parametrize("mode", MODES)
@given(told())
def test_what_is_not_said_goes_on(mode: str, answer: tuple[list[Said], Said]) -> None:
    documents, document = answer
    document.update(usage={"total_tokens": 3}, service_tier="x")
    document["choices"][0].update(logprobs={"content": [{"token": "a"}]}, stop_reason=7)
    before = copy.deepcopy(document)

    Bridge(mode, thinking=True).turn(document)

    before["choices"][0]["message"] = document["choices"][0]["message"]
    assert document == before
    *_, last = turned([{**part, "tier": "x"} for part in documents], Bridge(mode, thinking=True))
    assert last["tier"] == "x"
    assert last["choices"][0]["finish_reason"] is not None


@pytest.mark.parametrize("mode", MODES)
def test_probabilities_stay_beside_their_words(mode: str) -> None:
    documents = [
        chunk({"role": "assistant", "content": ""}),
        chunk({"reasoning": "hm"}, logprobs={"content": [{"token": "hm"}]}),
        chunk({"content": "Yes"}, logprobs={"content": [{"token": "Yes"}]}),
        chunk({"content": "."}, "stop", logprobs={"content": [{"token": "."}]}),
    ]

    out = turned(documents, Bridge(mode, thinking=True))

    beside = {
        part["choices"][0]["delta"]["content"]: part["choices"][0]["logprobs"]["content"]
        for part in out
        if part["choices"][0]["delta"].get("content") and "logprobs" in part["choices"][0]
    }
    assert [tokens for text, tokens in beside.items() if text.endswith("Yes")] == [
        [{"token": "Yes"}]
    ]
    assert beside["."] == [{"token": "."}]


@pytest.mark.parametrize("mode", ["field", "inline", "drop"])
def test_content_in_parts_is_an_answer_that_stays(mode: str) -> None:
    parts = [{"type": "text", "text": "Yes."}]
    document = whole({"content": parts, "reasoning": "hm"})
    bridge = Bridge(mode, thinking=True)

    bridge.turn(document)

    assert bridge.has_answer
    assert document["choices"][0]["message"]["content"] == parts


@pytest.mark.parametrize("mode", ["field", "inline", "drop"])
@pytest.mark.parametrize("blank", ["", "\n\n"])
def test_an_empty_thought_leaves_no_trace(mode: str, blank: str) -> None:
    for message in (
        {"content": f"{OPEN}{blank}{CLOSE}\n\nYes."},
        {"content": f"{blank}Yes." if blank else "Yes.", "reasoning_content": blank},
    ):
        document = whole(dict(message))
        Bridge(mode, thinking=False).turn(document)
        assert said_whole(document)[0] == {
            "role": "assistant",
            "content": "Yes.",
            "finish": "stop",
        }
        deltas = [{name: letter} for name, text in reversed(message.items()) for letter in text]
        stream = turned([*map(chunk, deltas), chunk({}, "stop")], Bridge(mode, thinking=False))
        assert joined(stream)[0] == {"content": "Yes.", "finish": "stop"}
        assert all(says_something(part) for part in stream)


# --- until the answer has begun, and no longer ----------------------------------------------


@given(told(), st.sampled_from(MODES), tagged_texts)
def test_settled_is_settled(answer: tuple[list[Said], Said], mode: str, more: str) -> None:
    bridge = Bridge(mode, thinking=True)
    for document in answer[0]:
        bridge.event(encoded(document))
        if bridge.is_settled:
            assert bridge.has_answer
            assert bridge.event(encoded(chunk({"content": more}))) is None
            assert bridge.is_settled


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "deltas",
    [
        [{"content": "Yes"}],
        [{"role": "assistant"}, {"content": "\n"}, {"content": "Yes"}],
        [{"reasoning": "hm"}, {"content": "\n\nYes"}],
        [{"content": f"{OPEN}hm"}, {"content": CLOSE}, {"content": "\n\nYes"}],
    ],
)
def test_it_settles_with_the_first_word_of_the_answer(mode: str, deltas: list[Said]) -> None:
    bridge = Bridge(mode, thinking=True)

    settled = []
    for delta in deltas:
        bridge.event(encoded(chunk(delta)))
        settled.append(bridge.is_settled)

    if mode == "keep" and CLOSE in str(deltas):
        assert settled[-1]
    else:
        assert settled == [False] * (len(deltas) - 1) + [True]


def test_nothing_is_settled_before_anything_was_said() -> None:
    bridge = Bridge("field", thinking=True)

    bridge.event(encoded(chunk({"role": "assistant", "content": ""})))

    assert not bridge.is_settled


@given(told(), st.sampled_from(MODES), st.booleans())
def test_a_whole_answer_that_needs_the_bridge_is_seen(
    answer: tuple[list[Said], Said], mode: str, is_ascii: bool
) -> None:
    document = answer[1]
    if not sees(json.dumps(document, ensure_ascii=is_ascii).encode()):
        assert not Bridge(mode, thinking=True).turn(document)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"choices":[{"message":{"content":"\\u003cthink\\u003ehm\\u003c/think\\u003eYes"}}]}',
        b'{"choices":[{"message":{"content":"<think>hm<\\/think>Yes"}}]}',
        b'{"choices":[{"message":{"content":"Yes","reasoning":"hm"}}]}',
    ],
)
def test_a_thought_is_seen_however_its_json_is_written(raw: bytes) -> None:
    bridge = Bridge("drop", thinking=True)
    document = document_in(raw)
    assert document is not None

    assert sees(raw)
    assert bridge.turn(document)
    assert document["choices"][0]["message"]["content"] == "Yes"


# --- counting -------------------------------------------------------------------------------


@given(told(), st.sampled_from(["field", "inline", "drop", "keep"]))
def test_what_is_counted_is_thought_and_answer_without_tags(
    answer: tuple[list[Said], Said], mode: str
) -> None:
    documents, document = answer
    bridge, counted = Bridge(mode, thinking=True), [0, 0]
    for part in documents:
        bridge.event(encoded(part))
        counted[0] += bridge.thought_chars
        counted[1] += bridge.answer_chars
    at_once = Bridge(mode, thinking=True)

    at_once.turn(document)

    assert counted == [at_once.thought_chars, at_once.answer_chars]
    assert bridge.has_answer == at_once.has_answer


@pytest.mark.parametrize(
    ("delta", "has_answer"),
    [
        ({"content": "a"}, True),
        ({"content": " \n"}, False),
        ({"content": f"{OPEN}a"}, False),
        ({"content": f"{OPEN}a{CLOSE}"}, False),
        ({"reasoning": "a", "content": None}, False),
        ({"tool_calls": CALLS}, True),
        ({"function_call": {"name": "f", "arguments": ""}}, True),
        ({"refusal": None, "content": None}, False),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_whether_there_is_an_answer(mode: str, delta: Said, has_answer: bool) -> None:
    stream, at_once = Bridge(mode, thinking=True), Bridge(mode, thinking=True)
    stream.event(encoded(chunk(delta, "length")))
    at_once.turn(whole(dict(delta), "length"))

    assert stream.has_answer == at_once.has_answer == has_answer


# --- put right ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["field", "inline", "drop"])
@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize("content", ["", None])
def test_an_answer_sent_as_thought_is_the_answer_where_no_thought_was_asked_for(
    mode: str, field: str, content: str | None
) -> None:
    document = whole({"content": content, field: "Yes."})

    Bridge(mode, thinking=False).turn(document)

    assert said_whole(document)[0] == {"role": "assistant", "content": "Yes.", "finish": "stop"}


@pytest.mark.parametrize("mode", ["field", "inline", "drop"])
@pytest.mark.parametrize("thinking", [True, None])
def test_a_thought_that_was_asked_for_stays_one(mode: str, thinking: bool | None) -> None:
    bridge = Bridge(mode, thinking=thinking)

    bridge.turn(whole({"content": None, "reasoning": "Yes."}))

    assert not bridge.has_answer


@pytest.mark.parametrize("mode", ["field", "inline", "drop"])
@pytest.mark.parametrize(
    ("message", "finish"),
    [
        ({"content": None, "reasoning": "Well"}, "length"),
        ({"content": "Yes.", "reasoning": "Well"}, "stop"),
        ({"content": None, "reasoning": "Well", "tool_calls": CALLS}, "tool_calls"),
    ],
)
def test_a_thought_beside_an_answer_or_cut_short_is_no_answer(
    mode: str, message: Said, finish: str
) -> None:
    documents = [whole(dict(message), finish), whole(dict(message), finish)]

    for thinking, document in zip((False, True), documents, strict=True):
        Bridge(mode, thinking=thinking).turn(document)

    assert documents[0] == documents[1]


@pytest.mark.parametrize("mode", ["field", "inline", "drop"])
def test_a_stream_of_an_answer_sent_as_thought_ends_with_the_answer(mode: str) -> None:
    documents = [chunk({"reasoning": word}) for word in ("Yes", ", ", "it is.")]
    bridge = Bridge(mode, thinking=False)

    out = joined(turned([*documents, chunk({}, "stop")], bridge))[0]

    assert bridge.has_answer
    assert out["content"].endswith("Yes, it is.")
    assert out["content"].count(OPEN) == out["content"].count(CLOSE) == (mode == "inline")


# --- the opening tag in the prompt ----------------------------------------------------------


@given(said_texts, said_texts, cut_points, st.sampled_from(MODES))
def test_a_thought_whose_opening_stood_in_the_prompt_is_one_all_the_same(
    thought: str, answer: str, points: list[int], mode: str
) -> None:
    content = f"{thought}{CLOSE}{answer}"
    stream = [chunk({"content": piece}) for piece in cut_text(content, points)]
    document = whole({"content": content})
    bridge = Bridge(mode, thinking=None, opens_in_prompt=True)

    out = joined(turned([*stream, chunk({}, "stop")], bridge))[0]
    Bridge(mode, thinking=None, opens_in_prompt=True).turn(document)

    assert {"role": "assistant", **out} == said_whole(document)[0]
    assert out.get("reasoning_content") == (thought.strip() if mode == "field" else None)


def test_told_not_to_think_it_does_not_begin_inside_a_thought() -> None:
    document = whole({"content": "Yes."})

    assert not Bridge("drop", thinking=False, opens_in_prompt=True).turn(document)
    assert document["choices"][0]["message"]["content"] == "Yes."


# --- another try ----------------------------------------------------------------------------


@given(told(), plain_texts, cut_points, st.sampled_from(["inline", "keep"]))
def test_another_try_closes_the_tag_that_is_open_and_no_other(
    answer: tuple[list[Said], Said], second: str, points: list[int], mode: str
) -> None:
    documents, _ = answer
    bridge = Bridge(mode, thinking=True)
    shown = turned(documents, bridge)
    if bridge.has_answer:
        return
    bridge.begin_again()
    again = [chunk({"content": piece}) for piece in cut_text(second, points)]

    shown += turned([*again, chunk({}, "stop")], bridge)

    content = "".join(part["choices"][0]["delta"].get("content") or "" for part in shown)
    assert content.count(OPEN) == content.count(CLOSE)
    assert content.endswith(second.lstrip())


# --- anything at all ------------------------------------------------------------------------

_FINISHES = st.sampled_from([None, "stop", "length", "", 7])


def _parts() -> st.SearchStrategy[Any]:
    texts = st.one_of(tagged_texts, json_values)
    names = ("content", "reasoning", "reasoning_content", "tool_calls", "function_call", "role")
    return st.one_of(
        st.fixed_dictionaries({}, optional=dict.fromkeys(names, texts)),
        json_values,
    )


_choices = st.one_of(
    st.fixed_dictionaries(
        {},
        optional={
            "index": st.one_of(st.integers(0, 2), json_values),
            "delta": _parts(),
            "message": _parts(),
            "finish_reason": st.one_of(_FINISHES, json_values),
        },
    ),
    json_values,
)
documents_of_any_kind = st.one_of(
    json_objects,
    st.fixed_dictionaries({"choices": st.one_of(st.lists(_choices, max_size=3), json_values)}),
    st.fixed_dictionaries({"choices": st.lists(_choices, max_size=2), "usage": json_values}),
)


@example(["keep"], [{"choices": [{"index": [], "delta": {"content": "a"}}]}], False)
@example(["field"], [{"choices": [{"index": {}, "message": {"content": ["a"]}}]}], False)
@given(
    st.lists(st.sampled_from(MODES), min_size=1, max_size=1),
    st.lists(documents_of_any_kind, max_size=4),
    st.booleans(),
)
def test_no_document_makes_it_fall(modes: list[str], documents: list[Any], again: bool) -> None:
    bridge = Bridge(modes[0], thinking=False)
    for document in documents:
        data = encoded(document)
        got = bridge.event(data)
        assert got is None or got == b"" or document_in(got) is not None
        if modes == ["keep"] and not again:
            assert got is None
        if again:
            bridge.begin_again()
            bridge.event(data)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[DONE]", b"null", b"[1]", b'"think"', b"\xff", b"[" * 9]
)
def test_what_is_no_document_goes_on_as_it_came(data: bytes) -> None:
    assert Bridge("inline", thinking=True).event(data) is None
