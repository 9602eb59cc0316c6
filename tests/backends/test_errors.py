"""What an engine refuses comes in the OpenAI shape, however the engine says it."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.backends.talk import Talk

QUESTION = "What is 4 plus 5?"
REFUSED: list[dict[str, Any]] = [
    {"temperature": "hot"},
    {"top_p": "wide"},
    {"max_tokens": "many"},
    {"messages": "hello"},
    {"messages": []},
]


@pytest.mark.parametrize("fields", REFUSED, ids=str)
def test_a_bad_value_is_the_clients_error(talk: Talk, fields: dict[str, Any]) -> None:
    for how in (talk.ask, talk.stream):
        with pytest.raises(openai.BadRequestError) as caught:
            how(QUESTION, **fields)

        assert caught.value.type == "invalid_request_error"
        assert caught.value.message


def test_an_engine_that_refused_serves_the_next(talk: Talk) -> None:
    with pytest.raises(openai.APIStatusError):
        talk.ask(QUESTION, temperature="hot")

    assert talk.ask(QUESTION, temperature=0).text == "4 plus 5 is 9."
