"""Thoughts in a client's history: out of the turns before this one, and nothing else with them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router import history, parse
from router.chat import ChatRequest, Endpoint
from tests.support.strategies import json_objects, written
from tests.support.thoughts import CLOSE, OPEN, plain_texts, said_texts, tagged_texts

Message = dict[str, Any]
THOUGHT = f"{OPEN}\nWell.\n{CLOSE}\n\nThe Rhine."
ASK: Message = {"role": "user", "content": "And now?"}
CALL: Message = {"role": "assistant", "content": THOUGHT, "tool_calls": [{"id": "c"}]}
RESULT: Message = {"role": "tool", "content": "{}", "tool_call_id": "c"}


def parsed(messages: list[Message] | bytes, **members: Any) -> ChatRequest:
    if isinstance(messages, bytes):
        raw = b'{"messages":' + messages + b"}"
    else:
        raw = json.dumps({"messages": messages, **members}, ensure_ascii=False).encode()
    return parse.chat_request(Endpoint.CHAT, raw, {})


def messages_of(request: ChatRequest) -> list[Message]:
    found: list[Message] = json.loads(request.raw)["messages"]
    assert json.loads(bytes(request.values["messages"])) == found
    start, end = request.spans["messages"][-2:]
    assert json.loads(request.raw[start:end]) == found
    return found


def answered(content: Any) -> Any:
    """What becomes of an assistant's earlier turn."""
    turn = {"role": "assistant", "content": content, "name": "a"}
    first, found, last = messages_of(parsed([ASK, turn, ASK]))
    assert (first, last) == (ASK, ASK)
    assert {**found, "content": content} == turn
    return found["content"]


@given(plain_texts, plain_texts, st.text(" \n\t\r", max_size=4))
def test_a_thought_before_an_earlier_answer_goes(thought: str, answer: str, blanks: str) -> None:
    assert answered(f"{blanks}{OPEN}{thought}{CLOSE}{answer}") == answer.lstrip()


@given(said_texts, tagged_texts)
def test_an_answer_that_opens_with_a_word_stays(word: str, rest: str) -> None:
    assert answered(word + rest) == word + rest


@pytest.mark.parametrize(
    "content", ["<thinK>Well.</thinK>Hm.", "<THINK>Well.</THINK>", "\\u003cthin>"]
)
def test_what_is_no_tag_to_a_template_leaves_every_byte_as_it_was(content: str) -> None:
    raw = b'[{"role": "assistant",  "content": "%b"}, {"role": "user", "content": "?"}]'
    messages = raw % content.encode()

    assert parsed(messages).raw == b'{"messages":' + messages + b"}"


@pytest.mark.parametrize("thought", [OPEN, f"{OPEN}\nWell", f"{OPEN}Well</thi"])
def test_of_a_thought_that_has_no_end_nothing_stays(thought: str) -> None:
    assert answered(thought) == ""


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        "The Rhine.",
        "</think>The Rhine.",
        "<thinking>Well.</thinking>",
        "<THINK>Well.</THINK>The Rhine.",
        "Well: <think>no</think>",
        "&lt;think&gt;Well.&lt;/think&gt;",
        [{"type": "text", "text": THOUGHT}],
        [{"type": "text", "text": "The Rhine."}, {"type": "x", "y": OPEN}],
    ],
)
def test_what_is_no_text_with_a_thought_first_is_not_touched(content: Any) -> None:
    assert answered(content) == content


@pytest.mark.parametrize(
    "text",
    [
        rb'"<think>\nWell.\n</think>\n\nThe Rhine."',
        rb'"\u003cthink\u003e\nWell.\n\u003c/think\u003e\n\nThe Rhine."',
        rb'"\u003Cthink\u003E Well.\u003C\/think\u003EThe Rhine."',
        rb'"<think>Well.<\/think>The Rhine."',
        rb'" \n\t\r\n<think>Well.</think>\r\nThe Rhine."',
        rb'"\n\u003cthink\u003eWell.</think>The Rhine."',
        rb'"<think>\u6211\ud83d\ude00</think>The Rhine."',
    ],
)
def test_a_thought_is_found_however_its_json_is_escaped(text: bytes) -> None:
    raw = b'[{"role":"user","content":"hi"},{"role":"assistant","content":%b},' % text
    request = parsed(raw + b'{"role":"user","content":"And now?"}]')

    assert messages_of(request)[1]["content"] == "The Rhine."


@given(tagged_texts.flatmap(written))
def test_looking_at_the_beginning_sees_what_is_there(content: bytes) -> None:
    text = json.loads(content)
    seen = history.begins_with_thought(msgspec.Raw(content.strip()))

    if seen:
        assert text.lstrip().lower().startswith(OPEN)


@example({"x": 1}, {"tool_calls": []})
@given(json_objects, json_objects)
def test_all_else_stays(beside: Message, before: Message) -> None:
    own = {"role", "content", "messages", "extra_body", "model", "stream"}
    members = {name: value for name, value in beside.items() if name not in own}
    turn = {**{k: v for k, v in before.items() if k not in own}, "role": "assistant"}
    messages = [{"role": "system", "content": "é"}, ASK, {**turn, "content": THOUGHT}, ASK]

    request = parsed(messages, **members)

    wanted = {**members, "messages": [*messages[:2], {**turn, "content": "The Rhine."}, ASK]}
    assert json.loads(request.raw) == wanted


