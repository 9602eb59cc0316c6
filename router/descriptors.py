"""File descriptors: a connection takes one, and what is asked for it at a backend another."""

from __future__ import annotations

import contextlib
import sys

import structlog

log = structlog.get_logger(__name__)

#: for logs, files that are read, the loop itself, health checks and idle connections to backends
_OURS = 256
_EACH = 2


def connections_that_fit(wanted: int) -> int:
    """So many connections as are wanted, or as this process may have.

    The soft limit of the system is raised as far as that takes: it is 1024 in many places, for
    the sake of programs that we are not one of.
    """
    if sys.platform == "win32":
        return wanted
    import resource

    needed = wanted * _EACH + _OURS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < needed and soft != resource.RLIM_INFINITY:
        goal = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, goal), hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed or soft == resource.RLIM_INFINITY:
        return wanted
    fitting = max(1, (soft - _OURS) // _EACH)
    log.warning(
        "fewer client connections than configured: the limit of open files says so",
        wanted=wanted,
        connections=fitting,
        open_files=soft,
    )
    return fitting
