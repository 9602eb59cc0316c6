"""What deciding costs, and what an experiment adds to it: `python benchmarks/deciding.py`.

Three policies in turn, many rounds, the quickest of each: one without experiments, the same
with an experiment for another scenario, and with one for the requests' own. `--against FOLDER`
takes another checkout's `decide_for` in turns with this one's, each in a process of its own,
which is how "unchanged" was measured.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
BASE = """\
schema = 1
default_scenario = "chat"
[defaults.direct]
top_p = 0.8
[scenarios.chat]
preset.thinking = { fill = false }
[scenarios.faq]
match.keywords = ["refund"]
[scenarios.faq.preset]
thinking = { fill = false }
max_new_tokens = { cap = 64 }
"""
ARMS = """\
[experiments.short]
scenarios = ["SCENARIO"]
[experiments.short.arms.control]
[experiments.short.arms.b.preset]
max_new_tokens = { cap = 32 }
"""
POLICIES = {
    "without": BASE,
    "elsewhere": BASE + ARMS.replace("SCENARIO", "faq"),
    "in an arm": BASE + ARMS.replace("SCENARIO", "chat"),
}
_REQUESTS = 2000


def measure(names: list[str], rounds: int) -> dict[str, float]:
    """The quickest microseconds of a decision, by policy."""
    from router import app, policy
    from router.chat import Endpoint
    from router.commands.offline import Unconnected
    from router.config import Config
    from router.verdict import decide_for

    config = Config.model_validate({"backends": [{"name": "a", "url": "http://h:1", "model": "m"}]})
    slots = app.slots_of(config, Unconnected)
    lives = {name: app.live_of(config, policy.parse(POLICIES[name]), slots) for name in names}
    messages = [{"role": "user", "content": "Name a river."}]
    raw = json.dumps({"model": "auto", "messages": messages, "temperature": 0.5}).encode()
    headers = [{b"x-session-id": b"s-%d" % number} for number in range(_REQUESTS)]
    best = dict.fromkeys(names, float("inf"))
    for _ in range(rounds):
        for name, live in lives.items():
            began = time.perf_counter()
            for fields in headers:
                decide_for(Endpoint.CHAT, raw, fields, live)
            best[name] = min(best[name], (time.perf_counter() - began) / _REQUESTS * 1e6)
    return best


def in_process(folder: Path, rounds: int) -> float:
    """The quickest decision without experiments by the code in another folder."""
    ran = subprocess.run(
        [sys.executable, str(Path(__file__)), "--only", "--rounds", str(rounds)],
        env={"PYTHONPATH": str(folder), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(ran.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        print(measure(["without"], args.rounds)["without"])
        return
    if args.against is not None:
        pairs = []
        for number in range(10):
            folders = [args.against, ROOT][:: 1 if number % 2 else -1]
            took = {folder: in_process(folder, args.rounds) for folder in folders}
            pairs.append((took[args.against], took[ROOT]))
        before, after = (min(column) for column in zip(*pairs, strict=True))
        ratios = sorted(new / old for old, new in pairs)
        print(f"without experiments: {before:.2f} -> {after:.2f} us a decision")
        print(f"ratio {median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f} of 10 turns)")
        return
    best = measure(list(POLICIES), args.rounds)
    for name, us in best.items():
        print(f"{name:10} {us:6.2f} us a decision, {us / best['without']:.3f} of without")


if __name__ == "__main__":
    main()
