"""Text of clients and backends stays text: in lines, on terminals, in tables and in queries."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clients.demo import await_fact
from tests.support.product import ROOT, Product
from tests.support.rawbackend import RawBackend, whole
from tests.support.rawclient import RawReply, exchange, request_bytes

CHAT = "/v1/chat/completions"
POLICY = """
schema = 1
default_scenario = "chat"
[scenarios.chat]
"""
#: a terminal's orders, ends of lines of every kind, and letters that turn a line round
NASTY = "\x1b[2J\x1b]0;title\x07\r\n\x85\u2028\u2029\u202e\u2066\x9b31m\0[red]x[/]"
#: what a terminal or a log's reader must not meet
OBEYED = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
FORMULA = "=cmd|'/c_calc'!A1"


def told(**more: Any) -> bytes:
    message = {"role": "assistant", "content": "Fine."}
    choice = {"index": 0, "message": message, "finish_reason": more.pop("finish", "stop")}
    body = {"choices": [choice], "model": NASTY, **more}
    return whole(json.dumps(body).encode(), b"content-type: application/json")


@pytest.fixture(scope="module")
def backend() -> Iterator[RawBackend]:
    with RawBackend() as running:
        running.answers = [told()]
        model = {"id": f"m{NASTY}", "object": "model", "owned_by": "vllm"}
        listed = {"object": "list", "data": [model]}
        running.probe = whole(json.dumps(listed).encode(), b"content-type: application/json")
        yield running


@pytest.fixture(scope="module")
def product(backend: RawBackend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    folder = tmp_path_factory.mktemp("text")
    config = {
        "backends": [{"name": "a", "url": backend.url, "dialect": "transformers"}],
        "policy": {"aliases": [FORMULA]},
        "log": {"flush_ms": 5, "bodies": "on"},
    }
    env = {"SCENARIO_ROUTER_CACHE": str(folder / "cache")}
    with Product.start(folder, config, policy=POLICY, env=env) as running:
        assert backend.wait(lambda: len(backend.probed()) >= 2)
        yield running


def ask(product: Product, headers: dict[str, str] | None = None, **members: Any) -> RawReply:
    body = {"model": "auto", "messages": [{"role": "user", "content": f"Hi. {NASTY}"}], **members}
    raw = json.dumps(body)
    return exchange(product.port, request_bytes("POST", CHAT, headers or {}, raw))


def get(product: Product, path: str, **query: str | list[str]) -> httpx.Response:
    return httpx.get(product.url + path, params=query, timeout=30)


# --- headers and lines --------------------------------------------------------------------


@pytest.mark.parametrize(
    "members",
    [
        {NASTY: 1},
        {f"x{NASTY}\r\nset-cookie: planted=1": 1},
        {"model": f"auto:{NASTY}"},
        {"model": NASTY},
        {"user": NASTY, "session_id": NASTY, "metadata": {"session_id": NASTY}},
        {"stop": [NASTY]},
        {"tools": [{"type": "function", "function": {"name": NASTY}}]},
        {"temperature": NASTY},
        {"reasoning_effort": NASTY},
    ],
    ids=["name", "header", "scenario", "model", "session", "stop", "tool", "number", "thinking"],
)
def test_no_text_of_a_body_ends_a_header_or_a_line(
    product: Product, members: dict[str, Any]
) -> None:
    known = len(product.records())
    reply = ask(product, {"x-router-debug": "true"}, **members)

    assert reply.status in (200, 400, 404)
    assert reply.header("set-cookie") is None
    for _, value in reply.headers:
        assert value.isascii()
        assert value.isprintable()
    records = product.wait_records(known + 1)
    assert len(records) == known + 1
    last = records[-1]
    for path in product.log_dir.glob("requests-*.jsonl"):
        for line in path.read_bytes().removesuffix(b"\n").split(b"\n"):
            json.loads(line)
            assert not re.search(rb"[\x00-\x1f]", line)
    assert len(json.dumps(last)) < 10_000


@pytest.mark.parametrize(
    "headers",
    [
        {"x-request-id": "a\x85b"},
        {"x-request-id": "a b"},
        {"x-request-id": "x" * 200},
        {"x-request-id": "a%0d%0aset-cookie:planted"},
        {"x-session-id": "a%0d%0aset-cookie:planted"},
        {"x-router-scenario": "a%0d%0aset-cookie:planted"},
        {"x-router-scenario": "\xe9\xff"},
        {"traceparent": "00-" + "z" * 32 + "-b7ad6b7169203331-01"},
    ],
)
def test_no_header_becomes_another(product: Product, headers: dict[str, str]) -> None:
    reply = ask(product, headers)

    assert reply.status in (200, 400)
    assert reply.header("set-cookie") is None
    assert all(value.isascii() and value.isprintable() for _, value in reply.headers)


def test_a_records_names_are_of_bounded_length(product: Product) -> None:
    """A client writes no book into the log by way of a name."""
    known = len(product.records())
    ask(product, model="x" * 50_000)
    members: dict[str, Any] = {"y" * 50_000: 1}
    ask(product, **members)
    ask(product, stop=["z" * 50_000], user="z" * 50_000)

    for record in product.wait_records(known + 3)[known:]:
        assert len(json.dumps(record)) < 5_000
        assert "yy" * 50 not in json.dumps(record)
        assert "zz" not in json.dumps(record)


# --- terminals ----------------------------------------------------------------------------


def on_a_terminal(command: list[str]) -> str:
    """What a command writes on a terminal, outputs of both kinds."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "COLUMNS": "200", "TERM": "xterm", "NO_COLOR": "1"}
    process = subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, env=env, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    found = b""
    try:
        while piece := os.read(ours, 65536):
            found += piece
    except OSError:  # how a terminal ends
        pass
    finally:
        os.close(ours)
        process.wait(30)
    return found.decode().replace("\r\n", "\n")


