"""A board for each worker, where it pins what the others are to know of it.

In memory that the supervisor makes before it forks: so there is no file to clean up, no disk to
wait for, and what a worker has pinned outlives it. One process writes a board, any may read it;
no locks. What is pinned is bytes, and means nothing here.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from typing import NamedTuple

#: pages that are never touched cost nothing, so this is far beyond what is needed
SIZE = 4 << 20
_HEAD = 64
_PID, _EDITION, _RESTARTS = 0, 8, 16
_NUMBER = struct.Struct("=Q")
_SEAL = struct.Struct("=II")  # length and checksum, before each of the two sheets
_TRIES = 5


class Pinned(NamedTuple):
    """What is on a board."""

    edition: int  # another one each time
    data: bytes


class Board:
    """Two sheets in turn: the one that is being written is never the one that is read."""

    def __init__(self, size: int = SIZE) -> None:
        self._size = size
        self._memory = mmap.mmap(-1, _HEAD + 2 * (_SEAL.size + size))

    # ------------------------------------------------------------------ whose it is

    @property
    def pid(self) -> int:
        """The worker that has this place; 0 while none has."""
        return self._number(_PID)

    def take(self, pid: int) -> None:
        self._put(_PID, pid)

    def leave(self) -> None:
        """Its worker is gone; what it has pinned stays."""
        self._put(_PID, 0)

    @property
    def restarts(self) -> int:
        """How often its worker died and another one took its place."""
        return self._number(_RESTARTS)

    def restarted(self) -> None:
        self._put(_RESTARTS, self.restarts + 1)

    # ------------------------------------------------------------------ what it says

    @property
    def edition(self) -> int:
        return self._number(_EDITION)

    def pin(self, data: bytes) -> bool:
        """In place of what was there; False where it has no room."""
        if len(data) > self._size:
            return False
        edition = self.edition + 1
        at = self._sheet(edition)
        _SEAL.pack_into(self._memory, at, len(data), zlib.crc32(data))
        self._memory[at + _SEAL.size : at + _SEAL.size + len(data)] = data
        self._put(_EDITION, edition)
        return True

    def read(self) -> Pinned | None:
        """None while nothing was pinned."""
        for _ in range(_TRIES):
            edition = self.edition
            if not edition:
                return None
            at = self._sheet(edition)
            length, seal = _SEAL.unpack_from(self._memory, at)
            data = self._memory[at + _SEAL.size : at + _SEAL.size + min(length, self._size)]
            # A reader that was held up for two editions finds the sheet half rewritten.
            if zlib.crc32(data) == seal:
                return Pinned(edition, data)
        return None

    def _sheet(self, edition: int) -> int:
        return _HEAD + (edition % 2) * (_SEAL.size + self._size)

    def _number(self, at: int) -> int:
        value: int = _NUMBER.unpack_from(self._memory, at)[0]
        return value

    def _put(self, at: int, value: int) -> None:
        _NUMBER.pack_into(self._memory, at, value)
