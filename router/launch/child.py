"""One engine as a child process: started, watched, warmed up, restarted, ended with us.

Its output goes straight into a file, so that a talkative engine costs the
serving loop nothing; the last lines are read back when somebody needs them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import structlog

from router.launch.errors import EngineDied, LaunchError
from router.launch.plan import Engine
from router.launch.warm import Shape, Warmth, plain, root_of, warm_up

if TYPE_CHECKING:
    import httpx

Result = TypeVar("Result")

FIRST_PROGRESS_S = 2.0
NEXT_PROGRESS_S = 5.0
POLL_S = 0.1
POLL_LIMIT_S = 2.0
LAST_LINES = 20
TAIL_BYTES = 16_384
LOG_LIMIT_BYTES = 10_000_000

log = structlog.get_logger("router.launch")


class Backoff:
    """How long to wait before a restart: longer each time, until a healthy spell."""

    def __init__(
        self, *, first_s: float = 0.5, longest_s: float = 30.0, healthy_s: float = 60.0
    ) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._healthy_s = healthy_s
        self._next_s = first_s

    def after(self, was_healthy_s: float) -> float:
        if was_healthy_s >= self._healthy_s:
            self._next_s = self._first_s
        delay_s = self._next_s
        self._next_s = min(delay_s * 2, self._longest_s)
        return delay_s


class Child:
    """The process behind one backend.

    `start`, `wait_ready` and `warm_up` bring it up step by step; `run` does the
    same where needed and keeps it up until `stop`.
    """

    def __init__(
        self,
        backend: str,
        engine: Engine,
        url: str,
        log_dir: Path,
        on_state: Callable[[bool], None] | None = None,
        shapes: Callable[[], Sequence[Shape]] = list,
    ) -> None:
        """`shapes` gives the kinds of requests to warm it up with, as they are at that moment."""
        if not engine.command:
            raise ValueError(f"{engine.label} runs already; it is not ours to start")
        self.backend = backend
        self.engine = engine
        self.url = root_of(url)
        self.log_path = log_dir / f"engine-{backend}.log"
        self._on_state = on_state
        self._shapes = shapes
        self._process: asyncio.subprocess.Process | None = None
        self._log_from = 0
        self._started_at = 0.0
        self._ready_since: float | None = None
        self._changing = asyncio.Lock()
        self._stopping = asyncio.Event()

    def __repr__(self) -> str:
        state = "ready" if self.is_ready else "not ready"
        return f"<Child {self.backend}: {self.engine.label}, pid {self.pid}, {state}>"

    @property
    def is_ready(self) -> bool:
        """Healthy, warmed up, and still running."""
        return self._ready_since is not None and self.pid is not None

    @property
    def pid(self) -> int | None:
        """The process, while it lives."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def start(self) -> None:
        """Start the process; it is not ready yet."""
        async with self._changing:
            if self._stopping.is_set() or self.pid is not None:
                return
            self._become_unready()
            self._started_at = asyncio.get_running_loop().time()
            try:
                self._process = await self._spawn()
            except OSError as error:
                raise EngineDied(self.engine.label, None, [str(error)]) from None

    async def wait_ready(self, progress: Callable[[str], None]) -> None:
        """Wait until the engine is healthy; raise EngineDied as soon as it has ended."""
        await self._while_alive(self._until_healthy(progress))

    async def warm_up(self) -> Warmth:
        """Send real chat requests. Only then does the engine count as ready."""
        shapes = self._shapes() or plain(self.engine.served_model)
        warmth = await self._while_alive(warm_up(self.url, shapes))
        log.info(
            "engine warm",
            backend=self.backend,
            engine=self.engine.name,
            cold_ttft_ms={
                shot.name: shot.fault or round(shot.ttft_s * 1000) for shot in warmth.shots
            },
            warm_ttft_ms=round(warmth.warm_s * 1000),
            took_ms=round(warmth.total_s * 1000),
        )
        if self.pid is not None:
            self._become_ready()
        return warmth

    async def run(self) -> None:
        """Keep the engine up, with a longer pause after each failure. Returns after `stop`."""
        backoff = Backoff()
        while not self._stopping.is_set():
            try:
                await self._live()
            except LaunchError as error:
                if self._stopping.is_set():
                    return
                delay_s = backoff.after(self._become_unready())
                log.warning(
                    "engine failed",
                    backend=self.backend,
                    engine=self.engine.name,
                    error=str(error).splitlines()[0],
                    last_lines=self.last_lines(),
                    restart_in_s=delay_s,
                )
                await self._end(grace_s=0.0)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), delay_s)

    async def stop(self, grace_s: float = 10.0) -> None:
        """End the engine and its workers: asked first, killed after `grace_s`. For good."""
        self._stopping.set()
        await self._end(grace_s)
        self._become_unready()

    def last_lines(self, count: int = LAST_LINES) -> list[str]:
        """The end of what this run of the engine has said."""
        try:
            with self.log_path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(self._log_from, size - TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except OSError:
            return []
        # splitlines also cuts at carriage returns, so a progress bar shows its last state.
        return [line.rstrip() for line in text.splitlines() if line.strip()][-count:]

    async def _spawn(self) -> asyncio.subprocess.Process:
        with self._open_log() as output:
            return await asyncio.create_subprocess_exec(
                *self.engine.command,
                # Its end closes when we are gone, however that happened.
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self.engine.env},
                # Of its own, so that Ctrl-C in our terminal does not reach it before
                # we have drained, and so that it can be ended with its workers.
                start_new_session=True,
            )

    async def _live(self) -> None:
        """One life of the engine, from wherever it is now to its end, which is raised."""
        await self.start()
        if not self.is_ready:
            await self.wait_ready(self._log_progress)
            await self.warm_up()
        await self._raise_when_gone()

    async def _while_alive(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do `work`, but give it up the moment that the process ends."""
        try:
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(self._raise_when_gone())
                result = await work
                watch.cancel()
        except BaseExceptionGroup as trouble:
            raise trouble.exceptions[0] from None
        return result

    async def _raise_when_gone(self) -> None:
        code = await self._process.wait() if self._process is not None else None
        raise EngineDied(self.engine.label, code, self.last_lines())

    async def _until_healthy(self, progress: Callable[[str], None]) -> None:
        # Imported here: a router that launches nothing never loads this client.
        import httpx

        clock = asyncio.get_running_loop().time
        tell_at = FIRST_PROGRESS_S
        async with httpx.AsyncClient(timeout=POLL_LIMIT_S, trust_env=False) as client:
            while not await self._is_healthy(client):
                elapsed_s = clock() - self._started_at
                if elapsed_s >= tell_at:
                    tell_at = elapsed_s + NEXT_PROGRESS_S
                    progress(self._progress_text(elapsed_s))
                await asyncio.sleep(POLL_S)

    async def _is_healthy(self, client: httpx.AsyncClient) -> bool:
        import httpx

        try:
            reply = await client.get(self.url + self.engine.health_path)
        except httpx.HTTPError:
            return False
        return reply.status_code == 200

    def _progress_text(self, elapsed_s: float) -> str:
        said = self.last_lines(1)
        last = f": {said[0][:100]}" if said else ""
        return f"{self.engine.label} is starting, {elapsed_s:.0f} s{last}"

    def _log_progress(self, text: str) -> None:
        log.info("engine starting", backend=self.backend, progress=text)

    def _open_log(self) -> BinaryIO:
        """The log, with what was there kept; a big one is set aside once, not endlessly."""
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            if self.log_path.stat().st_size > LOG_LIMIT_BYTES:
                self.log_path.replace(self.log_path.with_suffix(".log.1"))
        output = self.log_path.open("ab")
        self._log_from = output.tell()
        return output

    async def _end(self, grace_s: float) -> None:
        async with self._changing:
            process = self._process
            if process is None:
                return
            if process.returncode is None and grace_s > 0:
                # The process alone: it is told, and ends its workers in its own order.
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), grace_s)
            # Whoever of its group is left, workers of a crashed engine above all.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            if process.stdin is not None:
                process.stdin.close()
            self._process = None

    def _become_ready(self) -> None:
        self._ready_since = asyncio.get_running_loop().time()
        if self._on_state is not None:
            self._on_state(True)

    def _become_unready(self) -> float:
        """Returns for how long it had been ready."""
        if self._ready_since is None:
            return 0.0
        was_ready_s = asyncio.get_running_loop().time() - self._ready_since
        self._ready_since = None
        if self._on_state is not None:
            self._on_state(False)
        return was_ready_s
