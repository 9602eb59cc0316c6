"""The schema of a log line: one JSON object a request, whatever happened to it.

Version 1. Fields are added freely; a changed meaning takes a new version. It holds no
prompt, answer, key or header text.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Any

import msgspec
from msgspec import Meta

SCHEMA = 1

_Ms = Annotated[float | None, Meta(description="milliseconds")]


class Record(msgspec.Struct, kw_only=True):
    """One request."""

    schema: Annotated[int, Meta(description="version of this schema")] = SCHEMA
    ts: Annotated[str, Meta(description="arrival, RFC 3339 UTC with milliseconds")] = ""
    request_id: Annotated[str, Meta(description="also in the x-request-id header")] = ""
    trace_id: Annotated[
        str | None, Meta(description="from the client's traceparent; ours where traces are sent")
    ] = None
    session: Annotated[str | None, Meta(description="hash of the session's identity")] = None
    key: Annotated[str | None, Meta(description="name of the client's key")] = None
    endpoint: Annotated[str, Meta(description="chat.completions, completions, …")] = ""
    client_model: Annotated[str, Meta(description="model name as the client sent it")] = ""
    backend: Annotated[str | None, Meta(description="backend that answered or failed")] = None
    backend_model: Annotated[str | None, Meta(description="model name sent to it")] = None
    dialect: Annotated[str | None, Meta(description="how it was spoken to")] = None
    pool: Annotated[str | None, Meta(description="pool the decision named")] = None
    scenario: Annotated[str | None, Meta(description="null where nothing was classified")] = None
    source: Annotated[
        str | None,
        Meta(description="header alias structure keyword pattern learned sticky default"),
    ] = None
    confidence: Annotated[float | None, Meta(description="share of the evidence, 0..1")] = None
    signals: Annotated[tuple[str, ...], Meta(description="why, in the policy's words")] = ()
    lang: Annotated[str | None, Meta(description="main script of the user's text")] = None
    turns: Annotated[int | None, Meta(description="user turns, this one included")] = None
    prompt_chars: Annotated[int | None, Meta(description="characters of the last turn")] = None
    policy: Annotated[str | None, Meta(description="12 hex digits of the policy's hash")] = None
    experiment: Annotated[str | None, Meta(description="experiment in force")] = None
    arm: Annotated[str | None, Meta(description="its arm")] = None
    shadow: Annotated[
        bool, Meta(description="a finished request repeated in another arm: counts for nothing")
    ] = False
    stream: Annotated[bool, Meta(description="the client asked for a stream")] = False
    thinking: Annotated[bool | None, Meta(description="null: the backend's default")] = None
    params: Annotated[
        Mapping[str, tuple[Any, Any, str]] | msgspec.Raw,
        Meta(description="name → [client value, sent value, origin]; texts of clients by length"),
    ] = {}
    warnings: Annotated[tuple[str, ...], Meta(description="as in x-router-warnings")] = ()
    affinity: Annotated[str, Meta(description="hit new moved none")] = "none"
    moved_because: Annotated[
        str | None, Meta(description="why the session is not where it was")
    ] = None
    retries: Annotated[int, Meta(description="attempts after the first")] = 0
    tried: Annotated[
        tuple[tuple[str, str], ...],
        Meta(description="[backend, why it failed] for each of these"),
    ] = ()
    queue_ms: _Ms = 0.0
    classify_us: Annotated[float | None, Meta(description="microseconds")] = None
    overhead_ms: _Ms = None
    ttft_ms: _Ms = None
    tpot_ms: _Ms = None
    total_ms: _Ms = None
    input_tokens: Annotated[int | None, Meta(description="from usage")] = None
    cached_tokens: Annotated[int | None, Meta(description="from usage, where told")] = None
    cached_share: Annotated[
        float | None, Meta(description="of the prompt, where the server tells what it reused")
    ] = None
    cache_miss: Annotated[
        str | None,
        Meta(
            description="why the session's last prompt was not reused: no-cache moved tools "
            "first-message history short thinking evicted"
        ),
    ] = None
    cache_hint: Annotated[str | None, Meta(description="the same in words")] = None
    output_tokens: Annotated[int | None, Meta(description="from usage, thought included")] = None
    reasoning_tokens: Annotated[int | None, Meta(description="from usage, where told")] = None
    answer_chars: Annotated[int | None, Meta(description="characters of content")] = None
    reasoning_chars: Annotated[int | None, Meta(description="characters of thought")] = None
    rescued: Annotated[
        bool, Meta(description="thought had used the tokens up: asked again without thinking")
    ] = False
    finish_reason: Annotated[str | None, Meta(description="stop length tool_calls …")] = None
    status: Annotated[int | None, Meta(description="HTTP status; null: none was sent")] = None
    limit: Annotated[
        str | None,
        Meta(description="the key's limit that refused it: requests tokens budget streams"),
    ] = None
    outcome: Annotated[
        str,
        Meta(
            description="ok client_disconnect client_error rejected upstream_error "
            "upstream_timeout router_error"
        ),
    ] = "router_error"
    error_code: Annotated[str | None, Meta(description="as in the error object")] = None


_encode = msgspec.json.Encoder().encode


def line(record: Record) -> bytes:
    """The record as one line of the log."""
    return _encode(record) + b"\n"


def timestamp(seconds: float) -> str:
    """RFC 3339, UTC, milliseconds."""
    milliseconds = int(seconds * 1000)
    return f"{_second(milliseconds // 1000)}.{milliseconds % 1000:03d}Z"


@lru_cache(maxsize=4)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def json_schema() -> dict[str, Any]:
    """JSON Schema of a log line."""
    schema: dict[str, Any] = msgspec.json.schema(Record)
    return schema
