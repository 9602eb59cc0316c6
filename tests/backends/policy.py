"""The policy of these tests: a scenario for each thing to be tried, which it forces, no more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: what is forced, by the name of the scenario that forces it; all of them answer directly
KNOBS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0},
    "capped": {"max_new_tokens": 5},
    "top-k": {"temperature": 2, "top_k": 1},
    "top-p": {"temperature": 2, "top_p": 0.001},
    "min-p": {"temperature": 2, "min_p": 1},
    "repetition": {"temperature": 0, "repetition_penalty": 5},
    "frequency": {"temperature": 0, "frequency_penalty": 2},
    "presence": {"temperature": 0, "presence_penalty": 2},
    "stopped": {"temperature": 0, "stop": ["found"]},
}
#: decides nothing but that answers are direct where the client has no wish of its own
PLAIN = "plain"
#: where a thought is to be shown
SHOWN = ("field", "inline", "drop", "keep")
#: tokens for thought and for the answer: too few of the first to count far
BUDGET, CAP = 20, 20

_DIRECT = {"thinking": {"fill": False}}
_THINKING = {"thinking": True, "temperature": 0}
_SHORT = {
    "stream": "collect",
    **_THINKING,
    "thinking_budget": BUDGET,
    "max_new_tokens": {"cap": CAP},
}
_SCENARIOS: Mapping[str, Mapping[str, Any]] = {
    PLAIN: {"preset": _DIRECT},
    "direct": {"preset": {"thinking": False}},
    "thoughtful": {"preset": {"thinking": True}},
    "short": {"preset": _SHORT},
    "short-unguarded": {"preset": _SHORT, "guard": {"empty_answers": False}},
    **{name: {"preset": {**_DIRECT, **forced}} for name, forced in KNOBS.items()},
    **{where: {"preset": {**_THINKING, "reasoning_output": where}} for where in SHOWN},
}


def policy() -> dict[str, Any]:
    return {"schema": 1, "default_scenario": PLAIN, "scenarios": _SCENARIOS}
