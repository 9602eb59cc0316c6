"""ChatOpenAI in front of a real small model, used as in a chat application."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field, SecretStr

from tests.clients.demo import record_of, records_of
from tests.support.product import Product
from tests.support.script import reply_json
from tests.support.scripted import ScriptedBackend

QUESTION = "What is the capital of France?"
FROM_THE_ARTICLES: dict[str, Any] = {
    "enable_thinking": False,
    "return_reasoning": False,
    "use_cache": True,
    "skip_special_tokens": True,
    "max_new_tokens": 64,
    "repetition_penalty": 1.15,
    "session_id": "abc",
}


class City(BaseModel):
    """A city and its country."""

    city: str = Field(max_length=16)
    country: str = Field(max_length=16)


@tool
def weather(city: str) -> str:
    """The weather of a city today."""
    return f"It rains in {city}."


def chat(
    router: Product, request_id: str, *, headers: dict[str, str] | None = None, **fields: Any
) -> ChatOpenAI:
    """A chat model; its requests carry this id, by which their records are found."""
    chosen: dict[str, Any] = {"model": "auto", "temperature": 0, "max_completion_tokens": 4}
    return ChatOpenAI(
        **{**chosen, **fields},
        max_retries=0,
        base_url=router.url + "/v1",
        api_key=SecretStr("EMPTY"),
        default_headers={"x-request-id": request_id, **(headers or {})},
    )


def test_invoke_and_stream_say_the_same(router: Product) -> None:
    model = chat(router, "lc-same", seed=7, extra_body={"cache_prompt": False})

    whole = model.invoke(QUESTION)
    pieces = list(model.stream(QUESTION))

    assert whole.text
    assert "".join(piece.text for piece in pieces) == whole.text
    assert [record["stream"] for record in records_of(router, "lc-same", 2)] == [False, True]


async def test_the_async_calls_work_too(router: Product) -> None:
    model = chat(router, "lc-async")

    whole = await model.ainvoke(QUESTION)
    pieces = [piece async for piece in model.astream(QUESTION)]

    assert whole.text
    assert all(isinstance(piece, AIMessageChunk) for piece in pieces)
    assert "".join(piece.text for piece in pieces)
    assert [record["outcome"] for record in records_of(router, "lc-async", 2)] == ["ok", "ok"]


def test_a_batch_is_several_requests(router: Product) -> None:
    answers = chat(router, "lc-batch").batch([QUESTION, "Name a river.", "Name a colour."])

    assert all(answer.text for answer in answers)
    assert len(records_of(router, "lc-batch", 3)) == 3


def test_usage_counts_the_same_streamed_or_not(router: Product) -> None:
    model = chat(router, "lc-usage", stream_usage=True)

    whole = model.invoke(QUESTION)
    total: BaseMessage | None = None
    for piece in model.stream(QUESTION):
        total = piece if total is None else total + piece  # type: ignore[assignment]

    assert whole.usage_metadata is not None
    assert isinstance(total, AIMessageChunk)
    assert total.usage_metadata is not None
    streamed, at_once = dict(total.usage_metadata), dict(whole.usage_metadata)
    for count in ("input_tokens", "output_tokens", "total_tokens"):
        assert streamed[count] == at_once[count]


# LangChain's own way to carry the parsed value makes pydantic warn.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")
def test_structured_output_is_an_object_of_the_class(router: Product) -> None:
    model = chat(router, "lc-schema", max_completion_tokens=96)

    found = model.with_structured_output(City).invoke("Paris is the capital of France.")

    assert isinstance(found, City)
    assert record_of(router, "lc-schema")["finish_reason"] == "stop"


def test_bound_tools_go_out_and_calls_come_back(
    scripted: ScriptedBackend, scripted_router: Product
) -> None:
    call = {"name": "weather", "arguments": '{"city": "Bonn"}'}
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call-1", "type": "function", "function": call}],
    }
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    scripted.set_script([reply_json({"id": "x", "object": "chat.completion", "choices": [choice]})])

    answer = chat(scripted_router, "lc-tools").bind_tools([weather]).invoke("Weather in Bonn?")

    [tool_sent] = scripted.requests[-1].json["tools"]
    assert tool_sent["function"]["name"] == "weather"
    assert isinstance(answer, AIMessage)
    [found] = answer.tool_calls
    assert (found["name"], found["args"]) == ("weather", {"city": "Bonn"})


@pytest.mark.parametrize(
    ("method", "asked"),
    [
        ("json_mode", {"response_format": {"type": "json_object"}}),
        (
            "function_calling",
            {"tool_choice": {"type": "function", "function": {"name": "City"}}},
        ),
    ],
)
def test_the_other_ways_to_an_object_go_on_uncut(
    scripted: ScriptedBackend, scripted_router: Product, method: Any, asked: dict[str, Any]
) -> None:
    """No cap of the policy's may cut an answer that has to be whole."""
    text = '{"city": "Paris", "country": "France"}'
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if method == "function_calling":
        call = {"name": "City", "arguments": text}
        message["tool_calls"] = [{"id": "call-1", "type": "function", "function": call}]
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    scripted.set_script([reply_json({"id": "x", "object": "chat.completion", "choices": [choice]})])
    model = chat(scripted_router, "lc-object", model="auto:faq", max_completion_tokens=4000)

    found = model.with_structured_output(City, method=method).invoke("Paris?")

    assert found == City(city="Paris", country="France")
    sent = scripted.requests[-1].json
    assert {name: sent[name] for name in asked} == asked
    assert sent["max_completion_tokens"] == 4000
    assert sent["chat_template_kwargs"]["enable_thinking"] is False


def test_a_small_model_with_bound_tools_answers(router: Product) -> None:
    answer = chat(router, "lc-prose").bind_tools([weather]).invoke(QUESTION)

    assert answer.text
    assert record_of(router, "lc-prose")["outcome"] == "ok"


def test_a_session_header_joins_the_turns_of_a_conversation(router: Product) -> None:
    model = chat(router, "lc-session", headers={"x-session-id": "alice@example.org"})

    first = model.invoke(QUESTION)
    model.invoke([HumanMessage(QUESTION), first, HumanMessage("And of Spain?")])
    chat(router, "lc-stranger", headers={"x-session-id": "bob"}).invoke(QUESTION)

    one, two = records_of(router, "lc-session", 2)
    assert one["session"] == two["session"]
    assert one["session"] != record_of(router, "lc-stranger")["session"]
    assert "alice" not in one["session"]  # a hash of it
    assert two["turns"] == 2


def test_the_parameters_of_the_articles_are_understood(router: Product) -> None:
    model = chat(router, "lc-articles", max_completion_tokens=None, extra_body=FROM_THE_ARTICLES)

    answer = model.invoke("Say hello.")

    assert answer.text
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] <= 64
    record = record_of(router, "lc-articles")
    said = {name: client for name, (client, _, _) in record["params"].items()}
    assert said["thinking"] is False
    assert said["use_cache"] is True
    assert said["skip_special_tokens"] is True
    assert said["max_new_tokens"] == 64
    assert said["repetition_penalty"] == 1.15
    assert said["session_id"] == "[5 bytes]"  # texts of a client are told by their length
    assert record["session"] not in (None, "abc")


def test_a_limit_under_its_new_name_is_capped_by_the_policy(router: Product) -> None:
    model = chat(router, "lc-cap", model="auto:faq", max_completion_tokens=4000)

    answer = model.invoke("Tell me a long story.")

    client, sent, origin = record_of(router, "lc-cap")["params"]["max_new_tokens"]
    assert (client, origin) == (4000, "cap")
    assert sent < 4000
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] <= sent
