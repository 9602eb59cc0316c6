"""What can go wrong while an engine is started: it died, or it does not answer.

These never reach an HTTP client; the commands show them to the person who
started us, and supervision answers them with a restart.
"""

from __future__ import annotations

from collections.abc import Sequence


class LaunchError(Exception):
    """An engine could not be brought up."""


class EngineDied(LaunchError):
    """The engine's process ended by itself; its last lines say why."""

    def __init__(self, label: str, code: int | None, last_lines: Sequence[str]) -> None:
        self.code = code
        self.last_lines = tuple(last_lines)
        head = f"{label} ended with exit code {code}" if code is not None else f"{label} ended"
        super().__init__("\n".join([head + (":" if last_lines else ""), *last_lines]))


class WarmUpFailed(LaunchError):
    """The engine says that it is healthy, but it did not answer a chat request."""
