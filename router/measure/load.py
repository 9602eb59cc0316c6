"""Who asks when: turns, and the two ways of making them.

Closed: so many clients, each asks again when it was answered; a slow server is asked less.
Open: requests arrive at their own times, however slow the server is, and latency counts from
then; so what had to wait is not left out ("coordinated omission").
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from random import Random
from typing import Protocol

import msgspec

from router.measure.asking import Arm, Asker, Sample
from router.measure.prompts import Prompt


class Turn(msgspec.Struct, frozen=True):
    """One prompt, asked of each arm, in this order and next to each other."""

    number: int
    prompt: Prompt
    arms: tuple[Arm, ...]


class Watcher(Protocol):
    """Is told each sample as it comes, and may end the run."""

    def saw(self, sample: Sample) -> None: ...

    @property
    def has_enough(self) -> bool: ...


def turns(
    prompts: Iterator[Prompt], arms: Sequence[Arm], count: int, random: Random
) -> Iterator[Turn]:
    """The arms take turns at random in going first: what follows often finds a warm cache."""
    for number in range(count):
        order = tuple(random.sample(arms, k=len(arms)))
        yield Turn(number, next(prompts), order)


async def closed(
    asker: Asker,
    planned: Iterator[Turn],
    watcher: Watcher,
    *,
    concurrency: int,
    is_primed: bool = False,
) -> None:
    """So many clients at once; the requests of one turn follow each other.

    `is_primed`: each prompt is asked once before, uncounted, so that all arms find it cached.
    """

    async def client() -> None:
        for turn in planned:
            if is_primed:
                await asker.ask(turn.arms[0], turn.prompt, turn=-1)
            for arm in turn.arms:
                watcher.saw(await asker.ask(arm, turn.prompt, turn=turn.number, due=asker.clock()))
            if watcher.has_enough:
                return

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(client())


async def open_(
    asker: Asker,
    planned: Iterator[Turn],
    watcher: Watcher,
    *,
    rate: float,
    random: Random,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Poisson arrivals, `rate` requests a second on average, all arms together."""

    async def one(turn: Turn, arm: Arm, due: float) -> None:
        watcher.saw(await asker.ask(arm, turn.prompt, turn=turn.number, due=due))

    due = asker.clock()
    async with asyncio.TaskGroup() as group:
        for turn in planned:
            for arm in turn.arms:
                due += random.expovariate(rate)
                if (wait := due - asker.clock()) > 0:
                    await sleep(wait)
                group.create_task(one(turn, arm, due))
            if watcher.has_enough:
                return


async def warm_up(asker: Asker, prompts: Sequence[Prompt], arms: Sequence[Arm], count: int) -> None:
    """The first requests of each arm, which count for nothing: they open connections."""
    for number in range(count):
        for arm in arms:
            await asker.ask(arm, prompts[number % len(prompts)], turn=-1)
