"""Records and bodies to disk: one line a request, in batches, each by a thread of its own.

A full disk or a missing folder costs lines, which are counted, and never a request. What is
killed loses what it has not written: a flush interval's worth at most.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from pathlib import Path
from typing import Generic, TypeVar
from zlib import crc32

import structlog

from router import body as bodies
from router import record as records
from router.body import Spoken
from router.logfile import LogFile
from router.record import Record
from router.recordfiles import Kind

log = structlog.get_logger(__name__)

#: how often a file of an hour that is over is let go, where nothing is written
_LOOK_S = 30.0
#: of bodies that wait to be written; more are dropped and counted
_HELD_BYTES = 64 << 20
_TOGETHER = 64
_SAMPLES = 1 << 32

E = TypeVar("E")


class _Journal(Generic[E]):
    """Entries that a thread makes lines of and appends to the hour's file."""

    def __init__(self, folder: Path, kind: Kind, *, flush_s: float, limit: int) -> None:
        self.written = 0
        self.dropped = 0
        self.fault: str | None = None  # why the last write failed; None when it did not
        self._folder = folder
        self._file = LogFile(folder, kind)
        self._flush_s = flush_s
        self._limit = limit
        self._entries: deque[E | bytes] = deque()  # its ends are safe to use from two threads
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{kind} journal", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write what is left and end the thread."""
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout=10)

    def _take(self) -> list[bytes]:
        """The next lines, off the queue; to be called by the thread alone."""
        raise NotImplementedError

    def _put_back(self, lines: list[bytes]) -> None:
        self._entries.extendleft(reversed(lines))

    def _run(self) -> None:
        while not self._stop.is_set():
            if not self._wake.wait(_LOOK_S):
                self._file.close_if_over()
                continue
            self._wake.clear()
            self._stop.wait(self._flush_s)
            self._flush()
        self._flush()
        self._file.close()

    def _flush(self) -> None:
        while self._entries:
            lines = self._take()
            while lines:
                try:
                    done = self._file.append(lines)
                except OSError as error:
                    self._failed(error, lines)
                    return
                lines = lines[done:]
                self.written += done
                self.fault = None

    def _failed(self, error: OSError, lines: list[bytes]) -> None:
        reason = error.strerror or str(error)
        if self.fault is None:
            log.error("request log cannot be written", folder=str(self._folder), reason=reason)
        self.fault = reason
        if self._stop.is_set():
            self.dropped += len(lines) + len(self._entries)
            self._entries.clear()
            return
        room = max(self._limit - len(self._entries), 0)
        self.dropped += len(lines) - len(lines[:room])
        self._put_back(lines[:room])
        self._wake.set()  # try again after the next pause


class FileJournal(_Journal[bytes]):
    """The request log. `write` may be called from the event loop at any rate.

    A line is made where the record is (2 µs); only the disk is left to the thread. The
    other way round, a thread making lines would hold the interpreter for milliseconds at
    a time and every stream would feel it.
    """

    def __init__(
        self, folder: Path, *, flush_s: float, limit: int, is_enabled: bool = True
    ) -> None:
        self._is_enabled = is_enabled
        super().__init__(folder, "requests", flush_s=flush_s, limit=limit)

    def write(self, record: Record) -> None:
        if not self._is_enabled:
            return
        lines = self._entries
        if len(lines) >= self._limit:
            self.dropped += 1
            return
        lines.append(records.line(record))
        if len(lines) == 1:
            self._wake.set()

    def _take(self) -> list[bytes]:
        queue, lines = self._entries, []
        while queue:
            lines.append(queue.popleft())
        return lines


class BodyJournal(_Journal[Spoken]):
    """What was said, beside the request log, of all requests or a share of them.

    Its lines are made by the thread, which looks for secrets in them. It never holds the
    interpreter for long: RE2 works without it, and after each line others have their turn.
    """

    def __init__(
        self, folder: Path, *, flush_s: float, limit: int, text_limit: int, share: float = 1.0
    ) -> None:
        """`text_limit`: bytes of the prompt, and of the answer. `share`: 0..1 of the requests."""
        self.text_limit = text_limit
        self._below = int(share * _SAMPLES)
        self._came = 0  # bytes that were taken in, by the loop
        self._went = 0  # bytes that have left, by the thread: one counter would need a lock
        super().__init__(folder, "bodies", flush_s=flush_s, limit=limit)

    def wants(self, request_id: str) -> bool:
        """Whether this request is one of the share, by its id alone: every router agrees."""
        return crc32(request_id.encode()) < self._below

    def write(self, spoken: Spoken) -> None:
        entries = self._entries
        size = spoken.size
        if len(entries) >= self._limit or self._came - self._went + size > _HELD_BYTES:
            self.dropped += 1
            return
        self._came += size
        entries.append(spoken)
        if len(entries) == 1:
            self._wake.set()

    def _take(self) -> list[bytes]:
        queue = self._entries
        lines: list[bytes] = []
        while queue and len(lines) < _TOGETHER:
            entry = queue.popleft()
            if isinstance(entry, bytes):
                self._went += len(entry)
                lines.append(entry)
                continue
            self._went += entry.size
            began = time.perf_counter()
            try:
                lines.append(bodies.line(entry, self.text_limit))
            except Exception:  # one odd body must not end the log of all others
                log.exception("body not recorded", request_id=entry.request_id)
                self.dropped += 1
            if not self._stop.is_set():
                time.sleep(time.perf_counter() - began)
        return lines

    def _put_back(self, lines: list[bytes]) -> None:
        self._went -= sum(map(len, lines))
        super()._put_back(lines)
