"""Special tokens in the text: hidden or shown as the client wishes, where an engine can do both.

Only vLLM can, and only without its reasoning parser, which wants to see them itself and so
shows them in every chat answer. Ordinary answers hold none, as the one that ends them is not
part of the text.
"""

from __future__ import annotations

from typing import Any

from tests.backends.engines import on
from tests.backends.talk import Talk

PAST_THE_END: dict[str, Any] = {"ignore_eos": True, "max_tokens": 30}
PROMPT = "<|im_start|>user\nWhat is 4 plus 5?<|im_end|>\n<|im_start|>assistant\n"


@on("vllm")
def test_special_tokens_of_a_completion_are_shown_to_who_wants_them(talk: Talk) -> None:
    hidden, shown = (
        talk.client.completions.create(
            model="auto",
            prompt=PROMPT,
            temperature=0,
            extra_body={**PAST_THE_END, "skip_special_tokens": value},
        )
        for value in (True, False)
    )

    assert "<|im_end|>" in shown.choices[0].text
    assert "<|im_end|>" not in hidden.choices[0].text


@on("vllm")
def test_special_tokens_of_a_chat_are_shown_to_who_wants_them(talk: Talk) -> None:
    reply = talk.ask("What is 4 plus 5?", temperature=0, skip_special_tokens=False, **PAST_THE_END)

    assert reply.warnings == ""
    assert "<|im_end|>" in reply.text
