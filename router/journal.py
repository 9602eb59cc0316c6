"""Records to disk: one line a request, in batches, by a thread of its own.

Any number of workers append whole lines to the same hourly file without a lock: each
batch is one O_APPEND write. A full disk or a missing folder costs lines, which are
counted, and never a request.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from pathlib import Path

import structlog

from router import record as records
from router.record import Record

log = structlog.get_logger(__name__)

#: one write; small enough that appends of several workers stay whole on any file system
_BATCH_BYTES = 1 << 20


class FileJournal:
    """The request log. `write` may be called from the event loop at any rate.

    A line is made where the record is (2 µs); only the disk is left to the thread. The
    other way round, a thread making lines would hold the interpreter for milliseconds at
    a time and every stream would feel it.
    """

    def __init__(
        self, folder: Path, *, flush_s: float, limit: int, is_enabled: bool = True
    ) -> None:
        self.written = 0
        self.dropped = 0
        self.fault: str | None = None  # why the last write failed; None when it did not
        self._folder = folder
        self._flush_s = flush_s
        self._limit = limit
        self._is_enabled = is_enabled
        self._lines: deque[bytes] = deque()  # its ends are safe to use from two threads
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._fd = -1
        self._hour = ""
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def write(self, record: Record) -> None:
        if not self._is_enabled:
            return
        lines = self._lines
        if len(lines) >= self._limit:
            self.dropped += 1
            return
        lines.append(records.line(record))
        if len(lines) == 1:
            self._wake.set()

    def close(self) -> None:
        """Write what is left and end the thread."""
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait()
            self._wake.clear()
            self._stop.wait(self._flush_s)
            self._flush()
        self._flush()
        if self._fd >= 0:
            os.close(self._fd)

    def _flush(self) -> None:
        queue, lines = self._lines, []
        while queue:
            lines.append(queue.popleft())
        while lines:
            try:
                done = self._append(lines)
            except OSError as error:
                self._failed(error, lines)
                return
            lines = lines[done:]
            self.written += done
            self.fault = None

    def _append(self, lines: list[bytes]) -> int:
        """Write as many whole lines as fit one batch; how many that were."""
        count = size = 0
        for entry in lines:
            if count and size + len(entry) > _BATCH_BYTES:
                break
            count, size = count + 1, size + len(entry)
        fd = self._file()
        batch = b"".join(lines[:count])
        sent = os.write(fd, batch)
        if sent < len(batch):
            # A disk that fills up takes a part. Readers skip the torn line; it is written
            # again whole once there is room, after a line break that ends the torn one.
            whole = batch[:sent].count(b"\n")
            lines[whole] = b"\n" + lines[whole]
            return whole
        return count

    def _file(self) -> int:
        hour = time.strftime("%Y%m%dT%H", time.gmtime())
        if self._fd >= 0 and (hour != self._hour or os.fstat(self._fd).st_nlink == 0):
            os.close(self._fd)
            self._fd = -1
        if self._fd < 0:
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / f"requests-{hour}.jsonl"
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
            self._hour = hour
        return self._fd

    def _failed(self, error: OSError, lines: list[bytes]) -> None:
        reason = error.strerror or str(error)
        if self.fault is None:
            log.error("request log cannot be written", folder=str(self._folder), reason=reason)
        self.fault = reason
        if self._stop.is_set():
            self.dropped += len(lines)
            return
        room = max(self._limit - len(self._lines), 0)
        self.dropped += len(lines) - len(lines[:room])
        self._lines.extendleft(reversed(lines[:room]))
        self._wake.set()  # try again after the next pause
