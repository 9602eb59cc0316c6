#!/usr/bin/env python3
"""Measure the router beside other proxies, all in front of one mock backend, on this machine.

Standard library only, apart from the peers themselves. README.md says what the numbers mean.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NoReturn

import check
import load
import report
import tools
from backend import Backend
from lineup import INSTALLED, LINEUP, PURE, YARDSTICKS, Peer
from load import CASES, WARM_UP, Case, PlainCase, Target
from processes import CPUS, Usage, free_port, peak_rss_mb, reset_peak_rss, running


@dataclass(frozen=True, slots=True)
class Contestant:
    """A peer that runs and passed its check."""

    peer: Peer
    target: Target
    process: subprocess.Popen[bytes] | None

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process else None

    @property
    def has_died(self) -> bool:
        return self.process is not None and self.process.poll() is not None


@dataclass(slots=True)
class Result:
    """What a run gathers; it stays printable when the run is cut short."""

    checks: dict[str, check.Check] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    cells: list[report.Cell] = field(default_factory=list)

    def fail(self, peer: Peer, what: str) -> None:
        self.failures.append(f"{peer.name}: {what}")
        say(f"FAILED {self.failures[-1]}")


@dataclass(frozen=True, slots=True)
class Bench:
    """The mock and the load tools, ready for use."""

    backend: Backend
    stream_client: Path

    def load(self, target: Target, case: Case, seconds: int) -> load.Traffic:
        if isinstance(case, PlainCase):
            # What a router has streamed to it for a client that waits comes as fast as a whole.
            self.backend.shape_streams(chunks=64, delay_us=0)
            return load.run_plain(target, case, seconds)
        self.backend.shape_streams(chunks=case.chunks, delay_us=case.delay_us)
        return load.run_streams(self.stream_client, target, case, seconds)

    def measure(self, who: Contestant, case: Case, seconds: int, round_number: int) -> report.Cell:
        if who.pid is not None:
            reset_peak_rss(who.pid)
        served_before = self.backend.stats()["chat"]
        before = Usage.now(who.pid, self.backend.pid)
        seen = self.load(who.target, case, seconds)
        used = Usage.now(who.pid, self.backend.pid) - before
        # An answer that never reached the backend (a redirect, a page of the proxy's own) is
        # not an answer, whatever its status.
        unserved = max(0, seen.good - (self.backend.stats()["chat"] - served_before))
        if seen.good == unserved:
            raise load.LoadFailed(
                f"no good answer, {seen.errors + unserved} bad ones {seen.sample}"
            )
        return report.Cell(
            round=round_number,
            case=case.name,
            peer=who.peer.name,
            units=seen.units,
            units_per_s=seen.units / seen.seconds,
            p50_ms=seen.p50_ms,
            p99_ms=seen.p99_ms,
            gap_p99_ms=seen.gap_p99_ms,
            cpu_us_per_unit=used.peer_s * 1e6 / seen.units,
            cpu_percent=100 * used.peer_s / used.wall_s,
            peak_rss_mb=peak_rss_mb(who.pid) if who.pid is not None else 0.0,
            foreign=used.foreign,
            errors=seen.errors + unserved,
            note=seen.sample,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    advice = tools.what_to_install(options.only)
    if advice:
        say("\n".join(advice))
        return 2
    raise_file_limit()
    signal.signal(signal.SIGTERM, interrupt)  # so that the peers are stopped in any case
    result = Result()
    folder = Path(tempfile.mkdtemp(prefix="router-bench-"))
    try:
        run(options, folder, result)
    except KeyboardInterrupt:
        result.failures.append("interrupted")
    finally:
        if options.keep:
            say(f"kept {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return conclude(options, result)


def run(options: argparse.Namespace, folder: Path, result: Result) -> None:
    """Start everything, measure in rounds, stop everything."""
    with ExitStack() as stack:
        bench = start_bench(stack, folder)
        contestants = start_contestants(stack, folder, options.only, bench, result)
        for number in range(options.rounds):
            for offset, name in enumerate(options.cases):
                started = time.monotonic()
                for who in rotated(contestants, number + offset):
                    measure_one(who, CASES[name], options.seconds, number, bench, result)
                    if who.has_died:
                        contestants.remove(who)
                took = time.monotonic() - started
                say(f"round {number + 1}/{options.rounds} {name}: {took:.0f} s")


def measure_one(
    who: Contestant, case: Case, seconds: int, round_number: int, bench: Bench, result: Result
) -> None:
    """A peer that fails must not end the run of the others."""
    where = f"{case.name}, round {round_number + 1}"
    try:
        cell = bench.measure(who, case, seconds, round_number)
    except load.LoadFailed as error:
        result.fail(who.peer, f"{where}: {error}")
    else:
        result.cells.append(cell)
        if cell.errors:
            say(f"{who.peer.name}, {where}: {cell.errors} errors {cell.note}")
    if who.has_died:
        result.fail(who.peer, f"{where}: the process died")


def start_bench(stack: ExitStack, folder: Path) -> Bench:
    port = free_port()
    command = [str(tools.compiled("mock_backend", folder)), str(port)]
    process = stack.enter_context(running(command, cwd=folder, log=folder / "mock.log"))
    backend = Backend(port, process.pid)
    backend.wait_ready()
    return Bench(backend, tools.compiled("stream_client", folder))


def start_contestants(
    stack: ExitStack, folder: Path, names: Sequence[str], bench: Bench, result: Result
) -> list[Contestant]:
    """Those that passed their check, warmed up; of the others the result says why."""
    contestants = []
    for name in names:
        own = folder / name
        own.mkdir()
        peer = LINEUP[name](bench.backend.port, own)
        target = peer.target()
        process = None
        log = own / "output.log"
        if peer.command:
            process = stack.enter_context(
                running(peer.command, cwd=peer.cwd, log=log, env=peer.environment())
            )
        try:
            check.wait_ready(target, process)
            result.checks[name] = check.examine(target, bench.backend, bench.stream_client)
            for case in WARM_UP:
                bench.load(target, case, 1)
        except (check.PeerFailed, load.LoadFailed) as error:
            told = log.read_text(errors="replace")[-1500:] if log.exists() else ""
            result.fail(peer, f"{error}\n{told}".rstrip())
        else:
            say(f"{name} ({peer.about})\n    {result.checks[name]}")
            contestants.append(Contestant(peer, target, process))
    return contestants


def rotated(contestants: Sequence[Contestant], by: int) -> list[Contestant]:
    """Another one goes first each time, so that no peer always follows the same neighbour."""
    start = by % max(1, len(contestants))
    return [*contestants[start:], *contestants[:start]]


def conclude(options: argparse.Namespace, result: Result) -> int:
    """Print the tables, write the file; 0 only if every peer ran and nothing went wrong."""
    rows = report.summarise(result.cells)
    machine = f"{CPUS} CPUs, {platform.machine()}, Python {platform.python_version()}"
    print(f"{machine}; {options.rounds} rounds, cells of {options.seconds} s\n")
    print(report.tables(rows))
    for failure in result.failures:
        print(f"\nFAILED {failure}")
    if options.out:
        document = {
            "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": machine,
            "rounds": options.rounds,
            "seconds": options.seconds,
            "checks": {name: asdict(seen) for name, seen in result.checks.items()},
            "failures": result.failures,
            "summary": [asdict(row) for row in rows],
            "cells": [asdict(cell) for cell in result.cells],
        }
        text = json.dumps(document, indent=1, ensure_ascii=False)
        options.out.write_text(text + "\n", encoding="utf-8")
        say(f"wrote {options.out}")
    return 1 if result.failures or any(row.errors for row in rows) else 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    epilog = "cases: " + "; ".join(f"{case.name} ({case.title})" for case in CASES.values())
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], epilog=epilog)
    parser.add_argument(
        "--only",
        type=one_of(LINEUP),
        metavar="NAMES",
        help=f"of {','.join(LINEUP)}; {' and '.join(YARDSTICKS)} are always measured; "
        f"left out: all, {', '.join(PURE)} only where the installed router is compiled",
    )
    parser.add_argument(
        "--cases", type=one_of(CASES), default=list(CASES), metavar="NAMES", help="default: all"
    )
    parser.add_argument("--rounds", type=within(1, 50), help="default 5")
    parser.add_argument("--seconds", type=within(1, 60), help="length of a cell, default 2")
    parser.add_argument("--quick", action="store_true", help="2 rounds of 1 s: does it work?")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write everything as JSON too")
    parser.add_argument("--keep", action="store_true", help="keep the folder with the peers' logs")
    options = parser.parse_args(arguments)
    asked = options.only or usual_lineup()
    options.only = [name for name in LINEUP if name in {*asked, *YARDSTICKS}]
    options.rounds = options.rounds or (2 if options.quick else 5)
    options.seconds = options.seconds or (1 if options.quick else 2)
    return options


def usual_lineup() -> list[str]:
    """All; the sources beside the installed router only where that is another thing."""
    return [name for name in LINEUP if name not in PURE or INSTALLED.compiled()]


def one_of(names: Collection[str]) -> Callable[[str], list[str]]:
    def chosen(text: str) -> list[str]:
        asked = text.split(",")
        unknown = [name for name in asked if name not in names]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"no such name: {', '.join(unknown)} (there are: {', '.join(names)})"
            )
        return [name for name in names if name in asked]

    return chosen


def within(low: int, high: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdigit() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"a whole number from {low} to {high}")
        return int(text)

    return number


def raise_file_limit() -> None:
    """500 streams are 1,000 sockets of a proxy; the children inherit this."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def interrupt(_signal: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
