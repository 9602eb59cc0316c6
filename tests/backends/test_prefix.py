"""What a conversation finds of its past in an engine's cache, and why not where it does not."""

from __future__ import annotations

from typing import Any

from tests.backends.engines import Engine, on
from tests.backends.talk import Talk
from tests.clients.demo import record_of
from tests.support.product import Product

LONG = "Once there was a red ship near a stone. " * 40


def turn(talk: Talk, product: Product, name: str, *texts: str) -> dict[str, Any]:
    """The record of one turn: texts of user and assistant in turn, the last one asked now."""
    roles = ["user", "assistant"] * len(texts)
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    talk.client.chat.completions.create(
        model="auto",
        messages=messages,  # type: ignore[arg-type]  # built by hand
        max_tokens=4,
        extra_headers={"x-session-id": name, "x-request-id": f"{name}-{len(texts)}"},
        extra_body={"enable_thinking": False},
    )
    return record_of(product, f"{name}-{len(texts)}")


@on("llamacpp", "vllm")
def test_a_conversation_that_grows_finds_its_past(talk: Talk, front: Product) -> None:
    first = turn(talk, front, "grows", LONG)
    assert first["cache_miss"] is None

    second = turn(talk, front, "grows", LONG, "Yes.", "And then?")

    assert second["cache_miss"] is None
    assert second["cached_share"] > 0.5


@on("llamacpp", "vllm")
def test_one_whose_beginning_changes_is_told_where(talk: Talk, front: Product) -> None:
    turn(talk, front, "changes", "It is ten. " + LONG)

    second = turn(talk, front, "changes", "It is six. " + LONG, "Yes.", "And then?")

    assert second["cache_miss"] == "first-message"
    assert "byte 7" in second["cache_hint"]


@on("transformers")
def test_where_no_prefix_is_kept_that_is_said(engine: Engine, talk: Talk, front: Product) -> None:
    turn(talk, front, "nothing", "Hello!")

    assert turn(talk, front, "nothing", "Hello!", "Hi.", "Hello!")["cache_miss"] == "no-cache"
    [backend] = front.get("/router/status")["backends"]
    assert backend["prefix"]["misses"]["no-cache"] >= 1
