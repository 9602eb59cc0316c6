"""What a running backend honours, found out by asking it.

In: an address and how to ask it. Out: a Report: what the server is, and a verdict with
its evidence for each knob of its dialect. `losses` holds a policy against a report.
Asks from outside like any client; nothing that serves imports it.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from router import dialects
from router.capabilities import Capabilities, Thought
from router.doctor import examination, identity
from router.doctor.asking import Asker, DoctorError
from router.doctor.knobs import Knob
from router.doctor.losses import Loss, losses

__all__ = [
    "SCHEMA",
    "Asker",
    "DoctorError",
    "Knob",
    "Loss",
    "Report",
    "capabilities",
    "examine",
    "losses",
]

SCHEMA = 1


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What one backend is, and what it does with what the router says to it."""

    schema: int = SCHEMA
    url: str
    time: str  # RFC 3339, UTC
    engine: str
    version: str | None
    started: str | None  # something that is another after each start of it
    model: str
    context: int | None  # tokens that one conversation may have
    dialect: str
    proven: str  # how the dialect's table is known
    thought: Thought | None  # where one arrives when nothing else is said
    opens_in_prompt: bool
    signs: tuple[str, ...]  # what the server was known by
    notes: tuple[str, ...]
    requests: int  # chat requests that it took
    is_whole: bool  # all was asked; False: the server was too slow for that
    knobs: tuple[Knob, ...]


def examine(asker: Asker, *, model: str | None = None, dialect: str | None = None) -> Report:
    """Ask one backend; raises DoctorError where it cannot be examined at all."""
    known = identity.look(asker, model)
    notes = list(known.notes)
    spoken = dialects.of(dialect or known.dialect)
    if spoken.name != known.dialect:
        notes.append(f"spoken to as {spoken.name}; by itself it would be taken for {known.dialect}")
    if known.model is None:
        raise DoctorError("it names no model in /v1/models: say which with --model")
    found = examination.run(asker, spoken, known.model)
    return Report(
        url=asker.url,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        engine=known.engine,
        version=known.told.version,
        started=known.told.started,
        model=known.model,
        context=known.told.context,
        dialect=spoken.name,
        proven=spoken.proven,
        thought=found.thought,
        opens_in_prompt=found.opens_in_prompt,
        signs=known.signs,
        notes=(*notes, *found.notes),
        requests=found.requests,
        is_whole=found.is_whole,
        knobs=found.knobs,
    )


def capabilities(report: Report) -> Capabilities:
    """What of a report matters to who serves."""
    return Capabilities(
        url=report.url,
        time=report.time,
        engine=report.engine,
        version=report.version,
        model=report.model,
        dialect=report.dialect,
        started=report.started,
        context=report.context,
        thought=report.thought,
        opens_in_prompt=report.opens_in_prompt,
        knobs={knob.name: knob.verdict for knob in report.knobs},
    )
