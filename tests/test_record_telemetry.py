"""The line of a request, and the metrics page over many of them."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import record as records
from router.record import Record
from router.telemetry import Gauge, Metrics

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


# --- the page -----------------------------------------------------------------------------

Sample = tuple[str, tuple[tuple[str, str], ...], float]
_SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? (\S+)')
_ESCAPED = re.compile(r"\\(.)")
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')


def parsed(text: str) -> tuple[dict[str, str], list[Sample]]:
    """Types by family, and the samples; anything that is not the format is an error."""
    assert text.endswith("\n")
    kinds: dict[str, str] = {}
    samples: list[Sample] = []
    for line in text.splitlines():
        if line.startswith("# HELP "):
            assert len(line.split(" ", 3)) == 4
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in kinds
            kinds[name] = kind
        else:
            found = _SAMPLE.fullmatch(line)
            assert found, line
            pairs = tuple(
                (name, _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], value))
                for name, value in _LABEL.findall(found[2] or "")
            )
            samples.append((found[1], pairs, float(found[3])))
    keys = [(name, labels) for name, labels, _ in samples]
    assert len(keys) == len(set(keys))
    return kinds, samples


def value_of(samples: list[Sample], name: str, **labels: str) -> float:
    (value,) = [
        value
        for found, pairs, value in samples
        if found == f"scenario_router_{name}" and labels.items() <= dict(pairs).items()
    ]
    return value


milliseconds = st.one_of(st.none(), st.floats(min_value=0, max_value=200_000))
finished = st.builds(
    Record,
    scenario=st.sampled_from(["faq", "chat", None]),
    backend=st.sampled_from(["a", "b", None]),
    endpoint=st.just("chat.completions"),
    source=st.sampled_from(["keyword", None]),
    confidence=st.floats(0, 1),
    stream=st.booleans(),
    status=st.sampled_from([200, 502, None]),
    outcome=st.sampled_from(["ok", "client_disconnect"]),
    total_ms=milliseconds,
    ttft_ms=milliseconds,
    tpot_ms=milliseconds,
    overhead_ms=milliseconds,
    input_tokens=st.one_of(st.none(), st.integers(0, 100)),
    output_tokens=st.one_of(st.none(), st.integers(0, 100)),
    thinking=st.sampled_from([True, False, None]),
    retries=st.integers(0, 2),
)


def observed(*entries: Record) -> Metrics:
    metrics = Metrics()
    for entry in entries:
        metrics.observe(entry, ())
    return metrics


@given(st.lists(finished, max_size=8))
def test_the_page_is_the_text_format_and_its_buckets_grow(entries: list[Record]) -> None:
    kinds, samples = parsed(observed(*entries).text([]))

    histograms = [name for name, kind in kinds.items() if kind == "histogram"]
    assert histograms
    for name in histograms:
        series: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
        for found, pairs, value in samples:
            if found == f"{name}_bucket":
                edge = dict(pairs)["le"]
                rest = tuple(pair for pair in pairs if pair[0] != "le")
                series.setdefault(rest, []).append((float(edge), value))
        for rest, buckets in series.items():
            assert [edge for edge, _ in buckets] == sorted({edge for edge, _ in buckets})
            assert buckets[-1][0] == float("inf")
            counts = [count for _, count in buckets]
            assert counts == sorted(counts)
            (total,) = [v for f, p, v in samples if f == f"{name}_count" and p == rest]
            assert total == counts[-1]
            assert any(f == f"{name}_sum" and p == rest for f, p, _ in samples)
    for found, _, _ in samples:
        family = re.sub(r"_(bucket|sum|count)$", "", found)
        assert found in kinds or family in histograms
    requests = [value for found, _, value in samples if found.endswith("_requests_total")]
    assert sum(requests) == len(entries)


@pytest.mark.parametrize("text", ['a"b', "a\\b", "a\nb", '退款\\"\n', "a\\nb", ""])
def test_labels_are_escaped(text: str) -> None:
    gauge = Gauge("odd", "An odd one.", ("label",), [((text,), 1.0)])

    _, samples = parsed(Metrics().text([gauge]))

    assert value_of(samples, "odd", label=text) == 1.0


def test_a_value_on_an_edge_is_in_its_bucket() -> None:
    _, samples = parsed(observed(Record(scenario="s", backend="b", total_ms=10.0)).text([]))

    assert value_of(samples, "request_duration_seconds_bucket", le="0.01") == 1
    assert value_of(samples, "request_duration_seconds_count") == 1
    assert value_of(samples, "request_duration_seconds_sum") == pytest.approx(0.01)


def test_what_presets_did_is_counted_by_scenario_parameter_and_origin() -> None:
    metrics = Metrics()
    for _ in range(3):
        metrics.observe(Record(scenario="faq", source="keyword"), (("faq", "top_p", "fill"),))

    _, samples = parsed(metrics.text([]))

    labels = {"scenario": "faq", "param": "top_p", "origin": "fill"}
    assert value_of(samples, "param_actions_total", **labels) == 3


@pytest.mark.parametrize("value", [1_764_496_148.25, 1_234_567.0, 0.0, 1.0, 1e-7])
def test_a_gauge_is_told_exactly(value: float) -> None:
    """Six digits are not enough for a time since the epoch or a count of lines."""
    gauge = Gauge("taken_timestamp_seconds", "When.", (), [((), value)])

    _, samples = parsed(Metrics().text([gauge]))

    assert value_of(samples, "taken_timestamp_seconds") == value


@pytest.mark.parametrize(
    ("entry", "count"),
    [
        ({"answer_chars": 0, "endpoint": "chat.completions"}, 1),
        ({"answer_chars": 5, "endpoint": "chat.completions"}, 0),
        ({"answer_chars": 0, "endpoint": "embeddings"}, 0),
        ({"answer_chars": 0, "endpoint": "chat.completions", "finish_reason": "tool_calls"}, 0),
        ({"answer_chars": None, "endpoint": "chat.completions"}, 0),
    ],
)
def test_an_answer_without_content_is_counted_where_there_should_have_been_some(
    entry: dict[str, Any], count: int
) -> None:
    record = msgspec.convert({"scenario": "s", "outcome": "ok", **entry}, Record)

    _, samples = parsed(observed(record).text([]))

    counts = [value for name, _, value in samples if name.endswith("_empty_answer_total")]
    assert sum(counts) == count
