"""Processes that share one port and one log folder, without locks.

One worker runs in this process. With more, this process binds the port, forks the
workers, restarts one that dies, passes signals on, and serves nothing itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from router import app as apps
from router import config as configs
from router import keeping, programlog, tls, trained
from router import policy as policies
from router.boards import Board
from router.census import Place
from router.config import Config
from router.ledger import Ledger
from router.policy import Policy
from router.reading import Deployment
from router.tomlfile import FileFault

log = structlog.get_logger(__name__)

#: a worker that died is started again, but not faster than this
_RESTART_PAUSE_S = 1.0


class Workers:
    """Runs a configuration until it is told to stop; `run` gives the exit code."""

    def __init__(
        self,
        deployed: Deployment,
        config_path: Path,
        *,
        announce: Callable[[str, str | None, Config], None],
        labels: Mapping[str, str] | None = None,
        read: Callable[[], Config] | None = None,
        beside: Callable[[apps.App, asyncio.Event], Any] | None = None,
    ) -> None:
        """`read` gives the configuration as the file has it now, with the same flags.

        `announce` is told where clients ask, and where operators do if not there.
        """
        self._config = deployed.config
        self._taken = deployed.taken
        self._policy: Policy | FileFault | None = deployed.policy
        self._config_path = config_path
        self._announce = announce
        self._labels = labels
        self._read = read
        self._beside = beside
        #: made before workers are forked: one that dies later finds files that may be bad by then
        self._contexts = tls.Contexts(config_path)

    def run(self) -> int:
        programlog.set_up()
        server = self._config.server
        count = (os.cpu_count() or 1) if server.workers == "auto" else server.workers
        try:
            if not server.insecure and (mistakes := configs.exposed(self._config)):
                raise FileFault(str(self._config_path), mistakes)
            if not self._can_begin():
                return 1
            self._contexts.for_edge(server)
            self._contexts.prepare(self._config)
            if (remark := tls.remark(server, self._config_path)) is not None:
                log.warning("certificate", file=server.tls_cert, remark=remark[1])
            listening = f"{server.host}:{server.port}"
            sockets = apps.listen(server.host, server.port, shared=count > 1)
            admin_sockets = []
            if server.admin is not None:
                listening = f"admin_address {server.admin_address}"
                admin_sockets = apps.listen(*server.admin, shared=count > 1)
        except FileFault as fault:
            print(f"scenario-router cannot start: {fault}", file=sys.stderr)
            return 1
        except OSError as error:
            print(
                f"scenario-router cannot listen on {listening}: {error.strerror}; --port takes "
                "another port",
                file=sys.stderr,
            )
            return 1
        has_tls = server.tls_cert is not None
        address = apps.address_of(sockets[0], has_tls=has_tls)
        admin = apps.address_of(admin_sockets[0], has_tls=has_tls) if admin_sockets else None
        if count == 1:
            self._serve(
                sockets, admin_sockets, lambda: self._announce(address, admin, self._config)
            )
            return 0
        ports = [group[0].getsockname()[1] for group in (sockets, admin_sockets) if group]
        return self._supervise(count, ports, lambda: self._announce(address, admin, self._config))

    def _can_begin(self) -> bool:
        """Whether there is a policy for these backends, with what it learns. Raises FileFault."""
        if not isinstance(self._policy, Policy):
            assert self._policy is not None
            raise self._policy
        pools = {backend.pool for backend in self._config.backends}
        if faults := policies.missing_pools(self._policy, pools):
            print("\n".join(faults.values()), file=sys.stderr)
            return False
        keeping.tell_if_outdated("config", self._config_path)
        keeping.tell_if_outdated("policy", Path(self._policy.name), self._policy.text)
        if not trained.is_prepared(self._policy):
            log.info("learning from the policy's examples; what is learned is kept")
            trained.prepare(self._policy)
        return True

    def _handed_over(self, place: Place | None) -> Policy | None:
        """The policy to begin with; its examples are large, so who serves alone keeps no other."""
        policy = self._policy
        assert not isinstance(policy, FileFault)
        if place is None:
            self._policy = None
        return policy

    def _serve(
        self,
        sockets: Sequence[socket.socket],
        admin_sockets: Sequence[socket.socket],
        on_ready: Callable[[], object],
        place: Place | None = None,
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
                    admin_sockets=admin_sockets,
                    on_ready=lambda app: on_ready(),
                    labels=self._labels,
                    read=self._read,
                    fallback=self._handed_over(place),
                    taken=self._taken,
                    beside=self._beside,
                    place=place,
                    contexts=self._contexts,
                )
            )

    def _supervise(self, count: int, ports: Sequence[int], announce: Callable[[], None]) -> int:
        """`ports`: that for clients, and that for operators if they have one."""
        ready_read, ready_write = os.pipe()
        boards = [Board() for _ in range(count)]
        ledger = Ledger(count)
        places = [Place(boards, number, ledger) for number in range(count)]
        running = {self._fork(ports, ready_write, place): place for place in places}
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, frame: self._pass_on(number, running))
        self._is_stopping = False
        for _ in range(count):
            if os.read(ready_read, 1) == b"":
                break
        announce()
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
                self._restart(running, ports, ready_write, place)
        return 0

    def _restart(
        self, running: dict[int, Place], ports: Sequence[int], ready: int, place: Place
    ) -> None:
        """Start another worker in this place, unless we are told to stop meanwhile."""
        time.sleep(_RESTART_PAUSE_S)
        if self._is_stopping:
            return
        place.board.restarted()
        pid = self._fork(ports, ready, place)
        running[pid] = place
        if self._is_stopping:  # told so while it was not yet known
            os.kill(pid, signal.SIGTERM)  # type: ignore[unreachable]  # a signal sets it

    def _fork(self, ports: Sequence[int], ready: int, place: Place) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            server = self._config.server
            sockets = apps.listen(server.host, ports[0], shared=True)
            admin_sockets = []
            if server.admin is not None:
                admin_sockets = apps.listen(server.admin[0], ports[1], shared=True)
            self._serve(sockets, admin_sockets, lambda: os.write(ready, b"."), place)
            os._exit(0)
        except FileFault as fault:
            # Others may serve on with what they know; who is new has to wait until it is mended.
            log.error("worker cannot start", reason=str(fault))
            os._exit(1)
        except BaseException:
            log.exception("worker failed")
            os._exit(1)

    def _pass_on(self, number: int, running: Mapping[int, Place]) -> None:
        self._is_stopping |= number != signal.SIGHUP
        for pid in list(running):
            with contextlib.suppress(ProcessLookupError):  # it has just died by itself
                os.kill(pid, number)
