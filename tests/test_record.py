"""The line of a request."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from router import record as records
from router.record import Record

#: what the contract calls the fields of a line
FIELDS = [
    "schema",
    "ts",
    "request_id",
    "trace_id",
    "session",
    "key",
    "endpoint",
    "client_model",
    "backend",
    "backend_model",
    "dialect",
    "pool",
    "scenario",
    "source",
    "confidence",
    "signals",
    "lang",
    "turns",
    "prompt_chars",
    "policy",
    "experiment",
    "arm",
    "stream",
    "thinking",
    "params",
    "warnings",
    "affinity",
    "retries",
    "queue_ms",
    "classify_us",
    "overhead_ms",
    "ttft_ms",
    "tpot_ms",
    "total_ms",
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "reasoning_tokens",
    "answer_chars",
    "reasoning_chars",
    "finish_reason",
    "status",
    "outcome",
    "error_code",
]


def test_a_line_has_every_field_of_the_contract_and_is_one_line() -> None:
    line = records.line(Record(request_id="a\nb", warnings=("退款\u2028",)))

    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    value = json.loads(line)
    assert set(FIELDS) <= set(value)
    assert (value["schema"], value["outcome"]) == (1, "router_error")
    assert value["warnings"] == ["退款\u2028"]


def test_the_schema_names_every_field_with_a_description() -> None:
    (schema,) = records.json_schema()["$defs"].values()

    assert set(FIELDS) <= set(schema["properties"])
    assert set(schema["properties"]) == set(json.loads(records.line(Record())))
    assert all(field.get("description") for field in schema["properties"].values())


@given(st.integers(min_value=0, max_value=4_102_444_800_000))
def test_a_timestamp_is_utc_to_the_millisecond(milliseconds: int) -> None:
    text = records.timestamp(milliseconds / 1000)

    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", text)
    told = datetime.fromisoformat(text.removesuffix("Z")).replace(tzinfo=UTC).timestamp()
    assert abs(told * 1000 - milliseconds) < 1.5
