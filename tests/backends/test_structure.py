"""Answers of a given shape: JSON by a schema, and calls of tools."""

from __future__ import annotations

import json

import pytest

from tests.backends.engines import on
from tests.backends.talk import Message, Talk
from tests.backends.tiny.lessons import weather_tool

#: Not what the model says of its own accord. A text, since between the members of an object a
#: schema allows white space without end, and so small a model might take that up.
SCHEMA = {"type": "string", "enum": ["yes", "no"]}
BY_SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": SCHEMA}}
CAPITAL = "Give the capital of Peru as JSON."
WEATHER = "What is the weather in Rome?"


@on("llamacpp", "vllm")
@pytest.mark.parametrize("scenario", ["plain", "capped", "thoughtful"])
def test_a_schema_is_kept_to_whatever_the_policy(talk: Talk, scenario: str) -> None:
    """Neither a cap nor a thought may break it."""
    reply = talk.ask(CAPITAL, scenario=scenario, response_format=BY_SCHEMA, temperature=0)

    assert json.loads(reply.text) in SCHEMA["enum"]
    assert reply.finish == "stop"


def test_without_a_schema_the_answer_is_the_models_own(talk: Talk) -> None:
    reply = talk.ask(CAPITAL, temperature=0)

    assert json.loads(reply.text) == {"country": "Peru", "capital": "Lima"}


@pytest.mark.parametrize("scenario", ["plain", "capped"])
def test_a_tool_is_called_whole_whatever_the_cap(talk: Talk, scenario: str) -> None:
    reply = talk.ask(WEATHER, scenario=scenario, tools=[weather_tool("weather")], temperature=0)

    [(name, arguments)] = reply.calls
    assert (name, json.loads(arguments)) == ("weather", {"city": "Rome"})
    assert reply.finish == "tool_calls"


def test_what_a_tool_said_is_answered(talk: Talk) -> None:
    call = {"name": "weather", "arguments": '{"city": "Rome"}'}
    messages: list[Message] = [
        {"role": "user", "content": WEATHER},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call-1", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "call-1", "content": "sunny"},
    ]
    reply = talk.ask(messages, tools=[weather_tool("weather")], temperature=0)

    assert reply.text == "The weather in Rome is sunny."
