"""A router with an experiment, and a backend that knows its arms by what they send."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.product import Product
from tests.support.rawclient import RawReply, exchange, request_bytes
from tests.support.script import Step, chat_ok, pause
from tests.support.scripted import ScriptedBackend

CHAT = "/v1/chat/completions"
#: what the arms send, by which the backend knows them
SLOW, SAME = 0.77, 0.55
ANSWER_MS, SLOWER_MS = 100, 110
POLICY = f"""\
schema = 1
default_scenario = "chat"
[scenarios.chat]
preset.thinking = false
[scenarios.faq]
match.keywords = ["refund"]
[experiments.pace]
scenarios = ["chat"]
[experiments.pace.guard]
total_ratio = 1.01
[experiments.pace.arms.control]
[experiments.pace.arms.slow]
preset.temperature = {SLOW}
[experiments.pace.arms.same]
weight = 0.5
preset.temperature = {SAME}
"""


def answering(slow: Step | None = None) -> list[dict[str, Any]]:
    steps = [pause(SLOWER_MS), chat_ok("The Danube.")] if slow is None else [slow]
    return [{"when": {"body_eq": {"temperature": SLOW}}, "steps": steps}]


def paced_backend() -> ScriptedBackend:
    """One that is a tenth slower in one arm."""
    return ScriptedBackend([pause(ANSWER_MS), chat_ok("The Danube.")], rules=answering())


def start(
    folder: Path, backend: ScriptedBackend, policy: str = POLICY, *, workers: int = 1, **tables: Any
) -> Product:
    one = {"name": "one", "url": backend.url, "model": "qwen3-0.6b"}
    config: dict[str, Any] = {
        "backends": [one],
        "log": {"flush_ms": 10},
        "server": {"workers": workers},
        **tables,
    }
    env = {"SCENARIO_ROUTER_CACHE": str(folder / "cache")}
    return Product.start(folder, config, policy=policy, env=env)


def question(session: str, text: str = "Name a river.", **headers: str) -> bytes:
    body = {"model": "auto", "messages": [{"role": "user", "content": text}]}
    return request_bytes("POST", CHAT, {"x-session-id": session, **headers}, body)


def ask(product: Product, session: str, text: str = "Name a river.", **headers: str) -> RawReply:
    reply = exchange(product.port, question(session, text, **headers))
    assert reply.status == 200, reply.text
    return reply


def arms(product: Product) -> dict[str, dict[str, Any]]:
    [experiment] = product.get("/router/experiments")["experiments"]
    return {arm["arm"]: arm for arm in experiment["arms"]}


def session_in(product: Product, arm: str) -> str:
    """A session that would be in this arm; nothing is asked of the backend."""
    body = {"messages": [{"role": "user", "content": "Name a river."}]}
    for number in range(1000):
        headers = {"x-session-id": f"in-{number}"}
        raw = request_bytes("POST", "/router/explain", headers, body)
        if exchange(product.port, raw).json()["experiment"]["arm"] == arm:
            return f"in-{number}"
    raise AssertionError(f"nobody is in {arm}")
