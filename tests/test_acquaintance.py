"""A backend that nobody described: examined, spoken to as it was seen, examined anew."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from router import capabilities
from router.acquaintance import _taken
from tests.backends.engines import CONTEXT, MODEL, Engine
from tests.support.product import Product
from tests.support.rawclient import RawReply, exchange, request_bytes

ASK = {"model": "auto", "messages": [{"role": "user", "content": "What is 4 plus 5?"}]}
POLICY = """
schema = 1
default_scenario = "chat"
[scenarios.chat.preset]
top_k = 5
max_new_tokens = {cap = 8}
"""


def ask_through(product: Product, body: Any) -> RawReply:
    return exchange(product.port, request_bytes("POST", "/v1/chat/completions", None, body))


def until(what: Callable[[], Any], timeout_s: float = 30.0) -> Any:
    """What this comes to, once it comes to anything."""
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not come about"
        pause.wait(0.05)
    return found


def test_a_backend_is_examined_and_then_spoken_to_as_it_was_seen(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    config = {"health": {"examine": True, "interval_s": 0.2}}
    env = {"SCENARIO_ROUTER_CACHE": str(cache)}

    def ask() -> RawReply:
        reply = ask_through(product, ASK)
        assert reply.status == 200, reply.text
        return reply

    def status() -> dict[str, Any]:
        [found] = product.get("/router/status")["backends"]
        assert isinstance(found, dict)
        return found

    with Engine("llamacpp", tmp_path) as engine:
        port = urlsplit(engine.url).port
        backend = {"name": "found", "url": engine.url, "dialect": "auto"}
        path = capabilities.path_for(engine.url, cache)
        whole = {"backends": [backend], **config}
        with Product.start(tmp_path / "front", whole, policy=POLICY, env=env) as product:
            first = until(lambda: capabilities.read(path))
            assert (first.dialect, first.model, first.context) == ("llamacpp", MODEL, CONTEXT)
            assert first.knobs["top_k"] == "honoured"
            assert ask().header("x-router-warnings") is None
            until(lambda: status()["context"] == CONTEXT)

            # Somebody has seen that this one does not hear a parameter.
            deaf = msgspec.structs.replace(first, knobs={**first.knobs, "top_k": "ignored"})
            capabilities.write(path, deaf)
            until(lambda: status()["fitted"])
            assert "top_k" in (ask().header("x-router-warnings") or "")

            engine.__exit__()
            with Engine("llamacpp", tmp_path, port=port):
                again = until(
                    lambda: (
                        (found := capabilities.read(path))
                        and found.started != first.started
                        and found
                    )
                )
                assert again.knobs["top_k"] == "honoured"
                until(lambda: status()["up"] and not status()["fitted"])
                assert ask().header("x-router-warnings") is None


def test_one_of_all_workers_examines(tmp_path: Path) -> None:
    mark = tmp_path / "deep" / "one.examining"

    assert not _taken(mark)
    assert _taken(mark)

    # The mark of a process that died is no mark.
    old = time.time() - 3600
    os.utime(mark, (old, old))
    assert not _taken(mark)


def test_a_limit_that_is_known_refuses_what_cannot_fit(tmp_path: Path) -> None:
    with Engine("llamacpp", tmp_path) as engine:
        backend = {"name": "found", "url": engine.url, "dialect": "auto"}
        with Product.start(tmp_path / "front", {"backends": [backend]}, policy=POLICY) as product:
            until(lambda: product.get("/router/status")["backends"][0]["context"])
            before = engine.tokens_made()
            long = {**ASK, "messages": [{"role": "user", "content": "ship" * 30 * CONTEXT}]}

            reply = ask_through(product, long)

            error = json.loads(reply.body)["error"]
            assert (reply.status, error["code"]) == (400, "context_length_exceeded")
            assert str(CONTEXT) in error["message"]
            assert engine.tokens_made() == before
