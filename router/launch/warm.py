"""One real chat request through an engine, so that the first user does not pay for its first time.

Loading is not enough: engines compile, page weights in and build caches when
the first prompt arrives.
"""

from __future__ import annotations

import json
import time
from typing import Any, NamedTuple

from router.launch.errors import WarmUpFailed

ANSWER_TOKENS = 8
REQUEST_LIMIT_S = 300.0
"""Long, because a first prompt on a slow CPU may have to fault in a gigabyte of weights."""


class Warmth(NamedTuple):
    """How long the request took: to the first token, and in all."""

    ttft_s: float
    total_s: float


async def warm_up(url: str, model: str, *, api_key: str | None = None) -> Warmth:
    """Send one short chat request to the server at `url`; raise WarmUpFailed if no answer comes."""
    # Imported here: a router that launches nothing never loads this client.
    import httpx

    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": ANSWER_TOKENS,
        "stream": True,
    }
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    began = time.monotonic()
    first: float | None = None
    try:
        async with (
            httpx.AsyncClient(timeout=REQUEST_LIMIT_S, trust_env=False) as client,
            client.stream(
                "POST", f"{root_of(url)}/v1/chat/completions", json=body, headers=headers
            ) as reply,
        ):
            if reply.status_code != 200:
                said = (await reply.aread()).decode(errors="replace")
                raise WarmUpFailed(f"{model} answered {reply.status_code}: {said[:300]}")
            async for line in reply.aiter_lines():
                if first is None and _has_token(line):
                    first = time.monotonic()
    except httpx.HTTPError as error:
        raise WarmUpFailed(f"{model}: {type(error).__name__} {error}".rstrip()) from None
    ended = time.monotonic()
    return Warmth(ttft_s=(first or ended) - began, total_s=ended - began)


def root_of(url: str) -> str:
    """The server's address without the version that clients like to add."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def _has_token(line: str) -> bool:
    """Whether a line of the stream carries text, thought or said; an error in it is raised."""
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
    return any(delta.get(text) for delta in deltas for text in texts)