def without_colours(text: str) -> str:
    """Rich and structlog write colours of their own."""
    return re.sub("\x1b\\[[0-9;]*m", "", text)


def test_what_clients_wrote_is_no_command_to_a_terminal(product: Product) -> None:
    ask(product, model=f"auto:{NASTY}")
    members: dict[str, Any] = {NASTY: 1}
    ask(product, {"x-request-id": "[bold]id[/bold]"}, **members)
    product.wait_records(2)

    fields = "request_id,client_model,warnings,session,params"
    shown = without_colours(
        on_a_terminal(
            ["-m", "router", "logs", "--log-dir", str(product.log_dir), "--fields", fields]
        )
    )

    assert "[bold]id[/bold]" in shown
    assert not OBEYED.search(shown)


def test_what_a_backend_calls_itself_is_no_command_to_a_terminal(product: Product) -> None:
    shown = on_a_terminal(["-m", "router", "status", "--url", product.url])

    assert "a: up, m[2J]0;title" in shown
    assert not OBEYED.search(shown)


def test_the_programs_own_log_is_no_command_to_a_terminal() -> None:
    code = (
        "import structlog; from router import programlog; programlog.set_up()\n"
        f"text = {NASTY!r}\n"
        "log = structlog.get_logger()\n"
        "log.warning('bad', path=text, model='m' + text.replace('\\0', ''))\n"
        "try: raise ValueError(text)\n"
        "except ValueError: log.exception('failed', page='x')\n"
    )
    shown = without_colours(on_a_terminal(["-c", code]))

    assert "ValueError" in shown
    assert not OBEYED.search(shown)


