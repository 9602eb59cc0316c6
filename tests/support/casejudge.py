"""A case is judged: which checks there are, how values compare, what does not hold.

A check is a function registered under its place and name. It looks at the facts of a
`Run` and raises AssertionError with what is wrong. They stand in `checks_*.py`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.casefile import JsonObject, names_of
from tests.support.caserun import Run, Sent, label_of
from tests.support.paths import MISSING, same
from tests.support.scripted import Seen

Judge = Callable[[Run, JsonObject], None]
CHECKS: dict[tuple[str, str], Judge] = {}
# Bounds that a busy machine can break although the product is right.
TIMED = frozenset({"time_ms", "head_ms", "first_frame_ms", "frame_delay_ms", "health_ms"})
# What a check may say besides comparisons: where to look, and at what.
ARGUMENTS = frozenset(
    [
        "at",
        "check",
        "of",
        "path",
        "paths",
        "name",
        "text",
        "field",
        "classes",
        "message_contains",
        "nodes",
        "key",
        "count",
        "fields",
    ]
)
TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "number": (int, float),
    "object": dict,
    "array": list,
    "boolean": bool,
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One check that does not hold."""

    kind: str  # must | should | end
    index: int
    check: JsonObject
    why: str

    @property
    def is_timed(self) -> bool:
        return self.check.get("check") in TIMED

    def __str__(self) -> str:
        return f"{self.kind}[{self.index}] {json.dumps(self.check)}: {self.why}"


def judge_of(at: str) -> Callable[[Judge], Judge]:
    """Register a function as the check of its own name at this place."""

    def register(function: Judge) -> Judge:
        CHECKS[at, function.__name__.removeprefix(f"{at}_")] = function
        return function

    return register


def judged(run: Run, entries: Sequence[tuple[str, int, JsonObject]]) -> Iterator[Finding]:
    """What does not hold of these checks: (must or should, index, check)."""
    for kind, index, check in entries:
        judge = CHECKS.get((check["at"], check["check"]))
        if judge is None:
            raise ValueError(f"no such check: {check['at']} {check['check']}")
        try:
            judge(run, check)
        except AssertionError as error:
            yield Finding(kind, index, check, str(error))


# --- what a check looks at ---------------------------------------------------------


def sent_of(run: Run, check: JsonObject) -> list[Sent]:
    """The requests of the sends that the check names."""
    found = [sent for name in names_of(check, list(run.sent)) for sent in run.sent[name]]
    assert found, f"nothing was sent as {check.get('of')}"
    return found


def led_to(seen: Sequence[Seen], sent: Sent) -> list[Seen]:
    """Those of these requests at the nodes that this one led to."""
    # A request given as bytes cannot be labelled; it is then the only one.
    label = None if not sent.request.path else sent.label
    return [one for one in seen if label_of(one) == label]


def seen_of(run: Run, sent: Sent) -> list[Seen]:
    """All that this one led to; there must be something."""
    found = led_to(run.seen, sent)
    assert found, f"{sent.label} never reached a backend"
    return found


# --- comparing ---------------------------------------------------------------------


def compare(value: Any, check: JsonObject, what: str) -> None:
    """Whether the value is as the check's comparisons say; MISSING stands for absent."""
    said = f"{what} is {short(value)}"
    for name, wanted in check.items():
        match name:
            case "equals":
                assert same(value, wanted), f"{said}, not {short(wanted)}"
            case "not_equals":
                assert not same(value, wanted), said
            case "in":
                assert any(same(value, one) for one in wanted), f"{said}, none of {wanted}"
            case "contains":
                assert value is not MISSING, said
                assert wanted in value, f"{said}, without {wanted!r}"
            case "absent":
                assert (value is MISSING) == wanted, said
            case "absent_or":
                assert value is MISSING or same(value, wanted), said
            case "type":
                assert isinstance(value, TYPES[wanted]), f"{said}, no {wanted}"
            case "min":
                assert value is not None, said
                assert value >= wanted, f"{said}, under {wanted}"
            case "max":
                assert value is not None, said
                assert value <= wanted, f"{said}, over {wanted}"
            case _ if name not in ARGUMENTS:
                raise ValueError(f"neither a comparison nor an argument: {name}")


def compare_times(values: Sequence[float | None], check: JsonObject, what: str) -> None:
    """Every value against `max`, or a percentile of them against `p95` or `p99`."""
    known = sorted(value for value in values if value is not None)
    assert len(known) == len(values) > 0, f"{what}: {len(known)} of {len(values)} are known"
    for name, wanted in check.items():
        match name:
            case "max":
                assert known[-1] <= wanted, f"{what} reaches {known[-1]:.0f}, over {wanted}"
            case "p95" | "p99":
                place = math.ceil(len(known) * int(name[1:]) / 100) - 1
                assert known[place] <= wanted, f"{what}: {name} is {known[place]:.0f}"


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 300 else f"{text[:300]}… ({len(text)} characters)"


def or_missing(value: str | None) -> Any:
    return MISSING if value is None else value
