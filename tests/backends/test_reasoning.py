"""Where a thought is shown: wherever the policy wants it, whatever the engine calls it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.backends.talk import Reply, Talk

QUESTION = "What is the capital of France?"
THOUGHT = "The country is France. I recall the capital."
ANSWER = "The capital of France is Paris."
#: thought and text, by where the policy wants the thought
SHOWN: Mapping[str, tuple[str, str]] = {
    "field": (THOUGHT, ANSWER),
    "inline": ("", f"<think>\n{THOUGHT}\n</think>\n\n{ANSWER}"),
    "drop": ("", ANSWER),
}

everyhow = pytest.mark.parametrize("how", ["whole", "stream"])


def asked(talk: Talk, how: str, **fields: Any) -> Reply:
    return (talk.ask if how == "whole" else talk.stream)(QUESTION, **fields)


@everyhow
@pytest.mark.parametrize("where", SHOWN)
def test_a_thought_is_shown_where_the_policy_wants_it(talk: Talk, where: str, how: str) -> None:
    reply = asked(talk, how, scenario=where)

    assert (reply.thought, reply.text) == SHOWN[where]
    assert reply.finish == "stop"
    assert reply.completion_tokens > 20


@everyhow
def test_a_thought_may_be_left_as_the_engine_shows_it(talk: Talk, how: str) -> None:
    reply = asked(talk, how, scenario="keep")

    assert (reply.thought.strip(), reply.text.strip()) == (THOUGHT, ANSWER)


@everyhow
def test_where_none_was_wanted_none_is_shown(talk: Talk, how: str) -> None:
    """An empty block leaves no trace, no field and no blank lines either."""
    reply = asked(talk, how, scenario="direct", temperature=0)

    assert (reply.thought, reply.text) == ("", ANSWER)
