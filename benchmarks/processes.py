"""Child processes and what Linux tells about them: start, stop, CPU and memory of a tree.

Everything comes from /proc, so nothing has to be installed or run inside a peer.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
CPUS = os.cpu_count() or 1
TERM_PATIENCE_S = 6.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(
    command: Sequence[str], *, cwd: Path, log: Path, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A child in a session of its own, so that stopping it reaches its workers too."""
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            yield child
        finally:
            stop(child)


def stop(child: subprocess.Popen[bytes]) -> None:
    """Ask first; then kill whatever is left of the tree, each by its own id."""
    pids = tree(child.pid)
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(TERM_PATIENCE_S)
        except subprocess.TimeoutExpired:
            print(f"pid {child.pid} did not stop when asked", file=sys.stderr)
    for pid in reversed(pids):
        try:
            if os.getsid(pid) == child.pid:  # still ours: an id may have been given away
                os.kill(pid, signal.SIGKILL)
        except OSError:
            continue
    child.wait(TERM_PATIENCE_S)


def stat_fields(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat from the state on; the name before it may hold anything."""
    stat = Path(f"/proc/{pid}/stat").read_bytes()
    return stat[stat.rindex(b")") + 2 :].split()


def tree(root: int) -> list[int]:
    """`root` and its living descendants, parents first."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                children[int(stat_fields(int(entry))[1])].append(int(entry))
            except OSError:
                continue
    found: list[int] = []
    to_visit = [root]
    while to_visit:
        pid = to_visit.pop()
        if os.path.exists(f"/proc/{pid}"):
            found.append(pid)
            to_visit += children[pid]
    return found


def cpu_s(root: int) -> float:
    """CPU seconds of the tree so far, user and system."""
    ticks = 0
    for pid in tree(root):
        try:
            fields = stat_fields(pid)
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
        if pid == root:  # and of the children that it has waited for
            ticks += int(fields[13]) + int(fields[14])
    return ticks / TICKS_PER_S


def scheduled_s(pids: Sequence[int]) -> tuple[float, float]:
    """Seconds that the threads of these processes ran, and that they waited for a processor."""
    ran = waited = 0
    for pid in pids:
        for told in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            try:
                fields = told.read_text().split()
            except OSError:
                continue
            ran, waited = ran + int(fields[0]), waited + int(fields[1])
    return ran / 1e9, waited / 1e9


def peak_rss_mb(root: int) -> float:
    """Sum over the tree of each process's peak; shared pages count once a process."""
    total_kb = 0
    for pid in tree(root):
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        peak = re.search(r"^VmHWM:\s+(\d+)", status, re.MULTILINE)
        total_kb += int(peak[1]) if peak else 0
    return total_kb / 1024


def reset_peak_rss(root: int) -> None:
    for pid in tree(root):
        try:
            Path(f"/proc/{pid}/clear_refs").write_text("5")
        except OSError:
            continue


@dataclass(frozen=True, slots=True)
class Usage:
    """A reading of the clocks; the difference of two is what an interval cost."""

    wall_s: float
    peer_s: float
    ours_s: float
    machine_s: float

    @classmethod
    def now(cls, peer: int | None, backend: int) -> Usage:
        """`peer` is None when the load goes straight to the backend."""
        peer_s = cpu_s(peer) if peer is not None else 0.0
        load = resource.getrusage(resource.RUSAGE_CHILDREN)
        ours_s = cpu_s(backend) + load.ru_utime + load.ru_stime + time.process_time()
        return cls(time.monotonic(), peer_s, ours_s, machine_busy_s())

    def __sub__(self, earlier: Usage) -> Usage:
        return Usage(
            self.wall_s - earlier.wall_s,
            self.peer_s - earlier.peer_s,
            self.ours_s - earlier.ours_s,
            self.machine_s - earlier.machine_s,
        )

    @property
    def foreign(self) -> float:
        """Share of the whole machine that neither the peer nor the benchmark used."""
        return max(0.0, self.machine_s - self.peer_s - self.ours_s) / (self.wall_s * CPUS)


def machine_busy_s() -> float:
    """CPU seconds of the whole machine, what a hypervisor took away included."""
    first_line = Path("/proc/stat").read_text().splitlines()[0]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, first_line.split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_S
