"""One chat request through the router, streamed, and when its tokens came. No policy known."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

TIMEOUT_S = 300.0


class NoAnswer(Exception):
    """The router answered with an error; the text is what it said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back. Times count from before the connection is opened."""

    ttft_s: float
    total_s: float
    text: str
    thought: str
    tokens: int  # thought included
    thought_tokens: int | None  # where the engine tells
    prompt_tokens: int
    cached_tokens: int

    @property
    def token_s(self) -> float:
        """Time from one token to the next."""
        return (self.total_s - self.ttft_s) / max(1, self.tokens - 1)


def ask(port: int, scenario: str, messages: Sequence[dict[str, str]], **fields: Any) -> Answer:
    """`fields` stand at the top level of the body."""
    body = {"model": f"auto:{scenario}", "messages": messages, **fields}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    began = time.perf_counter()
    try:
        head = {"content-type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), head)
        reply = connection.getresponse()
        if reply.status != 200:
            raise NoAnswer(f"{reply.status} {reply.read(500)!r}")
        return _read(reply, began)
    finally:
        connection.close()


def ask_together(
    port: int, scenario: str, questions: Sequence[Sequence[dict[str, str]]], **fields: Any
) -> list[Answer]:
    """All at once, each on a connection of its own."""
    with ThreadPoolExecutor(len(questions)) as threads:
        asked = [threads.submit(ask, port, scenario, each, **fields) for each in questions]
        return [one.result() for one in asked]


def _read(reply: http.client.HTTPResponse, began: float) -> Answer:
    text, thought, first = "", "", 0.0
    usage: dict[str, Any] = {}
    is_whole = False
    for line in reply:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            is_whole = True
            continue
        event = json.loads(data)
        if "error" in event:
            raise NoAnswer(str(event["error"]))
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            delta = choice["delta"]
            said = delta.get("content") or ""
            kept = delta.get("reasoning") or delta.get("reasoning_content") or ""
            text, thought = text + said, thought + kept
            if (said or kept) and not first:
                first = time.perf_counter() - began
    if not is_whole:
        raise NoAnswer("the stream broke off")
    total = time.perf_counter() - began
    prompt = usage.get("prompt_tokens_details") or {}
    made = usage.get("completion_tokens_details") or {}
    return Answer(
        ttft_s=first or total,
        total_s=total,
        text=text,
        thought=thought,
        tokens=usage["completion_tokens"],
        thought_tokens=made.get("reasoning_tokens"),
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=prompt.get("cached_tokens") or 0,
    )
