"""What clients send in a soak: streams, whole answers, conversations, tools, and all that is wrong.

Each question says what may become of it, so that "nothing was lost" can be checked. Texts and
sessions come from a fixed stock: a router remembers sessions up to a bound, and what grows until
it is reached would look like a leak.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal, cast

from tests.chaos.asking import CHAT, fate_of
from tests.support.rawclient import HOST, RawReply, ReplyReader, request_bytes

SESSIONS = 300
_TOPICS = (
    *("a river", "the moon", "bread", "a bridge", "chess", "the tide", "a violin", "tea"),
    *("退款", "快递", "一首诗", "排序算法", "天气", "火车票", "月饼", "长城"),
)
_FORMS = (
    "Tell me about {}.",
    "Write a slogan for {}.",
    "Write a Python function about {}.",
    "Step by step: how old is {}?",
    "Summarise what is known of {}.",
    "Translate into Chinese: {}",
    "关于{}，我什么时候能收到？",
    "为{}写一段文案。",
)
_TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a word up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
    },
}
#: what a good question may fail with while something is broken
DOCUMENTED = frozenset(
    {
        *("backend_error", "backend_timeout", "backend_tls_error"),
        *("no_healthy_backend", "rate_limit_exceeded"),
    }
)
Records = Literal["one", "one or none"]
Outcome = Literal["answered", "failed", "refused", "left", "lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A request, and what is to become of it."""

    kind: str
    raw: bytes
    stream: bool = False
    refusal: tuple[int, str] | None = None  # the status and code that it must get
    leave_after: int | None = None  # pieces of the answer, then the client hangs up
    leave_s: float | None = None  # ... or so many seconds after it was sent
    cut: float = 1.0  # the share of the bytes that are sent at all
    write_pause_s: float = 0.0  # between two halves
    read_pause_s: float = 0.0  # between two reads
    records: Records = "one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What became of one."""

    kind: str
    request_id: str | None  # None where nothing came that says it
    outcome: Outcome
    why: str
    status: int | None
    took_s: float
    records: Records


# --- questions --------------------------------------------------------------------------------


def question(random: Random, request_id: str) -> Question:
    """The next one, by the weights of `KINDS`."""
    make = random.choices(_MAKERS, _WEIGHTS)[0]
    return make(random, request_id)


def _text(random: Random) -> str:
    return random.choice(_FORMS).format(random.choice(_TOPICS))


def _chat(
    random: Random,
    request_id: str,
    kind: str,
    *,
    turns: int = 1,
    headers: Mapping[str, str] | None = None,
    members: Mapping[str, Any] | None = None,
) -> Question:
    session = f"session-{random.randrange(SESSIONS)}"
    messages: list[dict[str, Any]] = []
    for _ in range(turns - 1):
        messages += [
            {"role": "user", "content": _text(random)},
            {"role": "assistant", "content": "It is as it is. " * random.randrange(1, 20)},
        ]
    messages.append({"role": "user", "content": _text(random)})
    body = {"model": "auto", "messages": messages, **(members or {})}
    named = {"x-request-id": request_id, **(headers or {})}
    if turns > 1 or random.random() < 0.5:
        named["x-session-id"] = session
    raw = request_bytes("POST", CHAT, named, body)
    return Question(kind=kind, raw=raw, stream=bool(body.get("stream")))


def _stream(random: Random, request_id: str) -> Question:
    return _chat(random, request_id, "stream", members={"stream": True})


def _plain(random: Random, request_id: str) -> Question:
    return _chat(random, request_id, "whole answer")


def _history(random: Random, request_id: str) -> Question:
    turns, stream = random.randrange(2, 12), random.random() < 0.7
    members = {"stream": stream, "stream_options": {"include_usage": True}} if stream else {}
    return _chat(random, request_id, "conversation", turns=turns, members=members)


def _tools(random: Random, request_id: str) -> Question:
    members = {"tools": [_TOOL], "stream": random.random() < 0.5, "max_tokens": 64}
    return _chat(random, request_id, "tools", members=members)


def _json_answer(random: Random, request_id: str) -> Question:
    members = {"response_format": {"type": "json_object"}, "temperature": 0}
    return _chat(random, request_id, "JSON wanted", members=members)


def _untouched(random: Random, request_id: str) -> Question:
    headers = {"x-router-policy": "off"}
    return _chat(random, request_id, "policy off", headers=headers, members={"stream": True})


