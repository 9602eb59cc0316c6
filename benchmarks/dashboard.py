#!/usr/bin/env python3
"""Measure the dashboard on a log of a million records, and what it does to a router beside it.

    make bench-dashboard                                # both logs, then the router: minutes
    python benchmarks/dashboard.py --records 100000 --rounds 2 --seconds 2

Two logs: the records of a day, and all of them in one hour. Of each: a cold start (no cache, so the
whole log is read), the views once all is read, filters, a warm start, memory. Then a router serves
paced streams and single requests in rounds: twice without anybody (what the two differ by is noise)
and once with somebody at its dashboard. Then what that somebody costs, in computing, and how long
the turns of the worker's event loop become.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import math
import os
import platform
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import check
import records
import run
import tools
from backend import fetch
from lineup import REPOSITORY, router
from load import CASES, WARM_UP, Target, Traffic
from processes import CPUS, Usage, cpu_s, machine_busy_s, peak_rss_mb, running, scheduled_s, tree

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
WATCHED = (
    "series?points=120",
    "scenarios",
    "meta",
    "requests",
    "backends",
    "experiments",
    "sessions",
    "savings",
)
LOADS = ("plain_c1", "paced_c64")
#: who is there: nobody, nobody again, somebody
KINDS = ("without", "again", "with")
RESAMPLES = 4000
#: what was logged while nobody looked is read when somebody comes, and that is not measured
SETTLE_S = 2.0
#: of a dashboard by itself
STARTS = 4
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
    for number in range(STARTS):
        cache = folder / f"cache-{name}-{number}"
        cold.append(start_of(logs, cache, options.records))
        warm.append(start_of(logs, cache, options.records))
    told: dict[str, Any] = {"log": name, "cold": medians(cold), "warm": medians(warm)}
    with alone(logs, folder / f"cache-{name}-0") as (port, pid):
        ask(port, "meta")
        told["views_ms"] = {view: median_anew_ms(port, view) for view in VIEWS}
        told["again_ms"] = {
            view: median_ms(lambda view=view: ask(port, view), STARTS)  # type: ignore[misc]
            for view in VIEWS
        }
        told["filters_ms"] = {
            f"{view.partition('?')[0]} {wanted}": median_anew_ms(
                port, f"{view}{'&' if '?' in view else '?'}{wanted}"
            )
            for view in FILTERED
            for wanted in FILTERS
        }
        told["peak_rss_mb"] = peak_rss_mb(pid)
    return told


def median_anew_ms(port: int, view: str) -> float:
    """Each time over another range, so that nothing of it has been found before."""
    hours = itertools.count(25)
    return median_ms(lambda: ask(port, view, since=f"-{next(hours)}h"), STARTS)


def medians(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(told[name] for told in rounds) for name in rounds[0]}


class Reader:
    """Somebody at the dashboard: the live stream, and views that are asked for anew, one by one.

    A view every 5 s is what an open page asks for where an hour is shown; over the whole log, as
    here, it would wait for 60 s. `--pause 1` is somebody who clicks and clicks.
    """

    def __init__(self, port: int, pause_s: float) -> None:
        self._port = port
        self._pause_s = pause_s
        self._stop = threading.Event()
        self.answers = self.events = 0
        self.slowest_s = 0.0
        self._stream = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        self._threads = [threading.Thread(target=self._look), threading.Thread(target=self._watch)]

    def __enter__(self) -> Reader:
        self._stream.connect()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        if self._stream.sock is not None:
            self._stream.sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(90)
        self._stream.close()

    def _look(self) -> None:
        """On one connection, as a browser does."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        for view in itertools.cycle(WATCHED):
            begun = time.perf_counter()
            mark = "&" if "?" in view else "?"
            connection.request("GET", f"{API}{view}{mark}from=-25h")
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200:
                raise RuntimeError(f"{view}: {answer.status} {body[:300]!r}")
            self.slowest_s = max(self.slowest_s, time.perf_counter() - begun)
            self.answers += 1
            if self._stop.wait(self._pause_s):
                break
        connection.close()

    def _watch(self) -> None:
        with suppress(OSError):
            self._stream.request("GET", f"{API}live")
            answer = self._stream.getresponse()
            while not self._stop.is_set() and answer.readline():
                self.events += 1


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


