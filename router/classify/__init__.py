"""Which scenario a request belongs to, and why.

In: a ChatRequest, its headers' hints, and a policy's compiled matchers. Out: a
Classification. Pure: the same request and policy always give the same answer.

Stages, in this order; the first that settles it ends it, the middle ones are added up:

1. **hints**: `x-router-scenario`, then a model name `auto:<scenario>`;
2. **evidence**, in natural log-odds, so that it adds: a shape that fits, a keyword and a
   pattern are worth what the policy's `[classify]` says, and the **learned** stage adds how
   likely each scenario is by the policy's examples. The highest sum wins, then the higher
   `priority`, then the earlier in the file. So a keyword tips what the examples leave open,
   and does not shout down what they make plain (see docs/classifying.md for the figures);
3. **sticky**: of a conversation, the turn before is read along with the last one, and a
   turn that says nothing by itself ("go on") is what the turns before it were;
4. **default**: nothing spoke, or no scenario is likely enough to be worth a guess.

A scenario without examples of its own is taken for as likely as the likeliest as soon as a
word or a shape speaks for it: one keyword decides for it where no other keyword speaks.
A scenario that `continues` another takes its place within a conversation.

Only what the user wrote is read, and for keywords and patterns only the last turn: system
prompts, tool results and the assistant's own text never vote.

Confidence is the likelihood of the winner, calibrated on examples that were left out of the
fit. Without examples it is what the evidence alone makes of it, and only orders requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, inf
from typing import NamedTuple

import msgspec

from router.chat import ChatRequest, Classification, Features, Turn
from router.classify import features, hints, structure
from router.classify.learned import Learned
from router.classify.words import Found, Words
from router.policy import Policy

#: turns remembered at most, all forgotten at once; and how long one may be
_REMEMBERED = 512
_REMEMBERED_CHARS = 500
#: turns less likely than this to be follow-ups speak for themselves
_SURELY_NEW = 0.2
#: what a session's remembered scenario counts for, where the messages do not tell it
_RECALLED = 0.9

_NOTHING = "nothing spoke for another scenario"

Recall = Callable[[str], str | None]


class _View(NamedTuple):
    """What one turn comes to, by itself. Log-odds are by scenario, in the policy's order."""

    log_odds: list[float]  # -inf: out of question
    evidence: list[structure.Evidence]
    shut: list[str]  # scenarios whose gate keeps the turn out
    learned: list[float]  # the learned stage's share; empty where there is none
    follows: float
    thought: float


class _Opinion(NamedTuple):
    """A turn in its conversation: likelihoods by scenario, and of thought."""

    likely: list[float]
    thought: float
    carried: float  # how much of it comes from earlier turns


