"""The OpenAI SDK in front of a real small model: what works directly works through the router."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from tests.clients.demo import DemoBackend, record_of
from tests.support.product import Product
from tests.support.script import DONE, END, delta, stream_head
from tests.support.scripted import ScriptedBackend

Messages = list[ChatCompletionMessageParam]

QUESTION: Messages = [{"role": "user", "content": "What is the capital of France?"}]
# Without a cached prefix the same request is computed the same way each time.
REPEATABLE: dict[str, Any] = {"temperature": 0, "seed": 7, "extra_body": {"cache_prompt": False}}
WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city today.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def client(router: Product) -> Iterator[OpenAI]:
    with OpenAI(base_url=router.url + "/v1", api_key="EMPTY", max_retries=0) as made:
        yield made


@pytest.fixture
async def async_client(router: Product) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=router.url + "/v1", api_key="EMPTY", max_retries=0) as made:
        yield made


def named(request_id: str) -> dict[str, str]:
    return {"x-request-id": request_id}


# --- answers -----------------------------------------------------------------


def test_a_stream_joined_is_the_answer_in_one_piece(client: OpenAI) -> None:
    whole = client.chat.completions.create(
        model="auto", messages=QUESTION, max_tokens=16, **REPEATABLE
    )
    with client.chat.completions.create(
        model="auto", messages=QUESTION, max_tokens=16, stream=True, **REPEATABLE
    ) as stream:
        chunks = list(stream)

    assert whole.choices[0].message.content
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == (
        whole.choices[0].message.content
    )
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_usage_comes_with_a_stream_only_when_asked_for(client: OpenAI, router: Product) -> None:
    with client.chat.completions.create(
        model="auto",
        messages=QUESTION,
        max_tokens=4,
        stream=True,
        extra_headers=named("sdk-usage-no"),
    ) as stream:
        unasked = list(stream)
    with client.chat.completions.create(
        model="auto",
        messages=QUESTION,
        max_tokens=4,
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        asked = list(stream)

    assert all(chunk.choices and chunk.usage is None for chunk in unasked)
    assert asked[-1].choices == []
    assert asked[-1].usage is not None
    assert asked[-1].usage.completion_tokens == 4
    record = record_of(router, "sdk-usage-no")
    assert (record["output_tokens"], record["input_tokens"]) == (4, asked[-1].usage.prompt_tokens)


async def test_the_async_client_gets_an_answer(async_client: AsyncOpenAI) -> None:
    answer = await async_client.chat.completions.create(
        model="auto", messages=QUESTION, max_tokens=4
    )

    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4


async def test_the_async_client_gets_a_stream(async_client: AsyncOpenAI) -> None:
    async with await async_client.chat.completions.create(
        model="auto", messages=QUESTION, max_tokens=4, stream=True
    ) as stream:
        chunks = [chunk async for chunk in stream]

    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "length"


def test_a_small_model_that_is_given_tools_answers(client: OpenAI, router: Product) -> None:
    answer = client.chat.completions.create(
        model="auto",
        messages=QUESTION,
        max_tokens=4,
        tools=[WEATHER],
        extra_headers=named("sdk-tools"),
    )

    assert answer.choices[0].finish_reason
    assert record_of(router, "sdk-tools")["outcome"] == "ok"


def test_tools_go_out_and_calls_come_back(
    scripted: ScriptedBackend, scripted_router: Product
) -> None:
    call = {"index": 0, "id": "call-1", "type": "function"}
    scripted.set_script(
        [
            stream_head(),
            delta(tool_calls=[{**call, "function": {"name": "weather", "arguments": '{"ci'}}]),
            delta(tool_calls=[{"index": 0, "function": {"arguments": 'ty":"Bonn"}'}}]),
            delta("tool_calls"),
            DONE,
            END,
        ]
    )
    with (
        OpenAI(base_url=scripted_router.url + "/v1", api_key="EMPTY", max_retries=0) as client,
        client.chat.completions.create(
            model="auto", messages=QUESTION, tools=[WEATHER], tool_choice="auto", stream=True
        ) as stream,
    ):
        deltas = [chunk.choices[0].delta for chunk in stream]

    sent = scripted.requests[-1].json
    assert (sent["tools"], sent["tool_choice"]) == ([WEATHER], "auto")
    pieces = [piece for part in deltas for piece in part.tool_calls or ()]
    assert [piece.index for piece in pieces] == [0, 0]
    assert pieces[0].id == "call-1"
    functions = [piece.function for piece in pieces if piece.function is not None]
    assert functions[0].name == "weather"
    assert "".join(function.arguments or "" for function in functions) == '{"city":"Bonn"}'


def test_a_schema_is_obeyed(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="auto",
        messages=[{"role": "user", "content": "Ada is 36 years old. Who is she?"}],
        max_tokens=96,
        temperature=0,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "person", "strict": True, "schema": PERSON},
        },
    )

    person = json.loads(answer.choices[0].message.content or "")
    assert set(person) == {"name", "age"}
    assert isinstance(person["age"], int)


def test_the_other_text_endpoints_are_classified_and_answered(
    client: OpenAI, router: Product
) -> None:
    completion = client.completions.create(
        model="auto", prompt="Once upon", max_tokens=4, extra_headers=named("sdk-completion")
    )
    response = client.responses.create(
        model="auto", input="Say hello.", max_output_tokens=4, extra_headers=named("sdk-response")
    )

    assert completion.choices[0].text
    assert response.output_text
    for request_id, endpoint in (("sdk-completion", "completions"), ("sdk-response", "responses")):
        record = record_of(router, request_id)
        assert record["endpoint"] == endpoint
        assert record["scenario"]
        assert record["outcome"] == "ok"
        assert record["output_tokens"] == 4


# --- names and headers ---------------------------------------------------------


def test_the_list_of_models_has_virtual_and_real_names(
    client: OpenAI, demo_backend: DemoBackend
) -> None:
    names = {model.id for model in client.models.list()}

    assert {"auto", "auto:faq", demo_backend.model} <= names
    assert client.models.retrieve(demo_backend.model).id == demo_backend.model


@pytest.mark.parametrize("model", ["auto", "auto:faq", DemoBackend.model])
def test_every_listed_name_is_answered_by_the_real_model(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=1)

    assert answer.model == DemoBackend.model


def test_a_base_url_without_v1_works(router: Product) -> None:
    with OpenAI(base_url=router.url, api_key="EMPTY", max_retries=0) as client:
        answer = client.chat.completions.create(model="auto", messages=QUESTION, max_tokens=1)
        names = [model.id for model in client.models.list()]

    assert answer.choices
    assert "auto" in names


def test_what_was_decided_is_in_the_headers(client: OpenAI, router: Product) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="auto:faq", messages=QUESTION, max_tokens=1, extra_headers=named("sdk-headers")
    )

    assert raw.headers["x-request-id"] == "sdk-headers"
    assert raw.headers["x-router-scenario"] == "faq"
    assert raw.headers["x-router-backend"] == "demo"
    assert raw.headers["x-router-policy"] == router.get("/version")["policy"]
    assert re.fullmatch(r"\d+\.\d{3}", raw.headers["x-router-overhead-ms"])
    assert raw.parse().choices


def test_extra_body_counts_like_any_parameter(client: OpenAI, router: Product) -> None:
    """The SDK sends it at the top level, so nothing is left to flatten or to warn of."""
    raw = client.chat.completions.with_raw_response.create(
        model="auto",
        messages=QUESTION,
        extra_body={"max_new_tokens": 2, "top_k": 5, "enable_thinking": False},
        extra_headers=named("sdk-extra"),
    )
    answer = raw.parse()

    assert answer.usage is not None
    assert answer.usage.completion_tokens == 2
    assert "x-router-warnings" not in raw.headers
    params = record_of(router, "sdk-extra")["params"]
    assert params["max_new_tokens"][0] == 2
    assert params["top_k"][:2] == [5, 5]
    assert params["thinking"][0] is False


# --- errors ----------------------------------------------------------------------


def test_an_unknown_model_says_which_exist(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="auto:<scenario>") as caught:
        client.chat.completions.create(model="gpt-9", messages=QUESTION)

    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"
    assert "gpt-9" in caught.value.message
    assert DemoBackend.model in caught.value.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": "yes"}, "stream"),
        ({"model": 5}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": 5, "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ],
)
def test_a_wrong_type_is_named(client: OpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="auto", messages=QUESTION, extra_body=fields)

    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"
    assert param in caught.value.message


def test_what_the_backend_refuses_comes_in_the_openai_shape(
    client: OpenAI, router: Product
) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        client.embeddings.create(model="auto", input="hi", extra_headers=named("sdk-embeddings"))

    assert caught.value.status_code == 501  # this server was started without embeddings
    assert "embeddings" in caught.value.message
    assert caught.value.type
    record = record_of(router, "sdk-embeddings")
    assert (record["endpoint"], record["status"]) == ("embeddings", 501)
    assert record["scenario"] is None


def test_a_client_that_leaves_frees_the_backend(
    client: OpenAI, router: Product, demo_backend: DemoBackend
) -> None:
    with client.chat.completions.create(
        model="auto:chat",
        messages=QUESTION,
        stream=True,
        extra_body={"ignore_eos": True, "max_tokens": 1500},
        extra_headers=named("sdk-leaves"),
    ) as stream:
        assert next(stream).choices

    assert record_of(router, "sdk-leaves")["outcome"] == "client_disconnect"
    demo_backend.wait_idle()
    assert router.get("/router/status")["backends"][0]["inflight"] == 0
