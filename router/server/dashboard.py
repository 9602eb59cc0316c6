"""The way to the dashboard: a process beside the workers, to which its pages are passed on.

It is started when first asked for and found again at a private socket, by other workers too. A
worker only passes bytes; no query is ever made on it. Without that process there is a page that
says why, and serving goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import html
import os
import re
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
import structlog
from aiohttp import web
from yarl import URL

from router import __version__, trained
from router import config as configs
from router.errors import RouterError, TooLarge
from router.files import own_environment

if TYPE_CHECKING:
    from router.app import App

log = structlog.get_logger(__name__)

API = "/dashboard/api/"
#: paths that need no key, just as they came: the page's files hold nothing of anybody's
OPEN = re.compile(r"/dashboard(/|(/static(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)+))?")
#: the child's exit code where another worker's child serves already
_TAKEN = 75
_IDLE_S = 300.0
_START_S = 60.0
_POLL_S = 0.05
#: a child that did not come up is not tried again at once
_PAUSE_S = 5.0
_LIVE_S = 1.0
_BODY_BYTES = 64 << 10
#: of the folder of a socket, whose whole path may have about a hundred
_FOLDER_BYTES = 70
_PIECE = 1 << 16
_PASSED = (
    "Accept-Encoding",
    "Content-Type",
    "Host",
    "If-None-Match",
    "Origin",
    "Sec-Fetch-Site",
)
_NOT_PASSED = frozenset({"connection", "keep-alive", "transfer-encoding", "date", "server"})


class Unavailable(RouterError):
    """The dashboard's process cannot be had; why, in words."""

    status = 503
    code = "dashboard_unavailable"


