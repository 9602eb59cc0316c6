"""`make chaos`: faults made while clients ask, a table of what they saw, and JSON.

Ends with 1 where a request was lost: neither answered nor refused in words that a client reads.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import uvloop

from tests.chaos import affinity, load, soak, stand, streams
from tests.chaos.faults import ROWS, Row, folder_of
from tests.chaos.load import Seen
from tests.chaos.stand import NAMES, EngineProcess
from tests.support.product import ROOT, Product

PARTS = ("faults", "streams", "affinity", "soak")
DEFAULT_OUT = ROOT / "logs" / "chaos.json"
_HEADS = ("what breaks", "sent", "answered", "failed", "lost", "+p50 ms", "+p99 ms", "stayed")


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    signal.signal(signal.SIGTERM, interrupt)  # so that all that was started is stopped
    stand.allow_many_files()
    began = time.monotonic()
    found: dict[str, Any] = {"machine": machine()}
    is_good = True
    with (
        tempfile.TemporaryDirectory(prefix="router-chaos-") as name,
        contextlib.ExitStack() as all_,
    ):
        scratch = Path(name)
        os.environ["SCENARIO_ROUTER_CACHE"] = str(scratch / "cache")
        engines = {name: all_.enter_context(EngineProcess(name)) for name in NAMES}
        if "faults" in options.parts:
            rows = [row for row in ROWS if not options.only or row.name in options.only]
            found["faults"], is_good = run_rows(rows, scratch, engines)
        if "streams" in options.parts:
            seconds = 30.0 if options.quick else 60.0
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                seen = runner.run(streams.measure(engines, scratch / "streams", seconds))
            found["streams"] = asdict(seen)
            is_good &= seen.is_good
            print_streams(seen)
        if "affinity" in options.parts:
            for engine in engines.values():
                engine.kill()
            found["affinity"] = affinity.measure(scratch)
            print_affinity(found["affinity"])
        if "soak" in options.parts:
            for engine in engines.values():
                engine.kill()
            found["soak"], wrong = soak.measure(scratch / "soak", soak.long(options.minutes))
            is_good &= not wrong
            soak.print_figures(found["soak"])
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"\n{time.monotonic() - began:.0f} s; all of it in {options.out}")
    return 0 if is_good else 1


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    # The empty list stands for none named: argparse looks for that among the choices, too.
    parser.add_argument(
        "parts",
        nargs="*",
        choices=[*PARTS, []],
        metavar="PART",
        help=f"{', '.join(PARTS)}; left out: the first two",
    )
    parser.add_argument("--only", nargs="+", default=[], choices=[row.name for row in ROWS])
    parser.add_argument("--quick", action="store_true", help="streams of 30 s instead of 60")
    parser.add_argument("--minutes", type=float, default=30, help="of the soak (default: 30)")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    options = parser.parse_args(arguments)
    options.parts = options.parts or PARTS[:2]
    return options


def interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def machine() -> dict[str, Any]:
    return {"cpus": os.cpu_count(), "python": platform.python_version(), "at": time.ctime()}


# --- the fault table ---------------------------------------------------------------------------


def run_rows(
    rows: Sequence[Row], scratch: Path, engines: dict[str, EngineProcess]
) -> tuple[list[dict[str, Any]], bool]:
    """Each row's figures, and whether nothing was lost in any."""
    run_row(Row("warm-up", "", ROWS[0].act), scratch / "warm-up", engines)  # ours and theirs
    quiet: dict[str, Seen] = {}
    told: list[dict[str, Any]] = []
    print(" ".join(f"{head:>9}" if n else f"{head:<40}" for n, head in enumerate(_HEADS)))
    for row in rows:
        seen, unrecorded = run_row(row, folder_of(row, scratch), engines)
        if row.name.startswith("quiet"):
            quiet[row.name] = seen
        told.append(figures(row, seen, quiet.get(row.quiet), unrecorded))
        print_row(told[-1])
    return told, not any(line["lost"] for line in told)


