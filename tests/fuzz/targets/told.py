"""What backends and name servers tell: any answer is understood or taken for nothing."""

from __future__ import annotations

import contextlib
from ipaddress import ip_address

from router import discovery, probe, refusals
from router.config import Backend
from router.discovery import Sightings
from tests.fuzz import source

DIALECTS = ("vllm", "sglang", "llamacpp", "ollama", "transformers", "openai")
BACKEND = Backend.model_validate({"name": "b", "url": "http://name:8000/v1", "discover": True})


def check(data: bytes) -> None:
    """One document for each path, an empty line between them; as addresses, one a line."""
    given = source.of(data)
    paths = ("/v1/models", "/version", "/metrics", "/props", "/api/version")
    bodies = dict(zip(paths, given.raw.split(b"\n\n"), strict=False))
    models = probe.document_in(bodies["/v1/models"])
    name = probe.served_model(models)
    assert name is None or isinstance(name, str)
    assert probe.dialect_name(models) in DIALECTS
    for dialect in DIALECTS:
        told = probe.read_told(dialect, name, bodies)
        assert told.context is None or told.context > 0
        assert told.version is None or told.version
    status = 400 + given.options
    shaped = refusals.in_shape(status, given.raw)
    assert refusals.in_shape(status, shaped) == shaped
    error = probe.document_in(shaped)["error"]
    assert isinstance(error["message"], str)
    assert isinstance(error["type"], str)
    code = refusals.code_in(status, shaped)
    assert code is None or (code.isascii() and len(code) <= 64)
    check_addresses(given)


def check_addresses(given: source.Source) -> None:
    sightings = Sightings()
    for answer in given.text().split("\n\n"):
        sightings.saw([line for line in answer.split("\n") if _is_address(line)])
    found = discovery.expanded([BACKEND], {"name": sightings.addresses})
    assert len(found) == len(sightings.addresses)
    for backend, origin in found.values():
        assert origin == "b"
        assert backend.port == 8000
        assert ip_address(backend.host)


def _is_address(line: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(ip_address(line))
    return False
