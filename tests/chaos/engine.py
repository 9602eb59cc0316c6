"""A model server that can be told to misbehave: `python -m tests.chaos.engine --port 0`.

It answers chats with frames at a pace, each telling when it left. A mode is one line on its
standard input, `MODE FRAMES PAUSE_MS`; it ends with that input.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable
from typing import Any, cast

import uvloop

LISTENING = "engine listening on "
HOST = "127.0.0.1"
MODES = ("well", "hang-before", "hang-after", "reset", "trickle", "garbage")
_SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_GARBAGE = b"\x16\x03\x01 SSH-2.0 this is no HTTP \xff\xfe\r\n\r\n"
_TRICKLE_BYTES = 24


class Engine:
    """What all connections share: the mode, and how many answers are under way."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.mode = "well"
        self.frames = 20
        self.pause_s = 0.01
        self.running = 0

    def take_orders(self) -> None:
        line = sys.stdin.readline()
        if not line:
            self.loop.stop()
            return
        mode, frames, pause_ms = line.split()
        self.mode, self.frames, self.pause_s = mode, int(frames), float(pause_ms) / 1e3


class Connection(asyncio.Protocol):
    """One connection; an answer at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._buffer = b""
        self._left = 0  # frames of the answer under way
        self._timer: asyncio.TimerHandle | None = None
        self._is_running = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._end()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line[15:])
        if len(rest) >= length:
            body, self._buffer = rest[:length], rest[length:]
            self._answer(head.split(b" ", 2)[1], body)

    def _answer(self, path: bytes, body: bytes) -> None:
        if path == b"/running":
            self._send_whole({"running": self._engine.running})
        elif path == b"/v1/models":
            self._send_whole({"object": "list", "data": [{"id": "m", "object": "model"}]})
        elif not body:
            self._send_whole({"status": "ok"})
        else:
            self._chat(json.loads(body))

    def _chat(self, asked: dict[str, Any]) -> None:
        mode = self._engine.mode
        self._is_running = True
        self._engine.running += 1
        self._stream = bool(asked.get("stream"))
        # So that one request's answer can be long or quick, whatever the others' are. Not by
        # max_tokens, which a policy sets to more than an engine of this pace has time for.
        self._pad = "x" * int(asked.get("chaos_pad") or 0)
        self._pause_s = float(asked.get("chaos_pause_ms") or self._engine.pause_s * 1e3) / 1e3
        self._frames = int(asked.get("chaos_frames") or self._engine.frames)
        if mode == "garbage":
            self._transport.write(_GARBAGE)
        elif mode == "reset":
            raw = self._transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
        elif mode == "hang-after":
            self._transport.write(_SSE if self._stream else _head(1000))
        elif mode == "trickle":
            self._drip(self._whole_reply())
        elif mode != "hang-before":
            if self._stream:
                self._transport.write(_SSE)
            self._left = self._frames
            self._later(self._next)

    def _later(self, work: Callable[[], None]) -> None:
        self._timer = self._engine.loop.call_later(self._pause_s, work)

    def _next(self) -> None:
        """One more token."""
        if self._engine.mode in ("hang-before", "hang-after"):
            return  # hung in the middle of it
        self._left -= 1
        if self._stream:
            self._transport.write(_token(self._pad))
        if self._left > 0:
            self._later(self._next)
        elif self._stream:
            self._transport.write(_LAST)
            self._end()
        else:
            self._end()
            self._send_whole(_whole(self._frames))

    def _drip(self, rest: bytes) -> None:
        """A few bytes at a time, each a packet of its own."""
        self._transport.write(rest[:_TRICKLE_BYTES])
        if rest := rest[_TRICKLE_BYTES:]:
            self._later(lambda: self._drip(rest))
        else:
            self._end()

    def _whole_reply(self) -> bytes:
        if self._stream:
            return _SSE + b"".join(_token() for _ in range(self._frames)) + _LAST
        body = json.dumps(_whole(self._frames)).encode()
        return _head(len(body)) + body

    def _send_whole(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self._transport.write(_head(len(body)) + body)

    def _end(self) -> None:
        if self._is_running:
            self._is_running = False
            self._engine.running -= 1


def _head(length: int) -> bytes:
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % length
    )


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _frame(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    value = {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def _token(pad: str = "") -> bytes:
    return _chunk(_frame({"content": f"{time.monotonic():.6f} {pad}"}))


def _whole(tokens: int) -> dict[str, Any]:
    message = {"role": "assistant", "content": f"{time.monotonic():.6f} " * tokens}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 9, "completion_tokens": tokens, "total_tokens": 9 + tokens}
    return {
        "id": "c",
        "object": "chat.completion",
        "model": "m",
        "choices": [choice],
        "usage": usage,
    }


_LAST = _chunk(_frame({}, "stop")) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--cert", help="speak TLS with this certificate")
    parser.add_argument("--key")
    options = parser.parse_args()
    port: int = options.port
    context = None
    if options.cert is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(options.cert, options.key)
    loop = uvloop.new_event_loop()
    engine = Engine(loop)
    listener = socket.create_server((HOST, port), backlog=2048)
    loop.run_until_complete(
        loop.create_server(lambda: Connection(engine), sock=listener, ssl=context)
    )
    loop.add_reader(sys.stdin, engine.take_orders)
    print(f"{LISTENING}{listener.getsockname()[1]}", flush=True)
    loop.run_forever()


if __name__ == "__main__":
    main()
