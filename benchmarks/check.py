"""Before the measuring: does the peer answer rightly, and what does it do to a request?"""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import load
from backend import CHAT, Answer, Backend, difference, fetch
from load import StreamCase, Target

READY_PATIENCE_S = 30.0
STREAM = StreamCase(name="check", title="", connections=1, chunks=8, delay_us=1000, once=True)
STREAM_EVENTS = STREAM.chunks + 2  # the finish event and [DONE]


class PeerFailed(Exception):
    """The peer cannot be measured; the text says why."""


@dataclass(frozen=True, slots=True)
class Check:
    """What one plain and one streamed request showed."""

    plain_body: str
    stream_body: str
    usage_event: str
    reply_headers: dict[str, str]

    def __str__(self) -> str:
        shown = [f"plain: {self.plain_body}", f"stream: {self.stream_body}", self.usage_event]
        shown += [f"{name}={value}" for name, value in self.reply_headers.items()]
        return " | ".join(shown)


def wait_ready(target: Target, process: subprocess.Popen[bytes] | None) -> None:
    """Return at the first good answer."""
    deadline = time.monotonic() + READY_PATIENCE_S
    while True:
        if process is not None and process.poll() is not None:
            raise PeerFailed(f"exited with {process.returncode} before it answered")
        try:
            ask(target)
        except (OSError, PeerFailed) as error:
            if time.monotonic() > deadline:
                raise PeerFailed(f"not ready after {READY_PATIENCE_S:.0f} s: {error}") from error
            time.sleep(0.1)
        else:
            return


def ask(target: Target) -> Answer:
    """One plain request, and an answer worth the name."""
    headers = {"content-type": "application/json", **target.headers}
    answer = fetch(target.port, "POST", CHAT, body=target.short[0].read_bytes(), headers=headers)
    if answer.status != 200:
        raise PeerFailed(f"status {answer.status}: {answer.body[:200]!r}")
    try:
        content = json.loads(answer.body)["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError) as error:
        raise PeerFailed(f"not a completion: {answer.body[:200]!r}") from error
    if not content:
        raise PeerFailed("an empty completion")
    return answer


def examine(target: Target, backend: Backend, client: Path) -> Check:
    """One plain and one streamed request; a wrong answer raises PeerFailed."""
    answer = ask(target)
    plain_body = difference(target.short[0].read_bytes(), backend.last_body())

    backend.shape_streams(chunks=STREAM.chunks, delay_us=STREAM.delay_us)
    usage_before = backend.stats()["usage_events"]
    seen = load.run_streams(client, target, STREAM, seconds=1)
    usage_sent = backend.stats()["usage_events"] > usage_before
    if seen.errors:
        raise PeerFailed(f"its stream did not end well: {seen}")
    if seen.units != STREAM_EVENTS:
        raise PeerFailed(
            f"its stream had {seen.units} events instead of {STREAM_EVENTS}"
            + (": the usage event that the client did not ask for came through" * usage_sent)
        )
    return Check(
        plain_body=plain_body,
        stream_body=difference(target.short_stream.read_bytes(), backend.last_body()),
        usage_event="usage event asked for and taken out" if usage_sent else "no usage event",
        reply_headers={k: v for k, v in answer.headers.items() if k.startswith("x-router-")},
    )
