"""One request to a server, and what it was like: a Sample, whatever happened to it."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import httpx
import msgspec
import orjson

from router import probe
from router.errors import RouterError
from router.measure.prompts import Prompt
from router.measure.reading import Answer, told

CHAT = "/v1/chat/completions"


class NoServer(Exception):
    """Nobody answers there, or not as a model server would; the text says what was tried."""


class Sending(msgspec.Struct, frozen=True):
    """What is sent for one prompt."""

    body: bytes
    headers: Mapping[str, str]
    scenario: str | None = None  # where it was decided here and not by a router on the way
    policy: str | None = None


class Arm(msgspec.Struct, frozen=True):
    """One side of a comparison: where it asks and how."""

    name: str
    url: str  # without /v1
    encode: Callable[[Prompt], Sending]


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One request. Times count from when it was due, so a wait for the client counts too."""

    arm: str
    turn: int  # requests of one turn share a prompt and were made next to each other
    prompt: int
    began_s: float  # after the start of the run
    late_ms: float  # sent so long after it was due
    total_ms: float
    ttft_ms: float | None  # None: not streamed, or nothing came
    tpot_ms: float | None  # time for each token after the first
    output_tokens: int | None
    has_usage: bool  # else frames that carried text were counted
    input_tokens: int | None
    finish: str | None
    status: int | None
    is_second: bool  # asked again, as the server had closed the kept connection
    error: str | None
    text: str
    thought: str
    scenario: str | None
    policy: str | None
    backend: str | None
    overhead_ms: float | None  # as the router told
    warnings: str | None

    @property
    def is_ok(self) -> bool:
        return self.error is None

    @property
    def is_cut(self) -> bool:
        return self.finish == "length"

    @property
    def is_empty(self) -> bool:
        return self.is_ok and not self.text.strip() and self.finish != "tool_calls"


def without_texts(samples: Iterable[Sample]) -> list[dict[str, Any]]:
    """Each as a mapping for `--json`, with the length of a text in its place."""
    rows = [msgspec.to_builtins(sample) for sample in samples]
    for row in rows:
        row["answer_chars"], row["thought_chars"] = len(row.pop("text")), len(row.pop("thought"))
    return rows


class _Got:
    """What is known of a reply besides its answer."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers = httpx.Headers()
        self.is_second = False


class Asker:
    """Asks servers over connections that it keeps. `async with Asker() as asker: …`"""

    def __init__(
        self,
        *,
        timeout_s: float,
        clock: Callable[[], float] = time.perf_counter,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        """`trust` is how servers of https are verified; by what this system trusts if left out."""
        self.clock = clock
        self._timeout_s = timeout_s
        self._began = clock()
        self._client = httpx.AsyncClient(
            timeout=None,
            trust_env=False,
            verify=trust if trust is not None else ssl.create_default_context(),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        )

    async def __aenter__(self) -> Asker:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._client.aclose()

    def restart(self) -> None:
        """`began_s` counts from now."""
        self._began = self.clock()

    async def ask(self, arm: Arm, prompt: Prompt, *, turn: int, due: float | None = None) -> Sample:
        """Ask now. `due` is when it should have been; None: as soon as its bytes are there."""
        sending = Sending(b"", {})
        answer, got, error = Answer(), _Got(), None
        sent = self.clock()
        try:
            sending = arm.encode(prompt)
            sent = self.clock()
            async with asyncio.timeout(self._timeout_s):
                try:
                    await self._send(arm.url + CHAT, sending, answer, got)
                except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                    if got.status is not None:
                        raise
                    # A server may close a kept connection just as it is used again; clients then
                    # ask once more, and so do we, on the clock's account. It is counted.
                    got.is_second = True
                    await self._send(arm.url + CHAT, sending, answer, got)
        except TimeoutError:
            error = f"no whole answer within {self._timeout_s:g} s"
        except RouterError as refusal:
            error = f"refused: {refusal}"
        except httpx.HTTPError as fault:
            error = f"{type(fault).__name__} {fault}".rstrip()
        ended = self.clock()
        due = sent if due is None else due
        first, headers = answer.first_at, got.headers
        tokens = answer.frames if answer.output_tokens is None else answer.output_tokens
        is_stream = headers.get("content-type", "").startswith("text/event-stream")
        has_tokens = answer.output_tokens is not None or (is_stream and answer.is_whole)
        has_pace = first is not None and has_tokens and tokens > 1
        return Sample(
            arm=arm.name,
            turn=turn,
            prompt=prompt.id,
            began_s=due - self._began,
            late_ms=1e3 * (sent - due),
            total_ms=1e3 * (ended - due),
            ttft_ms=None if first is None else 1e3 * (first - due),
            tpot_ms=1e3 * (ended - first) / (tokens - 1) if has_pace and first else None,
            output_tokens=tokens if has_tokens else None,
            has_usage=answer.output_tokens is not None,
            input_tokens=answer.input_tokens,
            finish=answer.finish,
            status=got.status,
            is_second=got.is_second,
            error=error or answer.error or (None if answer.is_whole else "the answer broke off"),
            text=answer.text,
            thought=answer.thought,
            scenario=headers.get("x-router-scenario", sending.scenario),
            policy=headers.get("x-router-policy", sending.policy),
            backend=headers.get("x-router-backend"),
            overhead_ms=_number(headers.get("x-router-overhead-ms")),
            warnings=headers.get("x-router-warnings"),
        )

    async def _send(self, url: str, sending: Sending, answer: Answer, got: _Got) -> None:
        async with self._client.stream(
            "POST", url, content=sending.body, headers=dict(sending.headers)
        ) as reply:
            got.status, got.headers = reply.status_code, reply.headers
            await self._read(reply, answer)

    async def _read(self, reply: httpx.Response, answer: Answer) -> None:
        if reply.status_code != 200:
            body = await reply.aread()
            answer.error = f"status {reply.status_code}: {_said(body)}"
        elif reply.headers.get("content-type", "").startswith("text/event-stream"):
            async for line in reply.aiter_lines():
                answer.line(line, self.clock())
        else:
            answer.whole(await reply.aread())

    async def models_at(self, url: str, headers: Mapping[str, str]) -> Any:
        """What a server says at /v1/models. Raises NoServer."""
        try:
            reply = await self._client.get(url + "/v1/models", headers=dict(headers), timeout=10)
            return reply.raise_for_status().json()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as fault:
            text = f"{type(fault).__name__} {fault}".rstrip()
            raise NoServer(f"{url}/v1/models does not answer: {text}") from None

    async def model_at(self, url: str, headers: Mapping[str, str]) -> str:
        """The first model that a server names; of a router, `auto`. Raises NoServer."""
        model = probe.served_model(await self.models_at(url, headers))
        if model is None:
            raise NoServer(f"{url} names no model: say --model")
        return model


def base(url: str) -> str:
    """A server's address without /v1."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def body_of(prompt: Prompt, model: str, *, stream: bool, extra: Mapping[str, Any]) -> bytes:
    """An ordinary chat request."""
    whole: dict[str, Any] = {"model": model, "messages": prompt.messages, "stream": stream}
    if stream:
        whole["stream_options"] = {"include_usage": True}
    return orjson.dumps({**whole, **extra})


def _said(body: bytes) -> str:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = None
    text = told(document) if isinstance(document, dict) else body.decode(errors="replace")
    return " ".join(text.split())[:160]


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
