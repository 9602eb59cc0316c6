"""Bytes and headers in, a ChatRequest or the client's error out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router import parse
from router.chat import ChatRequest, Endpoint
from router.errors import ClientError, InvalidJson, InvalidValue
from router.params import PARAMS, SPELLING
from tests.support.journey import MESSAGES, asked, policy_of, wired
from tests.support.strategies import json_values, texts, written

MEMBERS = [
    *sorted({spelling.split(".")[0] for spelling in SPELLING}),
    *["model", "messages", "input", "prompt", "stream", "stream_options", "extra_body", "tools"],
    *["tool_choice", "response_format", "text", "n", "logprobs", "metadata", "user", "format"],
    *["generation_config", "functions", "structured_outputs"],
]
ENDPOINTS = [Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.RESPONSES]
# JSON that some parsers take and some do not, and text that is no text.
ODD = [b"NaN", b"1e400", b"-1e400", b"9" * 400, b'"\\ud800"', b'"\xff"', b"[" * 2000 + b"]" * 2000]
ODD += [b'"\\ud83d\\ude00"', b"-0", b"1E5", b'{"a":"\xff"}', b'{"type":1e999}', b"tru", b'["\xfe"]']


def read(raw: bytes, endpoint: Endpoint, headers: dict[bytes, bytes] | None = None) -> bool:
    """Whether it parses; anything but a request or a client's error comes through."""
    try:
        parse.chat_request(endpoint, raw, headers or {})
    except ClientError:
        return False
    return True


@given(st.binary(max_size=200), st.sampled_from(ENDPOINTS))
@example(b"", Endpoint.CHAT)
@example(b'{"messages":[{"role":"user","content":"\xff"}]}', Endpoint.CHAT)
def test_any_bytes_parse_or_are_the_clients_error(raw: bytes, endpoint: Endpoint) -> None:
    read(raw, endpoint)


@given(st.dictionaries(st.sampled_from(MEMBERS), json_values), st.data())
def test_any_object_parses_or_is_the_clients_error(
    value: dict[str, Any], data: st.DataObject
) -> None:
    raw = data.draw(written({"messages": MESSAGES, **value}))

    read(raw, data.draw(st.sampled_from(ENDPOINTS)))


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("name", MEMBERS)
def test_an_odd_value_anywhere_is_read_or_the_clients_error(name: str, endpoint: Endpoint) -> None:
    for odd in ODD:
        parts = {"messages": json.dumps(MESSAGES).encode(), "input": b'"hi"', "prompt": b'"hi"'}
        parts |= {name: odd}
        raw = b"{" + b",".join(b'"%b":%b' % (n.encode(), v) for n, v in parts.items()) + b"}"
        read(raw, endpoint)


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_content_is_read_or_the_clients_error(odd: bytes) -> None:
    for shape in (b"%b", b'[{"type":"text","text":%b}]', b'[{"type":%b}]', b"[%b]"):
        raw = b'{"messages":[{"role":"user","content":' + shape.replace(b"%b", odd) + b"}]}"
        read(raw, Endpoint.CHAT)
        read(raw.replace(b"messages", b"input"), Endpoint.RESPONSES)


@pytest.mark.parametrize("name", ["stop", "metadata", "stream_options", "response_format"])
def test_no_depth_of_nesting_gets_past_the_first_check(name: str) -> None:
    """Depths around the limit, where one reader could still go deeper than the next."""
    for depth in (*range(850, 1010, 3), 20_000):
        nested = b'{"a":' * depth + b"1" + b"}" * depth
        raw = b'{"messages":%b,"%b":%b}' % (json.dumps(MESSAGES).encode(), name.encode(), nested)
        read(raw, Endpoint.CHAT)


@given(texts.filter(bool), st.binary(max_size=12))
def test_any_header_value_is_read_or_the_clients_error(text: str, value: bytes) -> None:
    body = json.dumps({"messages": MESSAGES, "user": text}).encode()

    assert read(body, Endpoint.CHAT, {b"x-session-id": value, b"x-conversation-id": b""})


@given(
    st.dictionaries(
        texts.filter(lambda name: name not in MEMBERS and name not in SPELLING),
        json_values,
        max_size=4,
    ),
    st.data(),
)
def test_unknown_members_arrive_byte_for_byte(unknown: dict[str, Any], data: st.DataObject) -> None:
    whole = {"messages": MESSAGES, **unknown, "temperature": 0.5}
    raw = data.draw(written(whole))
    request = parse.chat_request(Endpoint.CHAT, raw, {})

    wire = wired(request, policy_of("temperature = 0.1"), "vllm")

    sent = parse.chat_request(Endpoint.CHAT, wire.body, {})
    for name in unknown:
        assert bytes(sent.values[name]) == bytes(request.values[name])
    assert list(sent.values)[: len(whole)] == list(request.values)


