"""How long an answer and a prompt may be: whatever a client calls it, the engine keeps to it."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.backends.engines import CONTEXT, on
from tests.backends.talk import Talk

STORY = "Write a short story about a ship."


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "max_new_tokens"])
def test_the_output_stops_where_the_client_says(talk: Talk, name: str) -> None:
    fields: dict[str, Any] = {"temperature": 0, name: 5}
    reply = talk.ask(STORY, **fields)

    assert reply.completion_tokens == 5
    assert reply.finish == "length"


def test_the_output_stops_where_the_policy_says(talk: Talk) -> None:
    whole, stream = (how(STORY, scenario="capped") for how in (talk.ask, talk.stream))

    assert whole.completion_tokens == stream.completion_tokens == 5
    assert whole.finish == stream.finish == "length"


def test_an_answer_under_the_limit_ends_by_itself(talk: Talk) -> None:
    reply = talk.ask("What is 4 plus 5?", temperature=0, max_tokens=60)

    assert (reply.text, reply.finish) == ("4 plus 5 is 9.", "stop")


@on("llamacpp", "vllm")
def test_a_token_may_be_kept_from_ending_the_answer(talk: Talk) -> None:
    """A parameter of the engine's own goes through as it is."""
    reply = talk.ask("What is 4 plus 5?", temperature=0, max_tokens=40, ignore_eos=True)

    assert reply.completion_tokens == 40
    assert reply.finish == "length"


@on("llamacpp", "vllm")
def test_too_long_a_prompt_is_refused_in_the_backends_own_words(talk: Talk) -> None:
    for how in (talk.ask, talk.stream):
        with pytest.raises(openai.BadRequestError) as caught:
            how("ship " * 2 * CONTEXT)

        assert caught.value.type in ("exceed_context_size_error", "BadRequestError")
        assert str(CONTEXT) in caught.value.message
