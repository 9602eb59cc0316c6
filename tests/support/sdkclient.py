"""The OpenAI SDK as a client, with the bytes it was sent kept beside what it made of them.

The SDK talks through a tap: a relay on a port of its own, one thread a direction. So
one exchange is seen both ways, whichever HTTP library the SDK brings along.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import openai
from openai.resources.chat.completions import Completions

from tests.support.rawclient import HOST, READ_SIZE, RawReply, ReplyReader, shut

KNOWN = frozenset(
    name
    for name in inspect.signature(Completions.create).parameters
    if not name.startswith("extra_")  # options of the SDK, not members of a body
)
SET_BY_SDK = frozenset({"authorization", "content-type", "content-length", "host"})


@dataclass
class SdkView:
    """What a program that uses the SDK would have seen."""

    error: Exception | None = None
    text: str = ""
    usage: dict[str, int] | None = None
    calls: dict[int, tuple[str, str]] = field(default_factory=dict)  # index → name, arguments

    @property
    def error_classes(self) -> list[str]:
        return [] if self.error is None else [kind.__name__ for kind in type(self.error).__mro__]

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        return joined_calls(self.calls)

    def add_call(self, index: int, name: str | None, arguments: str | None) -> None:
        add_call(self.calls, index, name, arguments)


def add_call(
    calls: dict[int, tuple[str, str]], index: int, name: str | None, arguments: str | None
) -> None:
    """Join a piece of a tool call to what is there of it."""
    old_name, old_arguments = calls.get(index, ("", ""))
    calls[index] = (old_name + (name or ""), old_arguments + (arguments or ""))


def joined_calls(calls: Mapping[int, tuple[str, str]]) -> list[dict[str, Any]]:
    """The calls in the order of their index, arguments parsed."""
    return [
        {"name": name, "arguments": json.loads(arguments)}
        for _, (name, arguments) in sorted(calls.items())
    ]


def sdk_chat(
    port: int,
    headers: Mapping[str, str],
    body: Mapping[str, Any],
    extra_body: Mapping[str, Any] | None = None,
    *,
    timeout_s: float = 60.0,
) -> tuple[RawReply, SdkView]:
    """One chat call through the SDK, without its retries."""
    view = SdkView()
    lower = {name.lower(): value for name, value in headers.items()}
    known = {name: value for name, value in body.items() if name in KNOWN}
    unknown = {name: value for name, value in body.items() if name not in KNOWN}
    with (
        Tap(port) as tap,
        openai.OpenAI(
            base_url=f"http://{HOST}:{tap.port}/v1",
            api_key=lower.get("authorization", "Bearer none").removeprefix("Bearer "),
            max_retries=0,
            timeout=timeout_s,
        ) as client,
    ):
        try:
            answer: Any = client.chat.completions.create(
                **known,
                extra_headers={k: v for k, v in headers.items() if k.lower() not in SET_BY_SDK},
                extra_body={**unknown, **(extra_body or {})} or None,
            )
            if body.get("stream"):
                with answer:
                    for chunk in answer:
                        _take_chunk(view, chunk)
            else:
                _take_whole(view, answer)
        except openai.OpenAIError as error:
            view.error = error
        # What iterating a broken stream raises is a finding too, whatever its class.
        except Exception as error:
            view.error = error
    return tap.reply, view


def _take_chunk(view: SdkView, chunk: Any) -> None:
    if chunk.usage is not None:
        view.usage = _counts(chunk.usage)
    for choice in chunk.choices:
        view.text += choice.delta.content or ""
        for call in choice.delta.tool_calls or ():
            function = call.function
            view.add_call(call.index, function and function.name, function and function.arguments)


def _take_whole(view: SdkView, answer: Any) -> None:
    if answer.usage is not None:
        view.usage = _counts(answer.usage)
    message = answer.choices[0].message
    view.text = message.content or ""
    for index, call in enumerate(message.tool_calls or ()):
        view.add_call(index, call.function.name, call.function.arguments)


def _counts(usage: Any) -> dict[str, int]:
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    return {name: getattr(usage, name) for name in names}


class Tap:
    """A relay for one connection that reads along with the reply.

    The SDK hangs up at `[DONE]`, often before the last chunk of the framing is there. Such a
    client had its answer, so its leaving is passed on only after the reply has ended.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._reader = ReplyReader(started=time.monotonic())
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def reply(self) -> RawReply:
        return self._reader.reply

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        # A client that never connected would leave the thread in `accept`.
        with socket.socket() as knock:
            knock.settimeout(5)
            knock.connect_ex((HOST, self.port))
        self._thread.join(30)
        self._listener.close()
        if not self._reader.done:
            self._reader.give_up(time.monotonic(), "the SDK left before the reply was whole")

    def _run(self) -> None:
        client, _ = self._listener.accept()
        with client:
            try:
                server = socket.create_connection((HOST, self._target), 10)
            except OSError as error:
                self.reply.refused = True
                self._reader.give_up(time.monotonic(), f"{type(error).__name__}: {error}")
                return
            server.settimeout(None)
            with server:
                self.reply.started = time.monotonic()
                up = threading.Thread(target=self._send_up, args=(client, server), daemon=True)
                up.start()
                self._send_down(server, client)
                self._ended.set()
                shut(client)
                up.join(10)

    @property
    def _answered(self) -> bool:
        """Whether the SDK has been sent all that it waits for."""
        tail = b"".join(frame.data for frame in self.reply.frames[-3:])
        return b"data: [DONE]" in tail

    def _send_up(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the other direction tells why
            while data := client.recv(READ_SIZE):
                server.sendall(data)
        if self._answered:
            self._ended.wait(10)
        shut(server)

    def _send_down(self, server: socket.socket, client: socket.socket) -> None:
        try:
            while data := server.recv(READ_SIZE):
                self._reader.feed(data, time.monotonic())
                if self._reader.done:
                    self._ended.set()
                try:
                    client.sendall(data)
                except OSError:
                    if not self._answered:
                        raise
        except OSError as error:
            self._reader.eof(time.monotonic(), f"{type(error).__name__}: {error}")
            return
        self._reader.eof(time.monotonic())
