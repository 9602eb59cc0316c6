"""Is a policy that can be read a policy that makes sense?

In: a policy, the backends it is for, and what would serve it. Out: findings, each with
its place in the file: faults, and notes about rules that do nothing or do harm. Pure:
`check`, the operator's pages and the reload all ask here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from router.config import Backend
from router.policy import Policy
from router.policycheck import presets
from router.policycheck.finding import Finding
from router.policycheck.presets import without_backend
from router.policycheck.promises import broken

__all__ = ["Finding", "broken", "findings", "without_backend"]


def findings(
    policy: Policy, backends: Sequence[Backend], beside: Mapping[str, str] | None = None
) -> list[Finding]:
    """What can be found without asking anything of the policy; in the order of the files.

    `beside`: the texts of the files that the policy names.
    """
    # Only who looks for findings needs these; a router that serves never does.
    from router.policycheck import arms, examples, matches

    found = [
        *matches.findings(policy),
        *presets.findings(policy, backends),
        *examples.findings(policy, beside or {}),
        *arms.findings(policy),
    ]
    return sorted(found, key=lambda finding: (finding.file or "", finding.mistake.line or 0))
