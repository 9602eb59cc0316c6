"""Small questions to backends: is it up, what does it serve, what kind of server is it.

Speaks over `upstream`, so the serving process needs no second HTTP client.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import orjson

from router.ports import Upstream
from router.wire import AnswerHead, Piece

_BODY_LIMIT = 1 << 20


class Answer(NamedTuple):
    status: int
    body: bytes

    def json(self) -> Any:
        return document_in(self.body)


def document_in(body: bytes) -> Any:
    """The document that a body is; None where it is none."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


class _Listener:
    """Gathers one small answer into a future."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._status = 0
        self._body = b""

    def on_sent(self) -> None:
        pass

    def on_head(self, head: AnswerHead, *, has_more: bool) -> None:
        self._status = head.status

    def on_piece(self, data: bytes, piece: Piece) -> None:
        if len(self._body) < _BODY_LIMIT:
            self._body += b"".join(piece.payloads)
        if piece.is_last:
            self.on_end()

    def express(self) -> None:
        return None

    def on_whole(self, head: AnswerHead, body: bytes) -> None:
        self._status, self._body = head.status, body
        self.on_end()

    def on_end(self) -> None:
        if not self.answer.done():
            self.answer.set_result(Answer(self._status, self._body))

    def on_failure(self, fault: Exception, *, may_retry: bool) -> None:
        if not self.answer.done():
            self.answer.set_exception(fault)


async def get(upstream: Upstream, path: str, *, timeout_s: float, key: bytes | None) -> Answer:
    """GET a path. Raises BackendError or TimeoutError."""
    listener = _Listener()
    backend = upstream.backend
    lines = [b"GET %b HTTP/1.1" % path.encode(), b"host: %b" % backend.host.encode()]
    if key is not None:
        lines.append(b"authorization: " + key)
    head = b"\r\n".join([*lines, b"", b""])
    attempt = upstream.send(head, b"", b"GET", listener, fresh=True)
    try:
        async with asyncio.timeout(timeout_s):
            return await listener.answer
    finally:
        attempt.cancel()


def served_model(document: Any) -> str | None:
    """The first model of a /v1/models answer."""
    for model in _models(document):
        if isinstance(model, dict) and isinstance(model.get("id"), str):
            return str(model["id"])
    return None


def dialect_name(document: Any) -> str:
    """The kind of server, by what its /v1/models says of itself.

    vLLM, SGLang and llama.cpp sign as owner; Ollama's models are owned by "library";
    transformers serve alone tells a loading status. Anything else is spoken to plainly.
    """
    for model in _models(document):
        if not isinstance(model, dict):
            continue
        owner = str(model.get("owned_by", "")).lower()
        if owner in ("vllm", "sglang", "llamacpp"):
            return owner
        if owner == "library":
            return "ollama"
        if isinstance(model.get("status"), dict):
            return "transformers"
    return "openai"


def _models(document: Any) -> list[Any]:
    found = document.get("data") if isinstance(document, dict) else None
    return found if isinstance(found, list) else []
