"""Small questions to backends: is it up, what does it serve, what kind of server is it.

Speaks over `upstream`, so the serving process needs no second HTTP client.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from router.message import AnswerHead
from router.ports import Upstream
from router.wire import Piece

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
    return await _ask(upstream, b"GET", path, b"", timeout_s=timeout_s, key=key)


async def warm_up(
    upstream: Upstream, model: str | None, *, timeout_s: float, key: bytes | None
) -> Answer:
    """One short chat request, so that no user's is the first. Raises BackendError or TimeoutError.

    Said in the words that all kinds of servers understand.
    """
    told = {
        "model": model or "",
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": 1,
    }
    body = orjson.dumps(told)
    path = "/v1/chat/completions"
    return await _ask(upstream, b"POST", path, body, timeout_s=timeout_s, key=key)


async def _ask(
    upstream: Upstream,
    method: bytes,
    path: str,
    body: bytes,
    *,
    timeout_s: float,
    key: bytes | None,
) -> Answer:
    listener = _Listener()
    backend = upstream.backend
    lines = [b"%b %b HTTP/1.1" % (method, path.encode()), b"host: %b" % backend.host.encode()]
    if key is not None:
        lines.append(b"authorization: " + key)
    if body:
        lines.append(b"content-type: application/json\r\ncontent-length: %d" % len(body))
    head = b"\r\n".join([*lines, b"", b""])
    attempt = upstream.send(head, body, method, listener, fresh=True)
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


# --- which one it is, and since when ---------------------------------------------------------

#: what a kind of server tells of itself beside /v1/models
TELLING: Mapping[str, tuple[str, ...]] = {
    "vllm": ("/version", "/metrics"),
    "sglang": ("/version", "/metrics"),
    "llamacpp": ("/props",),
    "ollama": ("/api/version",),
}
_PROCESS_START = re.compile(rb"^process_start_time_seconds (\S+)", re.MULTILINE)
#: llama.cpp's, where it is not drawn anew at each start
_FIXED_MARKER = "<__media__>"


class Told(NamedTuple):
    """What a server says of itself; None where it does not."""

    version: str | None = None
    started: str | None = None  # something that is another after each start
    context: int | None = None  # tokens that one conversation may have


async def told(
    upstream: Upstream,
    dialect: str,
    model: str | None,
    *,
    models: Answer,
    timeout_s: float,
    key: bytes | None,
) -> Told:
    """Ask it; `models` is what it said at /v1/models. Raises BackendError or TimeoutError."""
    answers = {"/v1/models": models}
    for path in TELLING.get(dialect, ()):
        answers[path] = await get(upstream, path, timeout_s=timeout_s, key=key)
    bodies = {path: answer.body for path, answer in answers.items() if answer.status == 200}
    return read_told(dialect, model, bodies)


def read_told(dialect: str, model: str | None, bodies: Mapping[str, bytes]) -> Told:
    """What is told in the bodies of these paths."""
    found = {path: _mapping(document_in(body)) for path, body in bodies.items()}
    match dialect:
        case "llamacpp":
            props = found.get("/props", {})
            marker = _text(props.get("media_marker"))
            return Told(
                version=_text(props.get("build_info")),
                started=marker if marker != _FIXED_MARKER else None,
                context=_count(_mapping(props.get("default_generation_settings")).get("n_ctx")),
            )
        case "ollama":
            return Told(version=_text(found.get("/api/version", {}).get("version")))
    start = _PROCESS_START.search(bodies.get("/metrics", b""))
    return Told(
        version=_text(found.get("/version", {}).get("version")),
        started=start[1].decode("ascii", "replace") if start else None,
        context=_context(found.get("/v1/models"), model),
    )


def _context(document: Any, model: str | None) -> int | None:
    for entry in _models(document):
        if isinstance(entry, dict) and model in (None, entry.get("id")):
            return _count(entry.get("max_model_len"))
    return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _models(document: Any) -> list[Any]:
    found = document.get("data") if isinstance(document, dict) else None
    return found if isinstance(found, list) else []
