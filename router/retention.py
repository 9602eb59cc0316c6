"""Keeps the log's folder in order: packs hours that are over, removes what is too old or too much.

Any number of routers do this to one folder. Whoever gets the only lock on a file does it, and
the kernel takes the lock back from one that dies; what it leaves half done is not seen by
readers and done again by the next. A file that a stopped worker may still append to is never
locked so (logfile.py), and waits.

A thread does it, at a fifth of one processor and never in the interpreter for long. It has the
usual priority all the same: one that waits for a processor while it is in the interpreter would
keep all streams waiting with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from router.recordfiles import HOUR_S, PACKED, Kind, Segment, segments

log = structlog.get_logger(__name__)

DAY_S = 86_400
_KINDS: tuple[Kind, ...] = ("requests", "bodies")
#: an hour is packed so long after its end: by then nobody's clock or batch is behind it
_SETTLED_S = 600
_LOOK_S = 60.0
_PIECE = 128 << 10
#: for each second of work, so many of rest
_REST = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What is kept; 0 is no limit."""

    keep_days: float
    keep_mb: float  # MiB of both kinds together
    body_keep_days: float
    is_packing: bool = True


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done, in this order."""

    remove: tuple[Segment, ...]
    pack: tuple[Segment, ...]


def plan(found: Sequence[Segment], rules: Rules, now: float) -> Plan:
    """What to do about these files, now (seconds since 1970). The hour that runs is left alone."""
    over = sorted(
        (segment for segment in found if segment.begins + HOUR_S <= now),
        # What was said goes before what happened: it is larger, and nobody's business.
        key=lambda segment: (segment.kind != "bodies", segment.hour, segment.part),
    )
    days = {"requests": rules.keep_days, "bodies": rules.body_keep_days}
    excess = sum(s.size for s in found) - rules.keep_mb * 2**20 if rules.keep_mb else 0
    remove, kept = [], []
    for segment in over:
        limit = days[segment.kind]
        if limit and segment.begins + HOUR_S < now - limit * DAY_S:
            remove.append(segment)
            excess -= segment.size
        else:
            kept.append(segment)
    first = 0
    while excess > 0 and first < len(kept):
        excess -= kept[first].size
        first += 1
    settled = now - HOUR_S - _SETTLED_S
    pack = [s for s in kept[first:] if not s.is_packed and s.begins <= settled]
    return Plan((*remove, *kept[:first]), tuple(pack) if rules.is_packing else ())


class Retention:
    """A thread that does it now and then."""

    def __init__(self, folder: Path, rules: Rules) -> None:
        self.packed = 0
        self.removed = 0
        self.fault: str | None = None  # why the last thing to do was not done
        self._folder = folder
        self._rules = rules
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="retention", daemon=True)

    def start(self) -> None:
        """Begin: at once, and then every minute."""
        self._thread.start()

    def close(self) -> None:
        """End the thread; what it is at is given up, and done another time."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def _run(self) -> None:
        self.tidy(time.time())
        while not self._stop.wait(_LOOK_S):
            self.tidy(time.time())

    def tidy(self, now: float) -> None:
        """Do all that is to be done now."""
        fault = None
        try:
            found = [s for kind in _KINDS for s in segments(self._folder, kind=kind)]
            todo = plan(found, self._rules, now)
            for segment in todo.remove:
                self.removed += remove(segment.path)
            for segment in todo.pack:
                self.packed += pack(segment.path, self._rested)
        except OSError as error:
            fault = f"{error.filename or self._folder}: {error.strerror or error}"
            if self.fault is None:
                log.error("log folder cannot be tidied", reason=fault)
        self.fault = fault

    def _rested(self, worked_s: float) -> bool:
        """Rest after some work; whether to go on."""
        return not self._stop.wait(worked_s * _REST)


def remove(path: Path) -> bool:
    """Remove a file and its packed form; whether that was ours to do. Raises OSError."""
    if path.name.endswith(PACKED):
        return _unlinked(path)
    with _only(path) as file:
        if file is None:
            return False
        _unlinked(_packed(path))
        _unlinked(_draft(path))
        return _unlinked(path)


def pack(path: Path, rested: Callable[[float], bool]) -> bool:
    """Put a packed file in this one's place; whether that was ours to do, and is done.

    `rested` is told how long a piece of work took, and whether to go on is asked of it.
    Raises OSError; then the file is as it was.
    """
    with _only(path) as file:
        if file is None:
            return False
        size = os.fstat(file).st_size
        if not size:
            return _unlinked(path)
        draft = _draft(path)
        try:
            if _pack_into(draft, file, rested) != size:
                return False  # told to stop, or somebody without a lock is at it
            os.replace(draft, _packed(path))
        finally:
            _unlinked(draft)
        # Between these two there are both, and readers know that they hold the same.
        return _unlinked(path)


def _pack_into(draft: Path, source: int, rested: Callable[[float], bool]) -> int:
    """How much was packed; less than all of it when told to stop."""
    done = 0
    stat = os.fstat(source)
    target = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, stat.st_mode & 0o777)
    with open(target, "wb") as out:
        packer = zlib.compressobj(6, wbits=zlib.MAX_WBITS | 16)  # gzip's framing
        while True:
            began = time.perf_counter()
            piece = os.read(source, _PIECE)
            if not piece:
                break
            out.write(packer.compress(piece))
            done += len(piece)
            if not rested(time.perf_counter() - began):
                return -1
        out.write(packer.flush())
        out.flush()
        os.fsync(target)
    os.utime(draft, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    return done


@contextlib.contextmanager
def _only(path: Path) -> Iterator[int | None]:
    """The file, as long as nobody else has it open to append or to tidy; else None."""
    try:
        fd = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        yield None
        return
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        yield fd if os.fstat(fd).st_nlink else None  # 0: done by another meanwhile
    finally:
        os.close(fd)


def _packed(path: Path) -> Path:
    return path.with_name(path.name + PACKED)


def _draft(path: Path) -> Path:
    """Where a file is packed into: no reader takes that name for one of the log."""
    return path.with_name(f".{path.name}{PACKED}")


def _unlinked(path: Path) -> bool:
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True
