"""What a change of presets would do to tokens and time, by the log's own answers. Pure.

In: requests under two policies, with the records of how they went. Out: by scenario, the
mean as it was and as it would be, with an interval, and how many requests there is nothing to
go by for. How one request is reckoned:

* nothing that bears on length differs: its own answer;
* a lower token limit: its own answer, cut there;
* a higher limit, or none: its own answer where it had ended by itself; else one of the answers
  of its scenario that were longer;
* another scenario, or thinking switched: one of the answers of that scenario in that mode, cut
  at its new limit.

Sampling is taken not to change lengths. Answers that one draws from must be twenty at least.
Time: its own, and for each token more or less what a token took on its backend, by a straight
line through that backend's answers. Intervals: sessions are drawn anew a few hundred times.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from router.record import Record
from router.replaying import Row

if TYPE_CHECKING:
    from random import Random

_LEAST = 20
_DRAWS = 300
_LIMIT = "max_new_tokens"


class Guess(NamedTuple):
    """What one request's answer would come to."""

    tokens: Sequence[float]  # one of these; none: nothing to go by
    basis: str  # own | own, cut | longer answers | answers of that kind | no basis

    @property
    def mean(self) -> float | None:
        return sum(self.tokens) / len(self.tokens) if self.tokens else None


class Forecast(NamedTuple):
    """A scenario's requests, as they were classified before."""

    scenario: str
    requests: int
    without_basis: int
    tokens: tuple[float, float] | None  # mean before, after
    tokens_change: tuple[float, float, float] | None  # as a share: middle, low, high
    ms: tuple[float, float] | None
    ms_change: tuple[float, float, float] | None


class Answers:
    """The answers of a log, to draw from."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._by_kind: dict[tuple[str, bool | None], list[tuple[int, bool]]] = defaultdict(list)
        points: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for record in records:
            tokens = record.output_tokens
            if record.outcome != "ok" or tokens is None or record.scenario is None:
                continue
            is_whole = record.finish_reason != "length"
            self._by_kind[record.scenario, record.thinking].append((tokens, is_whole))
            if record.backend is not None and record.total_ms is not None:
                took = record.total_ms - (record.queue_ms or 0.0)
                points[record.backend].append((tokens, took))
        self._ms_per_token = {name: slope(seen) for name, seen in points.items()}

    def guess(self, row: Row) -> Guess:
        """The tokens of a request's answer under the other policy."""
        record, before, after = row.record, row.before, row.after
        own = record.output_tokens
        if own is None or record.outcome != "ok" or before.fault or after.fault:
            return Guess((), "no basis")
        old, new = before.params.get(_LIMIT), after.params.get(_LIMIT)
        kind = (after.scenario or "", after.thinking)
        if (before.scenario, before.thinking) != (after.scenario, after.thinking):
            return self._among(kind, new, "answers of that kind")
        if old == new:
            return Guess((own,), "own")
        if new is not None and (old is None or new < old):
            return Guess((min(own, new),), "own, cut" if own > new else "own")
        if record.finish_reason != "length":
            return Guess((own,), "own")
        return self._among(kind, new, "longer answers", longer_than=own)

    def _among(
        self, kind: tuple[str, bool | None], limit: float | None, basis: str, longer_than: int = -1
    ) -> Guess:
        found = [
            tokens if limit is None else min(tokens, limit)
            for tokens, is_whole in self._by_kind[kind]
            if tokens > longer_than and (is_whole or (limit is not None and tokens >= limit))
        ]
        return Guess(found, basis) if len(found) >= _LEAST else Guess((), "no basis")

    def ms(self, row: Row, tokens: float) -> float | None:
        """How long its answer would take; None where that backend's pace is not known."""
        record = row.record
        pace = self._ms_per_token.get(record.backend or "")
        if record.total_ms is None or record.output_tokens is None:
            return None
        if tokens == record.output_tokens:
            return record.total_ms
        return (
            None
            if pace is None
            else max(0.0, record.total_ms + pace * (tokens - record.output_tokens))
        )


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Of the straight line through points that lies closest; None for too few, or all alike."""
    n = len(points)
    if n < _LEAST:
        return None
    x_mean = sum(x for x, _ in points) / n
    y_mean = sum(y for _, y in points) / n
    spread = sum((x - x_mean) ** 2 for x, _ in points)
    if spread == 0:
        return None
    return max(0.0, sum((x - x_mean) * (y - y_mean) for x, y in points) / spread)


def forecasts(rows: Sequence[Row], random: Random) -> list[Forecast]:
    """By scenario. The same `random` gives the same intervals."""
    answers = Answers(row.record for row in rows)
    by_scenario: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_scenario[row.before.scenario or row.record.scenario or ""].append(row)
    return [_forecast(name, found, answers, random) for name, found in by_scenario.items()]


class _Known(NamedTuple):
    row: Row
    own: float
    guess: Guess


def _forecast(name: str, rows: Sequence[Row], answers: Answers, random: Random) -> Forecast:
    known = []
    without = 0
    for row in rows:
        guess = answers.guess(row)
        if not guess.tokens:
            without += 1
        else:
            known.append(_Known(row, float(row.record.output_tokens or 0), guess))
    if not known:
        return Forecast(name, len(rows), without, None, None, None, None)
    tokens = sum(one.own for one in known), sum(one.guess.mean or 0 for one in known)
    timed = [
        (one, one.row.record.total_ms, ms)
        for one in known
        if one.row.record.total_ms is not None
        and (ms := answers.ms(one.row, one.guess.mean or 0)) is not None
    ]
    took = sum(before for _, before, _ in timed), sum(after for _, _, after in timed)
    if all(one.guess.basis == "own" for one in known):
        token_change: tuple[float, float, float] | None = (0.0, 0.0, 0.0)
        ms_change: tuple[float, float, float] | None = (0.0, 0.0, 0.0)
    else:
        token_change = _drawn([(one, one.own) for one in known], tokens, answers, random, "tokens")
        ms_change = _drawn([(one, before) for one, before, _ in timed], took, answers, random, "ms")
    n = len(known)
    return Forecast(
        name,
        len(rows),
        without,
        (tokens[0] / n, tokens[1] / n),
        token_change,
        (took[0] / len(timed), took[1] / len(timed)) if timed else None,
        ms_change,
    )


def _drawn(
    known: Sequence[tuple[_Known, float]],
    totals: tuple[float, float],
    answers: Answers,
    random: Random,
    what: str,
) -> tuple[float, float, float] | None:
    """The change of a total as a share, with the 95 % that sessions drawn anew leave open."""
    if not known or totals[0] <= 0:
        return None
    sessions: dict[str, list[tuple[_Known, float]]] = defaultdict(list)
    for one, own in known:
        sessions[one.row.record.session or one.row.record.request_id].append((one, own))
    units = list(sessions.values())
    changes = []
    for _ in range(_DRAWS):
        before = after = 0.0
        for unit in random.choices(units, k=len(units)):
            for one, own in unit:
                tokens = random.choice(one.guess.tokens)
                before += own
                told = tokens if what == "tokens" else answers.ms(one.row, tokens)
                after += own if told is None else told
        changes.append(after / before - 1 if before else math.nan)
    changes.sort()
    low, high = changes[int(0.025 * _DRAWS)], changes[int(0.975 * _DRAWS) - 1]
    middle = totals[1] / totals[0] - 1
    return middle, low, high
