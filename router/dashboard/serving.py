"""Runs the dashboard: a database, the pages before it, and an end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from router.dashboard.again import Again
from router.dashboard.api import Api, Context
from router.dashboard.store import Store

#: what queries and reading may use; more is spilled to the cache's folder
MEMORY_MB = 512
_LOOK_S = 1.0
#: after the start, the policy is read that explaining again and labels need
_POLICY_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What to show, and to whom."""

    folders: tuple[Path, ...]
    cache: Path | None
    threads: int  # for queries and reading
    config: Path | None = None
    policy: Path | None = None
    socket: Path | None = None  # for a router in front of us
    host: str = "127.0.0.1"  # else this machine
    port: int = 0
    idle_s: float | None = None  # with nothing asked for so long, the end


async def serve(
    settings: Settings, stop: asyncio.Event, *, on_ready: Callable[[str], object]
) -> None:
    """Serve until `stop`, or until nobody asks any more. `on_ready` gets the address."""
    store = Store(settings.folders, settings.cache, threads=settings.threads, memory_mb=MEMORY_MB)
    store.start()
    again = Again(settings.config, settings.policy)
    is_alone = settings.socket is None
    port = None
    sock = None
    if is_alone:
        sock = socket.create_server((settings.host, settings.port))
        sock.setblocking(False)
        port = sock.getsockname()[1]
    context = Context(settings.folders, is_alone, again, port)
    api = Api(context, store)
    runner = web.AppRunner(
        api.application(),
        access_log=None,
        handle_signals=False,
        shutdown_timeout=2.0,
        max_field_size=1 << 20,  # a router tells all its backends in one
    )
    await runner.setup()
    try:
        if sock is not None:
            await web.SockSite(runner, sock).start()
            on_ready(f"http://{settings.host}:{port}/dashboard")
        else:
            assert settings.socket is not None
            await _listen_privately(runner, settings.socket)
            on_ready(str(settings.socket))
        # Seconds of computing, which the first views are not to wait for.
        policy = threading.Timer(_POLICY_S, again.warm_up)
        policy.daemon = True
        policy.start()
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _LOOK_S)
            if settings.idle_s is not None and time.monotonic() - api.asked_at > settings.idle_s:
                break
        policy.cancel()
    finally:
        api.is_ending.set()
        await runner.cleanup()
        await asyncio.to_thread(store.close)


async def _listen_privately(runner: web.AppRunner, path: Path) -> None:
    """At a socket that appears when it answers: whoever sees it may connect."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    await web.UnixSite(runner, draft).start()
    draft.chmod(0o600)
    os.replace(draft, path)


def folders_of(names: Sequence[Path]) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(name.absolute() for name in names))
