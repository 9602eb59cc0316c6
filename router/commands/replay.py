"""`replay`: the last requests through another policy, without a model.

Exit code 0: nothing differs, 1: something does, 2: usage, or a file that cannot be read.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from router import config as configs
from router import forecast, recordfiles, replaying
from router.body import Body
from router.commands import offline, options
from router.forecast import Forecast
from router.measure.statistics import Sums, paired_ratio
from router.record import Record, timestamp
from router.replaying import Replay, Row
from router.tomlfile import FileFault
from router.verdict import Live

_UNITS = {"m": 60, "h": 3600, "d": 86400}
_SHOWN = 10
_SEED = 1
_body = msgspec.json.Decoder(Body).decode


def add(parser: argparse.ArgumentParser) -> None:
    options.add_config(parser)
    parser.add_argument("--policy", required=True, help="the other policy")
    parser.add_argument(
        "--against", help="the policy it is compared with (default: the configured one)"
    )
    parser.add_argument("--log-dir", type=Path, help="the request log (default: the configured)")
    parser.add_argument(
        "--since", type=_since, help="no older ones: 90m, 24h, 7d, or a time (RFC 3339)"
    )
    parser.add_argument(
        "--limit", type=int, default=1000, help="the last so many requests (default: 1000)"
    )
    parser.add_argument(
        "--run", type=int, default=0, metavar="SAMPLE", help="really send so many, as either says"
    )
    parser.add_argument("--url", help="with --run: the model server to send them to")


def run(args: argparse.Namespace) -> int:
    if args.run and not args.url:
        print("--run wants --url: the model server to send to", file=sys.stderr)
        return 2
    if args.limit < 1:
        print("--limit is at least 1", file=sys.stderr)
        return 2
    try:
        config = configs.load(args.config, flags={})
    except FileFault as fault:
        print(fault, file=sys.stderr)
        return 2
    before = _live(args, args.against)
    after = _live(args, args.policy)
    if before is None or after is None:
        return 2
    folder = args.log_dir or configs.beside(args.config, config.log.dir)
    try:
        records, skipped = last_records(folder, args.since, args.limit)
        kept = kept_of(folder, records)
    except OSError as error:
        print(f"{folder}: cannot be read: {error.strerror or error}", file=sys.stderr)
        return 2
    if not records:
        print(f"{folder}: no requests", file=sys.stderr)
        return 2
    found = replaying.replay(records, kept, before, after)
    guesses = forecast.forecasts(found.rows, Random(_SEED))
    sent = _send(found, args.run, args.url) if args.run else None
    if args.json:
        told = _told(found, guesses, before, after, sent)
        print(json.dumps({**told, "torn_lines": skipped}, indent=2, ensure_ascii=False))
    else:
        print("\n".join(_lines(found, guesses, before, after, sent)))
    return 1 if found.differing else 0


def _since(text: str) -> float:
    if found := re.fullmatch(r"(\d+)([mhd])", text):
        return time.time() - int(found[1]) * _UNITS[found[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither 24h nor a time") from None


def _live(args: argparse.Namespace, policy: str | None) -> Live | None:
    return offline.live(argparse.Namespace(config=args.config, policy=policy), dialect="openai")


def last_records(folder: Path, since: float | None, limit: int) -> tuple[list[Record], int]:
    """The last ones, oldest first, and how many lines were none. Raises OSError."""
    skipped = recordfiles.Skipped()
    found = recordfiles.records(recordfiles.segments(folder, since), skipped)
    first = "" if since is None else timestamp(since)
    last = deque(
        (record for record in found if record.ts >= first and not record.shadow), maxlen=limit
    )
    return sorted(last, key=lambda record: record.ts), skipped.total


def kept_of(folder: Path, records: Sequence[Record]) -> dict[str, Body]:
    """What was said in these requests, where that was kept. Raises OSError."""
    wanted = {record.request_id for record in records}
    found = {}
    for segment in recordfiles.segments(folder, kind="bodies"):
        for _, line in recordfiles.lines(segment):
            try:
                said = _body(line)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue  # torn, or of another time
            if said.request_id in wanted and said.prompt:
                found[said.request_id] = said
    return found


# --- really sent --------------------------------------------------------------------------------


def _send(found: Replay, sample: int, url: str) -> dict[str, Any]:
    """Some of the requests that differ and whose prompt is known, as either policy says them."""
    import httpx

    rows = [row for row in found.differing if row.is_whole]
    chosen = Random(_SEED).sample(rows, min(sample, len(rows)))
    times, tokens, failed, pairs = Sums(), Sums(), 0, []
    with httpx.Client(base_url=url.rstrip("/").removesuffix("/v1"), timeout=300) as client:
        for number, row in enumerate(chosen):
            path = f"/v1/{row.record.endpoint.replace('.', '/')}"
            order = (0, 1) if number % 2 else (1, 0)  # neither is always the one that warms up
            answers: dict[int, tuple[float, int | None]] = {}
            for side in order:
                answer = _asked(client, path, row.bodies[side])
                if answer is not None:
                    answers[side] = answer
            if len(answers) < 2:
                failed += 1
                continue
            (old_ms, old_tokens), (new_ms, new_tokens) = answers[0], answers[1]
            times.add(math.log(new_ms / old_ms))
            if old_tokens and new_tokens:
                tokens.add(math.log(new_tokens / old_tokens))
            pairs.append(
                {
                    "request_id": row.record.request_id,
                    "ms": [round(old_ms, 1), round(new_ms, 1)],
                    "output_tokens": [old_tokens, new_tokens],
                }
            )
    return {
        "candidates": len(rows),
        "sent": len(chosen),
        "failed": failed,
        "total": _effect(times),
        "output_tokens": _effect(tokens),
        "pairs": pairs,
    }


def _asked(client: Any, path: str, body: bytes) -> tuple[float, int | None] | None:
    """(milliseconds, output tokens) of one answer, whole or streamed; None where it failed."""
    import httpx

    began = time.perf_counter()
    try:
        reply = client.post(path, content=body, headers={"content-type": "application/json"})
    except httpx.HTTPError:
        return None
    took_ms = (time.perf_counter() - began) * 1e3
    if reply.status_code != 200:
        return None
    found = re.findall(rb'"(?:completion|output)_tokens"\s*:\s*(\d+)', reply.content)
    return took_ms, int(found[-1]) if found else None


def _effect(logs: Sums) -> dict[str, float | None]:
    """The typical ratio after / before; null where there is too little to tell."""
    if logs.n == 0:
        return {"ratio": None, "low": None, "high": None}
    found = paired_ratio(logs)
    ends = (found.low, found.high) if math.isfinite(found.high) else (None, None)
    return {"ratio": round(found.value, 4), "low": ends[0], "high": ends[1]}


# --- told ---------------------------------------------------------------------------------------


def _affected(found: Replay, rows: Sequence[Row]) -> list[tuple[Row, float | None, str]]:
    """The requests that differ, most tokens first: (row, tokens more or less, by what)."""
    answers = forecast.Answers(row.record for row in found.rows)
    told = []
    for row in rows:
        guess = answers.guess(row)
        own = row.record.output_tokens
        change = None if guess.mean is None or own is None else guess.mean - own
        told.append((row, change, guess.basis))
    return sorted(told, key=lambda one: (-abs(one[1] or 0), -len(one[0].changed)))


def _told(
    found: Replay,
    guesses: Sequence[Forecast],
    before: Live,
    after: Live,
    sent: Mapping[str, Any] | None,
) -> dict[str, Any]:
    return {
        "before": before.policy.hash,
        "after": after.policy.hash,
        "requests": len(found.rows),
        "by_body": sum(row.basis == "body" for row in found.rows),
        "passed_over": found.passed_over,
        "reproduced": {"as_recorded": found.reproduced[0], "of": found.reproduced[1]},
        "differing": len(found.differing),
        "scenarios": [
            {"before": old, "after": new, "requests": count}
            for (old, new), count in found.moves().most_common()
        ],
        "parameters": [
            {"scenario": scenario, "parameter": name, "before": old, "after": new, "requests": n}
            for (scenario, name, old, new), n in found.params().most_common()
        ],
        "forecasts": [guess._asdict() for guess in guesses],
        "rows": [
            {
                "request_id": row.record.request_id,
                "ts": row.record.ts,
                "basis": row.basis,
                "notes": row.notes,
                "before": msgspec.to_builtins(row.before),
                "after": msgspec.to_builtins(row.after),
                "changed": row.changed,
                "tokens_change": change,
                "tokens_basis": basis,
            }
            for row, change, basis in _affected(found, found.differing)
        ],
        "run": sent,
    }


def _lines(
    found: Replay,
    guesses: Sequence[Forecast],
    before: Live,
    after: Live,
    sent: Mapping[str, Any] | None,
) -> Iterator[str]:
    by_body = sum(row.basis == "body" for row in found.rows)
    yield f"policy {before.policy.hash} -> {after.policy.hash}"
    yield (
        f"{len(found.rows)} requests: {by_body} by what was said, "
        f"{len(found.rows) - by_body} by their features alone; {found.passed_over} passed over"
    )
    same, checked = found.reproduced
    if checked:
        yield f"of {checked} that the first policy served, {same} come out as they were recorded"
    if not found.differing:
        yield "nothing differs"
    else:
        yield f"{len(found.differing)} differ"
        yield from _changes(found)
    yield from map(_forecast, guesses)
    for row, change, basis in _affected(found, found.differing)[:_SHOWN]:
        tokens = "" if change is None else f", {change:+.0f} tokens ({basis})"
        yield f"request     {row.record.request_id}: {_difference(row)}{tokens}"
    if sent is not None:
        yield f"sent        {sent['sent']} of {sent['candidates']}, {sent['failed']} failed"
        for what in ("total", "output_tokens"):
            effect = sent[what]
            if effect["low"] is not None:
                yield (
                    f"sent        {what} {effect['ratio'] - 1:+.1%} "
                    f"({effect['low'] - 1:+.1%} to {effect['high'] - 1:+.1%})"
                )
            elif effect["ratio"] is not None:
                yield f"sent        {what} {effect['ratio'] - 1:+.1%}, too few for an interval"


def _changes(found: Replay) -> Iterator[str]:
    for (old, new), count in found.moves().most_common():
        if old != new:
            yield f"scenario    {old} -> {new}: {count}"
    for (scenario, name, before, after), count in found.params().most_common(2 * _SHOWN):
        yield f"parameter   {scenario} {name}: {before} -> {after}: {count}"


def _forecast(guess: Forecast) -> str:
    line = f"forecast    {guess.scenario}: "
    if guess.tokens is None or guess.tokens_change is None:
        return line + f"no basis for {guess.without_basis} of {guess.requests} requests"
    line += f"{guess.tokens[0]:.1f} -> {guess.tokens[1]:.1f} tokens {_share(guess.tokens_change)}"
    if guess.ms is not None and guess.ms_change is not None:
        line += f", {guess.ms[0]:.0f} -> {guess.ms[1]:.0f} ms {_share(guess.ms_change)}"
    else:
        line += ", no basis for times"
    if guess.without_basis:
        line += f"; no basis for {guess.without_basis} of {guess.requests} requests"
    return line


def _share(change: tuple[float, float, float]) -> str:
    middle, low, high = change
    return f"({middle:+.1%}, {low:+.1%} to {high:+.1%})" if any(change) else "(as it was)"


def _difference(row: Row) -> str:
    before, after = row.before, row.after
    parts = []
    if after.fault or before.fault:
        parts.append(f"not decided: {after.fault or before.fault}")
    elif before.scenario != after.scenario:
        parts.append(f"{before.scenario} -> {after.scenario}")
    else:
        parts.append(str(after.scenario))
    if before.arm != after.arm:
        parts.append(f"arm {before.arm or '–'} -> {after.arm or '–'}")
    parts += [
        f"{name} {replaying.said(old)} -> {replaying.said(new)}"
        for name, (old, new) in row.changed.items()
    ]
    return ", ".join(parts)
