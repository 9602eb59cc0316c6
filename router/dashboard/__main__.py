"""The dashboard's process behind a router: `python -m router.dashboard`, started when first asked.

It answers at a private socket and says so in one line on stdout. It ends with the router that
started it (its stdin closes then), and by itself when nobody has asked for a while.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

#: exit codes that the router knows: something is not installed; another one serves already
MISSING, TAKEN = 3, 75
READY = "ready"
_NICE = 10
#: half of the machine at the most, and no more than this
_THREADS = 4


def main() -> int:
    parser = argparse.ArgumentParser(prog="router.dashboard", description=__doc__)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--log-dir", type=Path, required=True)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--policy", type=Path, required=True)
    parser.add_argument("--idle-s", type=float, required=True)
    args = parser.parse_args()
    if not _is_only_one(args.socket):
        return TAKEN
    _give_way()
    try:
        from router.dashboard import serving
    except ImportError as error:
        print(f"{error.name} is not installed: pip install {error.name}", file=sys.stderr)
        return MISSING
    from router import programlog, trained
    from router.launch import leash

    programlog.set_up()
    settings = serving.Settings(
        folders=(args.log_dir,),
        cache=trained.folder() / "dashboard",
        threads=min(max(_cores() // 2, 1), _THREADS),
        config=args.config,
        policy=args.policy,
        socket=args.socket,
        idle_s=args.idle_s,
    )

    async def serve() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        leash.when_stdin_closes(lambda: _call(loop, stop.set))
        await serving.serve(settings, stop, on_ready=lambda address: print(READY, flush=True))

    asyncio.run(serve())
    return 0


def _call(loop: asyncio.AbstractEventLoop, act: Callable[[], object]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended by itself
        loop.call_soon_threadsafe(act)


def _is_only_one(socket: Path) -> bool:
    """One for all workers of a router. The lock is the kernel's and goes with this process."""
    fd = os.open(socket.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks: two of them are no harm
    return True


def _cores() -> int:
    """Those that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _give_way() -> None:
    """Whoever serves requests goes first."""
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


if __name__ == "__main__":
    sys.exit(main())
