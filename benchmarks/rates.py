"""What the limits of a key cost a request: `python benchmarks/rates.py`, `--redis URL`.

In one process, many short rounds in turn, the quickest of each: all that a request of such a key
goes through, from the look before it is read to its settlement, headers included. With a Redis:
what a request waits for, and what it costs this process when many ask at once.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable
from statistics import median, quantiles

from router import config, rates_redis, toll
from router.app import SystemClock
from router.keyring import Allowance
from router.ledger import Ledger
from router.ports import Rates
from router.ratebook import MemoryRates, WorkersRates
from router.toll import Toll

_REQUESTS = 500
#: so high that nobody is refused
LIMITS = Allowance(10**7, 10**8, 10**9, 1000)
BODY = b'{"model":"auto","messages":[{"role":"user","content":"Name a river."}]}'


def passing(store: Rates) -> Callable[[], None]:
    """A round of requests, each from look to settlement."""

    def go_on(tolled: Toll) -> None:
        """Where the request would go on."""

    def one_round() -> None:
        for _ in range(_REQUESTS):
            tolled = Toll("shop", LIMITS)
            store.look(tolled)
            toll.reserve(tolled, BODY, None)
            store.ask(tolled, go_on)
            toll.lines(LIMITS, store.look(tolled))
            store.over(tolled)
            store.settle(tolled, 20)

    return one_round


def unlimited() -> Callable[[], None]:
    """The questions that a key without limits is asked: whether it has some, in eight places."""
    tolled = None

    def one_round() -> None:
        for _ in range(_REQUESTS):
            for _ in range(8):
                if tolled is not None:
                    raise AssertionError

    return one_round


async def in_redis(url: str) -> None:
    settings = config.Affinity(store="redis", timeout_ms=1000, prefix="benchmark")
    store = rates_redis.opened(settings, SystemClock(), {"REDIS_URL": url})
    await store.start()
    loop = asyncio.get_running_loop()

    async def ask() -> float:
        told: asyncio.Future[Toll] = loop.create_future()
        tolled = Toll("shop", LIMITS)
        toll.reserve(tolled, BODY, None)
        began = time.perf_counter()
        store.ask(tolled, told.set_result)
        await told
        took = time.perf_counter() - began
        store.over(tolled)
        store.settle(tolled, 20)
        return took * 1e6

    alone = sorted([await ask() for _ in range(2000)])
    print(f"Redis, one at a time: {median(alone):.0f} us, p99 {quantiles(alone, n=100)[98]:.0f} us")
    began = time.process_time()
    for _ in range(20):
        await asyncio.gather(*(ask() for _ in range(200)))
    each = (time.process_time() - began) / 4000 * 1e6
    print(f"Redis, 200 at once: {each:.0f} us of this process each")
    assert store.status()["local"] == 0
    await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--redis", metavar="URL", help="of a Redis that may be used")
    args = parser.parse_args()
    clock = SystemClock()
    rounds = {
        "no limits": unlimited(),
        "one worker": passing(MemoryRates(clock)),
        "of two workers": passing(WorkersRates(clock, Ledger(2), 0)),
    }
    took: dict[str, list[float]] = {name: [] for name in rounds}
    for _ in range(args.rounds):
        for name, one_round in rounds.items():
            began = time.perf_counter()
            one_round()
            took[name].append((time.perf_counter() - began) / _REQUESTS * 1e6)
    for name, times in took.items():
        print(
            f"{name:15} {min(times):6.2f} us a request at best, {median(times):.2f} in the middle"
        )
    if args.redis:
        asyncio.run(in_redis(args.redis))


if __name__ == "__main__":
    main()
