"""The names of all metrics, with their kind, labels, unit and meaning: one home for them.

What counts is in telemetry.py and genai.py, what is read when asked in census.py, what all look
like on the page in exposition.py. docs/metrics.md and docker/ are checked against this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

PREFIX = "scenario_router_"
#: what each histogram counts up to, in its own unit
SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
OVERHEAD = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25, 1.0)
#: likewise, where the conventions for generative AI want other ones
FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1),
    *(0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
EACH_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
TOKENS = tuple(4.0**power for power in range(14))
SHARE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
#: circuit_state, the worst first
CLOSED, OPEN, HALF_OPEN = 0, 1, 2

Kind = Literal["counter", "gauge", "histogram"]
Labels = tuple[str, ...]


class Metric(NamedTuple):
    """One family; `name` is without the prefix, which names of the conventions do not have."""

    name: str
    kind: Kind
    text: str
    labels: Labels = ()
    buckets: tuple[float, ...] = ()
    prefix: str = PREFIX

    @property
    def public(self) -> str:
        return self.prefix + self.name

    @property
    def unit(self) -> str:
        """As UCUM has it; nothing for plain numbers."""
        if self.name in ("tokens_total", "gen_ai.client.token.usage"):
            return "{token}"
        return "s" if "_seconds" in self.name or not self.prefix else ""


_WHERE = ("scenario", "backend")

#: all of them, in the order of the page
METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        # --- requests
        Metric(
            "requests_total",
            "counter",
            "Finished requests.",
            (*_WHERE, "endpoint", "stream", "status", "outcome", "finish_reason"),
        ),
        Metric(
            "request_duration_seconds",
            "histogram",
            "Arrival to end.",
            (*_WHERE, "stream"),
            SECONDS,
        ),
        Metric(
            "time_to_first_token_seconds",
            "histogram",
            "Arrival to the first token.",
            _WHERE,
            SECONDS,
        ),
        Metric(
            "time_per_output_token_seconds",
            "histogram",
            "Between two tokens of a stream.",
            _WHERE,
            TOKEN_SECONDS,
        ),
        Metric(
            "overhead_seconds",
            "histogram",
            "Our own time until the request went out, waiting in line left out.",
            (),
            OVERHEAD,
        ),
        Metric(
            "classify_seconds",
            "histogram",
            "Of that, reading the request, telling it apart and deciding.",
            (),
            OVERHEAD,
        ),
        Metric("tokens_total", "counter", "Tokens, from usage.", (*_WHERE, "type")),
        # --- what was decided
        Metric(
            "classification_total",
            "counter",
            "Requests by how they were told apart.",
            ("scenario", "source"),
        ),
        Metric(
            "classification_confidence",
            "histogram",
            "Share of the evidence, 0 to 1.",
            ("scenario", "source"),
            SHARE,
        ),
        Metric(
            "param_actions_total",
            "counter",
            "Parameters that were not left to the client, by who decided.",
            ("scenario", "param", "origin"),
        ),
        Metric("thinking_total", "counter", "Requests with thinking on.", ("scenario",)),
        Metric("empty_answer_total", "counter", "Answers without content.", ("scenario",)),
        Metric(
            "rescued_total",
            "counter",
            "Answers asked for again, thought having used them up.",
            ("scenario",),
        ),
        # --- where it went
        Metric(
            "session_affinity_total",
            "counter",
            "Requests by where their session was: hit, new, moved, none.",
            ("result",),
        ),
        Metric(
            "prefix_miss_total",
            "counter",
            "Prompts whose past was not reused.",
            ("backend", "cause"),
        ),
        Metric(
            "retries_total",
            "counter",
            "Attempts that failed and were made up for by another one, by the backend that failed.",
            ("backend", "reason"),
        ),
        Metric(
            "rejected_total",
            "counter",
            "Requests turned away without a fault of theirs.",
            ("reason",),
        ),
        Metric(
            "limited_total",
            "counter",
            "Requests refused and connections cut at the edge, by the setting that says so.",
            ("limit",),
        ),
        Metric("connections", "gauge", "Client connections that are open."),
        Metric(
            "key_limited_total",
            "counter",
            "Requests refused by a limit of their key: requests, tokens, budget, streams.",
            ("key", "limit"),
        ),
        Metric(
            "rates_local_total",
            "counter",
            "Requests of keys with limits that Redis should have decided on, and this process did.",
        ),
        Metric(
            "queue_wait_seconds",
            "histogram",
            "Time in line, of those requests that had to wait.",
            (),
            SECONDS,
        ),
        Metric("queue_waiting", "gauge", "Requests in line."),
        Metric("inflight", "gauge", "Requests under way in all, those in line included."),
        Metric("backend_up", "gauge", "1 while checks succeed.", ("backend",)),
        Metric("backend_draining", "gauge", "1 while it takes nothing new.", ("backend",)),
        Metric("backend_inflight", "gauge", "Requests under way at a backend.", ("backend",)),
        Metric(
            "circuit_state",
            "gauge",
            "Its breaker: 0 closed, 1 open, 2 half-open.",
            ("backend",),
        ),
        # --- experiments
        Metric(
            "experiment_requests_total",
            "counter",
            "Finished requests in an arm.",
            ("experiment", "arm", "outcome"),
        ),
        Metric(
            "experiment_stops_total",
            "counter",
            "Arms stopped by their rails.",
            ("experiment", "arm", "rail"),
        ),
        Metric(
            "experiment_arm_stopped",
            "gauge",
            "1 while its sessions get control.",
            ("experiment", "arm"),
        ),
        # --- the router itself
        Metric("policy_info", "gauge", "1 for the policy in force.", ("hash",)),
        Metric("policy_reload_total", "counter", "Policy loads, of each worker.", ("result",)),
        Metric("policy_last_reload_timestamp_seconds", "gauge", "When it was last taken."),
        Metric(
            "policy_last_reload_successful",
            "gauge",
            "0 while the policy file is refused, or fails its own tests.",
        ),
        Metric(
            "config_last_reload_successful",
            "gauge",
            "0 while the configuration file is refused.",
        ),
        Metric("keys_reload_total", "counter", "Loads of the keys, of each worker.", ("result",)),
        Metric(
            "keys_last_reload_successful",
            "gauge",
            "0 while the file of keys is refused; only where there is one.",
        ),
        Metric(
            "tls_certificate_expiry_timestamp_seconds",
            "gauge",
            "When the certificate in force at the edge ends; 0: no client takes it. Only with TLS.",
        ),
        Metric("sessions", "gauge", "Sessions that a worker remembers.", ("worker",)),
        Metric("redis_up", "gauge", "1 while Redis answers; only where something is kept there."),
        Metric("redis_errors_total", "counter", "Faults of Redis, where something is kept there."),
        Metric("log_up", "gauge", "0 while the request log cannot be written."),
        Metric("log_written_total", "counter", "Records on disk."),
        Metric("log_dropped_total", "counter", "Records lost to the disk."),
        Metric("log_bodies_dropped_total", "counter", "Bodies lost, of those to be written."),
        Metric(
            "otlp_dropped_total",
            "counter",
            "What the collector did not take: requests (traces) or pushes (metrics).",
            ("signal",),
        ),
        Metric("workers", "gauge", "Worker processes that serve."),
        Metric("worker_restarts_total", "counter", "Workers that died and were started anew."),
        Metric("build_info", "gauge", "1 for this version.", ("version",)),
    )
}

#: the attribute of these that says which backend it was
BACKEND = PREFIX.removesuffix("_") + ".backend"
_OPERATION = (
    "gen_ai.operation.name",
    "gen_ai.provider.name",
    "gen_ai.request.model",
    "server.address",
    "server.port",
    BACKEND,
)

#: those of OpenTelemetry's conventions for generative AI: pushed, and not on the page
CONVENTIONS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            "gen_ai.server.request.duration",
            "histogram",
            "Arrival to end.",
            (*_OPERATION, "error.type"),
            SECONDS,
            "",
        ),
        Metric(
            "gen_ai.server.time_to_first_token",
            "histogram",
            "Arrival to the first token of a stream that did not fail.",
            _OPERATION,
            FIRST_TOKEN,
            "",
        ),
        Metric(
            "gen_ai.server.time_per_output_token",
            "histogram",
            "Between two tokens of a stream that did not fail.",
            _OPERATION,
            EACH_TOKEN,
            "",
        ),
        Metric(
            "gen_ai.client.token.usage",
            "histogram",
            "Tokens of a request, from usage.",
            (*_OPERATION, "gen_ai.token.type"),
            TOKENS,
            "",
        ),
    )
}
