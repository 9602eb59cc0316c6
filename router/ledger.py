"""What keys have used, in memory that the workers of one router share.

The supervisor makes it before it forks, as it does with the boards: no file to clean up, and what
a worker has written down outlives it. A row for each key: the moments and sums of a `Used`, and a
column for each worker with the requests that it has under way.

A row is locked by the kernel, which unlocks it for a process that dies. Nobody waits for a lock:
whoever cannot have it in a few tries, because its holder was put to sleep just then, goes on
without, and of two that write at once one may not count.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import tempfile
from hashlib import blake2b

from router.rates import Used

#: keys at most; rows that are never touched cost nothing
ROWS = 8192
_NAME_BYTES = 16
_USED = struct.Struct("=qqqq")  # requests_at, tokens_at, day, spent
_UNDERWAY = struct.Struct("=i")
#: before the rows: whether there is any, which without limits there never is
_HEAD = 8
_TRIES = 64
_NOBODY = bytes(_NAME_BYTES)


class Ledger:
    """Rows by the names of keys."""

    def __init__(self, workers: int, rows: int = ROWS) -> None:
        self._rows = rows
        self._columns = struct.Struct(f"={workers}i")
        self._width = _NAME_BYTES + _USED.size + self._columns.size
        self._file = _file()
        size = _HEAD + rows * self._width
        os.ftruncate(self._file, size)
        self._memory = mmap.mmap(self._file, size)

    def row(self, name: str) -> int | None:
        """Where a key's row begins; a new one where there is none. None: there is no room."""
        digest = blake2b(name.encode(), digest_size=_NAME_BYTES).digest()
        first = int.from_bytes(digest[:4], "big")
        for step in range(self._rows):
            at = _HEAD + (first + step) % self._rows * self._width
            found = self._memory[at : at + _NAME_BYTES]
            if found == digest:
                return at
            if found == _NOBODY:
                has_lock = self.lock(at)
                try:
                    if self._memory[at : at + _NAME_BYTES] == _NOBODY:
                        self._memory[at : at + _NAME_BYTES] = digest
                        self._memory[0] = 1
                    if self._memory[at : at + _NAME_BYTES] == digest:
                        return at
                finally:
                    if has_lock:
                        self.unlock(at)
        return None

    def lock(self, row: int) -> bool:
        """Whether it is ours now."""
        for _ in range(_TRIES):
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, row)
            except OSError:
                continue  # another one has it, for some microseconds
            return True
        return False

    def unlock(self, row: int) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, row)

    def read(self, row: int) -> Used:
        """As it is now; `underway` over all workers."""
        used = Used()
        at = row + _NAME_BYTES
        used.requests_at, used.tokens_at, used.day, used.spent = _USED.unpack_from(self._memory, at)
        used.underway = sum(self._columns.unpack_from(self._memory, at + _USED.size))
        return used

    def write(self, row: int, used: Used) -> None:
        """All but `underway`."""
        numbers = used.requests_at, used.tokens_at, used.day, used.spent
        _USED.pack_into(self._memory, row + _NAME_BYTES, *numbers)

    def put_underway(self, row: int, worker: int, count: int) -> None:
        """So many of this worker's, which alone writes here."""
        at = row + _NAME_BYTES + _USED.size + worker * _UNDERWAY.size
        _UNDERWAY.pack_into(self._memory, at, count)

    def begin(self, worker: int) -> None:
        """A new process has this place: what the last one had under way is no more."""
        if not self._memory[0]:
            return
        for at in range(_HEAD, _HEAD + self._rows * self._width, self._width):
            if self._memory[at : at + _NAME_BYTES] != _NOBODY:
                self.put_underway(at, worker, 0)


def _file() -> int:
    """A file that has no name anywhere."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("scenario-router-rates")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
