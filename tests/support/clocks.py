"""Clocks for what is told the time."""

from __future__ import annotations

import time


class HandClock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.at = 1000.0

    def now(self) -> float:
        return self.at

    def ticks(self) -> float:
        return self.at


class RealClock:
    """The machine's."""

    def now(self) -> float:
        return time.time()

    def ticks(self) -> float:
        return time.monotonic()
