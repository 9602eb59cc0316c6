"""Request logs for the dashboard: made lines, what a reader must make of them, and a server."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from router import record as records
from router.record import Record
from tests.support.product import ROOT

NOW = time.time()


def made(number: int, *, ago_s: float | None = None, **fields: Any) -> Record:
    """A record that is told from others by its number; half of them think, and so on."""
    names = ("faq", "chat", "code", None)
    thinks = number % 2 == 0
    told: dict[str, Any] = {
        "ts": records.timestamp(NOW - (4 * (number % 3000) if ago_s is None else ago_s)),
        "request_id": f"req-{number:06d}",
        "session": f"s{number % 7}",
        "key": ("web", None)[number % 2],
        "endpoint": "chat.completions",
        "client_model": ("auto", "=cmd()")[number % 5 == 0],
        "backend": ("a", "b", None)[number % 3],
        "backend_model": "m",
        "dialect": "vllm",
        "pool": "default",
        "scenario": names[number % 4],
        "source": ("keyword", "learned")[number % 2],
        "confidence": (number % 101) / 100,
        "signals": ("keyword x",),
        "stream": number % 3 == 0,
        "thinking": thinks,
        "params": {"thinking": (None, thinks, "fill"), "max_new_tokens": (None, 64, "cap")},
        "affinity": ("hit", "new", "moved", "none")[number % 4],
        "ttft_ms": 10.0 + number % 50,
        "tpot_ms": 5.0,
        "total_ms": 100.0 + number % 900,
        "overhead_ms": 0.5,
        "input_tokens": 100,
        "cached_tokens": number % 100,
        "output_tokens": 20 + number % 30,
        "reasoning_tokens": (number % 20) * thinks,
        "answer_chars": 60,
        "reasoning_chars": 10 * thinks,
        "finish_reason": ("stop", "length")[number % 6 == 0],
        "status": 200,
        "outcome": ("ok", "upstream_error", "client_disconnect", "ok", "ok")[number % 5],
    }
    return Record(**{**told, **fields})


def is_record(line: bytes) -> bool:
    """Whether a line is one of ours, decided without the reader."""
    try:
        found = json.loads(line)
        return (
            isinstance(found, dict)
            and found.get("schema") == 1
            and isinstance(found.get("request_id"), str)
            and datetime.fromisoformat(found["ts"]) is not None
        )
    except (ValueError, KeyError, TypeError):
        return False


def lines_in(folders: Sequence[Path]) -> list[bytes]:
    """Every line that has its end, of the plain files, and of packed ones that stand alone."""
    found: list[bytes] = []
    for folder in folders:
        for path in sorted(folder.rglob("requests-*.jsonl*")):
            if path.name.endswith(".gz"):
                if not path.with_name(path.name.removesuffix(".gz")).exists():
                    found += gzip.decompress(path.read_bytes()).split(b"\n")[:-1]
            else:
                found += path.read_bytes().split(b"\n")[:-1]
    return [line for line in found if line]


def records_in(folders: Sequence[Path]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines_in(folders) if is_record(line)]


def pack(path: Path) -> None:
    """Compress a segment as a log's keeper does: the packed one is whole before it has its name."""
    draft = path.with_name(f".{path.name}.gz.tmp")
    draft.write_bytes(gzip.compress(path.read_bytes(), 1))
    os.replace(draft, path.with_name(path.name + ".gz"))
    path.unlink()


def write(folder: Path, found: Sequence[Record]) -> None:
    """Records into the files of their hours."""
    folder.mkdir(parents=True, exist_ok=True)
    for record in found:
        hour = record.ts[:13].replace("-", "")
        with (folder / f"requests-{hour}.jsonl").open("ab") as file:
            file.write(records.line(record))


def await_true(fact: Callable[[], bool], what: str, timeout_s: float = 10.0) -> None:
    poll = threading.Event()
    deadline = time.monotonic() + timeout_s
    while not fact():
        assert time.monotonic() < deadline, what
        poll.wait(0.02)


@contextmanager
def dashboard(folder: Path, *arguments: str, cache: Path) -> Iterator[httpx.Client]:
    """`scenario-router dashboard` as a user runs it, and a client of its API."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "router", "dashboard", "--no-open"),
            *("--log-dir", str(folder)),
            *arguments,
        ],
        cwd=ROOT,
        env={**os.environ, "SCENARIO_ROUTER_CACHE": str(cache)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("dashboard at "), line
        url = line.split()[-1].removesuffix("/dashboard")
        with httpx.Client(base_url=url + "/dashboard/api/", timeout=30) as client:
            yield client
    finally:
        process.terminate()
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()
