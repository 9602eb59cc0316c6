"""What deciding costs, and what an experiment adds to it: `python benchmarks/deciding.py`.

Policies in turn, many short rounds in one process, the quickest of each and the middle ratio:
one without experiments, the same with an experiment for another scenario, and with one for
the requests' own. `--against FOLDER` puts the code of another checkout in turn with them,
which is how "unchanged" was measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

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
_REQUESTS = 500

Decide = Callable[[], None]


def decider(text: str) -> Decide:
    """Decides on a round of requests under this policy, by the code that is imported now."""
    from router import app, policy
    from router.chat import Endpoint
    from router.config import Config
    from router.offline import Unconnected
    from router.verdict import decide_for

    config = Config.model_validate({"backends": [{"name": "a", "url": "http://h:1", "model": "m"}]})
    live = app.live_of(config, policy.parse(text), app.slots_of(config, Unconnected))
    messages = [{"role": "user", "content": "Name a river."}]
    raw = json.dumps({"model": "auto", "messages": messages, "temperature": 0.5}).encode()
    headers = [{b"x-session-id": b"s-%d" % number} for number in range(_REQUESTS)]

    def decide() -> None:
        for fields in headers:
            decide_for(Endpoint.CHAT, raw, fields, live)

    return decide


def elsewhere(folder: Path, text: str) -> Decide:
    """The same by the code of another folder, side by side with this one's."""
    ours = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_ours(name)}
    sys.path.insert(0, str(folder))
    try:
        return decider(text)
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if _is_ours(name)]:
            del sys.modules[name]
        sys.modules.update(ours)


def _is_ours(module: str) -> bool:
    return module == "router" or module.startswith("router.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--rounds", type=int, default=400)
    args = parser.parse_args()
    deciders = {name: decider(text) for name, text in POLICIES.items()}
    if args.against is not None:
        deciders["before"] = elsewhere(args.against.resolve(), BASE)
    took: dict[str, list[float]] = {name: [] for name in deciders}
    for _ in range(args.rounds):
        for name, decide in deciders.items():
            began = time.perf_counter()
            decide()
            took[name].append((time.perf_counter() - began) / _REQUESTS * 1e6)
    base = took["before" if args.against is not None else "without"]
    for name, times in took.items():
        ratio = median(own / other for own, other in zip(times, base, strict=True))
        print(f"{name:10} {min(times):6.2f} us a decision at best, ratio {ratio:.3f} in the middle")


if __name__ == "__main__":
    main()