def test_numbers_and_texts_keep_the_bytes_they_came_in() -> None:
    turn = (
        rb'{"role":"assistant","seen":18446744073709551617,"at":1.50,"content":"<think></think>A"}'
    )
    ask = rb'{"role":"user","content":"\u9000\/ and now?","n":-1E2}'

    request = parsed(b"[%b , %b,\n%b]" % (ask, turn, ask))

    assert request.raw.count(rb'"\u9000\/ and now?"') == 2
    assert b"18446744073709551617" in request.raw
    assert b"1.50" in request.raw
    assert b"-1E2" in request.raw


# --- which turns ----------------------------------------------------------------------------


def test_only_the_assistants_thoughts_are_thoughts() -> None:
    messages = [
        {"role": "system", "content": THOUGHT},
        {"role": "user", "content": THOUGHT},
        {"role": "tool", "content": THOUGHT, "tool_call_id": "c"},
        {"role": "user", "content": THOUGHT},
    ]

    assert messages_of(parsed(messages)) == messages


@pytest.mark.parametrize("loop", [[CALL], [CALL, RESULT], [CALL, RESULT, CALL, RESULT]])
def test_a_tool_loop_that_is_under_way_keeps_its_thoughts(loop: list[Message]) -> None:
    request = parsed([ASK, *loop])

    assert messages_of(request) == [ASK, *loop]


def test_a_tool_loop_of_an_earlier_turn_loses_them() -> None:
    found = messages_of(parsed([ASK, CALL, RESULT, {"role": "assistant", "content": "Rain."}, ASK]))

    assert found[1] == {**CALL, "content": "The Rhine."}


def test_all_earlier_turns_lose_them() -> None:
    turn = {"role": "assistant", "content": THOUGHT}

    found = messages_of(parsed([ASK, turn, ASK, {**turn, "content": "Yes."}, ASK, turn, ASK]))

    contents = [message["content"] for message in found if message["role"] == "assistant"]
    assert contents == ["The Rhine.", "Yes.", "The Rhine."]


@pytest.mark.parametrize("messages", [[CALL], [{"role": "assistant", "content": THOUGHT}, RESULT]])
def test_without_a_user_nothing_is_an_earlier_turn(messages: list[Message]) -> None:
    assert messages_of(parsed(messages)) == messages


def test_without_thoughts_the_bytes_stay() -> None:
    raw = b'{ "messages" : [{"role":"user" ,"content":"<think>hi"}] }'

    assert parse.chat_request(Endpoint.CHAT, raw, {}).raw == raw


# --- the request that comes of it -----------------------------------------------------------

_turns = st.lists(
    st.builds(
        lambda role, content: {"role": role, "content": content},
        st.sampled_from(["user", "assistant", "system", "tool"]),
        st.one_of(st.none(), tagged_texts),
    ),
    min_size=1,
    max_size=6,
)


@given(_turns)
def test_once_is_enough(messages: list[Message]) -> None:
    once = parsed(messages)
    roles = [message["role"] for message in messages_of(once)]

    assert roles == [message["role"] for message in messages]
    # An answer may itself begin with a tag; what stays behind a thought is not read again.
    twice = parse.chat_request(Endpoint.CHAT, once.raw, {})
    clean = [str(m["content"]).lstrip().startswith(OPEN) for m in messages_of(once)]
    if not any(clean):
        assert twice.raw == once.raw


@given(_turns)
def test_only_what_stands_before_the_last_user_is_touched(messages: list[Message]) -> None:
    found = messages_of(parsed(messages))
    last = max((at for at, m in enumerate(messages) if m["role"] == "user"), default=0)

    assert found[last:] == messages[last:]
    for before, after in zip(messages[:last], found[:last], strict=True):
        if before["role"] != "assistant":
            assert after == before
        else:
            assert str(before["content"]).endswith(str(after["content"]))


def test_what_is_read_of_a_request_is_the_same_with_and_without_thoughts() -> None:
    clean = {"role": "assistant", "content": "The Rhine."}
    with_thought = parsed([ASK, {**clean, "content": THOUGHT}, ASK], max_tokens=5, x=[1.0])
    without = parsed([ASK, clean, ASK], max_tokens=5, x=[1.0])

    assert json.loads(with_thought.raw) == json.loads(without.raw)
    for name in ("text", "turns", "earlier", "has", "params", "session", "signature", "stream"):
        assert getattr(with_thought, name) == getattr(without, name), name


def test_an_extra_body_beside_a_thought_is_flattened_all_the_same() -> None:
    turn = {"role": "assistant", "content": THOUGHT}

    request = parsed([ASK, turn, ASK], extra_body={"top_k": 3})

    assert json.loads(request.raw)["top_k"] == 3
    assert messages_of(request)[1]["content"] == "The Rhine."
