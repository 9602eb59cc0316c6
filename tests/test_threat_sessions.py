"""What one client's key was remembered for is nobody else's, whatever they call their sessions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from router import parse
from router.chat import Endpoint
from tests.support.product import Product
from tests.support.rawclient import RawReply, exchange, request_bytes
from tests.support.script import chat_ok
from tests.support.scripted import ScriptedBackend

CHAT = "/v1/chat/completions"
POLICY = """
schema = 1
default_scenario = "chat"
[scenarios.chat]
[scenarios.faq]
match.keywords = ["refund"]
"""
#: each way to name a session, the last by what was said
NAMED: list[tuple[Mapping[bytes, bytes], dict[str, Any]]] = [
    ({b"x-session-id": b"s-1"}, {}),
    ({b"x-conversation-id": b"s-1"}, {}),
    ({b"x-litellm-session-id": b"s-1"}, {}),
    ({}, {"session_id": "s-1"}),
    ({}, {"conversation_id": "s-1"}),
    ({}, {"metadata": {"session_id": "s-1"}}),
    ({}, {"prompt_cache_key": "s-1"}),
    ({}, {"user": "s-1"}),
    ({}, {}),
]


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with ExitStack() as stack:
        backends = [stack.enter_context(ScriptedBackend([chat_ok("Fine.")])) for _ in range(3)]
        config = {
            "backends": [
                {"name": f"b{n}", "url": backend.url, "model": "m"}
                for n, backend in enumerate(backends)
            ],
            "auth": {"keys_env": "T_KEYS"},
            "log": {"flush_ms": 5},
        }
        env = {"T_KEYS": "alice=key-a,bob=key-b"}
        folder = tmp_path_factory.mktemp("sessions")
        yield stack.enter_context(Product.start(folder, config, policy=POLICY, env=env))


def ask(product: Product, key: str, session: str) -> RawReply:
    headers = {
        "authorization": f"Bearer {key}",
        "x-session-id": session,
        "x-router-debug": "true",
    }
    body = {"model": "auto", "messages": [{"role": "user", "content": "Where is my refund?"}]}
    return exchange(product.port, request_bytes("POST", CHAT, headers, body))


@pytest.mark.parametrize(("headers", "members"), NAMED)
def test_a_sessions_name_is_its_keys_own(
    headers: Mapping[bytes, bytes], members: dict[str, Any]
) -> None:
    body = {"messages": [{"role": "user", "content": "Hi."}], **members}
    raw = json.dumps(body).encode()

    def session(owner: str | None) -> str:
        found = parse.chat_request(Endpoint.CHAT, raw, headers, owner).session
        assert found is not None
        if headers:  # where the body is not read
            assert parse.session_of(headers, owner) == found
        return found.hash

    assert session("alice") == session("alice")
    assert len({session("alice"), session("bob"), session(None), session("alic")}) == 4


def test_another_keys_session_is_not_joined(product: Product) -> None:
    """Neither its place nor that there is one is told to somebody who guesses its name."""
    first, again = ask(product, "key-a", "s-1"), ask(product, "key-a", "s-1")
    assert (first.header("x-router-affinity"), again.header("x-router-affinity")) == ("new", "hit")

    guessed = ask(product, "key-b", "s-1")

    assert guessed.header("x-router-affinity") == "new"
    assert guessed.header("x-router-session") != first.header("x-router-session")
    assert ask(product, "key-a", "s-1").header("x-router-affinity") == "hit"


def test_a_name_cannot_be_made_to_look_like_another_keys(product: Product) -> None:
    own = ask(product, "key-a", "s-2").header("x-router-session")
    made_up = ("alice\0s-2", "alice s-2", "alice:s-2", "alices-2")
    with pytest.raises(AssertionError, match="400"):  # a zero byte is no header's
        assert ask(product, "key-b", made_up[0]).status == 200
    for name in made_up[1:]:
        assert ask(product, "key-b", name).header("x-router-session") != own
    body = {"messages": [{"role": "user", "content": "Hi."}], "user": made_up[0]}
    found = parse.chat_request(Endpoint.CHAT, json.dumps(body).encode(), {}, "bob").session
    assert found is not None
    assert found.hash != own


def test_without_keys_a_session_is_called_as_ever() -> None:
    """Those that Redis and logs know go on."""
    found = parse.session_of({b"x-session-id": b"s-1"})

    assert found is not None
    assert found.hash == blake2b(b"s-1", digest_size=8).hexdigest()


def test_logs_know_sessions_by_hash_alone(product: Product, tmp_path: Path) -> None:
    ask(product, "key-a", "john@corp.example")
    records = product.wait_records(1)

    assert "john@corp.example" not in json.dumps(records)
    assert all(len(record["session"]) == 16 for record in records if record["session"])
