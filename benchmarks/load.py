"""The cases, and the load of one case on one peer: wrk for plain answers, ours for streams."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend import CHAT

HERE = Path(__file__).resolve().parent
DRAIN_S = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainCase:
    """Requests without streaming, one after another on every connection."""

    name: str
    title: str
    connections: int
    long: bool = False
    same: bool = False  # the same few texts again and again


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCase:
    """Streams of `chunks` events, `delay_us` apart, one after another on every connection."""

    name: str
    title: str
    connections: int
    chunks: int
    delay_us: int
    ramp_ms: int = 0
    at_least_s: int = 0
    once: bool = False  # every connection carries a single stream


Case = PlainCase | StreamCase

CASES: dict[str, Case] = {
    case.name: case
    for case in (
        PlainCase(name="plain_c1", title="1 KB request, 1 connection", connections=1),
        PlainCase(name="plain_c64", title="1 KB request, 64 connections", connections=64),
        PlainCase(
            name="same_c64",
            title="as plain_c64, but the same few texts again and again",
            connections=64,
            same=True,
        ),
        PlainCase(
            name="history_c16",
            title="200 KB history of 100 messages, 16 connections",
            connections=16,
            long=True,
        ),
        StreamCase(
            name="paced_c64",
            title="64 streams of 64 chunks, one every 10 ms",
            connections=64,
            chunks=64,
            delay_us=10_000,
            ramp_ms=640,
            at_least_s=3,
        ),
        StreamCase(
            name="idle_500",
            title="500 slow streams of 30 chunks, one every 100 ms",
            connections=500,
            chunks=30,
            delay_us=100_000,
            ramp_ms=1000,
            once=True,
        ),
    )
}

WARM_UP: tuple[Case, ...] = (
    PlainCase(name="warm_plain", title="", connections=16),
    StreamCase(name="warm_stream", title="", connections=16, chunks=64, delay_us=0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where the load goes and what it says: bodies lie in files, as the load tools want them."""

    port: int
    headers: Mapping[str, str]
    short: Sequence[Path]
    long: Sequence[Path]
    short_stream: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What one load run saw. A unit is a good answer, or an event of a stream."""

    good: int
    units: int
    seconds: float
    p50_ms: float
    p99_ms: float
    errors: int
    gap_p99_ms: float | None = None
    sample: str = ""


class LoadFailed(Exception):
    """A load tool gave no figures; the text says what it gave."""


def run_tool(
    command: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None
) -> str:
    """What the tool printed; it is killed if it outstays its time."""
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise LoadFailed(f"{Path(command[0]).name} did not end in {timeout_s:.0f} s") from error
    if done.returncode:
        raise LoadFailed(f"{Path(command[0]).name}: {(done.stdout + done.stderr)[-300:].strip()}")
    return done.stdout


def run_plain(target: Target, case: PlainCase, seconds: int) -> Traffic:
    """Latencies are of whole answers."""
    env = dict(
        os.environ,
        BODY_FILES="\n".join(map(str, target.long if case.long else target.short)),
        EXTRA_HEADERS="\n".join(f"{name}: {value}" for name, value in target.headers.items()),
    )
    if case.same:
        env["SAME_TEXTS"] = "1"
    command = [
        *("wrk", "-t1", f"-c{case.connections}", f"-d{seconds}s", "--timeout", "10s"),
        *("-s", str(HERE / "src" / "wrk_post.lua"), f"http://127.0.0.1:{target.port}{CHAT}"),
    ]
    output = run_tool(command, timeout_s=seconds + 60, env=env)
    line = re.search(r"^JSON (.*)$", output, re.MULTILINE)
    if line is None:
        raise LoadFailed(f"wrk gave no result: {output[-300:]}")
    seen = json.loads(line[1])
    good = seen["requests"] - seen["bad_status"]
    return Traffic(
        good=good,
        units=good,
        seconds=seen["duration_us"] / 1e6,
        p50_ms=seen["p50"] / 1000,
        p99_ms=seen["p99"] / 1000,
        errors=seen["bad_status"] + seen["broken"],
    )


def run_streams(client: Path, target: Target, case: StreamCase, seconds: int) -> Traffic:
    """Latencies are times to the first event."""
    duration = max(seconds, case.at_least_s)
    limit = case.connections if case.once else 10**7
    command = [
        *(str(client), str(target.port), CHAT, str(target.short_stream)),
        *map(str, (case.connections, duration, limit, case.ramp_ms, DRAIN_S)),
        *(f"{name}: {value}" for name, value in target.headers.items()),
    ]
    output = run_tool(command, timeout_s=duration + DRAIN_S + 30)
    seen: dict[str, Any] = json.loads(output)
    ended_badly = ("bad_status", "truncated", "no_done", "unfinished", "connect_errors")
    return Traffic(
        good=seen["complete"],
        units=seen["events"],
        seconds=seen["wall_s"],
        p50_ms=seen["ttft"]["p50"] / 1000,
        p99_ms=seen["ttft"]["p99"] / 1000,
        gap_p99_ms=seen["gap"]["p99"] / 1000,
        errors=sum(seen[name] for name in ended_badly),
        sample=seen["bad_sample"],
    )
