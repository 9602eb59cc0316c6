"""Traces and metrics to an OpenTelemetry collector, by a thread of its own.

In: finished requests and counts, at any rate. Out: OTLP over HTTP, by OpenTelemetry's exporters.
A collector that is down, slow or hangs costs what does not fit the queue: that is counted, and
nobody waits for it. Loaded only where a collector is named; it needs the extra `otlp`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, cast

import structlog
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Histogram as HistogramData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from router import __version__, catalogue, census, spans
from router.census import Snapshot, gauges_of
from router.collector import Collector
from router.exposition import Histogram
from router.spans import Span
from router.tracing import Journey

log = structlog.get_logger(__name__)

#: requests at once: what takes the interpreter for longer than a millisecond or two, streams feel
_BATCH = 32
_FLUSH_S = 1.0
#: how long the end of the router waits for the last of it
_LAST_S = 3.0
_SCOPE = InstrumentationScope("scenario-router", __version__)
_KINDS = {"server": SpanKind.SERVER, "client": SpanKind.CLIENT}
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class Exporter:
    """Takes what there is to tell, and tells it when the collector has time."""

    def __init__(self, collector: Collector, *, limit: int, instance: str) -> None:
        """`limit`: requests that may wait for the collector. `instance`: who tells."""
        # Its exporters complain at each try; an operator is told once, by us.
        logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL + 1)
        self.collector = collector
        self.sent = 0  # requests
        self.dropped = {"traces": 0, "metrics": 0}
        self.fault: str | None = None  # while the collector does not take what it is given
        self._limit = limit
        self._queue: deque[Journey] = deque()  # its ends are safe to use from two threads
        self._metrics: bytes | None = None
        self._resource = _resource(instance, os.environ)
        self._spans = OTLPSpanExporter(endpoint=collector.traces) if collector.has_traces else None
        self._counts = (
            OTLPMetricExporter(endpoint=collector.metrics) if collector.has_metrics else None
        )
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ from the loop

    def take(self, journey: Journey) -> None:
        """A finished request, for its spans."""
        if len(self._queue) >= self._limit:
            self.dropped["traces"] += 1
            return
        self._queue.append(journey)
        if len(self._queue) == 1:
            self._wake.set()

    def push(self, snapshot: bytes) -> None:
        """Counts (`Census.told`), in place of those that the collector has not had time for."""
        if self._counts is None:
            return
        if self._metrics is not None:
            self.dropped["metrics"] += 1
        self._metrics = snapshot
        self._wake.set()

    def status(self) -> dict[str, Any]:
        """For operators."""
        return {
            "collector": self.collector.name,
            "waiting": len(self._queue),
            "sent": self.sent,
            "dropped": dict(self.dropped),
            "fault": self.fault,
        }

    def close(self) -> None:
        """Tell what is left, as far as the collector takes it at once."""
        self._stop.set()
        self._wake.set()
        self._thread.join(_LAST_S)
        for exporter in (self._spans, self._counts):
            if exporter is not None:
                exporter.shutdown()

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait()
            self._wake.clear()
            self._stop.wait(_FLUSH_S)
            try:
                self._flush()
            except Exception:
                log.exception("telemetry not sent")

    def _flush(self) -> None:
        told, self._metrics = self._metrics, None
        if told is not None and self._counts is not None:
            data = metrics_data(census.read(told), self._resource, time.time())
            if not self._has_taken(self._counts.export(data) is MetricExportResult.SUCCESS):
                self.dropped["metrics"] += 1
        while self._queue and self._spans is not None:
            batch: list[Journey] = []
            while self._queue and len(batch) < _BATCH:
                batch.append(self._queue.popleft())
            made = [_readable(s, self._resource) for j in batch for s in spans.spans_of(j)]
            if self._has_taken(self._spans.export(made) is SpanExportResult.SUCCESS):
                self.sent += len(batch)
            else:
                self.dropped["traces"] += len(batch)

    def _has_taken(self, is_done: bool) -> bool:
        if is_done and self.fault is not None:
            self.fault = None
            log.info("telemetry is sent again", collector=self.collector.name)
        elif not is_done and self.fault is None:
            self.fault = "does not take what it is sent"
            log.warning(
                "telemetry cannot be sent; what does not fit the queue is dropped and counted",
                collector=self.collector.name,
            )
        return is_done


def _resource(instance: str, environ: Mapping[str, str]) -> Resource:
    attributes: dict[str, Any] = {"service.version": __version__, "service.instance.id": instance}
    named = environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if not environ.get("OTEL_SERVICE_NAME") and "service.name=" not in named:
        attributes["service.name"] = "scenario-router"
    return Resource.create(attributes)


def _readable(span: Span, resource: Resource) -> ReadableSpan:
    trace_id = int(span.trace_id, 16)
    parent = None
    if span.parent_id is not None:
        parent = SpanContext(
            trace_id, int(span.parent_id, 16), span.is_parent_remote, trace_flags=_SAMPLED
        )
    return ReadableSpan(
        span.name,
        context=SpanContext(trace_id, int(span.span_id, 16), False, trace_flags=_SAMPLED),
        parent=parent,
        resource=resource,
        attributes=span.attributes,
        events=[Event(event.name, {}, _ns(event.at)) for event in span.events],
        kind=_KINDS[span.kind],
        status=Status(StatusCode.ERROR, span.fault) if span.fault else Status(StatusCode.UNSET),
        start_time=_ns(span.began_at),
        end_time=_ns(span.ended_at),
        instrumentation_scope=_SCOPE,
    )


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


# --- metrics ----------------------------------------------------------------------------------


def metrics_data(snapshot: Snapshot, resource: Resource, now: float) -> MetricsData:
    """A worker's counts, by the names that they have on the page of /metrics."""
    counted, report = snapshot.counted, snapshot.report
    gauges = gauges_of([report]) if report is not None else {}
    began, at = _ns(counted.since), _ns(now)
    found = []
    for name, metric in catalogue.METRICS.items():
        data: Any
        if metric.kind == "gauge":
            data = Gauge(_points(metric, gauges.get(name, {}), began, at))
        elif metric.kind == "counter":
            points = _points(metric, counted.counters[name], began, at)
            data = Sum(points, AggregationTemporality.CUMULATIVE, True)
        else:
            data = HistogramData(
                [
                    _histogram_point(metric, labels, histogram, began, at)
                    for labels, histogram in counted.histograms[name].items()
                    if any(histogram.counts)
                ],
                AggregationTemporality.CUMULATIVE,
            )
        if data.data_points:
            found.append(Metric(metric.public, metric.text, metric.unit, data))
    return MetricsData([ResourceMetrics(resource, [ScopeMetrics(_SCOPE, found, "")], "")])


def _points(
    metric: catalogue.Metric, values: Mapping[catalogue.Labels, float], began: int, at: int
) -> Sequence[NumberDataPoint]:
    return [
        NumberDataPoint(_attributes(metric, labels), began, at, value)
        for labels, value in values.items()
    ]


def _histogram_point(
    metric: catalogue.Metric, labels: catalogue.Labels, histogram: Histogram, began: int, at: int
) -> HistogramDataPoint:
    return HistogramDataPoint(
        attributes=_attributes(metric, labels),
        start_time_unix_nano=began,
        time_unix_nano=at,
        count=sum(histogram.counts),
        sum=histogram.total,
        bucket_counts=list(histogram.counts),
        explicit_bounds=metric.buckets,
        min=cast(float, None),  # nobody kept them
        max=cast(float, None),
    )


def _attributes(metric: catalogue.Metric, labels: catalogue.Labels) -> dict[str, str]:
    return {name: value for name, value in zip(metric.labels, labels, strict=True) if value}