def _packed(random: Random, request_id: str) -> Question:
    body = gzip.compress(json.dumps({"model": "auto", "messages": _one(random)}).encode())
    headers = {"x-request-id": request_id, "content-encoding": "gzip"}
    return Question(kind="gzip", raw=request_bytes("POST", CHAT, headers, body))


def _passed(random: Random, request_id: str) -> Question:
    body = {"model": "m", "input": _text(random)}
    raw = request_bytes("POST", "/v1/embeddings", {"x-request-id": request_id}, body)
    return Question(kind="embeddings", raw=raw)


def _slow_writer(random: Random, request_id: str) -> Question:
    return replace(_chat(random, request_id, "slow writer"), write_pause_s=0.3)


def _slow_reader(random: Random, request_id: str) -> Question:
    members = {"stream": True, "chaos_frames": 60, "chaos_pad": 12_000, "chaos_pause_ms": 1}
    made = _chat(random, request_id, "slow reader", members=members)
    return replace(made, read_pause_s=0.05)


def _leaver(random: Random, request_id: str) -> Question:
    members = {"stream": True, "chaos_frames": 500}
    made = _chat(random, request_id, "leaves mid-stream", members=members)
    return replace(made, leave_after=random.randrange(1, 6))


def _early_leaver(random: Random, request_id: str) -> Question:
    made = _chat(random, request_id, "leaves at once")
    return replace(made, leave_s=random.random() * 0.1, records="one or none")


def _half(random: Random, request_id: str) -> Question:
    made = _chat(random, request_id, "leaves while sending")
    return replace(made, cut=0.7, leave_s=0.05, records="one or none")


def _one(random: Random) -> list[dict[str, str]]:
    return [{"role": "user", "content": _text(random)}]


def _bad(kind: str, status: int, code: str, make: Callable[[Random], bytes | Any]) -> Maker:
    def made(random: Random, request_id: str) -> Question:
        raw = request_bytes("POST", CHAT, {"x-request-id": request_id}, make(random))
        return Question(kind=kind, raw=raw, refusal=(status, code))

    return made


def _oversized(random: Random, request_id: str) -> Question:
    headers = {"x-request-id": request_id, "content-length": str(8 << 20)}
    raw = request_bytes("POST", CHAT, headers, b"x" * 20_000)
    return Question(kind="too large", raw=raw, refusal=(413, "request_too_large"))


def _long_head(random: Random, request_id: str) -> Question:
    headers = {"x-request-id": request_id, "x-more": "x" * 20_000}
    raw = request_bytes("POST", CHAT, headers, b"{}")
    return Question(kind="long head", raw=raw, refusal=(431, "request_head_too_large"))


def _no_http(random: Random, request_id: str) -> Question:
    raw = b"HELO router.test\r\nfrom: nobody\r\n\r\n"
    return Question(kind="no HTTP", raw=raw, refusal=(400, "invalid_http"))


Maker = Callable[[Random, str], Question]
KINDS: tuple[tuple[Maker, float], ...] = (
    (_stream, 20),
    (_plain, 12),
    (_history, 16),
    (_tools, 6),
    (_json_answer, 4),
    (_untouched, 3),
    (_packed, 2),
    (_passed, 3),
    (_slow_writer, 3),
    (_slow_reader, 1),
    (_leaver, 5),
    (_early_leaver, 3),
    (_half, 2),
    (_bad("no JSON", 400, "invalid_json", lambda random: b'{"model": "auto", "messages": ['), 2),
    (
        _bad(
            "unknown model",
            404,
            "model_not_found",
            lambda random: {"model": "nobody-serves-this", "messages": _one(random)},
        ),
        2,
    ),
    (_bad("no messages", 400, "invalid_value", lambda random: {"model": "auto", "messages": 7}), 2),
    (_oversized, 1),
    (_long_head, 1),
    (_no_http, 1),
)
_MAKERS = [maker for maker, _ in KINDS]
_WEIGHTS = [weight for _, weight in KINDS]


# --- a client ---------------------------------------------------------------------------------


