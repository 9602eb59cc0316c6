"""Processes that share one port and one log folder, without locks.

One worker runs in this process. With more, this process binds the port, forks the
workers, restarts one that dies, passes signals on, and serves nothing itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import structlog

from router import app as apps
from router import config as configs
from router import policy as policies
from router import programlog, tls, trained
from router.boards import Board
from router.census import Place
from router.config import Config
from router.policy import Policy
from router.tomlfile import FileFault

log = structlog.get_logger(__name__)

#: a worker that died is started again, but not faster than this
_RESTART_PAUSE_S = 1.0


class Workers:
    """Runs a configuration until it is told to stop; `run` gives the exit code."""

    def __init__(
        self,
        config: Config,
        config_path: Path,
        *,
        announce: Callable[[str, Config], None],
        labels: Mapping[str, str] | None = None,
        read: Callable[[], Config] | None = None,
        beside: Callable[[apps.App, asyncio.Event], Any] | None = None,
    ) -> None:
        """`read` gives the configuration as the file has it now, with the same flags."""
        self._config = config
        self._config_path = config_path
        self._announce = announce
        self._labels = labels
        self._read = read
        self._beside = beside
        self._policy: Policy | None = None
        #: made before workers are forked: one that dies later finds files that may be bad by then
        self._contexts = tls.Contexts(config_path)

    def run(self) -> int:
        programlog.set_up()
        server = self._config.server
        count = (os.cpu_count() or 1) if server.workers == "auto" else server.workers
        try:
            policy = policies.load(
                configs.policy_path(self._config_path, self._config), lightly=True
            )
            pools = {backend.pool for backend in self._config.backends}
            if faults := policies.missing_pools(policy, pools):
                print("\n".join(faults.values()), file=sys.stderr)
                return 1
            self._policy = policy
            if not trained.is_prepared(policy):
                log.info("learning from the policy's examples; what is learned is kept")
                trained.prepare(policy)
            self._contexts.for_edge(server)
            self._contexts.prepare(self._config)
            if (remark := tls.remark(server, self._config_path)) is not None:
                log.warning("certificate", file=server.tls_cert, remark=remark[1])
            sockets = apps.listen(server.host, server.port, shared=count > 1)
        except FileFault as fault:
            print(f"scenario-router cannot start: {fault}", file=sys.stderr)
            return 1
        except OSError as error:
            print(
                f"scenario-router cannot listen on {server.host}:{server.port}: {error.strerror}; "
                "--port takes another port",
                file=sys.stderr,
            )
            return 1
        address = apps.address_of(sockets[0], has_tls=server.tls_cert is not None)
        if count == 1:
            self._serve(sockets, lambda: self._announce(address, self._config))
            return 0
        port = sockets[0].getsockname()[1]
        return self._supervise(count, port, address)

    def _serve(
        self, sockets: list[Any], on_ready: Callable[[], object], place: Place | None = None
    ) -> None:
        try:
            import uvloop

            factory: Any = uvloop.new_event_loop
        except ImportError:
            factory = None
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(
                apps.serve(
                    self._config,
                    self._config_path,
                    sockets,
                    on_ready=lambda app: on_ready(),
                    labels=self._labels,
                    read=self._read,
                    fallback=self._policy,
                    beside=self._beside,
                    place=place,
                    contexts=self._contexts,
                )
            )

    def _supervise(self, count: int, port: int, address: str) -> int:
        ready_read, ready_write = os.pipe()
        boards = [Board() for _ in range(count)]
        places = [Place(boards, number) for number in range(count)]
        running = {self._fork(port, ready_write, place): place for place in places}
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, frame: self._pass_on(number, running))
        self._is_stopping = False
        for _ in range(count):
            if os.read(ready_read, 1) == b"":
                break
        self._announce(address, self._config)
        while running:
            try:
                pid, status = os.wait()
            except InterruptedError:
                continue
            except ChildProcessError:
                break
            place = running.pop(pid, None)
            if place is None:
                continue
            place.board.leave()
            if not self._is_stopping:
                log.error("worker died", pid=pid, status=os.waitstatus_to_exitcode(status))
                self._restart(running, port, ready_write, place)
        return 0

    def _restart(self, running: dict[int, Place], port: int, ready: int, place: Place) -> None:
        """Start another worker in this place, unless we are told to stop meanwhile."""
        time.sleep(_RESTART_PAUSE_S)
        if self._is_stopping:
            return
        place.board.restarted()
        pid = self._fork(port, ready, place)
        running[pid] = place
        if self._is_stopping:  # told so while it was not yet known
            os.kill(pid, signal.SIGTERM)  # type: ignore[unreachable]  # a signal sets it

    def _fork(self, port: int, ready: int, place: Place) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            sockets = apps.listen(self._config.server.host, port, shared=True)
            self._serve(sockets, lambda: os.write(ready, b"."), place)
            os._exit(0)
        except BaseException:
            log.exception("worker failed")
            os._exit(1)

    def _pass_on(self, number: int, running: Mapping[int, Place]) -> None:
        self._is_stopping |= number != signal.SIGHUP
        for pid in list(running):
            with contextlib.suppress(ProcessLookupError):  # it has just died by itself
                os.kill(pid, number)
