"""The program's own log, set up once by whatever runs: what happened, never what was asked."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import structlog


def set_up() -> None:
    """The program's own log: one line an event on stderr, colours on a terminal only."""
    renderer: Any = (
        # Not by way of Rich, which tells every local variable: they hold keys and prompts.
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        if sys.stderr.isatty()
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            *([_harmless] if sys.stderr.isatty() else []),
            renderer,
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def _harmless(logger: Any, method: str, event: structlog.typing.EventDict) -> Any:
    """Nothing in it that a terminal would obey: paths, models and errors hold others' text."""
    return {
        name: _shown(value) if isinstance(value, str) else value for name, value in event.items()
    }


def _shown(text: str) -> str:
    return "".join(
        letter if letter.isprintable() or letter == "\n" else f"\\x{ord(letter):02x}"
        for letter in text
    )


class Seldom:
    """Lets a line be written at most once in a while: what strangers can cause fills no disk."""

    def __init__(self, pause_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._pause_s = pause_s
        self._clock = clock
        self._told: dict[str, tuple[float, int]] = {}  # when last, and how many since

    def due(self, what: str) -> int | None:
        """How many were left out since the last line of this; None if this is to be, too.

        `what` is one of few: each is remembered.
        """
        now = self._clock()
        at, left_out = self._told.get(what, (float("-inf"), 0))
        if now - at < self._pause_s:
            self._told[what] = at, left_out + 1
            return None
        self._told[what] = now, 0
        return left_out
