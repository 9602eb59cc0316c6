"""Folders for targets that read files: in memory where there is such a place, gone at the end."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path

_IN_MEMORY = Path("/dev/shm")


def new(name: str) -> Path:
    made = tempfile.mkdtemp(prefix=f"fuzz-{name}-", dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None)
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)
