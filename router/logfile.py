"""The hour's file of the log, open for appending. See recordfiles.py for the names.

Any number of processes append to it without waiting for each other: each batch is one O_APPEND
write. As long as one has it open it holds a shared lock, which the kernel takes back when the
process ends in whatever way; whoever packs or removes a file first gets the only lock on it
(retention.py), and so never touches one that a stopped process may still append to.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path

from router.recordfiles import PACKED, Kind, hour_of, name_of

#: one write; small enough that appends of several workers stay whole on any file system
BATCH_BYTES = 1 << 20
#: files of one hour; a second one is there only where the clock was put back
_PARTS = 100


class LogFile:
    """Appends whole lines to the file of the hour. All of it raises OSError."""

    def __init__(self, folder: Path, kind: Kind) -> None:
        self._folder = folder
        self._kind: Kind = kind
        self._fd = -1
        self._hour = ""

    def append(self, lines: list[bytes]) -> int:
        """Write as many whole lines as fit one batch; how many that were."""
        count = size = 0
        for entry in lines:
            if count and size + len(entry) > BATCH_BYTES:
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

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def close_if_over(self) -> None:
        """Let go of an hour that is over, so that its file can be packed."""
        if self._hour != hour_of(time.time()):
            self.close()

    def _file(self) -> int:
        hour = hour_of(time.time())
        if self._fd >= 0 and (hour != self._hour or os.fstat(self._fd).st_nlink == 0):
            self.close()
        if self._fd < 0:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._fd, self._hour = self._opened(hour), hour
        return self._fd

    def _opened(self, hour: str) -> int:
        """The first file of this hour that is not packed, nor being packed."""
        for part in range(_PARTS):
            path = self._folder / name_of(self._kind, hour, part)
            if _is_packed(path):
                continue
            fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
            # Looked at again under the lock, since all may have happened before we had it.
            if _is_shared(fd) and os.fstat(fd).st_nlink and not _is_packed(path):
                return fd
            os.close(fd)
        raise OSError(errno.EBUSY, "every file of this hour is packed")


def _is_packed(path: Path) -> bool:
    return path.with_name(path.name + PACKED).exists()


def _is_shared(fd: int) -> bool:
    """Whether the file is not being packed; then nobody will begin to."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks: then nobody gets one, and nothing is packed
    return True