class Line:
    """A client's connection to one router, kept from request to request while it may be."""

    def __init__(self, port: int, trust: ssl.SSLContext | None) -> None:
        self._port = port
        self._trust = trust
        self._reading: _Reading | None = None

    async def put(self, question: Question, limit_s: float) -> RawReply:
        """Ask, and read until the reply is whole, the client leaves or the time is up."""
        began = time.monotonic()
        reading = self._reading
        try:
            async with asyncio.timeout(limit_s):
                if reading is None or reading.is_closed:
                    reading = self._reading = await self._connect(question)
                over = reading.ask(question, began)
                await _write(question, reading)
                if question.leave_s is not None:
                    await asyncio.wait([over], timeout=question.leave_s)
                    reading.leave()
                await over
        except TimeoutError:
            if reading is None:
                return RawReply(started=began, refused=True, broken="no connection")
            reading.reader.give_up(time.monotonic(), f"nothing more within {limit_s:g} s")
            self.close()
        except OSError as error:
            self.close()
            return RawReply(started=began, refused=True, broken=repr(error))
        reply = reading.reader.reply
        says_close = (reply.header("connection") or "").lower() == "close"
        if says_close or question.refusal is not None or question.read_pause_s:
            self.close()
        return reply

    async def _connect(self, question: Question) -> _Reading:
        _, reading = await asyncio.get_running_loop().create_connection(
            _Reading,
            sock=await _connected(self._port, is_slow=question.read_pause_s > 0),
            ssl=self._trust,
            server_hostname=HOST if self._trust is not None else None,
        )
        return reading

    def close(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.transport.abort()


class _Reading(asyncio.Protocol):
    """One connection's replies, one after the other."""

    def __init__(self) -> None:
        self.is_closed = False
        self.reader = ReplyReader()
        self._over: asyncio.Future[None] | None = None
        self._question: Question | None = None

    def ask(self, question: Question, began: float) -> asyncio.Future[None]:
        """Read a reply to this from now on; done when there is nothing more to read."""
        self._question = question
        self.reader = ReplyReader(started=began)
        self._over = asyncio.get_running_loop().create_future()
        return self._over

    def leave(self) -> None:
        if self._over is not None and not self._over.done():
            self.reader.reply.left_at = time.monotonic()
            self.is_closed = True  # the loop tells of it only later, through TLS later still
            self.transport.abort()
            self._over.set_result(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        question = self._question
        self.reader.feed(data, time.monotonic())
        if question is None:
            return
        after = question.leave_after
        if after is not None and len(self.reader.reply.frames) >= after:
            self.leave()
        elif self.reader.done:
            self._end()
        elif question.read_pause_s:
            self.transport.pause_reading()
            loop = asyncio.get_running_loop()
            loop.call_later(question.read_pause_s, _resume, self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self.reader.eof(time.monotonic(), "" if exc is None else repr(exc))
        self._end()

    def _end(self) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(None)


async def _write(question: Question, reading: _Reading) -> None:
    raw = question.raw[: int(len(question.raw) * question.cut)]
    if question.write_pause_s:
        reading.transport.write(raw[: len(raw) // 2])
        await asyncio.sleep(question.write_pause_s)
        raw = raw[len(raw) // 2 :]
    reading.transport.write(raw)


def _resume(transport: asyncio.Transport) -> None:
    if not transport.is_closing():
        transport.resume_reading()


async def _connected(port: int, *, is_slow: bool) -> socket.socket:
    sock = socket.socket()
    if is_slow:  # else the kernel reads on for a client that does not
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, (HOST, port))
    except BaseException:
        sock.close()
        raise
    return sock


def told(question: Question, request_id: str, reply: RawReply) -> Told:
    """What became of a question, judged by what it may become."""
    outcome, why = _judged(question, reply)
    return Told(
        kind=question.kind,
        # What could not be read had no name before it was answered.
        request_id=reply.header("x-request-id") if question.refusal else request_id,
        outcome=outcome,
        why=why,
        status=reply.status,
        took_s=(reply.ended_at or time.monotonic()) - reply.started,
        records=question.records,
    )


def _judged(question: Question, reply: RawReply) -> tuple[Outcome, str]:
    fate, why = fate_of(reply, stream=question.stream)
    if question.refusal is not None:
        is_so = fate == "failed" and (reply.status, why) == question.refusal
        return ("refused", why) if is_so else ("lost", f"{question.kind}: {reply.status} {why}")
    if fate == "failed" and why not in DOCUMENTED:
        return "lost", f"{question.kind}: {reply.status} {why} is not documented"
    return fate, f"{question.kind}: {why}" if fate == "lost" else why
