"""What stands in docker/ and docs/metrics.md names metrics and labels that the code has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from router.catalogue import CONVENTIONS, METRICS, PREFIX
from router.counted import REJECTIONS
from router.record import Record
from router.telemetry import Metrics
from tests.support.product import ROOT

DASHBOARD = ROOT / "docker" / "grafana" / "scenario-router.json"
ALERTS = ROOT / "docker" / "prometheus" / "alerts.yml"
SCRAPE = ROOT / "docker" / "prometheus" / "prometheus.yml"
DOCUMENT = ROOT / "docs" / "metrics.md"
#: labels that Prometheus itself adds
ADDED = {"job", "instance", "le"}
_SELECTOR = re.compile(PREFIX + r"(\w+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
_GROUPING = re.compile(r"\b(?:by|on|without)\s*\(([^)]*)\)")
_TOLD = re.compile(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}")

#: what labels with a closed set of values may be compared with
VALUES: dict[str, set[str]] = {
    "reason": set(REJECTIONS),
    "type": {"input", "cached_input", "output", "reasoning"},
    "outcome": {
        *("ok", "client_disconnect", "client_error", "rejected"),
        *("upstream_error", "upstream_timeout", "router_error"),
    },
    "finish_reason": {"stop", "length", "tool_calls"},
}


def metric_of(name: str) -> str:
    """The metric that a series belongs to; a histogram has three of them."""
    for end in ("_bucket", "_count", "_sum"):
        base = name.removesuffix(end)
        if base != name and base in METRICS and METRICS[base].kind == "histogram":
            return base
    return name


def faults_of(expression: str) -> Iterator[str]:
    """What an expression names that there is not."""
    labels = set(ADDED)
    names = _SELECTOR.findall(expression)
    for name, matchers in names:
        metric = METRICS.get(metric_of(name))
        if metric is None or (metric.kind == "histogram" and metric.name == name):
            yield f"no series {name}"
            continue
        labels |= set(metric.labels)
        for label, value in _MATCHER.findall(matchers):
            if label not in {*metric.labels, *ADDED}:
                yield f"{name} has no label {label}"
            if label in VALUES and not set(value.split("|")) <= VALUES[label]:
                yield f"{label} is never {value}"
    for group in _GROUPING.findall(expression):
        for label in filter(None, re.split(r"[,\s]+", group)):
            if label not in labels:
                yield f"nothing in {names} has a label {label}"


def panels() -> list[dict[str, Any]]:
    found = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return [panel for panel in found["panels"] if panel["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("rate(scenario_router_requests[5m])", "no series"),
        ("scenario_router_overhead_seconds", "no series"),
        ('scenario_router_requests_total{model="x"}', "no label"),
        ('scenario_router_requests_total{outcome="fine"}', "never"),
        ("sum by (backend) (scenario_router_inflight)", "label backend"),
    ],
)
def test_a_name_that_is_none_is_found(expression: str, fault: str) -> None:
    assert fault in next(faults_of(expression))


def test_the_dashboard_shows_what_there_is() -> None:
    seen: set[str] = set()
    for panel in panels():
        for target in panel["targets"]:
            assert list(faults_of(target["expr"])) == [], panel["title"]
            names = {metric_of(name) for name, _ in _SELECTOR.findall(target["expr"])}
            labels = {label for name in names for label in METRICS[name].labels}
            assert set(_TOLD.findall(target["legendFormat"])) <= labels, panel["title"]
            assert names, panel["title"]
            seen |= names
    # All of them, but for those that say less than others beside them, or less than their alert.
    assert set(METRICS) - seen == {
        *("backend_draining", "workers", "build_info", "log_up"),
        *("policy_reload_total", "policy_last_reload_timestamp_seconds", "keys_reload_total"),
        "tls_certificate_expiry_timestamp_seconds",
    }


def test_the_dashboards_panels_do_not_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    whole = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    assert len({panel["id"] for panel in whole["panels"]}) == len(whole["panels"])
    for panel in whole["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    for variable in whole["templating"]["list"]:
        if variable["type"] == "query":
            assert list(faults_of(variable["query"]["query"])) == []


def test_alerts_ask_for_what_there_is_and_say_what_to_do() -> None:
    assert len({rule["alert"] for rule in rules()}) == len(rules())
    for rule in rules():
        expression = rule["expr"]
        assert list(faults_of(expression)) == [], rule["alert"]
        assert rule["labels"]["severity"] in ("page", "ticket")
        summary, runbook = rule["annotations"]["summary"], rule["annotations"]["runbook"]
        assert len(runbook.split()) > 15, rule["alert"]
        labels = set(_TOLD.findall(summary)) | set(_TOLD.findall(runbook))
        group = _GROUPING.search(expression)
        if group is not None:
            there = set(re.split(r"[,\s]+", group[1]))
        else:
            found = [METRICS[metric_of(name)].labels for name, _ in _SELECTOR.findall(expression)]
            there = {label for of_one in found for label in of_one} | {"job", "instance"}
        assert labels <= there, rule["alert"]
        # The words of a runbook that look like our metrics are our metrics.
        for word in re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", runbook):
            name = word.removeprefix(PREFIX)
            if name.endswith(("_seconds", "_total")) or word.startswith(PREFIX):
                assert metric_of(name) in METRICS, (rule["alert"], word)


def test_every_command_and_key_that_a_runbook_names_exists() -> None:
    from router.commands import VERBS

    text = " ".join(rule["annotations"]["runbook"] for rule in rules())
    for verb in re.findall(r"scenario-router ([a-z]+)", text):
        assert verb in VERBS
    schema = json.loads((ROOT / "docs" / "schemas" / "config.json").read_text())["$defs"]
    tables = {"limits": "Limits", "server": "Server", "log": "Log", "telemetry": "Telemetry"}
    keys = re.findall(r"`\[(\w+)\] (\w+)`", text)
    assert keys
    for table, key in keys:
        assert key in schema[tables[table]]["properties"]


def test_the_scrape_example_reads_the_alerts() -> None:
    scrape = yaml.safe_load(SCRAPE.read_text(encoding="utf-8"))

    assert [(SCRAPE.parent / name).resolve() for name in scrape["rule_files"]] == [ALERTS]
    (job,) = scrape["scrape_configs"]
    assert f'job="{job["job_name"]}"' in ALERTS.read_text(encoding="utf-8")


def rows(name: str) -> list[list[str]]:
    """A table of the document, without its head."""
    table = DOCUMENT.read_text(encoding="utf-8").split(f"<!-- {name} -->")[1]
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table.strip().splitlines()[2:]
    ]


def test_the_document_has_a_row_for_each_metric_as_the_code_has_it() -> None:
    assert rows("conventions") == [
        [f"`{metric.name}`", metric.kind, f"`{metric.unit}`", metric.text]
        for metric in CONVENTIONS.values()
    ]
    named = {label for metric in CONVENTIONS.values() for label in metric.labels}
    text = DOCUMENT.read_text(encoding="utf-8")
    assert all(f"`{label}`" in text for label in named)
    assert rows("metrics") == [
        [
            f"`{metric.name}`",
            metric.kind,
            ", ".join(f"`{label}`" for label in metric.labels),
            metric.text,
        ]
        for metric in METRICS.values()
    ]


def test_the_sets_that_are_compared_with_are_those_that_are_counted() -> None:
    metrics = Metrics()
    for outcome in sorted(VALUES["outcome"]):
        metrics.observe(Record(outcome=outcome, finish_reason="length"), ())
    entry = Record(input_tokens=1, cached_tokens=1, output_tokens=1, reasoning_tokens=1)
    metrics.observe(entry, ())
    counters = metrics.counted().counters

    assert {labels[5] for labels in counters["requests_total"]} == VALUES["outcome"]
    assert {labels[2] for labels in counters["tokens_total"]} == VALUES["type"]
    described = Record.__annotations__  # the record says which outcomes there are
    assert all(outcome in str(described["outcome"]) for outcome in VALUES["outcome"])


def test_paths_of_the_document_exist() -> None:
    for path in re.findall(r"`(docker/[\w./-]+)`", DOCUMENT.read_text(encoding="utf-8")):
        assert (ROOT / Path(path)).exists(), path
