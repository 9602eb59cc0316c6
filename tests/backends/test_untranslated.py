"""The same words sent on untouched do not land: what the dialects are there for."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion

from tests.backends.engines import Engine, on
from tests.backends.talk import Talk

QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
COMMON_WORDS: list[dict[str, Any]] = [
    {"enable_thinking": False},
    {"max_new_tokens": 3},
    {"extra_body": {"max_tokens": 3}},
    {"thinking": {"type": "disabled"}},
]


def untouched(talk: Talk, engine: Engine, fields: dict[str, Any]) -> ChatCompletion:
    return talk.client.chat.completions.create(
        model=engine.model,
        messages=QUESTION,
        temperature=0,
        extra_body=fields,
        extra_headers={"x-router-policy": "off"},
    )


@on("llamacpp", "vllm")
@pytest.mark.parametrize("fields", COMMON_WORDS, ids=str)
def test_words_in_the_wrong_place_are_ignored(
    talk: Talk, engine: Engine, fields: dict[str, Any]
) -> None:
    plain, worded = untouched(talk, engine, {}), untouched(talk, engine, fields)

    assert worded.choices[0].message == plain.choices[0].message
    assert plain.usage is not None
    assert worded.usage is not None
    assert worded.usage.prompt_tokens == plain.usage.prompt_tokens
    assert worded.usage.completion_tokens == plain.usage.completion_tokens > 20


@on("llamacpp")
def test_the_common_name_of_the_repetition_penalty_is_ignored(talk: Talk, engine: Engine) -> None:
    plain, worded = (
        untouched(talk, engine, fields) for fields in ({}, {"repetition_penalty": 5.0})
    )

    assert worded.choices[0].message == plain.choices[0].message


@on("transformers")
@pytest.mark.parametrize(
    "fields", [*COMMON_WORDS, {"top_k": 1}, {"repetition_penalty": 5.0}], ids=str
)
def test_words_in_the_wrong_place_are_refused(
    talk: Talk, engine: Engine, fields: dict[str, Any]
) -> None:
    with pytest.raises(openai.APIStatusError, match="Unexpected fields"):
        untouched(talk, engine, fields)
