"""Evidence from a request's shape: turns, length, language, tools, JSON, code, images."""

from __future__ import annotations

from router.chat import Features
from router.policy import Policy, Structure

#: (scenario, kind, worth, signal)
Evidence = tuple[str, str, float, str]


class Shapes:
    """The structural conditions of a policy."""

    def __init__(self, policy: Policy) -> None:
        self._rules: list[tuple[Structure, Evidence]] = [
            (
                scenario.match,
                (name, "structure", _worth(policy, name), _describe(scenario.match)),
            )
            for name, scenario in policy.scenarios.items()
            if scenario.match.says_something and scenario.match.continues is None
        ]
        self._continuing = [
            (scenario.match.continues, name, scenario.match, _describe(scenario.match))
            for name, scenario in policy.scenarios.items()
            if scenario.match.continues is not None
        ]
        self._gates = {
            name: scenario.match.require
            for name, scenario in policy.scenarios.items()
            if scenario.match.require.says_something
        }

    def found(self, seen: Features) -> list[Evidence]:
        return [evidence for rule, evidence in self._rules if _holds(rule, seen)]

    def continuing(self, scenario: str, seen: Features) -> tuple[str, str] | None:
        """Which scenario takes this one's place within a conversation, and why."""
        for continued, name, rule, signal in self._continuing:
            if continued == scenario and _holds(rule, seen):
                return name, signal
        return None

    def shut(self, seen: Features) -> list[str]:
        """The scenarios whose gate keeps this request out."""
        return [name for name, gate in self._gates.items() if not _holds(gate, seen)]


def _worth(policy: Policy, scenario: str) -> float:
    own = policy.scenarios[scenario].match.structure_weight
    return policy.file.classify.structure if own is None else own


def _holds(rule: Structure, seen: Features) -> bool:
    return (
        (rule.turns is None or rule.turns.holds(seen.turns))
        and (rule.chars is None or rule.chars.holds(seen.chars))
        and seen.has.issuperset(rule.has)
        and (not rule.lang or seen.lang in rule.lang)
    )


def _describe(rule: Structure) -> str:
    parts = []
    for name, bounds in (("turns", rule.turns), ("chars", rule.chars)):
        if bounds is not None:
            low = "" if bounds.min is None else f" >= {bounds.min}"
            high = "" if bounds.max is None else f" <= {bounds.max}"
            parts.append(f"{name}{low}{high}")
    parts += [f"has {what}" for what in rule.has]
    if rule.lang:
        parts.append("lang " + "/".join(rule.lang))
    return "structure " + ", ".join(parts)