def run_row(row: Row, folder: Path, engines: dict[str, EngineProcess]) -> tuple[Seen, int | None]:
    """What clients saw, and how many of their requests have not exactly one record."""
    with stand.standing(row.setup, folder, engines) as standing:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            seen = runner.run(load.run(standing.ports, lambda: row.act(standing), name=row.name))
        seen.asked += standing.asked
        for router in standing.routers:
            router.stop()
        unrecorded = None if row.setup.has_small_log else missing(standing.routers, seen)
    return seen, unrecorded


def missing(routers: Sequence[Product], seen: Seen) -> int:
    recorded = Counter(one["request_id"] for router in routers for one in router.records())
    return sum(recorded[asked.request_id] != 1 for asked in seen.asked)


def figures(row: Row, seen: Seen, quiet: Seen | None, unrecorded: int | None) -> dict[str, Any]:
    def extra(share: float) -> float | None:
        mine, its = seen.took_ms(share), quiet.took_ms(share) if quiet is not None else None
        return None if mine is None or its is None else round(mine - its, 1)

    return {
        "name": row.name,
        "title": row.title,
        "sent": len(seen.asked),
        "answered": seen.count("answered"),
        "failed": seen.count("failed"),
        "failures": seen.failures,
        "lost": seen.count("lost"),
        "losses": seen.losses,
        "p50_ms": seen.took_ms(0.5),
        "extra_p50_ms": extra(0.5),
        "extra_p99_ms": extra(0.99),
        "stayed": seen.stayed,
        "unrecorded": unrecorded,
        "note": seen.note,
    }


def print_row(line: dict[str, Any]) -> None:
    stayed = "" if line["stayed"] is None else f"{line['stayed']:.0%}"
    cells = [line[key] for key in ("sent", "answered", "failed", "lost")]
    cells += ["" if line[key] is None else line[key] for key in ("extra_p50_ms", "extra_p99_ms")]
    print(f"{line['title']:<40} " + " ".join(f"{cell:>9}" for cell in [*cells, stayed]))
    notes = [line["note"]] if line["note"] else []
    notes += [f"{count} {code}" for code, count in line["failures"].items()]
    notes += [f"LOST {count}: {why}" for why, count in line["losses"].items()]
    if line["unrecorded"]:
        notes.append(f"{line['unrecorded']} WITHOUT exactly one record")
    for note in notes:
        print(f"    {note}", flush=True)


def print_streams(seen: streams.Streams) -> None:
    print(
        f"\n{seen.streams} streams of {seen.seconds:g} s through one worker: {seen.fates}, "
        f"{seen.frames} frames, {seen.held} held back\n"
        f"    a frame's way {seen.lag_p50_ms:.1f} ms (p50), {seen.lag_p99_ms:.1f} (p99), "
        f"{seen.lag_max_ms:.1f} (longest)\n"
        f"    memory {seen.rss_before_mb:.1f} MB before, {seen.rss_first_mb:.1f} in the first "
        f"third, {seen.rss_last_mb:.1f} in the last",
        flush=True,
    )


def print_affinity(found: dict[str, Any]) -> None:
    print("\ntwo engines with a prefix cache behind two routers that share a Redis")
    for name, arm in found["arms"].items():
        print(
            f"    {name:<12} {arm['turns']} later turns: {arm['hits']:.1%} recorded as hits, "
            f"{arm['stayed']:.1%} stayed, {arm['cached_share']:.1%} of the prompt cached; second "
            f"turn's first token after {arm['ttft_mean_ms']:.0f} ms (mean), "
            f"{arm['ttft_p50_ms']:.0f} (p50)"
        )
    print(
        f"    time to the second turn's first token: {found['ttft_mean_ratio']:.2f} times round "
        f"robin's (means), {found['ttft_p50_ratio']:.2f} (medians), "
        f"{found['ttft_even_ratio']:.2f} (means, had half of its turns stayed by chance)",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
