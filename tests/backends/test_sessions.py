"""A conversation that goes on is not computed anew, where the engine keeps what it computed."""

from __future__ import annotations

from tests.backends.engines import on
from tests.backends.talk import Message, Talk

#: vLLM keeps whole blocks, of 128 tokens on a CPU
BLOCK = 128


def conversation(name: str) -> list[Message]:
    """A first turn after a long system text, which nobody else begins the same way."""
    system = f"{name}. " + "You are a helpful assistant. " * 40
    return [
        {"role": "system", "content": system},
        {"role": "user", "content": "What is 4 plus 5?"},
    ]


def next_turn(before: list[Message], answer: str) -> list[Message]:
    return [
        *before,
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "What is 2 plus 3?"},
    ]


@on("llamacpp", "vllm")
def test_the_second_turn_reuses_the_first(talk: Talk) -> None:
    first_turn = conversation("first")
    first = talk.ask(first_turn, temperature=0)
    second = talk.ask(next_turn(first_turn, first.text), temperature=0)

    assert (first.cached_tokens or 0) < BLOCK
    assert second.cached_tokens is not None
    assert BLOCK <= second.cached_tokens < second.prompt_tokens
    assert second.cached_tokens > first.prompt_tokens - BLOCK
    assert second.text == "2 plus 3 is 5."


@on("llamacpp", "vllm")
def test_a_turn_with_thinking_reuses_one_without(talk: Talk) -> None:
    """The switch stands at the end of the prompt, so it costs nothing of what came before."""
    first_turn = conversation("switch")
    first = talk.ask(first_turn, scenario="direct", temperature=0)
    second = talk.ask(next_turn(first_turn, first.text), scenario="thoughtful", temperature=0)

    assert second.thought
    assert second.cached_tokens is not None
    assert second.cached_tokens > first.prompt_tokens - BLOCK


@on("llamacpp", "vllm")
def test_a_thought_sent_back_does_not_spoil_the_reuse(talk: Talk) -> None:
    first_turn = conversation("thought")
    first = talk.ask(first_turn, scenario="thoughtful", temperature=0)
    going_on = next_turn(first_turn, first.text)
    going_on[2]["reasoning_content"] = first.thought
    second = talk.ask(going_on, scenario="thoughtful", temperature=0)

    assert first.thought
    assert second.cached_tokens is not None
    assert second.cached_tokens > first.prompt_tokens - BLOCK


@on("llamacpp")
def test_a_client_may_have_it_computed_anew(talk: Talk) -> None:
    turn = conversation("anew")
    talk.ask(turn, temperature=0)

    assert talk.ask(turn, temperature=0).cached_tokens
    assert talk.ask(turn, temperature=0, use_cache=False).cached_tokens == 0
