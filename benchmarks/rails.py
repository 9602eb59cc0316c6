"""How soon a rail stops a slow arm, and how often a sound one: `python benchmarks/rails.py`.

Simulated requests of two arms, a session each or several, log-normal times, looked at after
every ten: what a router does twice a second. The figures of docs/experiments.md.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from random import Random
from statistics import median

from router import evidence
from router.evidence import ArmSums
from router.experiment import Rails
from router.record import Record

_LOOK = 10
#: spread of one request's logarithm, requests a session, rail, true ratio, requests an arm at most
CASES = [
    (0.1, 1, 1.02, 1.0, 2000),
    (0.3, 1, 1.0, 1.0, 2000),
    (0.3, 10, 1.0, 1.0, 2000),
    (0.1, 1, 1.02, 1.1, 2000),
    (0.3, 1, 1.02, 1.1, 4000),
    (0.3, 1, 1.05, 1.2, 4000),
    (0.3, 10, 1.05, 1.2, 8000),
    (0.6, 1, 1.1, 1.5, 4000),
]


def requests(
    random: Random, spread: float, per_session: int, ratio: float
) -> Iterator[tuple[str, Record]]:
    """Of two arms in turn; half the variance is the session's where it has several requests."""
    own = spread if per_session == 1 else spread / math.sqrt(2)
    number = 0
    while True:
        lengths = {arm: random.gauss(0, spread) if per_session > 1 else 0.0 for arm in "ab"}
        for _ in range(per_session):
            for arm, length in lengths.items():
                shared = length / math.sqrt(2) if per_session > 1 else 0.0
                ms = 100 * math.exp(shared + random.gauss(0, own)) * (ratio if arm == "b" else 1)
                session = f"{arm}{number // per_session}"
                yield arm, Record(session=session, outcome="ok", total_ms=ms)
            number += 1


def stopped_after(
    random: Random, rails: Rails, spread: float, per_session: int, ratio: float, limit: int
) -> int | None:
    """Requests of the arm until it was stopped; None: it never was."""
    arms = {"a": ArmSums(), "b": ArmSums()}
    for number, (arm, record) in enumerate(requests(random, spread, per_session, ratio), start=1):
        arms[arm].add(record)
        if number % (2 * _LOOK) == 0 and evidence.breach(rails, arms["a"], arms["b"], others=1):
            return number // 2
        if number >= 2 * limit:
            break
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    args = parser.parse_args()
    print("| spread | requests a session | rail | true ratio | stopped | requests an arm, median |")
    print("|---:|---:|---:|---:|---:|---:|")
    for spread, per_session, rail, ratio, limit in CASES:
        random = Random(17)
        rails = Rails.model_validate({"total_ratio": rail})
        found = [
            stopped_after(random, rails, spread, per_session, ratio, limit)
            for _ in range(args.runs)
        ]
        at = [number for number in found if number is not None]
        middle = f"{median(at):.0f}" if at else "–"
        share = len(at) / args.runs
        print(
            f"| {spread} | {per_session} | {rail} | {ratio} | {share:.1%} of {limit} | {middle} |"
        )


if __name__ == "__main__":
    main()
