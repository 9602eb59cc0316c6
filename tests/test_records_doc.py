"""docs/records.md says what is so: its commands run on a log and find what is in it."""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from router import body as bodies
from router import commands, redaction
from router import record as schema
from router.body import Body, Message
from router.record import Record
from router.recordfiles import Kind, hour_of
from tests.support.product import ROOT

TEXT = (ROOT / "docs" / "records.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.M | re.S)


def blocks(language: str) -> list[str]:
    return [text for kind, text in BLOCKS if kind == language]


def records() -> list[Record]:
    found = [
        Record(
            ts=f"2026-11-30T10:00:{n:02}.000Z", request_id=f"r-{n}",
            scenario="faq" if n % 3 else None, outcome="upstream_error" if n == 7 else "ok",
            error_code="broke" if n == 7 else None,
            ttft_ms=float(n), total_ms=n * 10.0,
        )
        for n in range(20)
    ]  # fmt: skip
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = [*map(schema.line, records())]
    (tmp_path / "requests-20261130T10.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[:10])))
    (tmp_path / "requests-20261130T11.jsonl").write_bytes(b"".join(lines[10:]))
    said = [
        msgspec.json.encode(
            Body(request_id=f"r-{n}", prompt=(Message("user", "?"),), answer=f"a{n}")
        )
        for n in range(20)
    ]
    (tmp_path / "bodies-20261130T10.jsonl").write_bytes(b"\n".join(said) + b"\n")
    return tmp_path


def shell(line: str, folder: Path) -> str:
    done = subprocess.run(
        ["sh", "-c", line], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_its_lines_for_jq_run(folder: Path) -> None:
    if shutil.which("jq") is None:
        pytest.skip("there is no jq here")
    failed, counted, slow = [
        shell(line, folder) for text in blocks("sh") for line in text.splitlines()
    ]

    assert failed == ""
    assert re.findall(r"(\d+) (\S+)", counted) == [("7", "faq"), ("3", "-")]
    assert float(slow) == 9


def test_its_queries_for_duckdb_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    duckdb = pytest.importorskip("duckdb")
    with (folder / "requests-20261130T11.jsonl").open("ab") as file:
        file.write(b'{"schema":1,"ts":"torn')
    monkeypatch.chdir(folder)
    queries = [query for text in blocks("sql") for query in text.split(";\n") if query.strip()]
    by_scenario, slowest = [duckdb.sql(query).fetchall() for query in queries]

    assert [(name, count) for name, count, _ in by_scenario] == [("faq", 13), (None, 7)]
    assert [answer for _, answer, _ in slowest][:2] == ["a19", "a18"]


def test_its_python_runs(folder: Path) -> None:
    now = hour_of(time.time())
    (folder / "requests-20261130T10.jsonl.gz").rename(folder / f"requests-{now}.jsonl.gz")
    (text,) = blocks("python")
    ran = subprocess.run(
        [sys.executable, "-c", text], cwd=folder, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip

    assert ran.stdout == "2026-11-30T10:00:07.000Z faq broke\n"


@pytest.mark.parametrize(
    "line",
    [line for text in blocks("text") for line in text.splitlines() if " -f " not in line],
)
def test_its_commands_run(
    folder: Path, line: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    _, *words = shlex.split(line, comments=True)

    assert commands.run([*words, "--log-dir", str(folder)]) in (0, 1)
    capfdbinary.readouterr()


def test_its_example_of_a_body_is_one() -> None:
    (text,) = blocks("json")

    found = msgspec.json.decode(text, type=Body)
    assert json.loads(text) == json.loads(msgspec.json.encode(found))
    assert found.schema == bodies.SCHEMA


def test_it_names_every_field_and_every_kind() -> None:
    table = TEXT.split("The fields come in groups:")[1].split("\n\n")[1]
    named = set(re.findall(r"`(\w+)`", table))

    assert [
        field for field in Record.__struct_fields__ if field not in named | {"schema", "ts"}
    ] == []
    assert [kind for kind in redaction.KINDS if f"| `{kind}` |" not in TEXT] == []
    assert [kind for kind in get_args(Kind) if f"`{kind}-2" not in TEXT] == []