# --- what the user wrote -------------------------------------------------------------


def said(*messages: dict[str, Any]) -> ChatRequest:
    return asked({"messages": list(messages)})


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("hello", "hello"),
        ("", ""),
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        ([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}], "a"),
        ([{"type": "text", "text": None}], ""),
        ([{"type": "input_audio", "text": "not this"}], ""),
    ],
)
def test_content_may_be_a_string_parts_or_null(content: Any, text: str) -> None:
    assert said(user(content)).text == text


@pytest.mark.parametrize("content", [5, True, {"type": "text"}, ["a"], [5], [[]]])
def test_any_other_content_is_refused_with_its_place(content: Any) -> None:
    with pytest.raises(InvalidValue) as caught:
        said({"role": "system", "content": "s"}, user(content))

    assert (caught.value.param or "").startswith("messages[1].content")


def test_a_message_without_content_is_one_with_null() -> None:
    assert said({"role": "user"}).text == ""


def test_only_the_users_last_turn_is_read() -> None:
    request = said(
        {"role": "system", "content": "SYSTEM"},
        {"role": "developer", "content": "DEVELOPER"},
        user("FIRST"),
        {"role": "assistant", "content": "ANSWER", "tool_calls": [{"id": "1"}]},
        user("last"),
        {"role": "assistant", "content": None},
        {"role": "tool", "content": "RESULT", "tool_call_id": "1"},
    )

    assert request.text == "last"
    assert request.turns == 2
    assert "tool_loop" in request.has


def test_messages_in_a_row_are_one_turn() -> None:
    request = said(user("old"), {"role": "assistant", "content": "a"}, user("one"), user("two"))

    assert request.text == "one\ntwo"


def test_a_conversation_without_a_user_has_no_turn() -> None:
    request = said({"role": "system", "content": "s"})

    assert (request.text, request.turns, request.session) == ("", 0, None)


@pytest.mark.parametrize("raw", [{}, {"messages": None}, {"messages": []}, {"messages": "hi"}])
def test_a_chat_needs_messages(raw: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse.chat_request(Endpoint.CHAT, json.dumps(raw).encode(), {})

    assert caught.value.param == "messages"


def test_a_message_needs_a_role() -> None:
    with pytest.raises(InvalidValue) as caught:
        said(user("hi"), {"content": "x"})

    assert caught.value.param == "messages[1]"


@pytest.mark.parametrize(
    ("given_input", "text", "turns"),
    [
        ("hi", "hi", 1),
        (None, "", 0),
        ([user("a"), {"role": "assistant", "content": "b"}, user("c")], "c", 2),
        ([user([{"type": "input_text", "text": "parts"}])], "parts", 1),
        ([user("a"), {"type": "function_call_output", "output": "x"}], "a", 1),
    ],
)
def test_a_responses_input_is_read_like_messages(given_input: Any, text: str, turns: int) -> None:
    request = asked({"input": given_input}, Endpoint.RESPONSES)

    assert (request.text, request.turns) == (text, turns)


@pytest.mark.parametrize(
    ("prompt", "text"),
    [("hi", "hi"), (["a", "b"], "b"), ([1, 2], ""), ([[1], [2]], ""), (None, ""), ("", "")],
)
def test_a_prompt_is_text_texts_or_tokens(prompt: Any, text: str) -> None:
    assert asked({"prompt": prompt}, Endpoint.COMPLETIONS).text == text


# --- what it asks for ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "has"),
    [
        ({"tools": [{"type": "function"}]}, {"tools"}),
        ({"tools": []}, set()),
        ({"tools": None}, set()),
        ({"tools": None, "functions": [{"name": "f"}]}, {"tools"}),
        ({"functions": [{"name": "f"}]}, {"tools"}),
        ({"tool_choice": "auto"}, set()),
        ({"tool_choice": "none"}, set()),
        ({"tool_choice": "required"}, {"forced_tool"}),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, {"forced_tool"}),
        ({"response_format": {"type": "text"}}, set()),
        ({"response_format": None}, set()),
        ({"response_format": {"type": "json_object"}}, {"json_schema"}),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, {"json_schema"}),
        ({"guided_json": {"type": "object"}}, {"json_schema"}),
        ({"guided_json": None}, set()),
        ({"structured_outputs": {"regex": "a"}}, {"json_schema"}),
        ({"n": 1}, set()),
        ({"n": 2}, {"n"}),
        ({"logprobs": True}, {"logprobs"}),
        ({"logprobs": False, "top_logprobs": 0}, set()),
        ({"top_logprobs": 3}, {"logprobs"}),
        ({"messages": [user("a ```b```")]}, {"code"}),
        ({"messages": [user([{"type": "image_url"}])]}, {"image"}),
    ],
)
def test_what_presets_must_not_break_is_seen(body: dict[str, Any], has: set[str]) -> None:
    assert asked(body).has == has


