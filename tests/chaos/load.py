"""Clients that ask one request after another while something is broken, and what they saw."""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from tests.chaos.asking import Asked, ask

CLIENTS = 24
TURNS = 6  # of a session, then the client begins another
_THINKING_S = 0.02


@dataclass(slots=True)
class Seen:
    """The requests of one row."""

    asked: list[Asked] = field(default_factory=list)
    note: str = ""

    def count(self, fate: str) -> int:
        return sum(one.fate == fate for one in self.asked)

    @property
    def failures(self) -> dict[str, int]:
        return dict(Counter(one.why for one in self.asked if one.fate == "failed"))

    @property
    def losses(self) -> dict[str, int]:
        return dict(Counter(one.why for one in self.asked if one.fate == "lost"))

    def took_ms(self, share: float) -> float | None:
        """This percentile of how long answers took."""
        return percentile([one.took_s * 1e3 for one in self.asked if one.fate == "answered"], share)

    @property
    def stayed(self) -> float | None:
        """The share of later turns that were at the backend of the turn before."""
        places: dict[tuple[str, int], str] = {
            (one.session, one.turn): one.backend
            for one in self.asked
            if one.backend is not None and one.fate == "answered"
        }
        pairs = [
            place == places[session, turn - 1]
            for (session, turn), place in places.items()
            if (session, turn - 1) in places
        ]
        return sum(pairs) / len(pairs) if pairs else None


def percentile(values: Sequence[float], share: float) -> float | None:
    if len(values) < 2:
        return None
    return statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1]


async def run(
    ports: Sequence[int],
    act: Callable[[], Awaitable[str]],
    *,
    name: str,
    clients: int = CLIENTS,
) -> Seen:
    """Load from before `act` until it is over; each turn of a session at the next router."""
    seen = Seen()
    is_over = asyncio.Event()

    async def client(number: int) -> None:
        count = 0
        while not is_over.is_set():
            talk, turn = divmod(count, TURNS)
            seen.asked.append(
                await ask(
                    ports[(number + count) % len(ports)],
                    request_id=f"{name}-{number}-{count}",
                    session=f"{name}-{number}-{talk}",
                    turn=turn + 1,
                    stream=(number + count) % 3 != 0,
                )
            )
            count += 1
            await asyncio.sleep(_THINKING_S)

    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(client(number))
        try:
            seen.note = await act()
        finally:
            is_over.set()
    return seen
