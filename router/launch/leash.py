"""Ties an engine's life to ours, also when we are killed without a word.

`python -m router.launch.leash [--cwd DIR] -- COMMAND…` runs COMMAND, passes
SIGTERM on, and ends the whole process group once its own stdin closes: the
other end is held by the router alone, so the system closes it for us.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from types import FrameType

PR_SET_PDEATHSIG = 1
GRACE_S = 5.0


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies. Linux only, silent elsewhere."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def when_stdin_closes(act: Callable[[], None]) -> None:
    """Call `act` from a thread of its own at the end of stdin.

    Only when stdin is a pipe or a socket. Started by hand or by an init system
    it is a terminal or /dev/null, whose end says nothing about a parent.
    """
    with contextlib.suppress(OSError, ValueError, AttributeError):
        mode = os.fstat(sys.stdin.fileno()).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            threading.Thread(target=_read_to_end, args=(act,), daemon=True).start()


def _read_to_end(act: Callable[[], None]) -> None:
    with contextlib.suppress(OSError):
        while os.read(sys.stdin.fileno(), 4096):
            pass
    act()


def main() -> int:
    parser = argparse.ArgumentParser(prog="router.launch.leash", description=__doc__)
    parser.add_argument("--cwd", help="folder to run the command in")
    parser.add_argument("command", nargs="+")
    asked = parser.parse_args()
    # The hook is safe here and only here: this process has no thread yet. It covers
    # the case that the leash itself is killed.
    try:
        engine = subprocess.Popen(
            asked.command, cwd=asked.cwd, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent
        )
    except OSError as error:
        sys.exit(f"{asked.command[0]} cannot be run: {error}")

    def pass_on(number: int, frame: FrameType | None) -> None:
        engine.send_signal(number)

    signal.signal(signal.SIGTERM, pass_on)
    signal.signal(signal.SIGINT, pass_on)
    when_stdin_closes(lambda: _end(engine))
    code = engine.wait()
    return code if code >= 0 else 128 - code


def _end(engine: subprocess.Popen[bytes]) -> None:
    engine.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        engine.wait(GRACE_S)
    # Engines have workers of their own. This ends them, and us.
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
