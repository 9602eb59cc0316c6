"""The program's own log, set up once by whatever runs: what happened, never what was asked."""

from __future__ import annotations

import sys
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
            renderer,
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
