"""Scenario Router: the right preset, thinking and replica for each chat request."""

import sys
from typing import Any, cast

__version__ = "0.3.0"


def _load_structlog_alone() -> None:
    """structlog loads Rich where it is installed, for tracebacks that we do not draw: 8 MB in
    every serving process. So it is shown none; who needs Rich imports it later as ever."""
    if "rich" in sys.modules:
        return
    modules = cast("dict[str, Any]", sys.modules)
    modules["rich"] = None
    try:
        import structlog.dev  # noqa: F401
    finally:
        del modules["rich"]


_load_structlog_alone()
