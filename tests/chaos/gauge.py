"""What lives inside a router's process, counted when a signal asks for it.

    python -m tests.chaos.gauge python -m router serve …

runs that router with a handler for SIGUSR2, which its workers inherit: each answers with a file
named after its process in the folder that GAUGE names. `ask` is the other side.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import runpy
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

FOLDER = "CHAOS_GAUGE"
_SIGNAL = signal.SIGUSR2


def counts() -> dict[str, Any]:
    """Tasks of the running loop, and living objects of the router's classes."""
    gc.collect()
    found: Counter[str] = Counter()
    everything = gc.get_objects()
    for one in everything:
        kind = type(one)
        if kind.__module__.startswith("router."):
            found[f"{kind.__module__}.{kind.__qualname__}"] += 1
    tasks: Counter[str] = Counter()
    with contextlib.suppress(RuntimeError):  # no loop runs at this moment
        tasks = Counter(_name(task) for task in asyncio.all_tasks())
    return {"objects": found, "all_objects": len(everything), "tasks": tasks}


def _name(task: asyncio.Task[Any]) -> str:
    return getattr(task.get_coro(), "__qualname__", "?")


def _tell(number: int, frame: object) -> None:
    folder = Path(os.environ[FOLDER])
    draft = folder / f".{os.getpid()}"
    draft.write_text(json.dumps(counts()), encoding="utf-8")
    draft.rename(folder / f"{os.getpid()}.json")


def ask(pid: int, folder: Path, limit_s: float = 20.0) -> dict[str, Any]:
    """What lives in this process now. Raises TimeoutError."""
    path = folder / f"{pid}.json"
    path.unlink(missing_ok=True)
    os.kill(pid, _SIGNAL)
    end = time.monotonic() + limit_s
    while not path.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"process {pid} does not tell what lives in it")
        time.sleep(0.01)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def main() -> None:
    signal.signal(_SIGNAL, _tell)
    _, mode, module, *words = sys.argv[1:]
    assert mode == "-m"
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
