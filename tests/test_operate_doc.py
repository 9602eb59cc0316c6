"""The runbook names nothing that is not there, and leaves out no alert and no error code.

What the page of questions names is there, too.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
import yaml

import router
from router import errors
from router.catalogue import METRICS, PREFIX
from router.commands import VERBS, parser
from router.config import Config
from router.counted import REJECTIONS
from router.errors import RouterError
from router.experiment import Experiment
from router.params import PARAMS
from router.policy import PolicyFile
from router.record import Record, json_schema
from router.tables import Table
from tests.support.product import ROOT, Product
from tests.support.rawclient import exchange, request_bytes
from tests.support.script import chat_ok
from tests.support.scripted import ScriptedBackend

PACKAGE = Path(router.__file__).parent
TEXT = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")
FAQ = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
PROSE = re.sub(r"^```.*?^```$", "", TEXT, flags=re.M | re.S)


def spans(prose: str) -> set[str]:
    return {re.sub(r"\s+", " ", span) for span in re.findall(r"`([^`]+)`", prose)}


SPANS = sorted(spans(PROSE))
LINES = [
    re.sub(r"\s+#.*", "", line)
    for block in re.findall(r"^```sh\n(.*?)^```$", TEXT, re.M | re.S)
    for line in block.splitlines()
]
SECTIONS = re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S)

#: what belongs to the system or to others' programs
OTHERS = {
    *("journalctl -u scenario-router", "docker logs", "kubectl logs", "jq", "dmesg", "top -H"),
    *("ps aux", "ps -o pid,ppid,rss,args -C scenario-router", "ls /proc/PID/fd | wc -l"),
    *("TimeoutStopSec", "stop_grace_period", "terminationGracePeriodSeconds", "LimitNOFILE"),
    *("SSL_CERT_FILE", "OOM", "event", "$ROUTER", "https://", "GET /health", "cannot listen on"),
    *("Authorization: Bearer …", "name=key,name2=key2", "SCENARIO_ROUTER_CACHE"),
    *("user", "n", "reasoning_effort", "enable_thinking", "auto", "auto:<scenario>"),  # in a body
    *("requests-*.jsonl.gz", "bodies-*", "transformers serve", "[DONE]", "auto:chat"),
    "curl http://127.0.0.1:8088/metrics",
}  # fmt: skip
PROGRAMS = {"df", "du", "openssl"}


# ---------------------------------------------------------------- what there is


def events() -> re.Pattern[str]:
    """What the program's log can say; what is put into it is anything."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="log")), args=[said, *_]):
                    parts = said.values if isinstance(said, ast.JoinedStr) else [said]
                    if any(isinstance(part, ast.Constant) for part in parts):
                        found.append("".join(map(_pattern, parts)))
    return re.compile("|".join(found))


def _pattern(part: ast.expr) -> str:
    return re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+"


def tables(kind: type[Table]) -> Iterator[tuple[str, type[Table]]]:
    """Each table of a file, by the name that it is written with."""
    told_by = get_type_hints(kind)
    for name, attribute in kind.names().items():
        told = told_by[attribute]
        inner = [told, *get_args(told)]
        for each in inner:
            if isinstance(each, type) and issubclass(each, Table):
                yield name, each
                if get_origin(told) is not None:  # [scenarios.<name>] and the like
                    yield from tables(each)


TABLES: dict[str, set[str]] = {}
for _name, _kind in (*tables(Config), *tables(PolicyFile)):
    TABLES.setdefault(_name, set()).update(_kind.names().values())
GUARDS = {f"guard.{key}" for key in TABLES["guard"]}
EVENTS = events()
FAULTS = [each for each in vars(errors).values() if isinstance(each, type)]
CODES = {each.code for each in FAULTS if issubclass(each, RouterError)}
ALERTS = {
    rule["alert"]
    for group in yaml.safe_load((ROOT / "docker/prometheus/alerts.yml").read_text())["groups"]
    for rule in group["rules"]
}
FIELDS = json_schema()["$defs"]["Record"]["properties"]
#: bare words: fields of the record, what stands in them, labels, settings, parameters
WORDS = {
    *Record.__struct_fields__,
    *CODES,
    *ALERTS,
    *(word for field in ("affinity", "cache_miss", "finish_reason", "outcome", "source")
      for word in re.findall(r"[\w-]+", FIELDS[field]["description"].rpartition(":")[2])),
    *REJECTIONS,
    *(label for metric in METRICS.values() for label in metric.labels),
    *(metric.removeprefix(PREFIX) for metric in METRICS),
    *PARAMS,
    *GUARDS,
    *(key for keys in TABLES.values() for key in keys),
    *("up", "down", "open", "half-open", "waiting", "starting"),  # states of a backend
    *("cap", "stale"),  # an origin of `params`, and a reason of retries_total
    *Experiment.names(),
}  # fmt: skip


# ---------------------------------------------------------------- the running program


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with ScriptedBackend([chat_ok("Yes.")]) as backend:
        policy = 'schema = 1\ndefault_scenario = "chat"\n[scenarios.chat]\n'
        config = {"backends": [{"name": "a", "url": backend.url}]}
        running = Product.start(tmp_path_factory.mktemp("router"), config, policy=policy)
        yield running
        running.kill()