def test_an_empty_list_of_tools_is_none_however_it_is_written() -> None:
    raw = b'{"messages":[{"role":"user","content":"hi"}],"tools":[ ]}'

    assert "tools" not in parse.chat_request(Endpoint.CHAT, raw, {}).has


def test_a_response_format_of_the_responses_api_is_seen() -> None:
    shape = {"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}}

    assert "json_schema" in asked(shape, Endpoint.RESPONSES).has
    assert (
        "json_schema" not in asked({"text": {"format": {"type": "text"}}}, Endpoint.RESPONSES).has
    )


@pytest.mark.parametrize(
    ("body", "stream", "wants_usage"),
    [
        ({}, False, False),
        ({"stream": None}, False, False),
        ({"stream": True}, True, False),
        ({"stream": True, "stream_options": None}, True, False),
        ({"stream": True, "stream_options": {"include_usage": True}}, True, True),
        ({"stream": True, "stream_options": {"include_usage": False}}, True, False),
        ({"stream": False, "stream_options": {"include_usage": True}}, False, False),
    ],
)
def test_a_stream_is_asked_for_by_true_alone(
    body: dict[str, Any], stream: bool, wants_usage: bool
) -> None:
    request = asked(body)

    assert (request.stream, request.wants_usage) == (stream, wants_usage)


@pytest.mark.parametrize(("name", "value"), [("stream", "yes"), ("stream", 1), ("model", 5)])
def test_an_envelope_of_the_wrong_kind_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidValue) as caught:
        asked({name: value})

    assert caught.value.param == name


# --- soft switches -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "switch"),
    [
        ("hello", None),
        ("hello /think", True),
        ("/no_think hello", False),
        ("/think and then /no_think", False),
        ("/no_think and then /think", True),
        ("a path/think or /thinking or /think/x", None),
        ("你好 /no_think", False),
        ("line\n/think\nline", True),
    ],
)
def test_the_last_soft_switch_counts(text: str, switch: bool | None) -> None:
    assert said(user(text)).soft_switch is switch


def test_only_the_users_last_turn_can_switch() -> None:
    request = said(user("/no_think"), {"role": "assistant", "content": "/no_think"}, user("hi"))

    assert request.soft_switch is None


# --- extra_body ------------------------------------------------------------------------------


def test_a_literal_extra_body_is_flattened_with_a_warning() -> None:
    request = asked(
        {"extra_body": {"top_k": 5, "chat_template_kwargs": {"enable_thinking": False}}}
    )

    assert request.params["top_k"].value == 5
    assert request.params["thinking"].value is False
    assert "extra_body" not in request.values
    assert json.loads(request.raw)["top_k"] == 5
    assert any("extra_body" in note for note in request.notes)


def test_what_stands_in_extra_body_wins() -> None:
    request = asked({"top_k": 1, "extra_body": {"top_k": 2, "stream": True}, "stream": False})

    assert request.params["top_k"].value == 2
    assert request.stream
    assert list(json.loads(request.raw)) == ["top_k", "stream", "messages"]


def test_extra_body_inside_itself_is_gone_too() -> None:
    request = asked({"extra_body": {"extra_body": {"top_k": 2}, "seed": 1}})

    assert "extra_body" not in json.loads(request.raw)


@pytest.mark.parametrize("value", [5, "x", [1], True])
def test_an_extra_body_that_is_no_object_is_refused(value: Any) -> None:
    with pytest.raises(InvalidValue) as caught:
        asked({"extra_body": value})

    assert caught.value.param == "extra_body"


def test_an_extra_body_of_null_is_nothing() -> None:
    assert "extra_body" not in asked({"extra_body": None}).values


def test_a_doubled_name_inside_extra_body_is_refused() -> None:
    with pytest.raises(InvalidJson):
        asked(b'{"messages":[{"role":"user"}],"extra_body":{"a":1,"a":2}}')


# --- parameters ---------------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", sorted(SPELLING))
def test_every_spelling_is_its_parameter(spelling: str) -> None:
    top, _, inner = spelling.partition(".")
    param = SPELLING[spelling]
    value: Any = {"bool": True, "int": 7, "float": 0.5, "choice": True}.get(param.kind, "x")
    body = {top: {inner: value} if inner else value}

    sent = asked(body).params[param.name]

    assert sent.spellings == (spelling,)
    assert sent.value is not None


