"""What a request would get, and why: the serving code's own decision, told.

In: a Verdict and the backends of its pool. Out: plain data. No backend is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from router.keyring import Grant
from router.verdict import Live, Slot, Verdict


def told(
    verdict: Verdict, live: Live, slots: Sequence[Slot], grant: Grant | None = None
) -> dict[str, Any]:
    """The decision, each parameter's origin, and the exact bytes for the first backend.

    `grant`: that of the client's key, under which it was decided.
    """
    found, decision, request = verdict.found, verdict.decision, verdict.request
    explained: dict[str, Any] = {
        "scenario": found.scenario,
        "title": live.policy.scenarios[found.scenario].title,
        "source": found.source,
        "confidence": round(found.confidence, 3),
        "because": [*found.signals, *decision.because],
        "lang": found.lang,
        "turns": request.turns,
        "prompt_chars": found.chars,
        "has": sorted(request.has),
        "session": None if request.session is None else msgspec.to_builtins(request.session),
        "thinking": decision.thinking,
        "experiment": _experiment(verdict, live),
        "pool": decision.pool,
        "backends": [slot.name for slot in slots],
        "policy": live.policy.hash,
        "key": None if grant is None else _key(grant),
    }
    said: dict[str, Any] = {param.name: param.value for param in decision.params}
    warnings = list(decision.warnings)
    if slots:
        slot = slots[0]
        spoken = verdict.told(slot.dialect, slot.model or "")
        said = dict(spoken.params)
        warnings = list(spoken.warnings)
        explained["backend"] = slot.name
        explained["dialect"] = slot.dialect.name
        explained["body"] = spoken.patch.apply(request.raw, request.spans).decode(
            "utf-8", "backslashreplace"
        )
    explained["params"] = {
        param.name: {
            "client": param.client,
            "sent": said.get(param.name),
            "origin": param.origin,
            "action": param.action,
        }
        for param in decision.params
    }
    explained["warnings"] = warnings
    return explained


def _key(grant: Grant) -> dict[str, Any]:
    return {
        "name": grant.name,
        "scenarios": grant.scenarios,
        "pools": None if grant.pools is None else sorted(grant.pools),
    }


def _experiment(verdict: Verdict, live: Live) -> dict[str, Any] | None:
    """The arm that it is in, and why; None where no experiment is for it."""
    arm, found, request = verdict.plan.arm, verdict.found, verdict.request
    trial = (live.trials or {}).get(found.scenario)
    if trial is None:
        return None
    if found.source == "header":
        reason = "no arm: the scenario was asked for in a header"
    elif request.session is None and arm is None:
        reason = "no arm: it has no session, so each request's own id draws"
    elif arm is None:
        reason = f"no arm: not among the {trial.written.share:.0%} that take part"
    else:
        drawn_by = "id, for it has no session" if request.session is None else "session"
        reason = f"drawn by its {drawn_by}"
        if request.session is not None and (drew := trial.drawn(request.session.hash)) != arm.name:
            reason = f"its session drew {drew}, which is stopped"
    return {"name": trial.name, "arm": arm and arm.name, "because": reason}