class Dashboard:
    """One worker's way to the dashboard."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._child: asyncio.subprocess.Process | None = None
        self._session: aiohttp.ClientSession | None = None
        self._private: tempfile.TemporaryDirectory[str] | None = None
        self._starting = asyncio.Lock()
        self._failed: tuple[float, Unavailable] | None = None
        self._is_ending = asyncio.Event()
        self._socket: Path | None = None

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """What the dashboard answers. Raises RouterError; a page gets words in its place."""
        try:
            if request.path == f"{API}live" and request.method == "GET":
                return await self._live(request)
            return await self._passed(request)
        except Unavailable as fault:
            if request.path.startswith(API):
                raise
            return _apology(fault)

    async def stop(self) -> None:
        self._is_ending.set()
        if self._session is not None:
            await self._session.close()
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                self._child.terminate()
            try:
                await asyncio.wait_for(self._child.wait(), 5)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    self._child.kill()
                await self._child.wait()
        if self._private is not None:
            self._private.cleanup()

    # ------------------------------------------------------------------ passing on

    async def _passed(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if len(body) > _BODY_BYTES:
            raise TooLarge("The body is too long.")
        reply = await self._ask(request, request.rel_url, body)
        async with reply:
            headers = {
                name: value
                for name, value in reply.headers.items()
                if name.lower() not in _NOT_PASSED
            }
            response = web.StreamResponse(status=reply.status, headers=headers)
            try:
                await response.prepare(request)
                async for piece in reply.content.iter_chunked(_PIECE):
                    await response.write(piece)
            except aiohttp.ClientError as error:
                # The answer has begun, so breaking off is all that tells the truth.
                log.warning("the dashboard broke off", path=request.path, reason=str(error))
                response.force_close()
                _break_off(request)
            except ConnectionError:
                pass  # the page has left
            return response

    async def _live(self, request: web.Request) -> web.StreamResponse:
        """An event a second: the log's figures, and what only a worker knows."""
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        url = URL(f"{API}now")
        event = await self._event(request, url)  # a fault is still told with its status
        with contextlib.suppress(ConnectionError):
            await response.prepare(request)
            while not self._is_ending.is_set():
                await response.write(b"data: " + event + b"\n\n")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._is_ending.wait(), _LIVE_S)
                    break
                try:
                    event = await self._event(request, url)
                except RouterError as fault:
                    event = fault.body()
        return response

    async def _event(self, request: web.Request, url: URL) -> bytes:
        async with await self._ask(request, url, b"") as reply:
            return (await reply.read()).strip()

    async def _ask(self, request: web.Request, url: URL, body: bytes) -> aiohttp.ClientResponse:
        """The child's reply; it is started where it is not there. Raises Unavailable."""
        headers = {name: request.headers[name] for name in _PASSED if name in request.headers}
        if url.raw_path.startswith(API):
            headers["X-Router-Live"] = orjson.dumps(await self._told(url)).decode()
        target = URL.build(
            scheme="http",
            host="dashboard",
            path=url.raw_path,
            query_string=url.raw_query_string,
            encoded=True,
        )
        deadline = time.monotonic() + _START_S
        while True:
            try:
                return await self._client().request(
                    request.method, target, headers=headers, data=body, allow_redirects=False
                )
            except aiohttp.ClientConnectorError:
                if time.monotonic() > deadline:
                    raise Unavailable("The dashboard's process does not answer.") from None
                await self._start()
            except (aiohttp.ClientError, ConnectionError) as error:
                # It died while it was asked. What only reads may be asked again.
                if request.method not in ("GET", "HEAD") or time.monotonic() > deadline:
                    reason = f"The dashboard's process broke off: {error or type(error).__name__}."
                    raise Unavailable(reason) from None
                await asyncio.sleep(_POLL_S)

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(str(self._place()), limit=32),
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=120),
                skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
            )
        return self._session

    async def _told(self, url: URL) -> dict[str, Any]:
        """What a view says of now, of all workers, and no log does."""
        app = self._app
        view = url.raw_path.removeprefix(API)
        match url.query.get("view") if view == "export" else view:
            case "now":
                live = app.census.live()
                return {"in_flight": live.inflight, "waiting": live.waiting}
            case "backends":
                return {"backends": self._backends()}
            case "experiments":
                return {"experiments": await app.referee.status()}
            case "meta":
                log = app.config.log
                return {
                    "policy": app.pipeline.live.policy.hash,
                    "bodies": log.bodies if log.enabled else "off",
                    "dropped": app.census.counted().counters["log_dropped_total"][()],
                }
        return {}

    def _backends(self) -> list[dict[str, Any]]:
        live = self._app.census.live()
        found = []
        for slot in self._app.slots:
            seen = live.backends[slot.name]
            is_up = slot.health.is_up and slot.health.is_known
            found.append(
                {
                    "backend": slot.name,
                    "model": slot.model,
                    "dialect": slot.dialect.name,
                    "state": "up" if seen.up else "down",
                    "breaker": seen.state,
                    "in_flight": seen.inflight,
                    "max_inflight": slot.max_inflight * len(live.workers),
                    "weight": slot.upstream.backend.weight,
                    "draining": seen.draining,
                    # Why another worker sees it otherwise, this one does not know.
                    "reason": slot.health.reason if is_up == seen.up else None,
                }
            )
        return found

    # ------------------------------------------------------------------ the child

    async def _start(self) -> None:
        """Start a child unless somebody did; return when it may be asked. Raises Unavailable."""
        async with self._starting:
            if self._child is not None and self._child.returncode is None:
                await asyncio.sleep(_POLL_S)  # it runs, and is about to answer
                return
            if self._failed is not None and time.monotonic() - self._failed[0] < _PAUSE_S:
                raise self._failed[1]
            try:
                await self._start_child()
            except (OSError, Unavailable) as error:
                fault = (
                    error
                    if isinstance(error, Unavailable)
                    else Unavailable(f"The dashboard's process cannot be started: {error}.")
                )
                log.warning("no dashboard", reason=fault.message)
                self._failed = time.monotonic(), fault
                raise fault from None

    async def _start_child(self) -> None:
        app = self._app
        config_path = app.config_keeper.path
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "router.dashboard"),
            *("--socket", str(self._place())),
            *("--log-dir", str(configs.beside(config_path, app.config.log.dir))),
            *("--config", str(config_path.absolute())),
            *("--policy", str(app.policy_path.absolute())),
            *("--idle-s", str(_IDLE_S)),
            env=own_environment(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        self._child = child
        assert child.stdout is not None
        try:
            line = await asyncio.wait_for(child.stdout.readline(), _START_S)
        except TimeoutError:
            child.kill()
            line = b""
        if line:
            return
        code = await child.wait()
        if code == _TAKEN:
            await asyncio.sleep(_POLL_S)  # another worker's: it answers, or is just ending
            return
        raise Unavailable(
            "The dashboard's process did not start; the router's log says why. It needs the "
            "package duckdb: pip install duckdb"
        )

    def _place(self) -> Path:
        """The socket: of our user alone, the same for all workers of this router."""
        if self._socket is None:
            app = self._app
            told = [
                __version__,
                str(app.config_keeper.path.absolute()),
                str(app.policy_path.absolute()),
                str(configs.beside(app.config_keeper.path, app.config.log.dir)),
            ]
            name = hashlib.blake2b("\0".join(told).encode(), digest_size=8).hexdigest()
            for folder in _shared_folders():
                if len(os.fsencode(folder)) <= _FOLDER_BYTES and _is_private(folder):
                    break
            else:
                self._private = tempfile.TemporaryDirectory(prefix="scenario-router-")
                folder = Path(self._private.name)
            self._socket = folder / f"{name}.sock"
        return self._socket


def _shared_folders() -> Iterator[Path]:
    """Where all workers may look; where nothing but the cache may be written, that alone."""
    yield trained.folder() / "dashboard"
    with contextlib.suppress(FileNotFoundError):
        yield Path(tempfile.gettempdir()) / f"scenario-router-{os.getuid()}"


def _is_private(folder: Path) -> bool:
    """Whether nobody else can put a socket there, or connect to one."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            return False  # somebody else's, or a link to wherever
        folder.chmod(0o700)
    except OSError:
        return False
    return True


def _break_off(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def _apology(fault: Unavailable) -> web.Response:
    text = html.escape(fault.message)
    return web.Response(
        status=503,
        text=f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Scenario Router</title>'
        f"<h1>No dashboard</h1><p>{text}</p><p>Requests are served all the same. "
        f'How the router is: <a href="router/status">/router/status</a></p></html>',
        content_type="text/html",
        headers={"Content-Security-Policy": "default-src 'none'", "Cache-Control": "no-store"},
    )