@contextmanager
def served(
    logs: Path, folder: Path, records_in_all: int, *, turns: Path | None = None
) -> Iterator[tuple[run.Bench, Target, int]]:
    """A router of one worker over a copy of the log, all of it read: (bench, target, process).

    In a folder where one was before, it begins with that one's log and caches.
    """
    with ExitStack() as stack:
        folder.mkdir(exist_ok=True)
        bench = run.start_bench(stack, folder)
        own = folder / "router"
        own.mkdir(exist_ok=True)
        peer = router(bench.backend.port, own)
        if not (own / "logs").exists():
            shutil.copytree(logs, own / "logs")
        env = {**peer.environment(), "SCENARIO_ROUTER_CACHE": str(folder / "cache")}
        if turns is not None:
            probe = Path(__file__).with_name("probe")
            paths = filter(None, (str(probe), os.environ.get("PYTHONPATH")))
            env |= {"PYTHONPATH": os.pathsep.join(paths), "LOOP_TURNS": str(turns)}
        process = stack.enter_context(
            running(peer.command, cwd=peer.cwd, log=own / "output.log", env=env)
        )
        target = peer.target()
        check.wait_ready(target, process)
        for case in WARM_UP:
            bench.load(target, case, 1)
        deadline = time.monotonic() + PATIENCE_S
        while ask(target.port, "meta")["log"]["records"] < records_in_all:
            if time.monotonic() > deadline:
                raise RuntimeError("the log was not read in time")
            time.sleep(0.2)
        yield bench, target, process.pid


