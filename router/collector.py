"""Where traces and metrics go: config.toml, and what OpenTelemetry's own variables say. Pure.

The file (or SCENARIO_ROUTER_TELEMETRY__OTLP_ENDPOINT) names a collector for this router; the
OTEL_ variables are often set for everything on a machine, so they come after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

import msgspec

MISSING = "needs OpenTelemetry's exporter: pip install 'scenario-router[otlp]'"
_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_OF_TRACES = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_OF_METRICS = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"


class Collector(msgspec.Struct, frozen=True):
    """A collector, and what it is to have. `traces`, `metrics`: URLs; None: as OTEL_ says."""

    name: str
    traces: str | None
    metrics: str | None
    has_traces: bool
    has_metrics: bool


def wanted(endpoint: str | None, environ: Mapping[str, str]) -> Collector | None:
    """The collector to tell, if there is one. `endpoint`: a base URL, from the configuration."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    named = environ.get(_ENDPOINT)
    traces = endpoint or environ.get(_OF_TRACES) or named
    metrics = endpoint or environ.get(_OF_METRICS) or named
    has_traces = bool(traces) and environ.get("OTEL_TRACES_EXPORTER") != "none"
    has_metrics = bool(metrics) and environ.get("OTEL_METRICS_EXPORTER") != "none"
    if not (has_traces or has_metrics):
        return None
    base = endpoint.rstrip("/") if endpoint else None
    return Collector(
        name=str(traces if has_traces else metrics),
        traces=f"{base}/v1/traces" if base else None,
        metrics=f"{base}/v1/metrics" if base else None,
        has_traces=has_traces,
        has_metrics=has_metrics,
    )


def is_installed() -> bool:
    """Whether what speaks to collectors is there."""
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False
