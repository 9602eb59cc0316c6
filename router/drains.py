"""Which backends take nothing new: told to one worker, known to all.

A folder with an empty file for each of them, named after it: no lock and no half-written
state, whoever makes or removes one meanwhile. It outlives the router, since the work on a
backend may take longer.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


class Drains:
    """The drained backends of one configuration file."""

    def __init__(self, kept_in: Path, config_path: Path) -> None:
        key = hashlib.sha256(str(config_path.absolute()).encode()).hexdigest()[:16]
        self._folder = kept_in / f"drained-{key}"
        self._lost: set[str] = set()  # could not be written down: known to this worker alone

    def names(self) -> frozenset[str]:
        try:
            return frozenset(os.listdir(self._folder)) | self._lost
        except OSError:
            return frozenset(self._lost)

    def add(self, name: str) -> str | None:
        """From now on; the reason where other workers cannot be told."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / name).touch()
        except OSError as error:
            self._lost.add(name)
            return f"{self._folder}: {error.strerror or error}"
        return None

    def discard(self, name: str) -> str | None:
        """No longer; the reason where other workers cannot be told."""
        self._lost.discard(name)
        try:
            (self._folder / name).unlink(missing_ok=True)
        except OSError as error:
            return f"{self._folder}: {error.strerror or error}"
        return None
