"""An OpenTelemetry collector for tests: OTLP over HTTP, read with OpenTelemetry's own protobuf."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """What it was told. `hold` makes it hang until `release`."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.metrics: dict[str, Metric] = {}  # the last push of each
        self.resources: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.url = ""
        self.status = 200
        self._changed = threading.Condition()
        self._free = threading.Event()
        self._free.set()

    def hold(self) -> None:
        self._free.clear()

    def release(self) -> None:
        self._free.set()

    def wait(self, has_come: Callable[[], Any], timeout_s: float = 15.0) -> None:
        with self._changed:
            if not self._changed.wait_for(has_come, timeout_s):
                raise AssertionError(f"not told: {[span.name for span in self.spans]}")

    def span(self, kind: int, **attributes: Any) -> Span:
        """The one span of this kind with these attributes (dots as double underscores)."""
        wanted = {name.replace("__", "."): value for name, value in attributes.items()}
        (found,) = [
            span
            for span in self.spans
            if span.kind == kind and wanted.items() <= told(span.attributes).items()
        ]
        return found

    def take(self, path: str, headers: dict[str, str], body: bytes) -> int:
        self._free.wait(60)
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        with self._changed:
            if self.status == 200:
                self._read(path, body)
            self.headers.append(headers)
            self.bodies.append(body)
            self._changed.notify_all()
        return self.status

    def _read(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            traces = ExportTraceServiceRequest.FromString(body)
            for resource in traces.resource_spans:
                self.resources.append(told(resource.resource.attributes))
                for scope in resource.scope_spans:
                    self.spans.extend(scope.spans)
        elif path == "/v1/metrics":
            pushed = ExportMetricsServiceRequest.FromString(body)
            for of_resource in pushed.resource_metrics:
                self.resources.append(told(of_resource.resource.attributes))
                for of_scope in of_resource.scope_metrics:
                    self.metrics.update({metric.name: metric for metric in of_scope.metrics})


def told(attributes: Any) -> dict[str, Any]:
    """Attributes as plain values."""
    found: dict[str, Any] = {}
    attribute: KeyValue
    for attribute in attributes:
        found[attribute.key] = _plain(attribute.value)
    return found


def _plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(one) for one in value.array_value.values]
    return getattr(value, kind) if kind else None


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status = collector.take(self.path, headers, body)
            try:
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()
            except OSError:
                self.close_connection = True  # it did not wait for us

        def log_message(self, format: str, *args: Any) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        collector.release()
        server.shutdown()
        server.server_close()
        thread.join(5)
