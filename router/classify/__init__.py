"""Which scenario a request belongs to, and why.

In: a ChatRequest, its headers' hints, and a policy's compiled matchers. Out: a
Classification. Pure: the same request and policy always give the same answer.

Order, the first that speaks wins:

1. **hints**: `x-router-scenario`, then a model name `auto:<scenario>`;
2. **evidence**: each scenario adds up what was found of it. A shape that fits, a
   keyword and a pattern are worth what the policy's `[classify]` says. The
   highest sum wins, then the higher `priority`, then the earlier in the file;
3. **learned**: a classifier fitted from the policy's examples, where one is given
   (`Learned`); it adds its own evidence;
4. **default**: nothing spoke, and the confidence says so with 0.

Only what the user wrote in the last turn is read for words. System prompts, tool
results and the assistant's own text never vote: an instruction "reply with tested
Python code" would otherwise turn every question into a programming one.

Confidence is the winner's share of all evidence with one unit of doubt added
(Laplace's rule): one lone keyword gives 0.5, two 0.67, and a rival lowers it. It
orders requests by how clear they are; it is not a measured probability.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from router.chat import ChatRequest, Classification, Features
from router.classify import features, hints, structure
from router.classify.words import Words
from router.policy import Policy

#: turns remembered at most, all forgotten at once; and how long one may be
_REMEMBERED = 512
_REMEMBERED_CHARS = 500


class Learned(Protocol):
    """A classifier fitted from examples: evidence by scenario, in the policy's units."""

    def evidence(self, seen: Features) -> Mapping[str, float]: ...


class Classifier:
    """A policy's matchers, built once when it is loaded."""

    def __init__(self, policy: Policy, learned: Learned | None = None) -> None:
        self.policy = policy
        self._head_chars = policy.file.classify.head_chars
        self._tail_chars = policy.file.classify.tail_chars
        self._remembered: dict[tuple[str, int, frozenset[str]], Classification] = {}
        self._words = Words(policy)
        self._shapes = structure.Shapes(policy)
        self._learned = learned
        self._priority = {
            name: (scenario.priority, -index)
            for index, (name, scenario) in enumerate(policy.scenarios.items())
        }

    def scenario(self, request: ChatRequest, header_hint: str = "") -> Classification:
        """The request's scenario; raises InvalidValue where a hint names none that exists.

        A short turn's classification is remembered for a while: an agent sends the same
        last turn with every tool result, and people press the same button.
        """
        if header_hint or request.model != "auto" or len(request.text) > _REMEMBERED_CHARS:
            return self._classified(request, header_hint)
        key = (request.text, request.turns, request.has)
        found = self._remembered.get(key)
        if found is None:
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
            found = self._remembered[key] = self._classified(request, header_hint)
        return found

    def _classified(self, request: ChatRequest, header_hint: str) -> Classification:
        seen = features.of(request, self._head_chars, self._tail_chars)
        hint = None
        if header_hint or request.model != "auto":
            hint = hints.named(request.model, header_hint, self.policy)
        words = self._words.found(seen.text)
        if hint is not None:
            scenario, source, signal = hint
            return Classification(
                scenario, source, 1.0, (signal,), seen.lang, seen.chars, words.wants_thought
            )
        evidence = [*self._shapes.found(seen), *words.evidence]
        if self._learned is not None:
            evidence += [
                (scenario, "learned", worth, f"learned {worth:.2f}")
                for scenario, worth in self._learned.evidence(seen).items()
            ]
        evidence = self._shapes.admitted(evidence, seen)
        if not evidence:
            return Classification(
                self.policy.default_scenario,
                "default",
                0.0,
                ("nothing spoke for another scenario",),
                seen.lang,
                seen.chars,
                words.wants_thought,
            )
        totals: dict[str, float] = {}
        for scenario, _, worth, _ in evidence:
            totals[scenario] = totals.get(scenario, 0.0) + worth
        winner = self._best(totals)
        own = [entry for entry in evidence if entry[0] == winner]
        return Classification(
            winner,
            max(own, key=_worth)[1],
            totals[winner] / (sum(totals.values()) + 1.0),
            tuple([signal for _, _, _, signal in own]),
            seen.lang,
            seen.chars,
            words.wants_thought,
        )

    def _best(self, totals: Mapping[str, float]) -> str:
        if len(totals) == 1:
            return next(iter(totals))
        return max(totals, key=lambda name: (totals[name], self._priority[name]))


def _worth(entry: structure.Evidence) -> float:
    return entry[2]
