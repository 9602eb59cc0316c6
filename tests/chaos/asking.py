"""One request over a connection of its own, and what became of it.

Answered: whole, with all that ends a good answer. Failed: an error in OpenAI's shape, as a
reply or as the last frame of a stream. Lost is everything else, silence included.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any, Literal, cast

from tests.support.rawclient import (
    HOST,
    RawReply,
    ReplyReader,
    request_bytes,
    sse_events,
    sse_payloads,
)

Fate = Literal["answered", "failed", "lost", "left"]
LIMIT_S = 15.0
CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request that is over."""

    request_id: str
    session: str
    turn: int
    stream: bool
    began: float
    fate: Fate
    why: str  # a failure's code; how it was lost
    took_s: float
    first_s: float | None  # until the first piece of the body
    backend: str | None


def request_of(
    *, request_id: str, session: str, turn: int, stream: bool, tokens: int | None = None
) -> bytes:
    """A chat as it goes over the wire."""
    messages = []
    for number in range(1, turn + 1):
        messages.append({"role": "user", "content": f"Question {number} of {session}?"})
        messages.append({"role": "assistant", "content": f"Answer {number}."})
    body: dict[str, Any] = {"model": "auto", "messages": messages[:-1], "stream": stream}
    if tokens is not None:
        body["chaos_frames"] = tokens
    headers = {"x-session-id": session, "x-request-id": request_id, "connection": "close"}
    return request_bytes("POST", CHAT, headers, body)


class _Reading(asyncio.Protocol):
    """The client's end."""

    def __init__(self, raw: bytes, over: asyncio.Future[None], leave_after: int | None) -> None:
        self._raw = raw
        self._over = over
        self._leave_after = leave_after
        self.reader = ReplyReader(started=time.monotonic())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self._transport.write(self._raw)

    def data_received(self, data: bytes) -> None:
        self.reader.feed(data, time.monotonic())
        if self._leave_after is not None and len(self.reader.reply.frames) >= self._leave_after:
            self.reader.reply.left_at = time.monotonic()
            self._transport.abort()
        elif self.reader.done:
            self._transport.close()
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self.reader.eof(time.monotonic(), "" if exc is None else repr(exc))
        self._end()

    def _end(self) -> None:
        if not self._over.done():
            self._over.set_result(None)


async def fetch(
    port: int, raw: bytes, *, limit_s: float = LIMIT_S, leave_after: int | None = None
) -> RawReply:
    """The reply, whatever it is; `leave_after` so many pieces of it the client hangs up."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    began = time.monotonic()
    try:
        async with asyncio.timeout(limit_s):
            transport, reading = await loop.create_connection(
                lambda: _Reading(raw, over, leave_after), HOST, port
            )
    except (OSError, TimeoutError) as error:
        return RawReply(started=began, refused=True, broken=repr(error))
    reading.reader.reply.started = began
    try:
        async with asyncio.timeout_at(loop.time() + limit_s - (time.monotonic() - began)):
            await over
    except TimeoutError:
        reading.reader.give_up(time.monotonic(), f"nothing more within {limit_s:g} s")
        transport.abort()
    return reading.reader.reply


async def ask(
    port: int,
    *,
    request_id: str,
    session: str,
    turn: int,
    stream: bool,
    leave_after: int | None = None,
    tokens: int | None = None,
) -> Asked:
    raw = request_of(
        request_id=request_id, session=session, turn=turn, stream=stream, tokens=tokens
    )
    reply = await fetch(port, raw, leave_after=leave_after)
    fate, why = fate_of(reply, stream=stream)
    return Asked(
        request_id=request_id,
        session=session,
        turn=turn,
        stream=stream,
        began=reply.started,
        fate=fate,
        why=why,
        took_s=time.monotonic() - reply.started,
        first_s=reply.frames[0].at - reply.started if reply.frames else None,
        backend=reply.header("x-router-backend"),
    )


def fate_of(reply: RawReply, *, stream: bool) -> tuple[Fate, str]:
    """What became of a request, and in a word why."""
    if reply.left_at is not None:
        return "left", ""
    if reply.status is None:
        return "lost", f"no reply: {reply.broken or 'the connection was closed'}"
    if reply.status != 200:
        code = _error_code(_json(reply.body))
        if code is None or not reply.ended_properly:
            return "lost", f"status {reply.status} without an error that a client reads"
        return "failed", code
    if not reply.ended_properly:
        return "lost", f"cut after its head: {reply.broken}"
    if not stream:
        value = _json(reply.body)
        is_good = isinstance(value, dict) and bool(value.get("choices"))
        return ("answered", "") if is_good else ("lost", "a good status and no answer")
    payloads = sse_payloads(reply.body)
    if payloads[-1:] == ["[DONE]"]:
        return "answered", ""
    events = sse_events(reply.body)
    code = _error_code(events[-1]) if events else None
    return ("failed", code) if code is not None else ("lost", "a stream that only stopped")


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


def _error_code(value: Any) -> str | None:
    """The code of an error in OpenAI's shape; None where it is none."""
    error = value.get("error") if isinstance(value, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return None
    if not {"message", "type", "param", "code"} <= error.keys():
        return None
    return str(error["code"] or error["type"])
