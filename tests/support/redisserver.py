"""Redis servers with options of their own, and what both modules on sessions' stores use."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from router.ports import Affinity
from tests.support.rawclient import HOST
from tests.support.redisstand import free_port


async def find(store: Affinity, session: str, pool: str = "p") -> str | None:
    """What a request is told."""
    told: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
    store.find(pool, session, told.set_result)
    return await told


def told_at_once(store: Affinity, session: str, pool: str = "p") -> list[str | None]:
    """What a request is told without waiting."""
    told: list[str | None] = []
    lookup = store.find(pool, session, told.append)
    if lookup is not None:
        lookup.cancel()
    return told


async def until(holds: Callable[[], object]) -> None:
    """Wait for what another process does, which sends no events."""
    end = time.monotonic() + 20
    while not await asyncio.to_thread(holds):
        assert time.monotonic() < end, "it never came about"
        await asyncio.sleep(0.01)


@contextlib.contextmanager
def redis_server(
    folder: Path, *options: str, port: int | None = None, config: Path | None = None
) -> Iterator[int]:
    """A server that is ready; gives its port."""
    file = [] if config is None else [str(config)]
    if "--sentinel" not in options:
        options = ("--save", "", *options)
    port = free_port() if port is None else port
    folder.mkdir(parents=True, exist_ok=True)
    with subprocess.Popen(
        ["redis-server", *file, "--bind", HOST, "--port", str(port), *options],
        cwd=folder,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdout is not None
            said = b""
            for line in process.stdout:
                said += line
                if b"Ready to accept connections" in line or b"Sentinel ID is" in line:
                    break
            else:
                raise AssertionError(said.decode())
            # What it says later nobody reads; the pipe must not fill up.
            threading.Thread(target=process.stdout.read, daemon=True).start()
            yield port
        finally:
            process.kill()
