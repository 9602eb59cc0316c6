"""A pool of scripted backends and a router before it, for tests of where requests go.

Backends are called `a`, `b`, `c` …, and each answers with its name.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from router import balance, parse
from tests.support.product import Product
from tests.support.rawclient import (
    HOST,
    READ_SIZE,
    RawReply,
    ReplyReader,
    exchange,
    request_bytes,
)
from tests.support.script import Step, chat_ok, delta, stream_head
from tests.support.scripted import ScriptedBackend

CHAT = "/v1/chat/completions"
POLICY = 'schema = 1\ndefault_scenario = "chat"\n[scenarios.chat]\n'
#: in a question, the word at which each backend begins to answer and never ends
HOLD = "hold the line"
_HELD: list[Step] = [stream_head(), delta(content="…"), {"do": "wait_disconnect", "max_ms": 60_000}]
_HOLDING = [{"when": {"body_text": HOLD}, "steps": _HELD}]


class Pool:
    """Backends by their names. `start` puts a router before them."""

    def __init__(self, backends: Mapping[str, ScriptedBackend]) -> None:
        self.backends = backends

    def __getitem__(self, name: str) -> ScriptedBackend:
        return self.backends[name]

    @property
    def names(self) -> list[str]:
        return list(self.backends)

    def start(
        self,
        folder: Path,
        *,
        weights: Sequence[float] = (),
        settings: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        **tables: Any,
    ) -> Product:
        """A router of this pool, which hears of a backend by requests alone, not by checks.

        Each request has a connection of its own: what befalls it is no old connection's fault.
        `settings` are each backend's.
        """
        told = dict(zip(self.backends, weights, strict=False))
        config = {
            "log": {"flush_ms": 10},
            **tables,
            "health": {"interval_s": 60, **tables.get("health", {})},
            "backends": [
                {
                    "name": name,
                    "url": backend.url,
                    "model": "m",
                    "weight": told.get(name, 1),
                    "keepalive_s": 0,
                    **(settings or {}),
                }
                for name, backend in self.backends.items()
            ],
        }
        return Product.start(folder, config, policy=POLICY, env=env)

    def play(self, name: str, *steps: Step) -> None:
        """Another answer of this backend, and its requests so far forgotten."""
        self[name].set_script(steps, rules=_HOLDING)
        self[name].requests.clear()

    def answer(self, name: str) -> None:
        """It answers again."""
        self.play(name, chat_ok(f"I am {name}."))

    def counts(self) -> dict[str, int]:
        """How many requests each backend was asked."""
        return {name: len(backend.requests) for name, backend in self.backends.items()}

    def home(self, session: str) -> str:
        """Where a session belongs while all are well."""
        known = parse.session_of({b"x-session-id": session.encode()})
        assert known is not None
        everybody = [balance.Candidate(name, 1, 0, 1024, True) for name in self.backends]
        index = balance.home(everybody, known.hash)
        assert index is not None
        return self.names[index]

    def sessions_of(self, name: str, count: int, prefix: str = "s") -> list[str]:
        """Sessions whose home it is."""
        found: list[str] = []
        number = 0
        while len(found) < count:
            number += 1
            if self.home(f"{prefix}-{number}") == name:
                found.append(f"{prefix}-{number}")
        return found


@contextlib.contextmanager
def pool_of(*names: str) -> Iterator[Pool]:
    with contextlib.ExitStack() as stack:
        pool = Pool({name: stack.enter_context(ScriptedBackend()) for name in names})
        for name in names:
            pool.answer(name)
        yield pool


def talk(turns: int, about: str = "rivers") -> list[dict[str, str]]:
    """A conversation up to its so manieth question."""
    messages: list[dict[str, str]] = []
    for turn in range(1, turns + 1):
        messages.append({"role": "user", "content": f"Question {turn} about {about}?"})
        messages.append({"role": "assistant", "content": f"Answer {turn}."})
    return messages[:-1]


def question(
    session: str | None = None,
    *,
    turns: int = 1,
    about: str = "rivers",
    headers: Mapping[str, str] | None = None,
    **members: Any,
) -> bytes:
    """A request as it goes over the wire."""
    named = {} if session is None else {"x-session-id": session}
    body = {"model": "auto", "messages": talk(turns, about), **members}
    return request_bytes("POST", CHAT, {"x-router-debug": "true", **named, **(headers or {})}, body)


def ask(product: Product, session: str | None = None, **asked: Any) -> RawReply:
    """One request on a connection of its own."""
    return exchange(product.port, question(session, **asked))


def where(reply: RawReply) -> str:
    """The backend of a good answer."""
    assert reply.status == 200, (reply.status, reply.text)
    return str(reply.header("x-router-backend"))


@contextlib.contextmanager
def held(product: Product, sessions: Sequence[str | None]) -> Iterator[list[str]]:
    """Streams that go on until the block is over; the backends that they are at."""
    with contextlib.ExitStack() as stack:
        places = []
        for session in sessions:
            sock = stack.enter_context(socket.create_connection((HOST, product.port), 10))
            sock.sendall(question(session, about=HOLD, stream=True))
            places.append(where(_begun(sock)))
        yield places


def _begun(sock: socket.socket) -> RawReply:
    """A reply of which no more than the head has to be there."""
    reader = ReplyReader()
    while reader.reply.head_at is None:
        data = sock.recv(READ_SIZE)
        assert data, "the connection was closed without an answer"
        reader.feed(data, time.monotonic())
    return reader.reply
