"""Requests of all kinds through a real router, so that every view has something to show."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from tests.support.product import Product
from tests.support.script import DONE, END, Step, delta, pause, reply_json, stream_head
from tests.support.scripted import ScriptedBackend

#: words alone, so that a router starts at once: nothing has to be learned
POLICY = """
schema = 1
default_scenario = "chat"
[defaults.direct]
temperature = 0.7
top_p = 0.8
[defaults.thinking]
temperature = { fill = 0.6, floor = 0.3 }
[scenarios.chat]
preset.thinking = { fill = false }
[scenarios.faq]
match.keywords = ["refund", "快递"]
preset = { thinking = { fill = false }, max_new_tokens = { cap = 64 } }
[scenarios.code]
match.keywords = ["python"]
preset.thinking = { fill = false }
[scenarios.copywriting]
match.keywords = ["slogan", "广告语"]
preset = { thinking = { fill = false }, max_new_tokens = { cap = 256 } }
[scenarios.reasoning]
match.keywords = ["prove"]
preset.thinking = { fill = true }
[scenarios.summary]
match.keywords = ["summarise"]
preset.thinking = { fill = false }
[scenarios.transform]
match.keywords = ["翻译"]
preset.thinking = { fill = false }
"""
BREAKS = "please break"
CUT_OFF = "please be endless"

#: one of each kind of work, as people ask
PROMPTS = (
    "How do I get a refund for order 4711?",
    "我的快递到哪了？",
    "Write a Python function that reverses a linked list.",
    "写一句面包店的广告语，要温暖一点。",
    "Prove that the square root of 2 is irrational.",
    "Summarise this in three sentences: the meeting was long and little was decided.",
    "把下面这段话翻译成英文：今天天气很好。",
    "Hi there, how are you today?",
)


def _usage(thought: int, cached: int) -> dict[str, Any]:
    return {
        "prompt_tokens": 120,
        "completion_tokens": 24 + thought,
        "total_tokens": 144 + thought,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": thought},
    }


def _whole(finish: str = "stop") -> list[Step]:
    message = {"role": "assistant", "content": "It is on its way and will be there tomorrow."}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    body = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return [pause(4), reply_json({**body, "usage": _usage(0, 80)})]


def _stream(thought: int) -> list[Step]:
    usage = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    thoughts = [delta(reasoning_content="hm "), pause(4)] if thought else []
    return [
        stream_head(),
        pause(6),
        *thoughts,
        delta(content="It is on its way"),
        pause(5),
        delta(content=" and will be there tomorrow."),
        delta("stop"),
        {"do": "sse", "data": {**usage, "choices": [], "usage": _usage(thought, 0)}},
        DONE,
        END,
    ]


RULES: Sequence[Mapping[str, Any]] = (
    {"when": {"body_text": BREAKS}, "steps": [reply_json({"error": {"message": "no"}}, 500)]},
    {"when": {"body_text": CUT_OFF}, "steps": _whole("length")},
    {"when": {"body_text": "Prove", "body_eq": {"stream": True}}, "steps": _stream(30)},
    {"when": {"body_eq": {"stream": True}}, "steps": _stream(0)},
)


def backend() -> ScriptedBackend:
    """An upstream that tells its usage, is sometimes cut off and sometimes breaks."""
    return ScriptedBackend(_whole(), rules=RULES, models=["m"])


def config(backends: Mapping[str, ScriptedBackend], **tables: Any) -> dict[str, Any]:
    return {
        "log": {"flush_ms": 10},
        **tables,
        "backends": [
            {"name": name, "url": one.url, "model": "m", "dialect": "vllm"}
            for name, one in backends.items()
        ],
    }


def ask(product: Product, text: str, *, session: str = "", **fields: Any) -> int:
    """One chat request; its status, once the whole answer is here."""
    where = urlsplit(product.url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=20)
    body = {"model": "auto", "messages": [{"role": "user", "content": text}], **fields}
    headers = {"Content-Type": "application/json"}
    if session:
        headers["x-session-id"] = session
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        reply = connection.getresponse()
        reply.read()
        return reply.status
    finally:
        connection.close()


def mixed(rounds: int) -> Iterable[dict[str, Any]]:
    """Requests: each prompt whole and streamed, in sessions; a few that fail or are cut off."""
    for turn in range(rounds):
        for number, text in enumerate(PROMPTS):
            yield {"text": text, "stream": (turn + number) % 2 == 0, "session": f"s-{number}"}
        yield {"text": f"Write a slogan, {CUT_OFF}", "max_tokens": 900, "temperature": 0.1}
        yield {"text": BREAKS}
        yield {"text": "Hello?", "model": "no-such-model"}
        yield {"text": "Tell me a joke.", "repetition_penalty": 1.3, "no_such_parameter": 7}


def play(product: Product, rounds: int) -> int:
    """Send them, some at a time; how many there were."""
    requests = list(mixed(rounds))
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda one: ask(product, **one), requests))
    return len(requests)
