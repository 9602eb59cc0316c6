"""Which modules of this installation are compiled: those that a wheel was built with, or none."""

from __future__ import annotations

from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path


@cache
def modules() -> tuple[str, ...]:
    """Their names within the package, in order."""
    package = Path(__file__).parent
    return tuple(
        sorted(
            path.relative_to(package).with_name(path.name.partition(".")[0]).as_posix()
            for path in package.rglob("*")
            if path.name.endswith(tuple(EXTENSION_SUFFIXES))
        )
    )
