"""Traces and metrics as a collector gets them, and a collector that does not take them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from router import collector as collectors
from router import spans
from router.record import Record
from router.tracing import Journey, Parent, Tracer, parent_in
from tests.clients.demo import await_fact, record_of
from tests.support.otelcollector import Collector, collecting, told
from tests.support.pool import CHAT, POLICY
from tests.support.product import ROOT, Product, write_toml
from tests.support.prometheus import page_of
from tests.support.rawclient import RawReply, exchange, request_bytes
from tests.support.script import DONE, END, Step, chat_ok, delta, reply_json, stream_head
from tests.support.scripted import ScriptedBackend

SERVER, CLIENT = Span.SPAN_KIND_SERVER, Span.SPAN_KIND_CLIENT
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{PARENT}-01"
SECRET = "my cat is called Ophelia"
ASK: dict[str, Any] = {
    "model": "auto",
    "messages": [{"role": "user", "content": SECRET}],
    "temperature": 0.25,
    "max_tokens": 50,
    "stop": ["Ophelia"],
}


_USED = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}}
USAGE: Step = {"do": "send", "text": f"data: {json.dumps(_USED)}\n\n"}


@pytest.fixture
def backend() -> Iterator[ScriptedBackend]:
    with ScriptedBackend([chat_ok("The answer is Hamlet.")]) as running:
        yield running


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


def start(
    folder: Path,
    backends: list[ScriptedBackend],
    *,
    env: Mapping[str, str] | None = None,
    server: Mapping[str, Any] | None = None,
    **telemetry: Any,
) -> Product:
    config = {
        "server": server or {},
        "backends": [
            {"name": f"b{number}", "url": backend.url, "model": "qwen3-0.6b", "keepalive_s": 0}
            for number, backend in enumerate(backends)
        ],
        "health": {"interval_s": 60},
        "log": {"flush_ms": 10},
        "telemetry": telemetry,
    }
    return Product.start(folder, config, policy=POLICY, env=env)


def ask(product: Product, request_id: str, *, trace: str = "", **members: Any) -> RawReply:
    headers = {"x-request-id": request_id, "x-session-id": f"s-{request_id}"}
    if trace:
        headers |= {"traceparent": trace, "tracestate": "vendor=1"}
    return exchange(product.port, request_bytes("POST", CHAT, headers, {**ASK, **members}))


# --- trace context -----------------------------------------------------------------------------


def test_a_traceparent_is_read_as_w3c_has_it() -> None:
    assert parent_in({b"traceparent": SAMPLED.encode()}) == Parent(TRACE, PARENT, True)
    assert parent_in({b"traceparent": f"00-{TRACE}-{PARENT}-00".encode()}) == Parent(
        TRACE, PARENT, False
    )
    later = f"cc-{TRACE}-{PARENT}-01-what-the-future-holds"
    assert parent_in({b"traceparent": later.encode()}) == Parent(TRACE, PARENT, True)


@pytest.mark.parametrize(
    "given",
    [
        "",
        "garbage",
        SAMPLED + "-more",
        SAMPLED.upper(),
        SAMPLED.replace(TRACE, "0" * 32),
        SAMPLED.replace(PARENT, "0" * 16),
        "ff" + SAMPLED[2:],
        SAMPLED.replace(TRACE, "g" * 32),
        f"{SAMPLED}, {SAMPLED}",
    ],
)
def test_what_is_no_traceparent_begins_a_new_trace(given: str) -> None:
    fields = {b"traceparent": given.encode()}
    trace = Tracer(1.0, lambda journey: None).begin(fields)

    assert parent_in(fields) is None
    assert trace.parent is None
    lines = trace.lead([b"traceparent: " + given.encode(), b"tracestate: a=b", b"x-app: 1"])
    assert lines[0] == b"x-app: 1"
    assert lines[1:] == [f"traceparent: 00-{trace.trace_id}-{trace.backend_span}-01".encode()]


def test_a_client_that_does_not_want_to_be_traced_is_passed_on_as_it_is() -> None:
    lines = [f"traceparent: 00-{TRACE}-{PARENT}-00".encode(), b"tracestate: a=b"]
    trace = Tracer(1.0, lambda journey: None).begin(
        {b"traceparent": f"00-{TRACE}-{PARENT}-00".encode()}
    )

    assert not trace.is_sampled
    assert trace.lead(lines) == lines


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_of_those_who_did_not_decide_a_share_is_told(share: float) -> None:
    tracer = Tracer(share, lambda journey: None)
    traces = [tracer.begin({}) for _ in range(4000)]

    assert len({trace.trace_id for trace in traces}) == 4000
    assert abs(sum(trace.is_sampled for trace in traces) / 4000 - share) < 0.05
    assert tracer.begin({b"traceparent": SAMPLED.encode()}).is_sampled


texts = st.one_of(st.none(), st.text(max_size=5))


@given(
    st.builds(
        Record,
        endpoint=st.sampled_from(["chat.completions", "rerank", ""]),
        backend=texts,
        backend_model=texts,
        scenario=texts,
        outcome=st.sampled_from(["ok", "rejected", "client_error"]),
        status=st.sampled_from([200, 429, None]),
        input_tokens=st.one_of(st.none(), st.integers(0, 9)),
        params=st.sampled_from([{}, {"seed": (1, 2, "force"), "stop": (["x"], ["x"], "client")}]),
    )
)
def test_any_record_gives_spans_of_values_that_can_be_sent(record: Record) -> None:
    trace = Tracer(1.0, lambda journey: None).begin({})
    journey = Journey(
        trace=trace,
        record=record,
        path=b"/v1/chat/completions?key=1",
        arrived_at=1.0,
        asked_at=2.0,
        first_token_at=None,
        ended_at=3.0,
        host="h",
        port=1,
    )
    found = spans.spans_of(journey)

    assert len(found) == (2 if record.backend is not None else 1)
    for span in found:
        for name, value in span.attributes.items():
            values = value if isinstance(value, list) else [value]
            assert all(isinstance(one, str | int | float | bool) for one in values), name
        assert "key" not in span.name


# --- as a collector gets them ------------------------------------------------------------------


def test_a_request_is_a_span_and_what_the_backend_was_asked_another_in_it(
    backend: ScriptedBackend, collector: Collector, tmp_path: Path
) -> None:
    with start(tmp_path, [backend], otlp_endpoint=collector.url) as product:
        assert ask(product, "traced", trace=SAMPLED).status == 200
        assert ask(product, "fresh").status == 200
        collector.wait(lambda: len(collector.spans) == 4)
        first, second = backend.requests
        record = record_of(product, "traced")
        fresh = record_of(product, "fresh")

    request = collector.span(SERVER, scenario_router__request_id="traced")
    assert request.name == f"POST {CHAT}"
    assert (request.trace_id.hex(), request.parent_span_id.hex()) == (TRACE, PARENT)
    attributes = told(request.attributes)
    assert attributes["http.response.status_code"] == 200
    assert attributes["scenario_router.scenario"] == "chat"
    assert attributes["scenario_router.outcome"] == "ok"
    assert attributes["gen_ai.conversation.id"] == record["session"]

    (asked,) = [span for span in collector.spans if span.parent_span_id == request.span_id]
    assert asked.kind == CLIENT
    assert asked.name == "chat qwen3-0.6b"
    assert asked.trace_id.hex() == TRACE
    attributes = told(asked.attributes)
    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["gen_ai.provider.name"] == "vllm"
    assert attributes["gen_ai.request.model"] == "qwen3-0.6b"
    assert attributes["gen_ai.request.temperature"] == 0.25
    assert attributes["gen_ai.request.max_tokens"] == 50
    assert attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert attributes["gen_ai.usage.output_tokens"] == record["output_tokens"]
    assert (attributes["server.address"], attributes["server.port"]) == ("127.0.0.1", backend.port)
    assert attributes["scenario_router.backend"] == "b0"
    assert request.start_time_unix_nano <= asked.start_time_unix_nano
    assert asked.end_time_unix_nano <= request.end_time_unix_nano
    length_ms = (request.end_time_unix_nano - request.start_time_unix_nano) / 1e6
    assert length_ms == pytest.approx(record["total_ms"], abs=0.1)

    # The backend sees the span that it was asked by.
    assert first.all("traceparent") == [f"00-{TRACE}-{asked.span_id.hex()}-01"]
    assert first.header("tracestate") == "vendor=1"
    assert record["trace_id"] == TRACE
    [parent] = second.all("traceparent")
    alone = collector.span(SERVER, scenario_router__request_id="fresh")
    assert alone.parent_span_id == b""
    assert parent.split("-")[1] == alone.trace_id.hex() == fresh["trace_id"]
    assert second.header("tracestate") is None

    resource = collector.resources[0]
    assert resource["service.name"] == "scenario-router"
    assert {"service.version", "service.instance.id"} <= resource.keys()
    for body in collector.bodies:
        assert b"Ophelia" not in body
        assert b"Hamlet" not in body


def test_a_stream_tells_of_its_first_token_and_a_retry_is_in_the_same_span(
    backend: ScriptedBackend, collector: Collector, tmp_path: Path
) -> None:
    backend.set_script([stream_head(), delta(content="a"), delta("stop"), USAGE, DONE, END])
    with ScriptedBackend([reply_json({"error": "busy"}, 503)]) as broken:
        with start(tmp_path, [broken, backend], otlp_endpoint=collector.url) as product:
            for number in range(20):  # until the broken one was asked first
                assert ask(product, f"r-{number}", stream=True).status == 200
                if broken.requests:
                    break
            collector.wait(lambda: len(collector.spans) == 2 * (number + 1))
        request = collector.span(SERVER, scenario_router__request_id=f"r-{number}")
        (asked,) = [span for span in collector.spans if span.parent_span_id == request.span_id]
        attributes = told(asked.attributes)
        assert attributes["scenario_router.tried"] == ["b0: status 503"]
        assert attributes["http.request.resend_count"] == 1
        assert attributes["scenario_router.backend"] == "b1"
        assert [event.name for event in asked.events] == ["scenario_router.first_token"]
        first_at = asked.events[0].time_unix_nano
        assert asked.start_time_unix_nano <= first_at <= asked.end_time_unix_nano
        assert attributes["gen_ai.response.time_to_first_chunk"] > 0
        assert attributes["gen_ai.usage.input_tokens"] == 7
        # Both attempts were led by the same span.
        assert broken.requests[-1].all("traceparent") == backend.requests[-1].all("traceparent")


def test_what_fails_and_what_is_not_wanted(
    backend: ScriptedBackend, collector: Collector, tmp_path: Path
) -> None:
    unwanted = f"00-{TRACE}-{PARENT}-00"
    with start(tmp_path, [backend], otlp_endpoint=collector.url) as product:
        assert ask(product, "unwanted", trace=unwanted).status == 200
        assert ask(product, "misread", model="nobody").status == 404
        backend.set_listen("refuse")
        assert ask(product, "broken").status == 503
        assert record_of(product, "unwanted")["trace_id"] == TRACE
        collector.wait(lambda: len(collector.spans) >= 3)
        assert backend.requests[0].all("traceparent") == [unwanted]
        trace_of_refused = record_of(product, "misread")["trace_id"]

    kinds = sorted(span.kind for span in collector.spans)
    assert kinds == [SERVER, SERVER, CLIENT]
    misread = collector.span(SERVER, scenario_router__request_id="misread")
    assert misread.trace_id.hex() == trace_of_refused
    assert misread.status.code == Status.STATUS_CODE_UNSET  # the client's fault, not the service's
    broken = collector.span(SERVER, scenario_router__request_id="broken")
    assert broken.status.code == Status.STATUS_CODE_ERROR
    assert told(broken.attributes)["error.type"] == "no_healthy_backend"


def test_the_metrics_of_the_page_are_pushed_by_each_worker(
    backend: ScriptedBackend, collector: Collector, tmp_path: Path
) -> None:
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=seven",
        "OTEL_SERVICE_NAME": "our-router",
        "OTEL_TRACES_EXPORTER": "none",
    }
    with start(tmp_path, [backend], env=env, server={"workers": 2}, metrics_s=1) as product:
        assert ask(product, "one").status == 200
        counted = "request_duration_seconds_count"
        await_fact(lambda: page_of(product).sum(counted) == 1)  # whichever worker had it
        collector.wait(
            lambda: {r["service.instance.id"][-2:] for r in collector.resources} == {"-0", "-1"}
        )
        assert not backend.requests[0].all("traceparent")
    pushed = collector.metrics

    assert not collector.spans
    assert collector.headers[0]["x-tenant"] == "seven"
    assert {resource["service.name"] for resource in collector.resources} == {"our-router"}
    assert pushed["scenario_router_requests_total"].sum.is_monotonic
    histogram = pushed["scenario_router_request_duration_seconds"]
    (point,) = histogram.histogram.data_points
    assert histogram.unit == "s"
    assert (point.count, sum(point.bucket_counts)) == (1, 1)
    assert not point.HasField("min")
    assert told(point.attributes)["backend"] == "b0"
    assert pushed["scenario_router_backend_up"].gauge.data_points[0].as_int in (0, 1)


# --- a collector that does not take them -------------------------------------------------------


@pytest.mark.parametrize("how", ["dead", "hangs", "refuses"])
def test_a_collector_that_takes_nothing_delays_nobody_and_is_told_of(
    backend: ScriptedBackend, collector: Collector, tmp_path: Path, how: str
) -> None:
    url = collector.url
    if how == "dead":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{free.getsockname()[1]}"
    elif how == "hangs":
        collector.hold()
    else:
        collector.status = 400
    env = {"OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    with start(tmp_path, [backend], env=env, otlp_endpoint=url, queue=5) as product:
        with ThreadPoolExecutor(4) as threads:
            replies = list(threads.map(lambda n: ask(product, f"r-{n}"), range(40)))
        assert [reply.status for reply in replies] == [200] * 40
        assert len(product.wait_records(40)) == 40
        await_fact(lambda: page_of(product).sum("otlp_dropped_total", signal="traces") >= 40)
        told_of = product.get("/router/status")["telemetry"]
        assert told_of["fault"]
        assert told_of["dropped"]["traces"] == 40
        assert told_of["sent"] == 0
        complaints = [line for line in product.output if "telemetry cannot be sent" in line]
        assert len(complaints) == 1
        assert not [line for line in product.output if "Transient error" in line]
        if how == "refuses":
            collector.status = 200
            ask(product, "again")
            await_fact(lambda: product.get("/router/status")["telemetry"]["fault"] is None)
        assert product.stop(20) == 0


# --- where it is named -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("endpoint", "environ", "expected"),
    [
        (None, {}, None),
        ("http://c:4318/", {}, ("http://c:4318/v1/traces", "http://c:4318/v1/metrics", True, True)),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://e"}, (None, None, True, True)),
        (None, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://e"}, (None, None, True, False)),
        (
            "http://c",
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://e", "OTEL_METRICS_EXPORTER": "none"},
            ("http://c/v1/traces", "http://c/v1/metrics", True, False),
        ),
        ("http://c", {"OTEL_SDK_DISABLED": "true"}, None),
    ],
)
def test_who_is_told_what(
    endpoint: str | None, environ: dict[str, str], expected: tuple[Any, ...] | None
) -> None:
    found = collectors.wanted(endpoint, environ)

    assert (
        found and (found.traces, found.metrics, found.has_traces, found.has_metrics)
    ) == expected


def test_without_the_extra_a_named_collector_is_a_mistake_and_a_variable_is_none(
    backend: ScriptedBackend, collector: Collector, tmp_path: Path
) -> None:
    shadow = tmp_path / "shadow" / "opentelemetry"
    shadow.mkdir(parents=True)
    (shadow / "__init__.py").write_text("")  # in front of the installed one, and empty
    env = {"PYTHONPATH": str(shadow.parent)}
    folder = tmp_path / "check"
    folder.mkdir()
    config = {
        "backends": [{"name": "b", "url": backend.url}],
        "telemetry": {"otlp_endpoint": collector.url},
    }
    path = write_toml(folder / "config.toml", config)

    for verb in ("check", "serve"):
        ran = subprocess.run(
            [sys.executable, "-m", "router", verb, "--config", str(path)],
            cwd=ROOT,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert ran.returncode == 1
        assert "telemetry.otlp_endpoint" in ran.stderr
        assert "scenario-router[otlp]" in ran.stderr

    env["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.url
    with start(tmp_path / "serve", [backend], env=env) as product:
        assert ask(product, "served").status == 200
        assert any("scenario-router[otlp]" in line for line in product.output)
        assert product.get("/router/status")["telemetry"] is None


def test_where_no_collector_is_named_nothing_of_it_is_loaded(
    backend: ScriptedBackend, tmp_path: Path
) -> None:
    code = (
        "import sys, router.commands.serve, router.workers, router.app;"
        "print([m for m in sys.modules if m.startswith(('opentelemetry', 'requests'))])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert json.loads(ran.stdout.replace("'", '"')) == []
    with start(tmp_path, [backend]) as product:
        ask(product, "plain", trace=SAMPLED)
        ask(product, "none")
        assert backend.requests[0].all("traceparent") == [SAMPLED]
        assert not backend.requests[1].all("traceparent")
        assert record_of(product, "plain")["trace_id"] == TRACE
        assert record_of(product, "none")["trace_id"] is None
