"""A client that hangs up ends the engine's work for it, had it asked for a stream or not."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any

import pytest

from tests.backends.engines import CONTEXT, Engine, on, on_each
from tests.backends.talk import Talk
from tests.clients.demo import await_fact, record_of
from tests.support.product import Product

QUESTION = "What is 4 plus 5?"
#: an answer that goes on until the context is full ...
ENDLESS: Mapping[str, Any] = {"temperature": 0, "ignore_eos": True}
#: ... which with so small a model may be soon, so that more is asked for with each token
LABORIOUS: Mapping[str, Mapping[str, Any]] = {
    "llamacpp": {"logprobs": True, "top_logprobs": 100},
    "vllm": {},
}


# llama.cpp looks once a second whether somebody still waits for a whole answer, and in less
# than that this model has given it.
@on_each("kind", {"llamacpp": ("stream",), "vllm": ("stream", "whole")})
def test_the_engine_stops_when_the_client_leaves(engine: Engine, front: Product, kind: str) -> None:
    await_fact(engine.is_idle)
    before = engine.tokens_made()
    name = f"leaves-{kind}"
    fields = {**ENDLESS, **LABORIOUS[engine.name], "stream": kind == "stream"}
    with asking(front, name, fields):
        await_fact(lambda: not engine.is_idle())

    await_fact(engine.is_idle)
    assert record_of(front, name)["outcome"] == "client_disconnect"
    assert engine.tokens_made() - before < CONTEXT - 100


@on("transformers")
@pytest.mark.parametrize("stream", [True, False])
def test_an_engine_with_one_seat_is_free_when_the_client_leaves(
    front: Product, talk: Talk, stream: bool
) -> None:
    """It tells nobody what it does, but serves the next one only when it is done with this."""
    endless = {"temperature": 0, "max_tokens": 8000, "generation_config": '{"eos_token_id": -1}'}
    name = f"leaves-{stream}"
    with asking(front, name, {**endless, "stream": stream}):
        await_fact(lambda: front.get("/router/status")["backends"][0]["inflight"] == 1)

    assert record_of(front, name)["outcome"] == "client_disconnect"
    # Far less than the endless answer takes.
    impatient = talk.client.with_options(timeout=15)
    messages: Any = [{"role": "user", "content": QUESTION}]
    answer = impatient.chat.completions.create(model="auto", messages=messages, temperature=0)
    assert answer.choices[0].message.content == "4 plus 5 is 9."


def asking(front: Product, name: str, fields: Mapping[str, Any]) -> socket.socket:
    """A client that has asked and waits; it leaves at the end of its block."""
    messages = [{"role": "user", "content": QUESTION}]
    body = json.dumps({"model": "auto", "messages": messages, **fields}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\nx-request-id: {name}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    client = socket.create_connection(("127.0.0.1", front.port))
    client.sendall(head.encode() + body)
    return client
