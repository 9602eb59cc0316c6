"""Thinking on a model that thinks: switched where the engine reads the switch, shown apart."""

from __future__ import annotations

from typing import Any

import pytest

from tests.backends.policy import KNOBS
from tests.backends.talk import Message, Talk

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
THOUGHT = "The country is France. I recall the capital."
#: what the template writes where a thought is not wanted: an empty one
EMPTY_THOUGHT_TOKENS = 4

ON: list[dict[str, Any]] = [
    {"enable_thinking": True},
    {"chat_template_kwargs": {"enable_thinking": True}},
    {"reasoning_effort": "high"},
    {"think": True},
]
OFF: list[dict[str, Any]] = [
    {"enable_thinking": False},
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"reasoning_effort": "none"},
    {"thinking": {"type": "disabled"}},
]


def test_the_policy_switches_thinking(talk: Talk) -> None:
    on = talk.ask(QUESTION, scenario="thoughtful", temperature=0)
    off = talk.ask(QUESTION, scenario="direct", temperature=0)

    assert off.prompt_tokens == on.prompt_tokens + EMPTY_THOUGHT_TOKENS
    assert (on.thought.strip(), on.text.strip()) == (THOUGHT, ANSWER)
    assert (off.thought, off.text) == ("", ANSWER)
    assert on.completion_tokens > off.completion_tokens


@pytest.mark.parametrize("wish", ON, ids=str)
def test_a_client_switches_it_on_in_any_words(talk: Talk, wish: dict[str, Any]) -> None:
    reply = talk.ask(QUESTION, temperature=0, **wish)

    assert (reply.thought.strip(), reply.text.strip()) == (THOUGHT, ANSWER)


@pytest.mark.parametrize("wish", OFF, ids=str)
def test_a_client_switches_it_off_in_any_words(talk: Talk, wish: dict[str, Any]) -> None:
    reply = talk.ask(QUESTION, temperature=0, **wish)

    assert (reply.thought, reply.text) == ("", ANSWER)


def test_the_operators_force_is_stronger_than_the_client(talk: Talk) -> None:
    reply = talk.ask(QUESTION, scenario="direct", temperature=0, enable_thinking=True)

    assert (reply.thought, reply.text) == ("", ANSWER)


@pytest.mark.parametrize("thinking", [True, False])
def test_a_stream_joined_is_the_whole_answer(talk: Talk, thinking: bool) -> None:
    fields: dict[str, Any] = {"temperature": 0, "enable_thinking": thinking}
    whole, stream = talk.ask(QUESTION, **fields), talk.stream(QUESTION, **fields)

    assert (stream.text, stream.thought) == (whole.text, whole.thought)
    assert stream.finish == whole.finish == "stop"
    assert stream.prompt_tokens == whole.prompt_tokens
    assert stream.completion_tokens == whole.completion_tokens


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_the_thought_of_a_turn_that_is_over_is_not_read_again(talk: Talk, field: str) -> None:
    past: list[Message] = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": ANSWER},
        {"role": "user", "content": "What is 2 plus 3?"},
    ]
    plain = talk.ask(past, temperature=0)
    past[1] = {**past[1], field: THOUGHT}
    thoughtful = talk.ask(past, temperature=0)

    assert thoughtful.prompt_tokens == plain.prompt_tokens
    assert thoughtful.text == plain.text == "2 plus 3 is 5."


def test_a_thought_may_be_long(talk: Talk) -> None:
    """As the limits have to be tried on one that is."""
    reply = talk.ask("Count to 70.", temperature=0, enable_thinking=True)

    assert reply.thought.strip() == ", ".join(map(str, range(1, 71)))
    assert reply.text.strip() == "I counted to 70."
    assert reply.completion_tokens > 140


def test_the_knobs_of_the_policy_leave_thinking_off(talk: Talk) -> None:
    """Each scenario of a knob answers directly, which the other tests rely on."""
    for scenario in KNOBS:
        assert talk.ask(QUESTION, scenario=scenario).thought == "", scenario
