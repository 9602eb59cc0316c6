"""What kind of server it is, by what it says of itself.

The dialect is told by the same rule that serves (`probe`); the other paths only add a
version, or a doubt.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec

from router import dialects, probe
from router.doctor.asking import Answer, Asker, DoctorError, NoAnswer
from router.probe import Told

_PATHS = ("/v1/models", "/version", "/props", "/api/version", "/health")
_METRICS = "/metrics"
_TITLES = {"openai": "unknown (speaks the OpenAI API)", "ollama": "Ollama", "sglang": "SGLang"}


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    engine: str
    told: Told
    model: str | None
    dialect: str  # what the router would speak, asked to find out by itself
    signs: tuple[str, ...]
    notes: tuple[str, ...]


def look(asker: Asker, model: str | None = None) -> Identity:
    """Ask the paths that tell servers apart; raises DoctorError where none answers.

    `model` is the one asked about: the first that is served where it is None.
    """
    answers: dict[str, Answer] = {}
    fault = ""
    for path in _PATHS:
        try:
            answers[path] = asker.get(path)
        except NoAnswer as error:
            fault = str(error)
            if not answers:  # the others would only take as long
                break
    if not answers:
        raise DoctorError(f"cannot be reached: {fault}")
    models = answers["/v1/models"].json()
    dialect = probe.dialect_name(models)
    found = {path: _document(answers.get(path)) for path in _PATHS}
    likely = _likely(found)
    notes = []
    if dialect == "openai" and likely is not None:
        notes.append(
            f"looks like {dialects.of(likely).title}, but its /v1/models does not say so: give the "
            f'backend dialect = "{likely}"'
        )
    if (status := answers["/v1/models"].status) != 200:
        notes.append(f"/v1/models answers {answers['/v1/models'].told()}")
    elif models is None:
        notes.append("/v1/models is not JSON")
    engine = likely if dialect == "openai" and likely is not None else dialect
    name = model or (probe.served_model(models) if status == 200 else None)
    if _METRICS in probe.TELLING.get(engine, ()):
        with suppress(NoAnswer):
            answers[_METRICS] = asker.get(_METRICS)
    bodies = {path: answer.body for path, answer in answers.items() if answer.status == 200}
    return Identity(
        engine=_TITLES.get(engine, dialects.of(engine).title),
        told=probe.read_told(engine, name, bodies),
        model=name,
        dialect=dialect,
        signs=tuple(_signs(answers, models, found)),
        notes=tuple(notes),
    )


def _document(answer: Answer | None) -> dict[str, Any]:
    document = answer.json() if answer is not None and answer.status == 200 else None
    return document if isinstance(document, dict) else {}


def _likely(found: dict[str, dict[str, Any]]) -> str | None:
    """A kind of server that /v1/models does not sign, by the paths that it alone has."""
    if "default_generation_settings" in found["/props"]:
        return "llamacpp"
    return "ollama" if isinstance(found["/api/version"].get("version"), str) else None


def _signs(answers: dict[str, Answer], models: Any, found: dict[str, dict[str, Any]]) -> list[str]:
    signs = []
    listed = models.get("data") if isinstance(models, dict) else None
    first = listed[0] if isinstance(listed, list) and listed else None
    if isinstance(first, dict):
        if isinstance(first.get("owned_by"), str):
            signs.append(f"owned_by {first['owned_by']}")
        usual = {"id", "object", "created", "owned_by"}
        if more := sorted(set(map(str, first)) - usual):
            signs.append(f"model members {', '.join(more)}")
    if server := answers["/v1/models"].server:
        signs.append(f"Server: {server}")
    there = [path for path in _PATHS[1:] if found[path]]
    if (health := answers.get("/health")) and health.status == 200 and not health.body:
        there.append("/health (empty)")
    if there:
        signs.append(f"answers {', '.join(there)}")
    return signs
