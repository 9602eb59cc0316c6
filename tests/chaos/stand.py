"""What stands while something is broken: engines, routers and a Redis, each its own process."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.chaos.asking import Asked
from tests.chaos.engine import HOST, LISTENING
from tests.support.certificates import Pair
from tests.support.product import ROOT, Product
from tests.support.rawclient import exchange, request_bytes
from tests.support.redisstand import RedisStand, free_port

POLICY = 'schema = 1\ndefault_scenario = "chat"\n[scenarios.chat]\n'
NAMES = ("a", "b", "c")
FRAMES, PAUSE_MS = 20, 10.0
#: deadlines that let a row of a few seconds see their end, and the recovery after it
BACKEND = {"model": "m", "timeout_s": 1, "stall_timeout_s": 1, "connect_timeout_s": 0.5}
HEALTH = {"interval_s": 0.5, "timeout_s": 0.5, "open_s": 1, "slow_start_s": 1}
_SMALL_LOG_KB = 48


class EngineProcess:
    """A model server that can be told to misbehave, killed and started again where it was."""

    def __init__(self, name: str, pair: Pair | None = None) -> None:
        """`pair`: it speaks TLS with that certificate."""
        self.name = name
        self._pair = pair
        self.port = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"{'http' if self._pair is None else 'https'}://{HOST}:{self.port}"

    def start(self) -> None:
        pair = self._pair
        secure = [] if pair is None else ["--cert", str(pair.cert), "--key", str(pair.key)]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.engine", "--port", str(self.port), *secure],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        said = process.stdout.readline()
        assert LISTENING in said, f"the engine said {said!r}"
        self.port = int(said.removeprefix(LISTENING))
        self._process = process

    def be(self, mode: str, frames: int = FRAMES, pause_ms: float = PAUSE_MS) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        process.stdin.write(f"{mode} {frames} {pause_ms}\n")
        process.stdin.flush()

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """As the kernel does it when memory is short."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def make_well(self) -> None:
        if self._process is None:
            self.start()
        self.signal(signal.SIGCONT)
        self.be("well")

    def running(self) -> int:
        """For how many clients it computes."""
        reply = exchange(self.port, request_bytes("GET", "/running"), timeout_s=5)
        return int(reply.json()["running"])

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()


class Failover:
    """Two Redis servers and the sentinel that makes the second the first one's heir."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        first, second, guard = (free_port() for _ in range(3))
        self._first, self._second = first, second
        self.url = f"redis+sentinel://{HOST}:{guard}/main"
        (folder / "sentinel.conf").write_text(
            f"port {guard}\nbind {HOST}\nsentinel monitor main {HOST} {first} 1\n"
            "sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 3000\n",
            encoding="utf-8",
        )
        self._processes = [
            _redis(folder, "--port", str(first), "--bind", HOST, "--save", ""),
            _redis(
                folder, "--port", str(second), "--bind", HOST, "--save", "", "--replicaof", HOST,
                str(first),
            ),
            _redis(folder, "sentinel.conf", "--sentinel"),
        ]  # fmt: skip

    def kill_first(self) -> None:
        self._processes[0].kill()
        self._processes[0].wait()

    def is_taken_over(self) -> bool:
        said = subprocess.run(
            ["redis-cli", "-p", str(self._second), "role"], capture_output=True, text=True
        )
        return said.stdout.startswith("master")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def _redis(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        ["redis-server", *words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    for line in process.stdout:
        if b"Ready to accept connections" in line or b"Sentinel ID is" in line:
            # What it says later nobody reads; the pipe must not fill up.
            threading.Thread(target=_drain, args=(process,), daemon=True).start()
            return process
    raise AssertionError("redis-server did not start")


def _drain(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    with process.stdout as rest, contextlib.suppress(ValueError):
        rest.read()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a row needs."""

    routers: int = 1
    workers: int = 1
    store: str = "memory"  # memory, redis, failover
    has_small_log: bool = False
    has_own_clock: bool = False


