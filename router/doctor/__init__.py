"""What a running backend honours, found out by asking it.

In: an address and how to ask it. Out: a Report: what the server is, and a verdict with
its evidence for each knob of its dialect. `losses` holds a policy against a report.
Asks from outside like any client; nothing that serves imports it.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from router import dialects
from router.doctor import identity
from router.doctor.asking import Asker, DoctorError
from router.doctor.knobs import Examination, Knob
from router.doctor.losses import Loss, losses

__all__ = ["SCHEMA", "Asker", "DoctorError", "Knob", "Loss", "Report", "examine", "losses"]

SCHEMA = 1


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What one backend is, and what it does with what the router says to it."""

    schema: int = SCHEMA
    url: str
    time: str  # RFC 3339, UTC
    engine: str
    version: str | None
    model: str
    dialect: str
    proven: str  # how the dialect's table is known
    signs: tuple[str, ...]  # what the server was known by
    notes: tuple[str, ...]
    requests: int  # chat requests that it took
    knobs: tuple[Knob, ...]


def examine(asker: Asker, *, model: str | None = None, dialect: str | None = None) -> Report:
    """Ask one backend; raises DoctorError where it cannot be examined at all."""
    found = identity.look(asker)
    notes = list(found.notes)
    spoken = dialects.of(dialect or found.dialect)
    if spoken.name != found.dialect:
        notes.append(f"spoken to as {spoken.name}; by itself it would be taken for {found.dialect}")
    name = model or found.model
    if name is None:
        raise DoctorError("it names no model in /v1/models: say which with --model")
    examination = Examination(asker, spoken, name)
    knobs = examination.run()
    return Report(
        url=asker.url,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        engine=found.engine,
        version=found.version,
        model=name,
        dialect=spoken.name,
        proven=spoken.proven,
        signs=found.signs,
        notes=tuple(notes),
        requests=examination.count,
        knobs=knobs,
    )
