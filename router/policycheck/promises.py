"""The tests a policy brings along: prompts, and what must become of them.

In: what requests are served by. Out: a fault for each test that fails. Each prompt is a
whole request and goes through `decide_for`, the code that serves.
"""

from __future__ import annotations

import msgspec

from router.chat import Endpoint
from router.policy import PolicyTest
from router.policycheck.finding import Finding, cut, fault
from router.verdict import Live, Verdict, decide_for

_WHY_CHARS = 240


def broken(live: Live) -> list[Finding]:
    """The tests of the policy that fail."""
    found = []
    # A promise is of the scenario itself, whatever is tried beside it.
    live = msgspec.structs.replace(live, trials=None)
    for number, test in enumerate(live.policy.file.tests):
        verdict = decide_for(Endpoint.CHAT, _body(test), {}, live)
        if not _holds(test, verdict):
            found.append(fault(live.policy, ("tests", number), _told(test, verdict)))
    return found


def _body(test: PolicyTest) -> bytes:
    # An answer between two turns: without one they would be one turn in two messages.
    messages = []
    for text in test.before:
        messages.append({"role": "user", "content": text})
        messages.append({"role": "assistant", "content": "…"})
    messages.append({"role": "user", "content": test.prompt})
    return msgspec.json.encode({"model": "auto", "messages": messages})


def _holds(test: PolicyTest, verdict: Verdict) -> bool:
    if verdict.decision.scenario != test.scenario:
        return False
    return test.thinking is None or verdict.decision.thinking is test.thinking


def _told(test: PolicyTest, verdict: Verdict) -> str:
    decision, found = verdict.decision, verdict.found
    wanted = test.scenario + ("" if test.thinking is None else _mode(test.thinking))
    why = "; ".join((*found.signals, *decision.because))
    if test.thinking is not None and decision.scenario == test.scenario:
        switch = next((param for param in decision.params if param.name == "thinking"), None)
        origin = "nobody" if switch is None else switch.origin
        worth = "pays" if found.wants_thought else "does not pay"
        why = f"thinking decided by {origin}, thought {worth}; {why}"
    if len(why) > _WHY_CHARS:
        why = why[: _WHY_CHARS - 1] + "…"
    return (
        f"{cut(test.prompt)} wants {wanted}, got {decision.scenario}{_mode(decision.thinking)} "
        f"by {found.source} with confidence {found.confidence:.2f} ({why})"
    )


def _mode(thinking: bool | None) -> str:
    if thinking is None:
        return " with thinking left to the backend"
    return " with thinking" if thinking else " without thinking"
