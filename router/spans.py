"""The spans of a finished request, by OpenTelemetry's conventions for generative AI. Pure.

A SERVER span for the request, and in it a CLIENT span for what backends were asked, all attempts
together. No text of prompts or answers is in them: they are made of the record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from router.record import Record
from router.tracing import Journey

OWN = "scenario_router."
#: what an endpoint is called by the conventions; others are called as they are
_OPERATIONS = {
    "chat.completions": "chat",
    "responses": "chat",
    "messages": "chat",
    "completions": "text_completion",
}
_PARAMS = {
    "max_new_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "seed": "seed",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
}
#: ends of a request that are a fault of the service, not of its client
_FAULTS = frozenset({"upstream_error", "upstream_timeout", "router_error", "rejected"})


class Event(NamedTuple):
    name: str
    at: float  # seconds since the epoch


class Span(NamedTuple):
    """One span; ids in hex, times in seconds since the epoch."""

    name: str
    kind: Literal["server", "client"]
    trace_id: str
    span_id: str
    parent_id: str | None
    is_parent_remote: bool
    began_at: float
    ended_at: float
    attributes: Mapping[str, Any]
    events: Sequence[Event]
    fault: str | None  # what went wrong, where something did


def spans_of(journey: Journey) -> list[Span]:
    spans = [_request(journey)]
    if journey.asked_at is not None and journey.record.backend is not None:
        spans.append(_backend(journey, journey.asked_at))
    return spans


def _request(journey: Journey) -> Span:
    record, trace = journey.record, journey.trace
    path = journey.path.partition(b"?")[0].decode("latin-1")
    attributes = {
        "http.request.method": "POST",
        "http.route": path,
        "url.path": path,
        "http.response.status_code": record.status,
        "gen_ai.conversation.id": record.session,
        OWN + "request_id": record.request_id,
        OWN + "client_model": record.client_model or None,
        OWN + "key": record.key,
        OWN + "scenario": record.scenario,
        OWN + "source": record.source,
        OWN + "confidence": record.confidence,
        OWN + "policy": record.policy,
        OWN + "experiment": record.experiment,
        OWN + "arm": record.arm,
        OWN + "thinking": record.thinking,
        OWN + "stream": record.stream,
        OWN + "outcome": record.outcome,
        OWN + "warnings": list(record.warnings) or None,
        OWN + "queue_ms": record.queue_ms or None,
        OWN + "overhead_ms": record.overhead_ms,
        "error.type": _fault(record),
    }
    parent = trace.parent
    return Span(
        f"POST {path}",
        "server",
        trace.trace_id,
        trace.request_span,
        parent.span_id if parent is not None else None,
        True,
        journey.arrived_at,
        journey.ended_at,
        _said(attributes),
        (),
        _fault(record),
    )


def _backend(journey: Journey, asked_at: float) -> Span:
    record, trace, first = journey.record, journey.trace, journey.first_token_at
    operation = _OPERATIONS.get(record.endpoint, record.endpoint)
    model = record.backend_model
    attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": record.dialect,
        "gen_ai.request.model": model,
        "gen_ai.request.stream": record.stream,
        "gen_ai.conversation.id": record.session,
        "gen_ai.response.finish_reasons": [record.finish_reason] if record.finish_reason else None,
        "gen_ai.response.time_to_first_chunk": first - asked_at if first is not None else None,
        "gen_ai.usage.input_tokens": record.input_tokens,
        "gen_ai.usage.output_tokens": record.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
        "gen_ai.usage.reasoning.output_tokens": record.reasoning_tokens,
        **_params(record),
        "server.address": journey.host,
        "server.port": journey.port,
        "http.request.resend_count": record.retries or None,
        OWN + "backend": record.backend,
        OWN + "pool": record.pool,
        OWN + "affinity": record.affinity,
        OWN + "tried": [f"{name}: {why}" for name, why in record.tried] or None,
        OWN + "rescued": record.rescued or None,
        OWN + "cache_miss": record.cache_miss,
        "error.type": _fault(record),
    }
    return Span(
        f"{operation} {model}" if model else operation,
        "client",
        trace.trace_id,
        trace.backend_span,
        trace.request_span,
        False,
        asked_at,
        journey.ended_at,
        _said(attributes),
        (Event(OWN + "first_token", first),) if first is not None else (),
        _fault(record),
    )


def _params(record: Record) -> dict[str, Any]:
    """What was sent of the parameters that the conventions have a name for."""
    told = record.params
    params = msgspec.json.decode(told) if isinstance(told, msgspec.Raw) else told
    found: dict[str, Any] = {}
    for name, called in _PARAMS.items():
        sent = params[name][1] if name in params else None
        if isinstance(sent, int | float):
            found[f"gen_ai.request.{called}"] = sent
    return found


def _fault(record: Record) -> str | None:
    return (record.error_code or record.outcome) if record.outcome in _FAULTS else None


def _said(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}