def measure_router(logs: Path, folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Rounds of all kinds, another one first each time; what is compared stands close together."""
    cells: list[dict[str, Any]] = []
    with served(logs, folder / "beside", options.records) as (bench, target, pid):
        for number in range(options.rounds):
            first = number % len(KINDS)
            for name in LOADS:
                cells += [
                    measure_cell(bench, target, pid, name, kind, number, options)
                    for kind in (*KINDS[first:], *KINDS[:first])
                ]
    return cells


def measure_cell(
    bench: run.Bench,
    target: Target,
    pid: int,
    name: str,
    kind: str,
    number: int,
    options: argparse.Namespace,
) -> dict[str, Any]:
    children = [child for child in tree(pid) if child != pid]
    await_quiet(children)
    with ExitStack() as stack:
        reader: Reader | Stranger | None = None
        if kind == "with":
            reader = Stranger() if options.stranger else Reader(target.port, options.pause)
            stack.enter_context(reader)
            time.sleep(SETTLE_S)
        before = Usage.now(pid, bench.backend.pid)
        worker, child = scheduled_s([pid]), scheduled_s(children)
        begun = time.monotonic()
        seen: Traffic = bench.load(target, CASES[name], options.seconds)
        took = time.monotonic() - begun
        worker_after, child_after = scheduled_s([pid]), scheduled_s(children)
    used = Usage.now(pid, bench.backend.pid) - before
    return {
        "round": number,
        "load": name,
        "kind": kind,
        "p50_ms": seen.p50_ms,
        "p99_ms": seen.p99_ms,
        "gap_p99_ms": seen.gap_p99_ms,
        "per_s": seen.units / seen.seconds,
        "errors": seen.errors,
        "views": getattr(reader, "answers", 0),
        "events": getattr(reader, "events", 0),
        "slowest_view_s": getattr(reader, "slowest_s", 0.0),
        "worker_share": (worker_after[0] - worker[0]) / took,
        "worker_waits": (worker_after[1] - worker[1]) / took,
        "child_share": (child_after[0] - child[0]) / took,
        "foreign": used.foreign,
    }


def await_quiet(children: Sequence[int]) -> None:
    """Until the dashboard's process has noticed that nobody looks any more."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        before = scheduled_s(children)[0]
        time.sleep(1.5)
        if scheduled_s(children)[0] - before < 0.002:
            return
        if time.monotonic() > deadline:
            raise RuntimeError("the dashboard's process does not come to rest")


def measure_turns(logs: Path, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """How long the turns of the worker's event loop are that take longest, without load."""
    told: dict[str, Any] = {}
    turns = folder / "turns"
    with served(logs, folder / "beside", options.records, turns=turns) as (_, target, _pid):
        for kind in ("without", "with"):
            with Reader(target.port, options.pause) if kind == "with" else nullcontext():
                time.sleep(SETTLE_S)
                begun = time.time()
                time.sleep(options.watch)
                ended = time.time()
            lines = (line.split() for line in turns.read_text().splitlines())
            long = sorted(float(took) for at, took in lines if begun <= float(at) <= ended)
            told[kind] = {
                "seconds": options.watch,
                "longest_ms": long[-1] if long else 0.0,
                "over_1_ms": sum(took > 1.0 for took in long),
                "over_half_ms": sum(took > 0.5 for took in long),
                "sum_ms": sum(long),
            }
    return told


def ratios(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """With somebody there, and again without, over without: of each round, then of all.

    The mean over rounds (of logarithms), and where it lies with 95 % if the rounds are drawn anew.
    """
    told = []
    for name in LOADS:
        for figure in ("p50_ms", "p99_ms", "gap_p99_ms", "per_s"):
            of = {
                (cell["kind"], cell["round"]): cell[figure]
                for cell in cells
                if cell["load"] == name and cell[figure]
            }
            row: dict[str, Any] = {"load": name, "figure": figure}
            for kind in KINDS:
                values = [value for (one, _), value in of.items() if one == kind]
                row[kind] = statistics.median(values) if values else None
            if row["without"] is None:
                continue
            for kind in KINDS[1:]:
                logs = [
                    math.log(value / of["without", number])
                    for (one, number), value in of.items()
                    if one == kind and ("without", number) in of
                ]
                row[f"{kind}_over"] = [math.exp(one) for one in mean_and_interval(logs)]
            told.append(row)
    return told


def mean_and_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean, and its 95 % interval by drawing the values anew."""
    rng = random.Random(1)
    means = sorted(statistics.fmean(rng.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return statistics.fmean(values), means[RESAMPLES // 40], means[-RESAMPLES // 40]


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
        is_short = options.stranger or options.only_router
        for name, hours in (("day", 24.0), ("hour", 0.9))[: 1 if is_short else 2]:
            logs = folder / name
            size = records.write(logs, options.records, hours=hours)
            print(f"\n{name}: {size / 2**20:.0f} MiB, {len(list(logs.iterdir()))} files")
            if not is_short:
                told = measure_log(name, logs, folder, options)
                result["logs"].append(told)
                show_log(told)
        cells = measure_router(folder / "day", folder, options)
        result["router"] = {"cells": cells, "ratios": ratios(cells)}
        show_router(result["router"])
        result["turns"] = measure_turns(folder / "day", folder, options)
        show_turns(result["turns"])
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
    for title in ("views_ms", "again_ms", "filters_ms"):
        figures = told[title]
        slowest = max(figures, key=lambda name: figures[name])
        print(f"  {title.removesuffix('_ms')}: slowest {slowest} {figures[slowest]:.0f} ms")
        for name, figure in figures.items():
            print(f"    {figure:7.0f} ms  {name}")


def show_router(told: dict[str, Any]) -> None:
    print("\nthe router: nobody, and over that: nobody again, somebody beside it (95 % of rounds)")
    for row in told["ratios"]:
        shown = "  ".join(
            "{} {:.2f} x{:.3f} ({:.3f}..{:.3f})".format(kind, row[kind], *row[f"{kind}_over"])
            for kind in KINDS[1:]
        )
        print(f"  {row['load']:10} {row['figure']:11} {row['without']:9.2f}  {shown}")
    for name in LOADS:
        for kind in KINDS:
            cells = [one for one in told["cells"] if (one["load"], one["kind"]) == (name, kind)]
            mean = {
                figure: statistics.fmean(cell[figure] for cell in cells)
                for figure in ("worker_share", "worker_waits", "child_share", "foreign")
            }
            print(
                f"  {name:10} {kind:8} a minute: worker {60e3 * mean['worker_share']:.0f} ms, "
                f"waits for a processor {60e3 * mean['worker_waits']:.0f} ms; dashboard "
                f"{60e3 * mean['child_share']:.0f} ms; others used {mean['foreign']:.0%}"
            )
    views = sum(cell["views"] for cell in told["cells"])
    events = sum(cell["events"] for cell in told["cells"])
    slowest = max(cell["slowest_view_s"] for cell in told["cells"])
    print(
        f"  {views} views ({slowest * 1e3:.0f} ms at the most), {events} lines of the live stream"
    )


def show_turns(told: dict[str, Any]) -> None:
    print("\nturns of the worker's event loop, without load")
    for kind, row in told.items():
        print(
            f"  {kind:8} longest {row['longest_ms']:.2f} ms; in {row['seconds']} s over 1 ms "
            f"{row['over_1_ms']}, over 0.5 ms {row['over_half_ms']}, those over 0.1 ms together "
            f"{row['sum_ms']:.0f} ms"
        )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--records", type=run.within(1000, 50_000_000), default=1_000_000)
    parser.add_argument("--rounds", type=run.within(1, 50), default=12)
    parser.add_argument("--seconds", type=run.within(1, 60), default=4, help="of one load")
    parser.add_argument("--watch", type=run.within(5, 600), default=30, help="of the loop's turns")
    parser.add_argument(
        "--only-router", action="store_true", help="leave out starts, views and memory"
    )
    parser.add_argument(
        "--pause", type=float, default=5.0, help="between two views that are asked for, seconds"
    )
    parser.add_argument(
        "--stranger", action="store_true", help="in the reader's place work that is none of ours"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write everything as JSON too")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
