"""What an engine cannot do is said in the reply's warnings, and the request is served."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tests.backends.engines import on, on_each
from tests.backends.talk import Talk

#: a parameter, and a value of it that asks for something
ASKED: Mapping[str, Any] = {
    "clean_up_tokenization_spaces": True,
    "ignore_eos": True,
    "logprobs": True,
    "n": 2,
    "presence_penalty": 1.5,
    "priority": 1,
    "response_format": {"type": "json_object"},
    "skip_special_tokens": False,
}
LOST = {
    "llamacpp": ("clean_up_tokenization_spaces", "priority", "skip_special_tokens"),
    "vllm": ("clean_up_tokenization_spaces",),
    "transformers": tuple(ASKED),
}


@on_each("name", LOST)
def test_what_an_engine_cannot_do_is_said(talk: Talk, name: str) -> None:
    reply = talk.ask("What is 4 plus 5?", temperature=0, **{name: ASKED[name]})

    assert re.search(rf"\b{name}\b", reply.warnings)
    assert reply.text == "4 plus 5 is 9."


@on("llamacpp", "vllm")
def test_what_nobody_knows_goes_through(talk: Talk) -> None:
    reply = talk.ask("What is 4 plus 5?", temperature=0, a_field_of_tomorrow=1)

    assert reply.warnings == ""
    assert reply.text == "4 plus 5 is 9."


@on("transformers")
def test_what_a_strict_engine_would_refuse_is_left_out(talk: Talk) -> None:
    reply = talk.ask("What is 4 plus 5?", temperature=0, a_field_of_tomorrow=1)

    assert "a_field_of_tomorrow" in reply.warnings
    assert reply.text == "4 plus 5 is 9."
