"""Tells how long the turns of a router's event loop are: `PYTHONPATH=…/probe LOOP_TURNS=FILE`.

The loop never sleeps then, so a turn is what its callbacks take together: its length is how long
one more request would have waited. A line for each that takes long: when it ended (seconds since
1970) and its computing, in milliseconds. That is the thread's own, so neighbours do not count.
"""

import asyncio
import os
import time

_LONG_S = 0.0001


def _watch(loop: asyncio.AbstractEventLoop, path: str) -> None:
    told = open(path, "a", buffering=1)  # noqa: SIM115  # as long as the process
    last = time.thread_time()

    def turn() -> None:
        nonlocal last
        took = time.thread_time() - last
        if took > _LONG_S:
            told.write(f"{time.time():.6f} {took * 1e3:.3f}\n")
        last = time.thread_time()
        loop.call_soon(turn)

    loop.call_soon(turn)


_path = os.environ.get("LOOP_TURNS")
if _path is not None:
    import uvloop

    _make = uvloop.new_event_loop

    def _watched(told: str = _path) -> uvloop.Loop:
        loop = _make()
        _watch(loop, told)
        return loop

    uvloop.new_event_loop = _watched
