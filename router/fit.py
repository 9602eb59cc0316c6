"""Fits the learned stage to a policy's examples. The only module that needs numpy.

It runs as `python -m router.fit`, a task (`router.lesson`) on standard input, the weights on
standard output: numpy and what fitting allocates live and die in a process of their own,
and the serving one stays small.

The classifier is one ridge regression for all scenarios at once, in its dual form: as many
unknowns as examples. It has two virtues here: the answer is exact and independent of the
examples' order, and what it would have said of an example had it not seen it comes almost
for free (Allen's PRESS formula), so probabilities and thresholds are set on answers to
unseen examples without a second fit.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from router import lesson
from router.classify import features, grams
from router.classify.learned import key_text
from router.classify.weights import FORMAT, MOST_WORDS, Line, Weights
from router.classify.words import Words
from router.lesson import Answer
from router.policy import Policy
from router.tomlfile import FileFault

Floats = NDArray[np.float32]

_RIDGE = 0.2
_CONSTANT = 0.3  # the weight of the key that every text has
#: keys kept; the rest hardly weigh anything
_KEPT_KEYS = 16_000
#: examples that are judged unseen; some hundreds pin a handful of numbers down
_JUDGED = 800
_BLOCK = 512
#: keys in more examples than this are multiplied as a dense block, the others pair by pair
_OFTEN = 40
_STEPS = 500
#: as many of the guesses must be right for guessing to pay, and so many are enough to tell
_WORTH_A_GUESS = 0.3
_ENOUGH = 20


class Example(NamedTuple):
    """One prompt to learn from; None: it does not say."""

    text: str
    scenario: str | None
    follows: bool
    thinks: bool | None


def examples_of(policy: Policy) -> list[Example]:
    """All examples of a policy, each text once, in an order of their own."""
    found: dict[tuple[str, str | None], Example] = {}
    for name, scenario in policy.scenarios.items():
        known = policy.file.examples.get(name)
        listed: list[tuple[Sequence[str], bool | None]] = [(scenario.match.examples, None)]
        if known is not None:
            listed += [(known.direct, False), (known.thinking, True)]
        for texts, thinks in listed:
            for text in texts:
                found[text, name] = Example(text, name, False, thinks)
    for text in policy.file.conversation.follow_ups:
        found[text, None] = Example(text, None, True, None)
    return sorted(found.values(), key=lambda example: (example.text, example.scenario or ""))


def fit(policy: Policy) -> Weights | None:
    """The weights; None where fewer than two scenarios have examples."""
    examples = examples_of(policy)
    with_examples = {example.scenario for example in examples}
    scenarios = tuple(name for name in policy.scenarios if name in with_examples)
    if len(scenarios) < 2:
        return None
    read = policy.file.classify
    texts = [features.fold_sampled(e.text, read.head_chars, read.tail_chars) for e in examples]
    table = _Table([grams.of(text, len(e.text)) for text, e in zip(texts, examples, strict=True)])
    judged = _spread(len(examples), _JUDGED)
    targets = _targets(examples, scenarios)
    duals, unseen = _ridge(table.likeness(), targets, judged)
    weights = table.weights(duals)
    kept = np.sort(np.argsort(-np.abs(weights).max(1), kind="stable")[:_KEPT_KEYS])
    unit = max(float(np.abs(weights[kept]).max()) / 32_000, 1e-9)
    words = _Judge(policy, scenarios, [(texts[i], examples[i]) for i in judged], unseen)
    slope, offsets = words.line_between_scenarios()
    follows, thinks = words.line_for_follow_ups(), words.line_for_thinking()
    return Weights(
        format=FORMAT,
        scenarios=scenarios,
        keys=tuple(key_text(table.keys[i]) for i in kept),
        rows=np.rint(weights[kept] / unit).astype("<i2").tobytes(),
        unit=unit,
        constant=tuple(map(float, duals.sum(0) * np.float32(_CONSTANT**2))),
        slope=slope,
        offsets=offsets,
        follows=follows,
        thinks=thinks,
        think_from=words.think_threshold(thinks),
        abstain_below=words.abstain_threshold(slope, offsets),
        measured=words.measured(slope, offsets),
    )


class _Table:
    """Which key stands in which example. A key weighs 1/√(number of keys) in its example."""

    def __init__(self, found: Sequence[set[grams.Key]]) -> None:
        # In an order that is the same each time, which that of a set is not.
        self.keys = sorted(set().union(*found), key=key_text)
        numbers = {key: number for number, key in enumerate(self.keys)}
        columns = [numbers[key] for keys in found for key in keys]
        sizes = np.array([len(keys) for keys in found])
        order = np.argsort(columns, kind="stable")
        rows = np.repeat(np.arange(len(found)), sizes)
        self.size = len(found)
        # By key: its examples, and what it weighs in each.
        self.rows = rows[order]
        self.counts = np.bincount(columns, minlength=len(numbers))
        self.starts = np.concatenate([[0], np.cumsum(self.counts)[:-1]])
        self.values = (1 / np.sqrt(sizes))[self.rows].astype(np.float32)

    def likeness(self) -> Floats:
        """How much of their keys two examples share, 0..1, the constant key added."""
        size = self.size
        shared = np.zeros((size, size), np.float32)
        often = np.flatnonzero(self.counts > _OFTEN)
        for part in np.array_split(often, len(often) // 1024 + 1):
            block = np.zeros((size, len(part)), np.float32)
            for column, key in enumerate(part):
                at = slice(self.starts[key], self.starts[key] + self.counts[key])
                block[self.rows[at], column] = self.values[at]
            shared += block @ block.T
        flat = shared.reshape(-1)
        for count in range(2, _OFTEN + 1):
            starts = self.starts[self.counts == count]
            at = starts[:, None] + np.arange(count)
            rows, values = self.rows[at], self.values[at]
            pairs = rows[:, :, None] * size + rows[:, None, :]
            np.add.at(flat, pairs.ravel(), (values[:, :, None] * values[:, None, :]).ravel())
        np.fill_diagonal(shared, 1.0)  # keys that stand in one example alone count here only
        return shared + np.float32(_CONSTANT**2)

    def weights(self, duals: Floats) -> Floats:
        """A row for each key out of a row for each example."""
        parts = duals[self.rows] * self.values[:, None]
        return np.add.reduceat(parts, self.starts, axis=0)


def _targets(examples: Sequence[Example], scenarios: Sequence[str]) -> Floats:
    """What each example should score: 1 in its own columns, 0 in the others."""
    number = {name: column for column, name in enumerate(scenarios)}
    targets = np.zeros((len(examples), len(scenarios) + 2), np.float32)
    for row, example in zip(targets, examples, strict=True):
        if example.scenario is not None:
            row[number[example.scenario]] = 1
        row[-2] = example.follows
        row[-1] = 0.5 if example.thinks is None else example.thinks
    return targets


def _spread(count: int, wanted: int) -> NDArray[np.intp]:
    """So many of them, evenly spread. Examples are sorted by text, so by nothing that matters."""
    return np.unique(np.linspace(0, count - 1, min(count, wanted)).astype(np.intp))


def _ridge(likeness: Floats, targets: Floats, judged: NDArray[np.intp]) -> tuple[Floats, Floats]:
    """Dual weights, and the scores of the judged examples had each been left out."""
    size, columns = targets.shape
    likeness[np.diag_indices(size)] += np.float32(_RIDGE)
    asked = np.zeros((size, columns + len(judged)), np.float32)
    asked[:, :columns] = targets
    asked[judged, columns + np.arange(len(judged))] = 1
    solved = _solved(_factored(likeness), asked)
    duals = solved[:, :columns]
    own = solved[judged, columns + np.arange(len(judged))]
    return duals, targets[judged] - duals[judged] / own[:, None]


def _factored(matrix: Floats) -> Floats:
    """Cholesky's factor of a positive definite matrix, in its place.

    In blocks, so that nearly all of the work is matrix products: 0.5 s for 5,300 rows where
    numpy's solver, which does not know the matrix to be symmetric, takes 1.2 to 3 s.
    """
    size = len(matrix)
    for start in range(0, size, _BLOCK):
        end = min(size, start + _BLOCK)
        corner = matrix[start:end, start:end] = np.linalg.cholesky(matrix[start:end, start:end])
        panel = matrix[end:, start:end] = matrix[end:, start:end] @ np.linalg.inv(corner).T
        for left in range(0, size - end, 2 * _BLOCK):
            right = left + 2 * _BLOCK
            matrix[end + left :, end + left : end + right] -= panel[left:] @ panel[left:right].T
    return matrix


def _solved(factor: Floats, asked: Floats) -> Floats:
    """What the factored matrix makes `asked` of."""
    found, starts = asked.copy(), range(0, len(factor), _BLOCK)
    for start in starts:
        at = slice(start, start + _BLOCK)
        found[at] = np.linalg.solve(factor[at, at], found[at])
        found[at.stop :] -= factor[at.stop :, at] @ found[at]
    for start in reversed(starts):
        at = slice(start, start + _BLOCK)
        found[at] = np.linalg.solve(factor[at, at].T, found[at])
        found[:start] -= factor[at, :start].T @ found[at]
    return found


class _Judge:
    """Sets probabilities by the scores of examples that were left out."""

    def __init__(
        self,
        policy: Policy,
        scenarios: Sequence[str],
        judged: Sequence[tuple[str, Example]],
        scores: Floats,
    ) -> None:
        matchers = Words(policy)
        self.think_weight = policy.file.thinking.weight
        number = {name: column for column, name in enumerate(scenarios)}
        self.examples = [example for _, example in judged]
        self.scores = scores.astype(np.float64)
        self.evidence = np.zeros((len(judged), len(scenarios)))
        self.think_words = np.zeros(len(judged))
        for row, (text, _) in enumerate(judged):
            found = matchers.found(text)
            self.think_words[row] = min(found.thought, MOST_WORDS)
            for scenario, _, worth, _ in found.evidence:
                if scenario in number:
                    self.evidence[row, number[scenario]] += worth
        self.labelled = np.array([example.scenario is not None for example in self.examples])
        self.truth = np.array(
            [number[e.scenario] for e in self.examples if e.scenario is not None], np.intp
        )

    def line_between_scenarios(self) -> tuple[float, tuple[float, ...]]:
        """Slope and offsets that make the sum of all evidence a probability (Platt's scaling)."""
        scores = self.scores[self.labelled, :-2]
        evidence = self.evidence[self.labelled]
        columns = scores.shape[1]
        # Each scenario counts the same: how many examples somebody wrote says nothing about
        # how often it is asked for.
        share = np.bincount(self.truth, minlength=columns)
        weight = (1 / np.maximum(share, 1))[self.truth]
        weight /= weight.sum()
        wanted = np.eye(columns)[self.truth]
        slope, offsets = 8.0, np.zeros(columns)
        for _ in range(_STEPS):
            likely = _softmax(slope * scores + offsets + evidence)
            error = (likely - wanted) * weight[:, None]
            slope -= 30 * float((error * scores).sum())
            offsets -= error.sum(0) + 1e-3 * offsets
        return slope, tuple(map(float, offsets - offsets.mean()))

    def line_for_follow_ups(self) -> Line | None:
        return _line(self.scores[:, -2], np.array([e.follows for e in self.examples]), None)

    def line_for_thinking(self) -> Line | None:
        known = self._knows_thinking()
        line = _line(self.scores[known, -1], self._thinks(known), self.think_words[known])
        if line is None or self.think_weight is None:
            return line
        return Line(line.slope, line.offset, self.think_weight)

    def think_threshold(self, line: Line | None) -> float:
        """The likelihood from which thinking is best switched on: where F1 is highest."""
        if line is None:
            return 1.0
        known = self._knows_thinking()
        truth = self._thinks(known)
        likely = _sigmoid(
            line.slope * self.scores[known, -1] + line.offset + line.words * self.think_words[known]
        )
        steps = np.linspace(0.2, 0.8, 61)
        caught = np.array([(likely[truth] >= step).sum() for step in steps])
        called = np.array([(likely >= step).sum() for step in steps])
        return float(steps[np.argmax(2 * caught / (called + truth.sum()))])

    def abstain_threshold(self, slope: float, offsets: Sequence[float]) -> float:
        """The likelihood under which a guess costs more than it brings.

        A wrong preset costs a little against the default one, a right one brings more: with
        three right in ten, guesses under the threshold taken together, it comes to nothing.
        """
        scores = self.scores[self.labelled, :-2]
        likely = _softmax(slope * scores + np.array(offsets) + self.evidence[self.labelled])
        order = np.argsort(likely.max(1))
        right = (likely.argmax(1) == self.truth)[order]
        share = np.cumsum(right) / np.arange(1, len(right) + 1)
        wrong = np.flatnonzero(share < _WORTH_A_GUESS)
        wrong = wrong[wrong >= _ENOUGH]
        found = float(likely.max(1)[order[wrong[-1]]]) if len(wrong) else 0.0
        chance = 1 / len(offsets)
        return max(found, min(0.5, 2.5 * chance))  # hardly more than any other is no guess

    def measured(self, slope: float, offsets: Sequence[float]) -> dict[str, float]:
        """How the left-out examples fared, for whoever asks what was learned."""
        scores = self.scores[self.labelled, :-2]
        alone = slope * scores + np.array(offsets)
        together = alone + self.evidence[self.labelled]
        return {
            "examples": float(len(self.truth)),
            "accuracy": float((together.argmax(1) == self.truth).mean()),
            "accuracy_learned_alone": float((alone.argmax(1) == self.truth).mean()),
        }

    def _knows_thinking(self) -> NDArray[np.bool_]:
        return np.array([example.thinks is not None for example in self.examples])

    def _thinks(self, known: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return np.array([bool(example.thinks) for example in self.examples])[known]


def _line(
    scores: NDArray[np.float64], truth: NDArray[np.bool_], words: NDArray[np.float64] | None
) -> Line | None:
    """Logistic regression over one score; None where only one answer occurs."""
    if truth.all() or not truth.any():
        return None
    inputs = np.stack([scores, np.ones_like(scores)], 1)
    if words is not None:
        inputs = np.column_stack([inputs, words])
    found = np.zeros(inputs.shape[1])
    for _ in range(50):  # Newton's method, with a little ridge against separable classes
        likely = _sigmoid(inputs @ found)
        slant = inputs.T @ (likely - truth) + 1e-2 * found
        bend = (inputs * (likely * (1 - likely))[:, None]).T @ inputs
        found -= np.linalg.solve(bend + 1e-2 * np.eye(len(found)), slant)
    return Line(*map(float, found))


def _sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-np.clip(x, -50, 50)))


def _softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    powers = np.exp(x - x.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)  # type: ignore[no-any-return]


def main() -> None:
    """A task on standard input, an `Answer` in MessagePack on standard output."""
    try:
        policy = lesson.policy_of(sys.stdin.buffer.read())
        answer = Answer(fit(policy), lesson.digest(policy))
    except FileFault as fault:
        mistakes = [(entry.path, entry.line, entry.message) for entry in fault.mistakes]
        answer = Answer(faulty=fault.name, mistakes=mistakes)
    sys.stdout.buffer.write(msgspec.msgpack.encode(answer))


if __name__ == "__main__":
    main()
