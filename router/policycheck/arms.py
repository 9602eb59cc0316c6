"""Arms of experiments that nobody gets, or that are no different.

In: a policy. Out: findings. What an arm comes to is asked of trials.py, which serves.
"""

from __future__ import annotations

from collections.abc import Iterator

from router import trials
from router.policy import Policy
from router.policycheck.finding import Finding, note


def findings(policy: Policy) -> Iterator[Finding]:
    for name, written in policy.file.experiments.items():
        if not written.is_running:
            continue
        seen = {_presets(policy): written.control}
        for arm, told in written.arms.items():
            at = ("experiments", name, "arms", arm)
            if told.weight == 0:
                yield note(policy, (*at, "weight"), "with weight 0 nobody is in this arm")
            if arm == written.control:
                continue
            presets = _presets(trials.variant(policy, written, arm))
            if presets in seen:
                same = f"this arm comes to the same as {seen[presets]!r}"
                yield note(policy, at, f"{same}: there is nothing to find out")
            seen.setdefault(presets, arm)


def _presets(policy: Policy) -> str:
    return repr(sorted(policy.presets.items(), key=repr))