def reach(value: Any, path: str) -> bool:
    """Whether a path as jq has it leads anywhere in a document."""
    for step in path.removeprefix(".").split("."):
        name, is_list = step.removesuffix("[]"), step.endswith("[]")
        if not isinstance(value, Mapping) or name not in value:
            return False
        value = value[name]
        if is_list:
            value = value[0] if value else {}
    return True


def test_what_it_finds_in_status_is_there(product: Product) -> None:
    status = product.get("/router/status")
    paths = [span for span in SPANS if span.startswith(".")]

    assert len(paths) > 10
    assert [path for path in paths if not reach(status, path)] == []


def test_the_pages_that_it_names_are_served(product: Product) -> None:
    paths = [span for span in SPANS if re.fullmatch(r"/[\w/]+", span)] + ["/router/status"]

    assert len(paths) > 3
    for path in paths:
        assert exchange(product.port, request_bytes("GET", path)).status in (200, 503), path


# ---------------------------------------------------------------- what it names


def is_command(words: list[str]) -> bool:
    """Whether it would be taken; a refusal ends the program."""
    try:
        parser(words[0]).parse_args(words)
    except SystemExit:
        return False
    return True


def is_metric(text: str) -> bool:
    for name, labels in re.findall(r"scenario_router_(\w+)(?:\{([^}]*)\})?", text):
        told = METRICS.get(name) or METRICS.get(re.sub(r"_(count|sum|bucket)$", "", name))
        given = re.findall(r"(\w+)=", labels)
        if told is None or not set(given) <= set(told.labels):
            return False
    return "scenario_router_" in text


def is_setting(text: str) -> bool:
    """`[table] key`, with a value or without."""
    match = re.fullmatch(r"\[{1,2}(\w+)\]{1,2}(?: (\w+)(?: = .+)?)?", text)
    if match is None or match[1] not in TABLES:
        return False
    return match[2] is None or match[2] in TABLES[match[1]]


def is_known(span: str) -> bool:
    if span in OTHERS or span in WORDS or span in VERBS:
        return True
    if span.startswith('"'):
        return EVENTS.fullmatch(json.loads(span)) is not None
    if span.startswith("scenario-router "):
        return is_command(shlex.split(span)[1:])
    if "scenario_router_" in span:
        return is_metric(span)
    if span.startswith("["):
        return is_setting(span)
    if span.startswith("x-"):
        name, _, value = span.partition(": ")
        return name in _SOURCES and (not value or value in ("off", "chat", "true"))
    if span.startswith("--"):
        return span in _SOURCES
    if re.fullmatch(r"(\w+) --json", span):
        return span.split()[0] in VERBS
    if match := re.fullmatch(r"(?:preset\.)?(\w+) = .+", span):
        return match[1] in WORDS
    if re.fullmatch(r"\w+\.toml", span):
        return span == "config.toml"
    # `.paths` and `/pages` are asked of a running router, above
    return span.startswith(".") or bool(re.fullmatch(r"/[\w/*]+", span))


_SOURCES = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("span", sorted({*SPANS, *spans(FAQ)}))
def test_whatever_it_names_exists(span: str) -> None:
    assert is_known(span)


@pytest.mark.parametrize(
    "span",
    ['"a thing that never happens"', "scenario-router logs --never", "scenario_router_no_total",
     'scenario_router_inflight{backend="a"}', "[log] keep_weeks", "x-router-magic", "no_such_code",
     "NoSuchAlert"],
)  # fmt: skip
def test_what_is_not_there_would_be_found(span: str) -> None:
    assert not is_known(span)


@pytest.mark.parametrize("line", [line for line in LINES if line.strip()])
def test_its_commands_are_taken(line: str) -> None:
    if line.startswith("ROUTER="):
        return
    (given,) = re.findall(r'^ROUTER="(.+)"$', TEXT, re.M)
    program, *words = shlex.split(line.replace("$ROUTER", given))

    assert program in PROGRAMS or (program == "scenario-router" and is_command(words))
    if program == "scenario-router" and "--fields" in words:
        fields = words[words.index("--fields") + 1].split(",")
        assert set(fields) <= set(Record.__struct_fields__)


# ---------------------------------------------------------------- what it leaves out


@pytest.mark.parametrize(("title", "body"), SECTIONS, ids=[title for title, _ in SECTIONS])
def test_every_symptom_says_what_is_seen_meant_done_and_when_it_is_over(
    title: str, body: str
) -> None:
    parts = re.findall(r"^\*\*(You see|It means|Do|Cured when)\*\*", body, re.M)

    assert parts == ["You see", "It means", "Do", "Cured when"]


def test_no_alert_and_no_error_code_is_left_out() -> None:
    head = PROSE.split("\n## ")[0]

    assert [alert for alert in ALERTS if f"`{alert}`" not in head] == []
    assert [code for code in CODES if f"`{code}`" not in head] == []
