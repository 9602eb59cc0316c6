"""A stream put together again is what the server would have said as a whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router import sse
from router.collect import Collector, Gathered
from tests.support.strategies import cut, json_objects, json_values
from tests.support.strategies import cut_points as byte_cuts
from tests.support.thoughts import chunk, cut_points, cut_text, encoded, plain_texts, whole

Said = dict[str, Any]
SERVERS = ("vllm", "vllm with a parser", "llama.cpp", "transformers")
DONE = sse.event(b"[DONE]")
USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
TIMINGS = {"predicted_ms": 3.5}
CALLS = [
    {
        "id": "c-a",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"at":"北京"}'},
    },
    {"id": "c-b", "type": "function", "function": {"name": "time", "arguments": "{}"}},
]


@st.composite
def served(draw: st.DrawFn) -> tuple[list[Said], Said]:
    """An answer as one kind of server streams it, and as it says it whole."""
    server = draw(st.sampled_from(SERVERS))
    answer, thought = draw(plain_texts), draw(plain_texts)
    finish = draw(st.sampled_from(["stop", "length"]))
    field = {"transformers": "reasoning_content", "llama.cpp": "reasoning_content"}.get(
        server, "reasoning"
    )
    first: Said = {"role": "assistant"}
    message: Said = {}
    deltas: list[Said] = []
    if server == "vllm":
        answer = f"<think>{thought}</think>{answer}" if thought else answer
        thought = ""
    if server.startswith("vllm"):
        first["content"] = ""
    elif server == "llama.cpp":
        first["content"] = None
    if thought:
        message[field] = thought
        deltas += [{field: piece} for piece in cut_text(thought, draw(cut_points))]
    message["content"] = answer
    deltas += [{"content": piece} for piece in cut_text(answer, draw(cut_points))]
    members: Said = {"usage": USAGE}
    if server == "llama.cpp":
        members["timings"] = TIMINGS
    if draw(st.booleans()) and server.startswith("vllm"):
        deltas[-1:] = [chunk(deltas[-1], finish)] if deltas else [chunk({"content": ""}, finish)]
    else:
        deltas.append(chunk({"content": ""} if server.startswith("vllm") else {}, finish))
    documents = [chunk(first), *map(chunk, deltas[:-1]), deltas[-1]]
    if server == "transformers":
        documents[-1].update(usage=USAGE)
    else:
        documents.append({**chunk({}), "choices": [], **members})
    return documents, whole(message, finish, **members)


def collected(events: bytes, points: list[int] | None = None) -> Collector:
    collector = Collector()
    for piece in cut(events, points or []):
        collector.take(piece)
    return collector


def stream(documents: list[Said], *, ends: bool = True) -> bytes:
    return b"".join(sse.event(encoded(part)) for part in documents) + (DONE if ends else b"")


def bare(value: Any) -> Any:
    """The document without what says nothing: a null is as good as no member."""
    if isinstance(value, dict):
        return {name: bare(inner) for name, inner in value.items() if inner is not None}
    return [bare(inner) for inner in value] if isinstance(value, list) else value


@given(served(), byte_cuts, st.booleans())
def test_a_stream_comes_to_what_the_server_would_have_said_whole(
    answer: tuple[list[Said], Said], points: list[int], ends: bool
) -> None:
    documents, document = answer

    collector = collected(stream(documents, ends=ends), points)

    assert collector.is_finished
    assert collector.error is None
    assert bare(json.loads(collector.whole())) == document


@given(cut_points, cut_points, byte_cuts)
def test_tool_calls_are_put_together_from_their_pieces(
    first: list[int], second: list[int], points: list[int]
) -> None:
    documents = [chunk({"role": "assistant", "content": None})]
    for index, (call, cuts) in enumerate(zip(CALLS, (first, second), strict=True)):
        function: Said = call["function"]  # type: ignore[assignment]
        named = {"name": function["name"], "arguments": ""}
        documents.append(chunk({"tool_calls": [{**call, "index": index, "function": named}]}))
        for piece in cut_text(function["arguments"], cuts):
            more = {"index": index, "function": {"arguments": piece}}
            documents.append(chunk({"tool_calls": [more]}))
    documents.append(chunk({}, "tool_calls"))

    document = collected(stream(documents), points).document()

    assert bare(document) == bare(whole({"content": None, "tool_calls": CALLS}, "tool_calls"))
    assert document["choices"][0]["message"]["content"] is None


def test_a_name_that_comes_again_empty_is_still_the_name() -> None:
    pieces = [
        {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}},
        {"index": 0, "id": "", "type": None, "function": {"name": "", "arguments": "}"}},
        {"index": 0, "id": None, "function": {"name": None, "arguments": ""}},
    ]
    documents = [chunk({"tool_calls": [piece]}) for piece in pieces]

    [call] = collected(stream(documents)).document()["choices"][0]["message"]["tool_calls"]

    assert call == {
        "id": "c",
        "type": "function",
        "function": {"name": "f", "arguments": "{}"},
    }


@given(st.randoms())
def test_choices_come_in_the_order_of_their_index(dice: Any) -> None:
    texts = {0: "one two", 1: "eins zwei", 2: "一 二"}
    pieces = [(index, word) for index, text in texts.items() for word in text.split(" ")]
    order = sorted(range(len(pieces)), key=lambda _: dice.random())
    mixed = sorted(pieces, key=lambda piece: order[pieces.index(piece)])
    words: dict[int, list[str]] = {}
    for index, word in mixed:
        words.setdefault(index, []).append(word)
    documents = [chunk({"content": word}, index=index) for index, word in mixed]
    documents += [chunk({}, "stop", index=index) for index in (2, 0, 1)]

    document = collected(stream(documents)).document()

    found = [(choice["index"], choice["message"]["content"]) for choice in document["choices"]]
    assert found == [(index, "".join(words[index])) for index in sorted(words)]


def test_probabilities_are_put_in_a_row() -> None:
    documents = [
        chunk({"role": "assistant"}, logprobs=None),
        chunk({"content": "Yes"}, logprobs={"content": [{"token": "Yes"}], "refusal": None}),
        chunk({"content": "."}, "stop", logprobs={"content": [{"token": "."}], "refusal": None}),
    ]

    [choice] = collected(stream(documents)).document()["choices"]

    assert choice["logprobs"] == {"content": [{"token": "Yes"}, {"token": "."}], "refusal": None}


def test_what_stands_beside_the_choices_is_kept_and_the_last_word_counts() -> None:
    documents = [
        {**chunk({"content": "a"}), "usage": None, "system_fingerprint": "f"},
        {**chunk({}, "stop"), "usage": USAGE, "system_fingerprint": None, "timings": TIMINGS},
    ]
    documents[1]["choices"][0]["stop_reason"] = 7

    document = collected(stream(documents)).document()

    assert document["usage"] == USAGE
    assert document["system_fingerprint"] == "f"
    assert document["timings"] == TIMINGS
    assert document["choices"][0]["stop_reason"] == 7
    assert document["object"] == "chat.completion"
    assert document["id"] == "c-1"


@pytest.mark.parametrize("error", ["it broke", {"message": "it broke", "code": 500}])
def test_an_error_inside_the_stream_is_told(error: Any) -> None:
    collector = collected(stream([chunk({"content": "a"}), {"error": error}], ends=False))

    assert collector.error is not None
    assert json.loads(collector.error) == {"error": error}
    assert not collector.is_finished


@pytest.mark.parametrize(
    "documents",
    [
        [],
        [chunk({"role": "assistant"})],
        [chunk({"content": "a"})],
        [chunk({}, "stop"), chunk({"content": "a"}, index=1)],
        [{**chunk({}), "choices": [], "usage": USAGE}],
    ],
)
def test_what_has_no_end_is_not_finished(documents: list[Said]) -> None:
    assert not collected(stream(documents)).is_finished


@pytest.mark.parametrize(
    ("delta", "is_token"),
    [
        ({"role": "assistant"}, False),
        ({"role": "assistant", "content": ""}, False),
        ({"role": "assistant", "content": None}, False),
        ({"content": "a"}, True),
        ({"reasoning": "a"}, True),
        ({"tool_calls": [{"index": 0}]}, True),
    ],
)
def test_a_role_alone_is_no_token(delta: Said, is_token: bool) -> None:
    assert collected(stream([chunk(delta)])).has_token == is_token


@given(served())
def test_looking_at_it_twice_changes_nothing(answer: tuple[list[Said], Said]) -> None:
    collector = collected(stream(answer[0]))

    assert collector.whole() == collector.whole()


# --- anything at all ------------------------------------------------------------------------


def deltas(*parts: Said) -> list[Any]:
    return [{"choices": [{"delta": part}]} for part in parts]


def calling(arguments: Any) -> Said:
    return {"tool_calls": [{"function": {"arguments": arguments}}]}


_names = ("content", "reasoning", "tool_calls", "role", "refusal")
_calls = st.lists(
    st.one_of(
        json_values,
        st.fixed_dictionaries(
            {},
            optional={
                "index": st.one_of(st.integers(0, 1), json_values),
                "id": json_values,
                "function": st.one_of(
                    json_values,
                    st.fixed_dictionaries(
                        {}, optional={"name": json_values, "arguments": json_values}
                    ),
                ),
            },
        ),
    ),
    max_size=3,
)
_deltas = st.one_of(
    json_values,
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys(_names, st.one_of(st.text("ab"), json_values, _calls))
    ),
)
_choices = st.one_of(
    json_values,
    st.fixed_dictionaries(
        {},
        optional={
            "index": st.one_of(st.integers(0, 1), json_values),
            "delta": _deltas,
            "logprobs": st.one_of(
                json_values, st.fixed_dictionaries({"content": st.lists(json_values, max_size=2)})
            ),
            "finish_reason": json_values,
        },
    ),
)
_documents = st.one_of(
    json_objects,
    st.fixed_dictionaries({"choices": st.one_of(json_values, st.lists(_choices, max_size=3))}),
)


@example([{"choices": [{"index": [], "delta": {"tool_calls": "x"}}]}])
@example(deltas({"tool_calls": "x"}, {"tool_calls": [{}]}, {"tool_calls": [{"index": {}}]}))
@example(deltas({"content": ["a"]}, {"content": "b"}, {"content": {}}, {"content": "c"}))
@example(deltas(calling({}), calling("a"), calling(1)))
@given(st.lists(_documents, max_size=4))
def test_no_document_makes_it_fall(documents: list[Any]) -> None:
    collector = Collector()
    for document in documents:
        collector.feed(encoded(document))

    assert isinstance(json.loads(collector.whole()), dict)
    assert isinstance(collector.is_finished, bool)
    assert isinstance(collector.has_token, bool)


@given(st.binary(max_size=40), byte_cuts)
def test_no_bytes_make_it_fall(data: bytes, points: list[int]) -> None:
    collector = collected(b"data: " + data + b"\n\n" + data, points)

    assert json.loads(collector.whole())["choices"] == []


@given(st.binary(max_size=60), byte_cuts)
def test_what_is_gathered_is_what_came(body: bytes, points: list[int]) -> None:
    gathered = Gathered(b"gzip")
    for piece in cut(body, points):
        gathered.take(piece)

    assert gathered.raw() == body
    assert gathered.size == len(body)
    assert not gathered.has_token
