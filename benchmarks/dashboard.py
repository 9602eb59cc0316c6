#!/usr/bin/env python3
"""Measure the dashboard on a log of a million records, and what it does to a router beside it.

    make bench-dashboard                                # both logs, then the router: minutes
    python benchmarks/dashboard.py --records 100000 --rounds 2 --seconds 2

Two logs: the records of a day, and all of them in one hour. Of each: a cold start (no cache, so the
whole log is read), the views once all is read, filters, a warm start, memory. Then a router serves
paced streams and single requests, with somebody using its dashboard and without, in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import check
import records
import run
import tools
from backend import fetch
from lineup import REPOSITORY, router
from load import CASES, WARM_UP, Target, Traffic
from processes import CPUS, Usage, cpu_s, machine_busy_s, peak_rss_mb, running, tree

API = "/dashboard/api/"
VIEWS = (
    "meta",
    "series?points=120",
    "scenarios",
    "savings",
    "backends",
    "sessions",
    "experiments",
    "requests",
)
#: what a filter is tried on, and the filters
FILTERED = ("scenarios", "series?points=120", "requests")
FILTERS = ("scenario=code", "outcome=upstream_error", "slow_ms=20000", "q=ab12")
#: what the page asks for again and again while somebody looks at it
WATCHED = ("series?points=120", "scenarios", "requests", "backends", "sessions", "savings")
LOADS = ("plain_c1", "paced_c64")
PATIENCE_S = 300.0


def ask(port: int, view: str, *, since: str = "-25h") -> Any:
    """A view over the whole log; its answer."""
    mark = "&" if "?" in view else "?"
    answer = fetch(port, "GET", f"{API}{view}{mark}from={since}", timeout_s=60)
    if answer.status != 200:
        raise RuntimeError(f"{view}: {answer.status} {answer.body[:300]!r}")
    return json.loads(answer.body)


def timed(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def median_ms(work: Callable[[], Any], times: int) -> float:
    return statistics.median(timed(work) for _ in range(times)) * 1e3


@contextmanager
def alone(logs: Path, cache: Path) -> Iterator[tuple[int, int]]:
    """`scenario-router dashboard` over a folder: (port, process)."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "router", "dashboard", "--no-open"),
            *("--log-dir", str(logs)),
        ],
        cwd=REPOSITORY,
        env={**os.environ, "SCENARIO_ROUTER_CACHE": str(cache)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().split()[-1]
        yield int(address.rsplit(":", 1)[1].split("/")[0]), process.pid
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def start_of(logs: Path, cache: Path, records_in_all: int) -> dict[str, float]:
    """From the command to the first page, to the first views of the newest hour, to all is read.

    Beside the clock stands the process's own computing, which a busy machine does not stretch.
    """
    begun, busy = time.perf_counter(), machine_busy_s()
    told: dict[str, float] = {}
    with alone(logs, cache) as (port, pid):
        fetch(port, "GET", "/dashboard")
        told["page_s"] = time.perf_counter() - begun
        told["page_cpu_s"] = cpu_s(pid)
        for view in ("meta", "series?points=120", "scenarios"):
            ask(port, view, since="-1h")
        told["views_s"] = time.perf_counter() - begun
        told["views_cpu_s"] = cpu_s(pid)
        others = machine_busy_s() - busy - told["views_cpu_s"]
        told["others"] = max(others, 0.0) / (told["views_s"] * CPUS)
        deadline = time.monotonic() + PATIENCE_S
        while ask(port, "meta")["log"]["records"] < records_in_all:
            if time.monotonic() > deadline:
                raise RuntimeError("the log was not read in time")
            time.sleep(0.05)
        told["whole_s"] = time.perf_counter() - begun
        told["whole_cpu_s"] = cpu_s(pid)
        told["peak_rss_mb"] = peak_rss_mb(pid)
    return told


def measure_log(name: str, logs: Path, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Start, views and filters of one log."""
    cold, warm = [], []
    for number in range(options.rounds):
        cache = folder / f"cache-{name}-{number}"
        cold.append(start_of(logs, cache, options.records))
        warm.append(start_of(logs, cache, options.records))
    told: dict[str, Any] = {"log": name, "cold": medians(cold), "warm": medians(warm)}
    with alone(logs, folder / f"cache-{name}-0") as (port, pid):
        ask(port, "meta")
        times = max(options.rounds, 3)
        told["views_ms"] = {
            view: median_ms(lambda view=view: ask(port, view), times)  # type: ignore[misc]
            for view in VIEWS
        }
        told["filters_ms"] = {
            f"{view.partition('?')[0]} {wanted}": median_ms(
                lambda view=view, wanted=wanted: ask(  # type: ignore[misc]
                    port, f"{view}{'&' if '?' in view else '?'}{wanted}"
                ),
                times,
            )
            for view in FILTERED
            for wanted in FILTERS
        }
        told["peak_rss_mb"] = peak_rss_mb(pid)
    return told


def medians(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(told[name] for told in rounds) for name in rounds[0]}


class Reader:
    """Somebody at the dashboard: the live stream, and views that are asked for anew, one by one."""

    def __init__(self, port: int, pause_s: float) -> None:
        self._port = port
        self._pause_s = pause_s
        self._stop = threading.Event()
        self.answers = 0
        self._threads = [threading.Thread(target=self._look), threading.Thread(target=self._watch)]

    def __enter__(self) -> Reader:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(90)

    def _look(self) -> None:
        while not self._stop.is_set():
            for view in WATCHED:
                ask(self._port, view)
                self.answers += 1
                if self._stop.wait(self._pause_s):
                    return

    def _watch(self) -> None:
        while not self._stop.wait(1.0):
            ask(self._port, "now")


#: as a dashboard goes about it, in share of a processor and in what it lets go first
_STRANGER = """
import os, time
os.nice(10)
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
memory = bytes(1 << 20)
while True:
    end = time.process_time() + 0.1
    while time.process_time() < end:
        sum(memory[::64])
    time.sleep(0.9)
"""


class Stranger:
    """Somebody else's work beside the router: what a tenth of a processor costs by itself.

    With the load's own processes on the same few processors, any work moves a p99.
    """

    answers = 0

    def __enter__(self) -> Stranger:
        self._process = subprocess.Popen([sys.executable, "-c", _STRANGER])
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.wait()


def measure_router(logs: Path, folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """p99 with and without a reader, in turns; what is compared stands next to each other."""
    cells: list[dict[str, Any]] = []
    with ExitStack() as stack:
        bench = run.start_bench(stack, folder)
        own = folder / "router"
        own.mkdir()
        peer = router(bench.backend.port, own)
        shutil.copytree(logs, own / "logs")
        env = {**peer.environment(), "SCENARIO_ROUTER_CACHE": str(folder / "cache-router")}
        process = stack.enter_context(
            running(peer.command, cwd=peer.cwd, log=own / "output.log", env=env)
        )
        target = peer.target()
        check.wait_ready(target, process)
        for case in WARM_UP:
            bench.load(target, case, 1)
        while ask(target.port, "meta")["log"]["records"] < options.records:
            time.sleep(0.2)
        for number in range(options.rounds):
            for name in LOADS:
                cells += [
                    measure_cell(bench, target, name, number, options, process.pid, is_read)
                    for is_read in (number % 2 == 0, number % 2 == 1)
                ]
    return cells


def measure_cell(
    bench: run.Bench,
    target: Target,
    name: str,
    number: int,
    options: argparse.Namespace,
    pid: int,
    is_read: bool,
) -> dict[str, Any]:
    before = Usage.now(pid, bench.backend.pid)
    answers = 0
    if is_read:
        beside = Stranger() if options.stranger else Reader(target.port, options.pause)
        with beside as reader:
            seen: Traffic = bench.load(target, CASES[name], options.seconds)
            answers = reader.answers
    else:
        seen = bench.load(target, CASES[name], options.seconds)
    used = Usage.now(pid, bench.backend.pid) - before
    children = [child for child in tree(pid) if child != pid]
    return {
        "round": number,
        "load": name,
        "read": is_read,
        "p50_ms": seen.p50_ms,
        "p99_ms": seen.p99_ms,
        "gap_p99_ms": seen.gap_p99_ms,
        "per_s": seen.units / seen.seconds,
        "errors": seen.errors,
        "views": answers,
        "children": len(children),
        "foreign": used.foreign,
    }


def ratios(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """With a reader over without, in the same round: the median, and the extremes."""
    told = []
    for name in LOADS:
        for figure in ("p50_ms", "p99_ms", "gap_p99_ms", "per_s"):
            pairs = []
            values: dict[bool, list[float]] = {True: [], False: []}
            for number in sorted({cell["round"] for cell in cells}):
                both = {
                    cell["read"]: cell[figure]
                    for cell in cells
                    if cell["round"] == number and cell["load"] == name
                }
                if both.get(True) and both.get(False):
                    pairs.append(both[True] / both[False])
                    for is_read in both:
                        values[is_read].append(both[is_read])
            if pairs:
                told.append(
                    {
                        "load": name,
                        "figure": figure,
                        "without": statistics.median(values[False]),
                        "with": statistics.median(values[True]),
                        "ratio": statistics.median(pairs),
                        "least": min(pairs),
                        "most": max(pairs),
                    }
                )
    return told


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if advice := tools.what_to_install([]):
        print("\n".join(advice), file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, run.interrupt)  # so that all that was started is stopped
    folder = Path(tempfile.mkdtemp(prefix="dashboard-bench-"))
    machine = f"{CPUS} CPUs, {platform.machine()}, Python {platform.python_version()}"
    print(f"{machine}; {options.records:,} records; load at the start {os.getloadavg()[0]:.1f}")
    result: dict[str, Any] = {"machine": machine, "records": options.records, "logs": []}
    try:
        for name, hours in (("day", 24.0), ("hour", 0.9))[: 1 if options.stranger else 2]:
            logs = folder / name
            size = records.write(logs, options.records, hours=hours)
            print(f"\n{name}: {size / 2**20:.0f} MiB, {len(list(logs.iterdir()))} files")
            told = measure_log(name, logs, folder, options)
            result["logs"].append(told)
            show_log(told)
        cells = measure_router(folder / "day", folder, options)
        result["router"] = {"cells": cells, "ratios": ratios(cells)}
        show_router(result["router"])
    finally:
        if options.out:
            options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if any(cell["errors"] for cell in result["router"]["cells"]) else 0


def show_log(told: dict[str, Any]) -> None:
    for kind in ("cold", "warm"):
        start = told[kind]
        print(
            f"  {kind} start: page {start['page_s']:.2f} s (CPU {start['page_cpu_s']:.2f}), first "
            f"views {start['views_s']:.2f} s (CPU {start['views_cpu_s']:.2f}), all read "
            f"{start['whole_s']:.1f} s (CPU {start['whole_cpu_s']:.1f}), peak "
            f"{start['peak_rss_mb']:.0f} MB; others used {start['others']:.0%} of the machine"
        )
    for title in ("views_ms", "filters_ms"):
        figures = told[title]
        slowest = max(figures, key=lambda name: figures[name])
        print(f"  {title.removesuffix('_ms')}: slowest {slowest} {figures[slowest]:.0f} ms")
        for name, figure in figures.items():
            print(f"    {figure:7.0f} ms  {name}")


def show_router(told: dict[str, Any]) -> None:
    print("\nthe router, with somebody beside it over without")
    for row in told["ratios"]:
        print(
            f"  {row['load']:10} {row['figure']:11} {row['without']:9.2f} -> {row['with']:9.2f}  "
            f"x{row['ratio']:.2f} ({row['least']:.2f}..{row['most']:.2f})"
        )
    views = sum(cell["views"] for cell in told["cells"])
    foreign = statistics.median(cell["foreign"] for cell in told["cells"])
    print(f"  {views} views were answered meanwhile; others used {foreign:.0%} of the machine")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--records", type=run.within(1000, 50_000_000), default=1_000_000)
    parser.add_argument("--rounds", type=run.within(1, 50), default=5)
    parser.add_argument("--seconds", type=run.within(1, 60), default=5, help="of one load")
    parser.add_argument(
        "--pause", type=float, default=1.0, help="between two views that are asked for, seconds"
    )
    parser.add_argument(
        "--stranger", action="store_true", help="in the reader's place work that is none of ours"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write everything as JSON too")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
