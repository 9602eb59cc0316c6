"""Real chat requests through an engine, so that the first users do not pay for its first time.

Loading is not enough: engines compile, page weights in and build caches when the first prompt
of a kind arrives. In: requests as bytes, one of each kind. Out: what that was good for.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from router.launch.errors import WarmUpFailed

if TYPE_CHECKING:
    import httpx

ANSWER_TOKENS = 4
REQUEST_LIMIT_S = 300.0
"""Long, because a first prompt on a slow CPU may have to fault in a gigabyte of weights."""

TEXTS = ("Say hello.", "Name a day.", "Spell it.", "Pick a sea.")
"""Prompts as long as each other, since one that the engine has seen already tells nothing of
what a first request costs, nor of what warmth is worth. Enough for each kind, and one more."""


class Shape(NamedTuple):
    """A kind of request, as two bodies of it with different prompts."""

    name: str
    body: bytes
    again: bytes


class Shot(NamedTuple):
    """What became of one request: the time to its first token, or why there was none."""

    name: str
    ttft_s: float
    fault: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.fault or f'{self.ttft_s * 1e3:.0f} ms'}"


class Warmth(NamedTuple):
    """What a warm-up did: the first request of each kind, and one more of the first kind."""

    shots: tuple[Shot, ...]
    again: Shot
    total_s: float

    @property
    def cold_s(self) -> float:
        """What the first user would have waited for a first token."""
        return self.shots[0].ttft_s

    @property
    def warm_s(self) -> float:
        """What they wait now."""
        return self.again.ttft_s

    def __str__(self) -> str:
        told = ", ".join(map(str, self.shots))
        return f"first token cold: {told}; warm: {self.again} ({self.total_s:.1f} s in all)"


def plain(model: str) -> list[Shape]:
    """A request of no kind in particular."""

    def body(text: str) -> bytes:
        messages = [{"role": "user", "content": text}]
        members = {"max_tokens": ANSWER_TOKENS, "stream": True}
        return json.dumps({"model": model, "messages": messages, **members}).encode()

    return [Shape("plain", body(TEXTS[0]), body(TEXTS[-1]))]


async def warm_up(url: str, shapes: Sequence[Shape]) -> Warmth:
    """Send one request of each kind to the server at `url`, and one more.

    Raises WarmUpFailed where the first kind gets no answer. A later kind that is turned down
    says so in its shot: an engine that answers others is not broken.
    """
    # Imported here: a router that launches nothing never loads this client.
    import httpx

    began = time.monotonic()
    # A connection for each: llama.cpp closes one that is kept just as it is used again.
    async with httpx.AsyncClient(
        base_url=root_of(url),
        timeout=REQUEST_LIMIT_S,
        trust_env=False,
        limits=httpx.Limits(max_keepalive_connections=0),
    ) as client:
        first, *others = shapes
        shots = [await _shot(client, first.name, first.body)]
        for shape in others:
            try:
                shots.append(await _shot(client, shape.name, shape.body))
            except WarmUpFailed as failed:
                shots.append(Shot(shape.name, 0.0, str(failed)))
        again = await _shot(client, first.name, first.again)
    return Warmth(tuple(shots), again, time.monotonic() - began)


async def _shot(client: httpx.AsyncClient, name: str, body: bytes) -> Shot:
    """One request, read until its first tokens: what follows would only take time."""
    import httpx

    began = time.monotonic()
    first: float | None = None
    texts = 0
    try:
        async with client.stream(
            "POST",
            "/v1/chat/completions",
            content=body,
            headers={"content-type": "application/json"},
        ) as reply:
            if reply.status_code != 200:
                said = (await reply.aread()).decode(errors="replace")
                raise WarmUpFailed(f"answered {reply.status_code} ({name}): {said[:300]}")
            async for line in reply.aiter_lines():
                texts += _has_token(line)
                if texts and first is None:
                    first = time.monotonic()
                if texts >= ANSWER_TOKENS:
                    break
    except httpx.HTTPError as error:
        told = f"{type(error).__name__} {error}".rstrip()
        raise WarmUpFailed(f"gave no answer ({name}): {told}") from None
    return Shot(name, (first or time.monotonic()) - began)


def root_of(url: str) -> str:
    """The server's address without the version that clients like to add."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def _has_token(line: str) -> bool:
    """Whether a line of the stream carries words, thought or said; an error in it is raised."""
    if not line.startswith("data:") or not (data := line[5:].strip()) or data == "[DONE]":
        return False
    try:
        event: Any = json.loads(data)
    except ValueError:
        return False
    if not isinstance(event, dict):
        return False
    if event.get("error"):
        raise WarmUpFailed(str(event["error"])[:300])
    deltas = [choice.get("delta") or {} for choice in event.get("choices") or ()]
    texts = ("content", "reasoning", "reasoning_content")
    # transformers serve sends line ends out of the prompt before anything is computed.
    return any((delta.get(text) or "").strip() for delta in deltas for text in texts)
