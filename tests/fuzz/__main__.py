"""All targets, some at once: `python -m tests.fuzz [--seconds 60] [--keep] [NAME …]`.

What leads somewhere new is gathered in `.fuzz/`, so a run goes on where the last one ended.
`--keep` makes the committed corpus anew of it, as small as covers the same.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from tests.fuzz.targets import TARGETS

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CORPUS, REGRESSIONS, DICTIONARIES = HERE / "corpus", HERE / "regressions", HERE / "dictionaries"
GATHERED = ROOT / ".fuzz"
#: niceness, and targets at once, where others need the processors: they mostly wait then
_LEAST, _BESIDE = 19, 4
_STATE = re.compile(r"^#(\d+)\s+(\w+)\s+cov: (\d+) ft: (\d+) corp: (\d+)/", re.MULTILINE)
_FINDING = re.compile(r"Test unit written to (\S+)")
_ERROR = re.compile(
    r"^(?:=+ Uncaught Python exception: =+\n)?([\w.]*(?:Error|Exception)\b.*)$", re.M
)


class Run(NamedTuple):
    """What one target's minute came to."""

    name: str
    runs: int
    cpu_s: float  # its corpora are read in it too, and all of ours is loaded
    branches: int
    new_branches: int  # beyond what the corpora had covered
    inputs: int
    findings: tuple[str, ...]  # files
    error: str  # of the finding, or why there was no run


def main() -> int:
    asked = _asked()
    os.nice(_LEAST if asked.beside else 10)  # a user's work, or tests, come first
    with ThreadPoolExecutor(asked.jobs or (_BESIDE if asked.beside else 2)) as pool:
        runs = list(pool.map(lambda name: fuzzed(name, asked), asked.names))
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table(runs))
    for run in runs:
        for path in run.findings:
            console.print(f"{run.name}: {run.error}\n  python -m tests.fuzz.one {run.name} {path}")
        if run.error and not run.findings:
            console.print(f"{run.name} did not run: {run.error}")
    is_sound = not any(run.error for run in runs)
    if asked.keep and is_sound:
        for name in asked.names:
            keep(name)
    return 0 if is_sound else 1


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("names", nargs="*", default=list(TARGETS), metavar="NAME")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--jobs", type=int, help="targets at once (default: 2; 4 with --beside)")
    parser.add_argument(
        "--beside",
        action="store_true",
        help="with what other work leaves of the processors, and the same inputs in each run",
    )
    parser.add_argument("--keep", action="store_true", help="make the committed corpus anew")
    asked = parser.parse_args()
    unknown = [name for name in asked.names if name not in TARGETS]
    if unknown:
        parser.error(f"no target {unknown[0]!r}; there are: {', '.join(TARGETS)}")
    return asked


def fuzzed(name: str, asked: argparse.Namespace) -> Run:
    target = TARGETS[name]
    gathered, findings = GATHERED / name, GATHERED / "findings"
    gathered.mkdir(parents=True, exist_ok=True)
    findings.mkdir(exist_ok=True)
    options = [
        f"-max_total_time={asked.seconds}",
        f"-max_len={target.longest}",
        f"-artifact_prefix={findings}/{name}-",
        "-timeout=60",  # by the clock on the wall, of a process that others push aside
        "-rss_limit_mb=2048",
    ]
    if asked.beside:
        # Drawn alike in each run: what it comes to is a matter of the change alone, and of how far
        # it gets.
        options.append("-seed=1")
    if target.dictionary is not None:
        options.append(f"-dict={DICTIONARIES / target.dictionary}.dict")
    there = [folder for folder in (CORPUS / name, REGRESSIONS / name) if folder.is_dir()]
    return read(name, *_atheris(name, [*options, str(gathered), *map(str, there)]))


def _atheris(name: str, args: Sequence[str]) -> tuple[str, float]:
    """What a run told, and the processor's seconds that it had."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fuzz.one", name, *args],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    with process.stdout as told:
        text = told.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return text, used.ru_utime + used.ru_stime


def read(name: str, told: str, cpu_s: float) -> Run:
    """What libFuzzer told of a run that had the processor for so long."""
    states = _STATE.findall(told)
    found = tuple(_FINDING.findall(told))
    done = re.search(r"^Done (\d+) runs in", told, re.MULTILINE)
    error = ""
    if found or done is None:
        said = _ERROR.findall(told)
        error = said[0] if said else (told.strip().splitlines() or ["nothing was said"])[-1]
    last = states[-1] if states else ("0", "", "0", "0", "0")
    first = next((state for state in states if state[1] == "INITED"), last)
    return Run(
        name=name,
        runs=int(done[1] if done else last[0]),
        cpu_s=cpu_s,
        branches=int(last[2]),
        new_branches=int(last[2]) - int(first[2]),
        inputs=int(last[4]),
        findings=found,
        error=error,
    )


def table(runs: Sequence[Run]) -> Table:
    shown = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("target", "executions", "CPU s", "branches", "new", "inputs", "findings"):
        shown.add_column(heading, justify="left" if heading == "target" else "right")
    shown.add_column("reads")
    for run in runs:
        numbers = (
            run.runs,
            round(run.cpu_s),
            run.branches,
            run.new_branches,
            run.inputs,
            len(run.findings),
        )
        shown.add_row(run.name, *(f"{number:,}" for number in numbers), TARGETS[run.name].reads)
    return shown


def keep(name: str) -> None:
    """The smallest inputs of all that were gathered which reach every branch that those reach."""
    fresh = GATHERED / f"{name}-fresh"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    sources = [folder for folder in (CORPUS / name, GATHERED / name) if folder.is_dir()]
    # By branches alone: how often each was taken would keep five times as many.
    _atheris(name, ["-merge=1", "-use_counters=0", str(fresh), *map(str, sources)])
    if not any(fresh.iterdir()):
        raise RuntimeError(f"the corpus of {name} could not be made smaller")
    shutil.rmtree(CORPUS / name, ignore_errors=True)
    shutil.move(fresh, CORPUS / name)


if __name__ == "__main__":
    sys.exit(main())
