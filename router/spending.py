"""What keys have spent of today's budget, for the next start of this router.

A small file in the router's cache folder, written whole. It is there for a router that counts
for itself: of several with one Redis, that one remembers.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from router.files import write_whole


class Spent(msgspec.Struct, frozen=True):
    """Tokens of one day by the names of keys."""

    day: int  # since the epoch, in UTC
    tokens: dict[str, int]


_read = msgspec.json.Decoder(Spent).decode
_written = msgspec.json.Encoder().encode


class Spending:
    """The file of one configuration file."""

    def __init__(self, kept_in: Path, config_path: Path) -> None:
        key = hashlib.sha256(str(config_path.absolute()).encode()).hexdigest()[:16]
        self._path = kept_in / f"spent-{key}.json"
        self._last: Spent | None = None
        self.fault: str | None = None

    def read(self) -> Spent | None:
        """None where there is nothing, or nothing that can be read."""
        try:
            self._last = _read(self._path.read_bytes())
        except (OSError, msgspec.MsgspecError):
            return None
        return self._last

    def write(self, spent: Spent) -> None:
        """Not done where nothing has changed; `fault` says why it could not be."""
        if spent == self._last or (not spent.tokens and self._last is None):
            return
        try:
            write_whole(self._path, _written(spent))
        except OSError as error:
            self.fault = f"{self._path}: {error.strerror or error}"
            return
        self._last, self.fault = spent, None