class Classifier:
    """A policy's matchers, built once when it is loaded."""

    def __init__(self, policy: Policy, learned: Learned | None = None) -> None:
        self.policy = policy
        self.learned = learned
        self._head_chars = policy.file.classify.head_chars
        self._tail_chars = policy.file.classify.tail_chars
        self._remembered: dict[tuple[object, ...], Classification] = {}
        self._words = Words(policy)
        self._shapes = structure.Shapes(policy)
        self._names = names = list(policy.scenarios)
        self._index = {name: index for index, name in enumerate(names)}
        self._default = self._index[policy.default_scenario]
        #: of two as likely, the higher rank wins
        self._rank = [(policy.scenarios[n].priority, -i) for i, n in enumerate(names)]
        taught = learned.scenarios if learned is not None else ()
        #: where a scenario stands among the learned; the last place is for those that are not
        self._columns = [taught.index(n) if n in taught else len(taught) for n in names]
        self._thinks = learned.weights.thinks if learned is not None else None
        self._think_from = learned.weights.think_from if learned is not None else 1.0
        self._abstain_below = learned.weights.abstain_below if learned is not None else 0.0

    def scenario(
        self,
        request: ChatRequest,
        header_hint: str = "",
        recall: Recall | None = None,
        allowed: tuple[str, ...] | None = None,
    ) -> Classification:
        """The request's scenario; raises InvalidValue where a hint names none that exists.

        A short turn's classification is remembered for a while: an agent sends the same
        last turn with every tool result, and people press the same button. `recall` tells a
        session's last scenario, for clients that send no history. `allowed`: the scenarios to
        choose among, at least one; None: all. One that a hint names may be another.
        """
        if header_hint or request.model != "auto" or len(request.text) > _REMEMBERED_CHARS:
            return self._classified(request, header_hint, recall, allowed)[0]
        may_recall = recall is not None and _has_only_a_session(request)
        key = (request.text, request.turns, request.has, request.earlier, may_recall, allowed)
        found = self._remembered.get(key)
        if found is None:
            found, is_new = self._classified(request, header_hint, recall, allowed)
            if may_recall and not is_new:
                return found  # it depends on the session
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
            self._remembered[key] = found
        return found

    def _classified(
        self,
        request: ChatRequest,
        header_hint: str,
        recall: Recall | None,
        allowed: tuple[str, ...] | None,
    ) -> tuple[Classification, bool]:
        """The classification, and whether the turn surely speaks for itself."""
        seen = features.of(request, self._head_chars, self._tail_chars)
        words = self._words.found(seen.text)
        view = self._view(seen, words)
        if header_hint or request.model != "auto":
            hint = hints.named(
                request.model, header_hint, self.policy, allowed or tuple(self.policy.scenarios)
            )
            if hint is not None:
                scenario, source, signal = hint
                told = self._told(seen, scenario, source, 1.0, (signal,), words, view.thought)
                return told, True
        is_new = view.follows <= _SURELY_NEW
        before = None if is_new else self._before(request, recall, view)
        opinion = self._in_conversation(view, seen, request.earlier, before)
        found = self._decided(seen, words, view, opinion, None)
        if allowed is not None and found.scenario not in allowed:
            signal = f"{found.scenario} is not for this key"
            found = self._decided(seen, words, view, opinion, allowed)
            found = msgspec.structs.replace(found, signals=(*found.signals, signal))
        return found, is_new

    # ------------------------------------------------------------------ one turn by itself

    def _view(self, seen: Features, words: Found) -> _View:
        """The turn by itself."""
        shapes, index = self._shapes, self._index
        shut = shapes.shut(seen)
        evidence = [*shapes.found(seen), *words.evidence]
        if shut:
            evidence = [entry for entry in evidence if entry[0] not in shut]
        follows, thought = 0.0, float(words.wants_thought)
        learned: list[float] = []
        start = 0.0
        if self.learned is None:
            log_odds = [-inf] * len(self._names)
        else:
            reading = self.learned.read(seen.text, seen.chars)
            follows = reading.follows
            if self._thinks is not None:
                thought = self._thinks.probability(reading.think_score, words.thought)
            learned = self._by_scenario(reading.log_odds)
            for name in shut:
                learned[index[name]] = -inf
            log_odds = learned.copy()
            start = max(log_odds)
            if start == -inf:  # every scenario that was learned is out of question
                start = 0.0
        for scenario, _, worth, _ in evidence:
            at = index[scenario]
            if log_odds[at] == -inf:
                log_odds[at] = start
            log_odds[at] += worth
        if log_odds[self._default] == -inf and (not learned or max(log_odds) == -inf):
            log_odds[self._default] = start  # with nothing learned, the unit of doubt
        return _View(log_odds, evidence, shut, learned, follows, thought)

    def _by_scenario(self, columns: Sequence[float]) -> list[float]:
        values = (*columns, -inf)
        return [values[column] for column in self._columns]

    # ------------------------------------------------------------------ a conversation

    def _in_conversation(
        self, view: _View, seen: Features, earlier: Sequence[Turn], before: _Opinion | None
    ) -> _Opinion:
        """The turn among the turns before it (the newest first)."""
        log_odds, thought = view.log_odds, view.thought
        if earlier and self.learned is not None:
            log_odds, thought = self._read_along(view, seen, earlier[0])
        own = _likelihoods(log_odds)
        if before is None:
            return _Opinion(own, thought, 0.0)
        share = view.follows
        likely = [
            (1 - share) * now + share * then for now, then in zip(own, before.likely, strict=True)
        ]
        for name in view.shut:
            likely[self._index[name]] = 0.0
        return _Opinion(likely, (1 - share) * thought + share * before.thought, share)

    def _read_along(self, view: _View, seen: Features, previous: Turn) -> tuple[list[float], float]:
        """The turn's evidence, half of it from reading it after the one before."""
        assert self.learned is not None
        folded = features.fold(previous.text)
        reading = self.learned.read(f"{folded}\n{seen.text}", previous.chars + 1 + seen.chars)
        joined = self._by_scenario(reading.log_odds)
        log_odds = [
            odds if alone == -inf else odds + (together - alone) / 2
            for odds, alone, together in zip(view.log_odds, view.learned, joined, strict=True)
        ]
        if self._thinks is None:
            return log_odds, view.thought
        along = self._thinks.probability(reading.think_score)
        return log_odds, (view.thought + along) / 2

    def _before(self, request: ChatRequest, recall: Recall | None, view: _View) -> _Opinion | None:
        """What the conversation was before its last turn."""
        if request.earlier:
            return self._earlier_opinion(request, 0)
        if recall is None or request.session is None or not _has_only_a_session(request):
            return None
        at = self._index.get(recall(request.session.hash) or "")
        if at is None:
            return None
        likely = [0.0] * len(self._names)
        likely[at] = _RECALLED
        return _Opinion(likely, view.thought, 0.0)

    def _earlier_opinion(self, request: ChatRequest, back: int) -> _Opinion:
        """What the conversation was at an earlier turn; 0 is the one before the last."""
        turn, *further = request.earlier[back:]
        folded = features.fold(turn.text)
        # Tools and formats are the request's; a picture or a code block is the turn's own.
        has = request.has - {"code", "image"}
        if "```" in turn.text:
            has |= {"code"}
        language = features.language(folded)
        seen = Features(folded, turn.chars, language, request.turns - 1 - back, has)
        view = self._view(seen, self._words.found(folded))
        before = None
        if view.follows > _SURELY_NEW and further:
            before = self._earlier_opinion(request, back + 1)
        return self._in_conversation(view, seen, further, before)

    # ------------------------------------------------------------------ the verdict

    def _decided(
        self,
        seen: Features,
        words: Found,
        view: _View,
        opinion: _Opinion,
        allowed: tuple[str, ...] | None,
    ) -> Classification:
        likely, default = opinion.likely, self.policy.default_scenario
        if allowed is not None:
            likely = [
                value if name in allowed else -1.0
                for name, value in zip(self._names, likely, strict=True)
            ]
            if default not in allowed:
                default = allowed[0]
        at = self._best(likely)
        confidence, winner = likely[at], self._names[at]
        own = [entry for entry in view.evidence if entry[0] == winner] if view.evidence else []
        signals = [entry[3] for entry in own]
        learned = view.learned
        if learned and learned[at] != -inf:
            signals.append(f"learned {_likelihoods(learned)[at]:.2f}")
        source = self._source(at, own, view)
        if opinion.carried > 0.5:
            source = "sticky"
            signals.append(f"follow-up {opinion.carried:.2f}")
        elif not own and (not learned or confidence < self._abstain_below):
            source = "default"
            signals = [self._doubt(likely)] if learned else [_NOTHING]
            at, winner = self._index[default], default
            confidence = likely[at] if learned else 0.0
        if source in ("sticky", "default"):
            instead = self._shapes.continuing(winner, seen)
            if instead is not None and (allowed is None or instead[0] in allowed):
                winner, signal = instead
                source = "structure"
                signals.append(signal)
        return self._told(seen, winner, source, confidence, tuple(signals), words, opinion.thought)

    def _best(self, likely: list[float]) -> int:
        top = max(likely)
        at = likely.index(top)
        if likely.count(top) > 1:
            at = max(
                (i for i, value in enumerate(likely) if value == top), key=self._rank.__getitem__
            )
        return at

    def _doubt(self, likely: list[float]) -> str:
        guess = self._best(likely)
        return f"no scenario is likely enough (best: {self._names[guess]} {likely[guess]:.2f})"

    def _source(self, at: int, own: Sequence[structure.Evidence], view: _View) -> str:
        """Which stage the winner leans on most."""
        if not own:
            return "learned"
        learned = view.learned
        if learned and learned[at] != -inf:
            rivals = max([value for i, value in enumerate(learned) if i != at], default=-inf)
            if learned[at] - rivals > sum([entry[2] for entry in own]):
                return "learned"
        return max(own, key=_worth)[1]

    def _told(
        self,
        seen: Features,
        scenario: str,
        source: str,
        confidence: float,
        signals: tuple[str, ...],
        words: Found,
        thought: float,
    ) -> Classification:
        wants_thought = words.wants_thought if self._thinks is None else thought >= self._think_from
        return Classification(
            scenario, source, confidence, signals, seen.lang, seen.chars, wants_thought, thought
        )


def _has_only_a_session(request: ChatRequest) -> bool:
    """Whether only a session that the client named tells what came before."""
    session = request.session
    return not request.earlier and session is not None and session.source != "fingerprint"


def _worth(entry: structure.Evidence) -> float:
    return entry[2]


def _likelihoods(log_odds: list[float]) -> list[float]:
    top = max(log_odds)
    powers = [exp(value - top) for value in log_odds]
    whole = sum(powers)
    return [power / whole for power in powers]
