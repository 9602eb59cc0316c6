"""Makes request logs of any size, for the dashboard to be measured and looked at with.

    python benchmarks/records.py FOLDER --count 1000000 --hours 24 [--bodies]

The lines are `record.Record`s as the router writes them. Scenarios, times and token counts
follow distributions that were seen in real logs: most requests are short, some think, a few
fail, days have a quiet night. The same seed gives the same lines, but for the time.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import msgspec

from router import record as records
from router.record import Record

#: name, share, thinks, answer tokens (median), our cap
_SCENARIOS: tuple[tuple[str, float, bool, int, int | None], ...] = (
    ("faq", 0.30, False, 48, 64),
    ("chat", 0.22, False, 120, None),
    ("copywriting", 0.10, False, 220, 512),
    ("code", 0.12, True, 380, None),
    ("reasoning", 0.08, True, 160, None),
    ("summary", 0.07, False, 140, 256),
    ("transform", 0.06, False, 90, None),
    ("assistant", 0.05, True, 110, None),
)
_BACKENDS = (("gpu-1", "vllm", 8.0), ("gpu-2", "vllm", 9.5), ("cpu-1", "llamacpp", 38.0))
_SOURCES = ("learned", "keyword", "structure", "pattern", "sticky", "default", "header", "alias")
_MISSES = ("moved", "history", "short", "thinking", "evicted", "first-message")
_TEXTS = {
    "faq": ("退款什么时候到账？", "Where is my parcel?", "How do I get a refund?"),
    "chat": ("你好，今天怎么样？", "Tell me something nice."),
    "copywriting": ("给面包店写一句口号。", "Write a slogan for a bakery."),
    "code": ("Write quicksort in Rust.", "用 Python 写一个二分查找。"),
    "reasoning": ("Prove that 2 is prime.", "甲乙两地相距三百公里，几小时相遇？"),
    "summary": ("Summarise this text: …", "总结下面的文章。"),
    "transform": ("Translate to French: good morning", "把下面的话翻译成英文。"),
    "assistant": ("Plan my week.", "帮我安排一个会议。"),
}


def made(
    count: int, *, first: float, last: float, seed: int = 1, bodies: bool = False
) -> Iterator[tuple[float, bytes, bytes | None]]:
    """(time, log line, body's line or None) in the order of time."""
    rng = random.Random(seed)
    names = [row[0] for row in _SCENARIOS]
    weights = [row[1] for row in _SCENARIOS]
    rows = {row[0]: row for row in _SCENARIOS}
    params = {name: _params(rows[name]) for name in names}
    sessions = max(count // 4, 1)
    step = (last - first) / max(count, 1)
    for number in range(count):
        at = first + step * (number + rng.random())
        name = rng.choices(names, weights)[0]
        record = _record(rng, at, rows[name], rng.randrange(sessions), params[name])
        line = records.line(record)
        body = None
        if bodies and rng.random() < 0.5:
            body = _body(rng, record)
        yield at, line, body


def _params(row: tuple[str, float, bool, int, int | None]) -> dict[Any, msgspec.Raw]:
    """What the record says of parameters, by (the client's wish to think, its limit)."""
    _, _, thinks, _, cap = row
    found: dict[Any, msgspec.Raw] = {}
    for wish in (None, True, False):
        for limit in (None, 256, 1024):
            sent = thinks if wish is None else wish
            bound = min(filter(None, (limit, cap)), default=None)
            told: dict[str, Any] = {
                "thinking": (wish, sent, "fill" if wish is None else "client"),
                "temperature": (None, 0.6 if sent else 0.7, "defaults"),
                "top_p": (None, 0.95 if sent else 0.8, "defaults"),
                "top_k": (None, 20, "defaults"),
                "min_p": (None, 0.0, "defaults"),
            }
            if bound is not None:
                told["max_new_tokens"] = (limit, bound, "cap" if bound != limit else "client")
            if sent:
                told["thinking_budget"] = (None, 1024, "defaults")
            found[wish, limit] = msgspec.Raw(msgspec.json.encode(told))
    return found


def _record(
    rng: random.Random,
    at: float,
    row: tuple[str, float, bool, int, int | None],
    session: int,
    params: dict[Any, msgspec.Raw],
) -> Record:
    name, _, thinks, tokens, cap = row
    wish = rng.choices((None, True, False), (0.9, 0.05, 0.05))[0]
    limit = rng.choices((None, 256, 1024), (0.8, 0.1, 0.1))[0]
    thinking = thinks if wish is None else wish
    home, dialect, token_ms = _BACKENDS[session % len(_BACKENDS)]
    thought = int(rng.lognormvariate(math.log(260), 0.8)) if thinking else 0
    answer = max(1, int(rng.lognormvariate(math.log(tokens), 0.6)))
    bound = min(filter(None, (limit, cap)), default=None)
    is_cut = bound is not None and answer >= bound
    if bound is not None:
        answer = min(answer, bound)
    luck = rng.random()
    outcome, status, code = "ok", 200, None
    if luck > 0.995:
        outcome, status, code = "upstream_error", 502, "backend_error"
    elif luck > 0.99:
        outcome, status, code = "rejected", 429, "rate_limit_exceeded"
    elif luck > 0.98:
        outcome = "client_disconnect"
    overhead = rng.lognormvariate(math.log(0.35), 0.5)
    ttft = overhead + rng.lognormvariate(math.log(45 if dialect == "vllm" else 180), 0.5)
    input_tokens = int(rng.lognormvariate(math.log(320), 0.9))
    cached = int(input_tokens * rng.random()) if rng.random() < 0.6 else 0
    stream = rng.random() < 0.7
    experiment = "short_faq" if name == "faq" else None
    record = Record(
        ts=records.timestamp(at),
        request_id=f"{rng.getrandbits(64):016x}",
        session=hashlib.md5(str(session).encode()).hexdigest()[:16],
        key=rng.choice(("web", "app", "batch")),
        endpoint="chat.completions",
        client_model=rng.choice(("auto", "auto", "gpt-4o", "Qwen/Qwen3-0.6B", f"auto:{name}")),
        policy="0f3c5a1b2d4e",
        scenario=name,
        source=rng.choices(_SOURCES, (55, 20, 8, 6, 6, 3, 1, 1))[0],
        confidence=round(min(1.0, rng.betavariate(6, 1.6)), 3),
        signals=(f"learned {rng.random():.2f}",),
        lang=rng.choice(("zh", "zh", "en")),
        turns=1 + int(rng.expovariate(0.7)),
        prompt_chars=int(rng.lognormvariate(math.log(90), 1.0)),
        pool="default",
        experiment=experiment,
        arm=None if experiment is None else ("control", "short")[session % 2],
        stream=stream,
        thinking=thinking,
        params=params[wish, limit],
        overhead_ms=round(overhead, 3),
        classify_us=round(rng.lognormvariate(math.log(60), 0.4), 1),
        status=status,
        outcome=outcome,
        error_code=code,
    )
    if outcome == "rejected":
        record.total_ms = round(overhead + 1, 3)
        return record
    record.backend, record.dialect, record.backend_model = home, dialect, "Qwen/Qwen3-0.6B"
    moved = rng.random()
    record.affinity = "moved" if moved > 0.97 else "hit" if moved > 0.3 else "new"
    if record.affinity == "moved":
        record.moved_because = rng.choice(("busy", "down"))
    if outcome == "upstream_error":
        record.total_ms = round(rng.lognormvariate(math.log(900), 0.8), 3)
        record.retries = 1
        return record
    total = ttft + token_ms * (thought + answer) * rng.uniform(0.85, 1.2)
    record.ttft_ms, record.total_ms = round(ttft, 3), round(total, 3)
    record.input_tokens, record.cached_tokens = input_tokens, cached
    record.cached_share = round(cached / max(input_tokens, 1), 3)
    if not cached:
        record.cache_miss = rng.choice(_MISSES)
    record.output_tokens = thought + answer
    record.reasoning_tokens = thought if thinking else 0
    record.answer_chars, record.reasoning_chars = answer * 3, thought * 3
    record.finish_reason = "length" if is_cut else "stop"
    if stream and record.output_tokens > 1:
        record.tpot_ms = round((total - ttft) / (record.output_tokens - 1), 3)
    if thinking and rng.random() < 0.02:
        record.rescued = True
    if rng.random() < 0.03:
        record.warnings = ("top_k is not known to this server and was left out",)
    return record


def _body(rng: random.Random, record: Record) -> bytes:
    """A line of the bodies' file, which lies beside the log where that was asked for."""
    name = record.scenario or "chat"
    return (
        msgspec.json.encode(
            {
                "schema": 1,
                "ts": record.ts,
                "request_id": record.request_id,
                "scenario": name,
                "prompt": [{"role": "user", "text": rng.choice(_TEXTS[name]), "parts": []}],
                "answer": "…",
                "reasoning": "",
                "cut": False,
                "redacted": {},
            }
        )
        + b"\n"
    )


def write(
    folder: Path,
    count: int,
    *,
    hours: float,
    until: float | None = None,
    seed: int = 1,
    bodies: bool = False,
) -> int:
    """Hourly files with so many requests, the last of them now; the bytes written."""
    folder.mkdir(parents=True, exist_ok=True)
    last = time.time() if until is None else until
    size, hour = 0, ""
    batch: list[bytes] = []
    told: list[bytes] = []

    def flush() -> None:
        for name, lines in (("requests", batch), ("bodies", told)):
            if lines:
                with (folder / f"{name}-{hour}.jsonl").open("ab") as file:
                    file.write(b"".join(lines))
                lines.clear()

    for at, line, body in made(
        count, first=last - hours * 3600, last=last, seed=seed, bodies=bodies
    ):
        now = time.strftime("%Y%m%dT%H", time.gmtime(at))
        if now != hour or len(batch) >= 20_000:
            flush()
            hour = now
        batch.append(line)
        size += len(line)
        if body is not None:
            told.append(body)
    flush()
    return size


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--hours", type=float, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bodies", action="store_true", help="half of the prompts, too")
    args = parser.parse_args()
    began = time.monotonic()
    size = write(args.folder, args.count, hours=args.hours, seed=args.seed, bodies=args.bodies)
    print(f"{args.count} records, {size / 2**20:.0f} MiB in {time.monotonic() - began:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
