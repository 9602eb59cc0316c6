"""An answer is never lost in thought: the thought has tokens of its own, and else is rescued."""

from __future__ import annotations

from typing import Any

import pytest

from tests.backends.engines import on
from tests.backends.policy import BUDGET, CAP
from tests.backends.talk import Reply, Talk

#: takes 140 tokens of thought and 7 of answer
QUESTION = "Count to 70."
HEADER = "x-router-rescued"

everyhow = pytest.mark.parametrize("how", ["whole", "stream"])


def asked(talk: Talk, how: str, scenario: str) -> Reply:
    return (talk.ask if how == "whole" else talk.stream)(QUESTION, scenario=scenario)


@everyhow
def test_there_is_an_answer_although_the_thought_is_cut(talk: Talk, how: str) -> None:
    reply = asked(talk, how, "short")

    assert reply.text.startswith("I counted to ")
    assert reply.finish == "stop"


@on("llamacpp", "vllm")
@everyhow
def test_where_a_thought_can_be_ended_it_keeps_to_its_budget(talk: Talk, how: str) -> None:
    reply = asked(talk, how, "short")

    assert reply.thought.strip().startswith("1, 2, 3")
    assert len(reply.thought.split(", ")) <= BUDGET / 2 + 2  # a number and its comma
    assert reply.completion_tokens <= BUDGET + CAP
    assert HEADER not in reply.headers


@on("transformers")
def test_where_it_cannot_the_answer_is_rescued(talk: Talk) -> None:
    reply = asked(talk, "whole", "short")

    assert HEADER in reply.headers
    assert reply.text == "I counted to 70."
    assert reply.thought.strip().startswith("1, 2, 3")
    assert BUDGET + CAP < reply.completion_tokens <= BUDGET + 2 * CAP


@on("transformers")
@everyhow
def test_left_alone_the_answer_would_be_empty(talk: Talk, how: str) -> None:
    reply = asked(talk, how, "short-unguarded")

    assert reply.text == ""
    assert reply.finish == "length"
    assert reply.completion_tokens == BUDGET + CAP


def test_a_limit_of_the_clients_that_the_thought_used_up_is_rescued_too(talk: Talk) -> None:
    limited: dict[str, Any] = {"temperature": 0, "enable_thinking": True, "max_tokens": CAP}
    whole, stream = (how(QUESTION, **limited) for how in (talk.ask, talk.stream))

    assert HEADER in whole.headers
    assert whole.text == stream.text == "I counted to 70."
    assert whole.finish == stream.finish == "stop"