def test_the_programs_own_log_has_one_line_an_event_elsewhere() -> None:
    code = (
        "import structlog; from router import programlog; programlog.set_up()\n"
        f"structlog.get_logger().warning('bad', path={NASTY!r})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )

    (line,) = done.stderr.splitlines()
    assert json.loads(line)["path"] == NASTY
    assert line.isascii()


# --- tables and queries -------------------------------------------------------------------


@pytest.mark.parametrize("view", ["requests", "scenarios", "backends", "sessions", "savings"])
def test_no_cell_of_an_export_is_a_formula(product: Product, view: str) -> None:
    for start in ("=", "+", "-", "@"):
        ask(product, {"x-request-id": f"{start}cmd|x"}, model=FORMULA)
    exported = get(product, "/dashboard/api/export", view=view, format="csv", **{"from": "-1h"})

    assert exported.status_code == 200
    name = exported.headers["content-disposition"]
    assert re.fullmatch(r'attachment; filename="scenario-router-[a-z]+-\d{8}T\d{6}Z\.csv"', name)
    rows = list(csv.reader(io.StringIO(exported.text)))
    cells = [cell for row in rows for cell in row]
    assert len(cells) > 5
    if view == "requests":
        assert f"'{FORMULA}" in cells
    for cell in cells:
        assert not cell.startswith(("=", "+", "@", "\t", "\r", "\n"))
        assert not cell.startswith("-") or re.fullmatch(r"-\d[\d.e-]*", cell)


FILTERS = ("scenario", "backend", "outcome", "source", "model", "session", "key", "experiment",
           "arm", "finish_reason", "q")  # fmt: skip
INJECTED = (
    "' OR 1=1 --",
    "chat' OR 'a'='a",
    "x'); DROP TABLE requests; --",
    "x') UNION SELECT content FROM read_text('/etc/passwd') --",
    "x'); COPY requests TO '/tmp/planted.csv'; --",
    "x'); ATTACH '/tmp/planted.db'; --",
    "x'); INSTALL httpfs; LOAD httpfs; --",
    "\0' OR 1=1 --",
    "？' OR 1=1",
    "$1",
    "?",
)


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_is_a_value_and_never_a_query(product: Product, name: str) -> None:
    ask(product)
    product.wait_records(1)
    texts = [[text] for text in INJECTED] if name == "q" else [list(INJECTED)]
    for text in texts:
        for view in ("requests", "sessions"):
            reply = get(product, f"/dashboard/api/{view}", **{name: text})
            assert reply.status_code == 200, (view, text, reply.text)
            assert reply.json()["total"] == 0, (view, text)
    assert not Path("/tmp/planted.csv").exists()
    assert not Path("/tmp/planted.db").exists()
    assert get(product, "/dashboard/api/requests").json()["total"] > 0


@pytest.mark.parametrize(
    "query",
    [
        {"sort": "ts; DROP TABLE requests"},
        {"sort": "(SELECT content FROM read_text('/etc/passwd'))"},
        {"order": "desc; DROP TABLE requests"},
        {"limit": "1; DROP TABLE requests"},
        {"offset": "0 UNION SELECT 1"},
        {"slow_ms": "1 OR 1=1"},
        {"slow_ms": "1e400"},
        {"from": "-1h'; --"},
        {"stream": "true OR 1=1"},
        {"shadow": "(none) OR 1=1"},
    ],
)
def test_what_is_no_value_of_its_kind_is_refused(product: Product, query: dict[str, str]) -> None:
    reply = get(product, "/dashboard/api/requests", **query)

    assert reply.status_code == 400
    assert reply.json()["error"]["param"] in query


def test_a_policy_from_elsewhere_reads_no_files_of_ours(product: Product) -> None:
    """Nor does it tell which there are; a device would never end."""
    for name in ("/etc/passwd", "../../../../etc/passwd", "/nowhere/at/all", "/dev/zero"):
        text = f'examples_files = ["{name}"]\n{POLICY}'
        told = httpx.post(f"{product.url}/router/policy/validate", content=text, timeout=30)
        assert told.status_code == 400
        (mistake,) = told.json()["mistakes"]
        assert mistake["path"] == "examples_files"
        assert "outside of the policy's folder" in mistake["message"]
    beside = product.policy_path.with_name("more.toml")
    beside.write_text('[examples.chat]\ndirect = ["Hello there."]\n', encoding="utf-8")
    text = f'examples_files = ["more.toml"]\n{POLICY}'
    told = httpx.post(f"{product.url}/router/policy/validate", content=text, timeout=60)
    assert told.status_code == 200


def test_what_is_written_is_not_for_everybody_on_the_machine(product: Product) -> None:
    """Records, prompts, labels, and the dashboard's copy of them."""
    ask(product, {"x-request-id": "modes"})
    product.wait_records(1)
    label = json.dumps({"scenario": "chat"})
    kind = {"content-type": "application/json"}
    where = f"{product.url}/dashboard/api/requests/modes/label"

    def is_labelled() -> bool:  # once the prompt is written, too
        return httpx.post(where, content=label, headers=kind, timeout=30).status_code == 201

    await_fact(is_labelled)
    written = [path for path in product.log_dir.iterdir() if path.is_file()]
    written += [path for path in product.folder.glob("cache/**/*.duckdb*") if path.is_file()]
    names = " ".join(path.name for path in written)
    for word in ("requests-", "bodies-", "labels", ".duckdb"):
        assert word in names
    for path in written:
        place = path.parent if ".duckdb" in path.name else path
        assert place.stat().st_mode & 0o007 == 0, path


def test_codes_that_backends_make_up_are_no_series_of_metrics(
    product: Product, backend: RawBackend
) -> None:
    """Whoever makes a backend say a new word each time would fill the memory of who scrapes."""

    def series() -> int:
        return len(get(product, "/metrics").text.splitlines())

    def refused(number: int) -> bytes:
        error = {"message": "no", "type": "t", "param": None, "code": f"made_up_{number}"}
        return whole(json.dumps({"error": error}).encode(), status=b"400 Bad Request")

    try:
        for number in range(3):
            backend.answers = [refused(number)]
            ask(product)
        before = series()
        for number in range(3, 60):
            backend.answers = [refused(number)]
            ask(product)
    finally:
        backend.answers = [told()]
    assert series() - before < 10