def test_of_several_limits_the_smallest_counts_and_all_are_known() -> None:
    sent = asked({"max_tokens": 100, "max_completion_tokens": 20, "n_predict": -1}).params

    assert sent["max_new_tokens"].value == 20
    assert set(sent["max_new_tokens"].spellings) == {
        "max_tokens",
        "max_completion_tokens",
        "n_predict",
    }


@pytest.mark.parametrize("name", ["max_tokens", "temperature", "seed", "top_k"])
@pytest.mark.parametrize("text", ["5", " 5 ", "5.0"])
def test_a_number_as_text_is_that_number(name: str, text: str) -> None:
    assert asked({name: text}).params[SPELLING[name].name].value == 5


@pytest.mark.parametrize("text", ["nan", "NaN", "inf", "-inf", "Infinity", "1e400", "-1e400"])
@pytest.mark.parametrize("name", ["max_tokens", "temperature", "thinking_budget", "seed"])
def test_text_that_json_could_not_say_is_no_number(name: str, text: str) -> None:
    """Said to a backend such a number would become null: no limit at all."""
    value = asked({name: text}).params[SPELLING[name].name].value

    assert value == text


@pytest.mark.parametrize("name", [p.name for p in PARAMS.values() if p.kind in ("int", "float")])
def test_a_null_was_sent(name: str) -> None:
    spelling = PARAMS[name].spellings[0]

    assert asked({spelling: None}).params[name].value is None


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ({"enable_thinking": True}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}, "enable_thinking": True}, False),
        ({"think": "false"}, False),
        ({"thinking": {"type": "disabled"}}, False),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, True),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "low"}, True),
        ({"reasoning": {"effort": "none"}}, False),
        ({"reasoning": {"effort": "high"}}, True),
        ({"enable_thinking": None}, None),
        ({"reasoning": {"summary": "auto"}}, None),
    ],
)
def test_every_way_to_switch_thinking_is_understood(body: dict[str, Any], value: Any) -> None:
    assert asked(body).params["thinking"].value is value


# --- sessions -----------------------------------------------------------------------------------

SOURCES: list[tuple[str, dict[bytes, bytes], dict[str, Any]]] = [
    ("header", {b"x-session-id": b"A"}, {}),
    ("header", {b"x-conversation-id": b"B"}, {}),
    ("header", {b"x-litellm-session-id": b"C"}, {}),
    ("body", {}, {"session_id": "D"}),
    ("body", {}, {"conversation_id": "E"}),
    ("body", {}, {"metadata": {"session_id": "F"}}),
    ("body", {}, {"prompt_cache_key": "G"}),
    ("user", {}, {"user": "H"}),
]


@pytest.mark.parametrize("first", range(len(SOURCES)))
def test_the_first_session_source_that_says_something_counts(first: int) -> None:
    alone = asked(SOURCES[first][2], headers=SOURCES[first][1]).session
    headers: dict[bytes, bytes] = {}
    body: dict[str, Any] = {}
    for _, more_headers, more_body in SOURCES[first:]:
        headers |= more_headers
        body |= more_body

    together = asked(body, headers=headers).session

    assert alone is not None
    assert alone.source == SOURCES[first][0]
    assert together == alone


@pytest.mark.parametrize("nobody", ["", " ", "default", "Default", "null", "none", "undefined"])
def test_a_name_for_nobody_in_particular_joins_no_strangers(nobody: str) -> None:
    request = asked(
        {"session_id": nobody, "metadata": {"session_id": nobody}, "user": nobody},
        headers={b"x-session-id": nobody.encode()},
    )

    assert request.session is not None
    assert request.session.source == "fingerprint"


@pytest.mark.parametrize("value", [None, True, [], {}, 1.5])
def test_a_session_of_the_wrong_kind_is_none(value: Any) -> None:
    session = asked({"session_id": value, "user": "u-1"}).session

    assert session is not None
    assert session.source == "user"


def test_a_session_holds_no_text_of_the_client() -> None:
    session = asked({"session_id": "top-secret"}).session

    assert session is not None
    assert "top" not in session.hash
    assert len(session.hash) == 16


def test_a_fingerprint_stays_as_a_conversation_grows_and_tells_others_apart() -> None:
    start = [{"role": "developer", "content": "be brief"}, user("hello")]
    grown = [*start, {"role": "assistant", "content": "hi"}, user("and now?")]

    assert said(*start).session == said(*grown).session
    assert said(*start).session != said(user("hello")).session
    assert said(*start).session != said(start[0], user("hello!")).session