@dataclass(slots=True)
class Stand:
    """All of it, while it stands."""

    folder: Path
    engines: Mapping[str, EngineProcess]
    routers: list[Product]
    redis: RedisStand | Failover | None
    asked: list[Asked] = field(default_factory=list)  # beside the load

    @property
    def router(self) -> Product:
        return self.routers[0]

    @property
    def ports(self) -> list[int]:
        return [router.port for router in self.routers]

    def status(self) -> dict[str, Any]:
        found = self.router.get("/router/status")
        assert isinstance(found, dict)
        return found


@contextlib.contextmanager
def standing(
    setup: Setup,
    folder: Path,
    engines: Mapping[str, EngineProcess],
    backend: Mapping[str, Any] = BACKEND,
) -> Iterator[Stand]:
    """Routers of this setup before the engines, which are all well."""
    for engine in engines.values():
        engine.make_well()
    with contextlib.ExitStack() as stack:
        env: dict[str, str] = {}
        redis: RedisStand | Failover | None = None
        if setup.store == "redis":
            redis = stack.enter_context(RedisStand(folder / "redis"))
        elif setup.store == "failover":
            redis = stack.enter_context(Failover(folder / "redis"))
        if redis is not None:
            env["REDIS_URL"] = redis.url
        if setup.has_own_clock:
            env |= own_clock(folder)
        log = folder / "log"
        if setup.has_small_log:
            stack.enter_context(small_disk(log))
        routers = []
        for number in range(setup.routers):
            config: dict[str, Any] = {
                "server": {"workers": setup.workers},
                "backends": [
                    {"name": name, "url": engine.url, **backend} for name, engine in engines.items()
                ],
                "health": HEALTH,
                "affinity": {"store": "memory" if redis is None else "redis"},
                "log": {
                    "dir": str(log if setup.has_small_log else folder / f"log-{number}"),
                    "flush_ms": 50,
                },
                "policy": {"settle_ms": 50},
            }
            router = Product.start(folder / f"router-{number}", config, policy=POLICY, env=env)
            router.log_dir = Path(config["log"]["dir"])
            routers.append(stack.enter_context(router))
        yield Stand(folder, engines, routers, redis)


# --- the clock ---------------------------------------------------------------------------------


def own_clock(folder: Path) -> dict[str, str]:
    """The environment of a router whose wall clock `shift_clock` moves."""
    folder.mkdir(parents=True, exist_ok=True)
    shift_clock(folder, 0)
    paths = [str(Path(__file__).with_name("clock")), os.environ.get("PYTHONPATH", "")]
    return {
        "CHAOS_CLOCK": str(folder / "clock"),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


def shift_clock(folder: Path, seconds: float) -> None:
    """At once, as the router has the file mapped."""
    with (folder / "clock").open("r+b" if (folder / "clock").exists() else "wb") as file:
        file.write(struct.pack("d", seconds))


# --- the disk ----------------------------------------------------------------------------------


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A disk of its own that is soon full, where we may mount one."""
    folder.mkdir(parents=True)
    size = f"size={_SMALL_LOG_KB}k"
    told = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)], capture_output=True
    )
    try:
        yield
    finally:
        if told.returncode == 0:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def is_small(folder: Path) -> bool:
    return os.path.ismount(folder)


def limit_files(pid: int, size_kb: int | None) -> None:
    """A quota, where no disk could be had: no file of this process grows beyond it."""
    size = resource.RLIM_INFINITY if size_kb is None else size_kb << 10
    _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, most))


def log_size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("requests-*"))


def empty_logs(folder: Path) -> None:
    for path in folder.glob("requests-*"):
        os.truncate(path, 0)


# --- processes ---------------------------------------------------------------------------------


def rss_mb(pid: int) -> float:
    """What a process has in memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def allow_many_files() -> None:
    """For us and for all that we start: a thousand streams are two thousand sockets."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def until(look: Any, limit_s: float = 10.0) -> float:
    """How long it took until this was so, seconds."""
    began = time.monotonic()
    while not look():
        if time.monotonic() - began > limit_s:
            raise TimeoutError(f"not so within {limit_s:g} s")
        time.sleep(0.02)
    return time.monotonic() - began
