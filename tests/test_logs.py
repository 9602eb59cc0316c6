"""`scenario-router logs`: which records it shows, in which shape, and how it ends."""

from __future__ import annotations

import gzip
import json
import os
import pty
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import commands, logquery
from router import record as schema
from router.logquery import Times
from router.record import Record, timestamp
from router.recordfiles import hour_of
from tests.support.product import ROOT, write_toml

NOW = time.time()


def made(number: int, ago_s: float = 0.0, **members: Any) -> Record:
    defaults: dict[str, Any] = {
        "ts": timestamp(NOW - ago_s), "request_id": f"r-{number}", "scenario": "chat",
        "backend": "a", "client_model": "auto", "backend_model": "qwen", "outcome": "ok",
        "status": 200,
        "ttft_ms": 50.0, "total_ms": 400.0, "input_tokens": 10, "output_tokens": 20,
    }  # fmt: skip
    return Record(**{**defaults, **members})


def put(folder: Path, ago_s: float, *records: Record, packed: bool = False) -> Path:
    text = b"".join(map(schema.line, records))
    name = f"requests-{hour_of(NOW - ago_s)}.jsonl"
    path = folder / (name + ".gz" if packed else name)
    with path.open("ab") as file:
        file.write(gzip.compress(text) if packed else text)
    return path


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Minutes may have passed since this file was read."""
    monkeypatch.setattr(sys.modules[__name__], "NOW", time.time())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three hours of a log, the first packed."""
    put(tmp_path, 7200, made(1, 7200, key="shop"), made(2, 7100, scenario="faq"), packed=True)
    put(
        tmp_path, 3600,
        made(3, 3600, backend="b", session="abcdef0123456789"),
        made(4, 3500, outcome="upstream_error", status=502, error_code="backend_error"),
    )  # fmt: skip
    put(
        tmp_path, 0,
        made(5, 60, outcome="client_disconnect", total_ms=9000.0, scenario="faq"),
        made(6, 30, scenario=None, backend=None, status=404, outcome="client_error",
             error_code="model_not_found", ttft_ms=None, client_model="gpt"),
        made(7, 1, ttft_ms=1500.0),
    )  # fmt: skip
    return tmp_path


Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ask(folder: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> Ask:
    def run(*words: str, where: Path = folder) -> tuple[int, str, str]:
        code = commands.run(["logs", "--log-dir", str(where), *words])
        out, err = capfdbinary.readouterr()
        return code, out.decode(), err.decode()

    return run


def ids(ask: Ask, *words: str) -> list[str]:
    code, out, _ = ask("--json", *words)
    found = [json.loads(line)["request_id"].removeprefix("r-") for line in out.splitlines()]
    assert code == (0 if found else 1)
    return found


# --- which --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ((), "1 2 3 4 5 6 7"),
        (("--since", "1h"), "4 5 6 7"),
        (("--since", "90m", "--until", "5m"), "3 4"),
        (("--until", "1.5h"), "1 2"),
        (("--scenario", "faq"), "2 5"),
        (("--scenario", "faq", "--scenario", "-"), "2 5 6"),
        (("--backend", "b"), "3"),
        (("--session", "abcdef"), "3"),
        (("--key", "shop"), "1"),
        (("--model", "gpt"), "6"),
        (("--model", "qwen", "--errors"), "4 6"),
        (("--slow", "1000"), "5"),
        (("--slow-ttft", "1000"), "7"),
        (("--errors",), "4 6"),
        (("--id", "r-7"), "7"),
        (("-n", "2"), "6 7"),
        (("-n", "6"), "2 3 4 5 6 7"),
        (("-n", "1", "--scenario", "faq", "--since", "1d"), "5"),
        (("--scenario", "code"), ""),
    ],
)
def test_what_is_chosen(ask: Ask, words: tuple[str, ...], wanted: str) -> None:
    assert ids(ask, *words) == wanted.split()


def test_times_may_be_written_out(ask: Ask) -> None:
    utc = timestamp(NOW - 3550)
    local = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(NOW - 3550))

    assert ids(ask, "--since", utc) == ["4", "5", "6", "7"]
    assert ids(ask, "--since", local) == ["4", "5", "6", "7"]
    assert ids(ask, "--since", "2001-01-01", "-n", "1") == ["7"]
    assert ids(ask, "--until", "2001-01-01") == []


def test_files_of_other_hours_are_not_opened(ask: Ask, folder: Path) -> None:
    (folder / f"requests-{hour_of(NOW - 90_000)}.jsonl").mkdir()  # reading it would be an error

    assert ids(ask, "--since", "1.5h") == ["3", "4", "5", "6", "7"]
    assert ids(ask, "-n", "3") == ["5", "6", "7"]


# --- in which shape -----------------------------------------------------------------------------


def test_json_lines_are_those_of_the_log(ask: Ask, folder: Path) -> None:
    _, out, _ = ask("--json", "--id", "r-3")

    assert out.encode() == schema.line(made(3, 3600, backend="b", session="abcdef0123456789"))


def test_json_of_some_fields(ask: Ask) -> None:
    _, out, _ = ask("--json", "--id", "r-3", "--fields", "backend,total_ms")

    assert json.loads(out) == {"backend": "b", "total_ms": 400.0}


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_a_table_fits(ask: Ask, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, _ = ask()
    head, *rows = out.splitlines()

    assert code == 0
    assert len(rows) == 7
    assert max(map(len, out.splitlines())) <= width
    assert head.split()[:2] == ["time", "scenario"]
    assert ("id" in head.split()) == (width > 120)
    assert "\x1b" not in out
    assert "9000 ms" in rows[4]
    assert "upstream_err" in rows[3]


def test_a_table_of_some_fields(ask: Ask) -> None:
    _, out, _ = ask("--fields", "request_id,scenario", "-n", "2")

    assert [line.split() for line in out.splitlines()] == [
        ["request_id", "scenario"],
        ["r-6", "-"],
        ["r-7", "chat"],
    ]


def test_what_clients_wrote_is_no_command_to_the_terminal(ask: Ask, folder: Path) -> None:
    put(folder, 0, made(8, scenario="[red]x\x1b[2J\u202e\n", client_model="\x1b]0;x\x07"))
    _, out, _ = ask("--fields", "scenario,client_model", "--id", "r-8")

    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", out)
    assert "[red]x" in out


def test_a_summary(ask: Ask) -> None:
    _, out, _ = ask("--summary", "--json")
    told = json.loads(out)

    assert list(told) == ["chat", "faq", "-"]
    assert told["chat"] == {
        "count": 4, "errors": 1, "ttft_p50_ms": pytest.approx(50, rel=0.01),
        "ttft_p95_ms": pytest.approx(1500, rel=0.01), "total_p50_ms": pytest.approx(400, rel=0.01),
        "total_p95_ms": pytest.approx(400, rel=0.01), "input_tokens": 40, "output_tokens": 80,
    }  # fmt: skip
    _, out, _ = ask("--summary")
    assert re.search(r"chat +4 +1 +50\b", out)


@given(st.lists(st.floats(0.01, 1e7), min_size=1, max_size=60), st.sampled_from([0.5, 0.95, 1.0]))
def test_quantiles_are_right_within_one_per_cent(values: list[float], share: float) -> None:
    times = Times()
    for value in values:
        times.add(value)
    right = sorted(values)[max(0, -int(-share * len(values) // 1) - 1)]

    assert times.quantile(share) == pytest.approx(right, rel=0.016)  # and three digits are told


# --- how it ends --------------------------------------------------------------------------------


def test_lines_that_are_none_are_told_of(ask: Ask, folder: Path) -> None:
    path = put(folder, 0)
    with path.open("ab") as file:
        file.write(b'{"schema": 7}\n{"schema":1,"ts"')
    code, _, err = ask("-n", "1")

    assert code == 0
    assert "1 torn lines, 1 that are no records" in err


def test_nothing_found(ask: Ask, tmp_path: Path) -> None:
    code, out, err = ask("--scenario", "none")

    assert (code, out) == (1, "")
    assert "nothing found" in err
    assert ask(where=tmp_path / "not there")[0] == 2


@pytest.mark.parametrize(
    "words",
    [["--since", "yesterday"], ["--fields", "prompt"], ["-n", "0"], ["--summary", "-f"]],
)
def test_usage(words: list[str], folder: Path) -> None:
    with pytest.raises(SystemExit) as end:
        commands.run(["logs", "--log-dir", str(folder), *words])

    assert end.value.code == 2


def test_the_folder_is_found_without_the_secrets_that_serving_needs(
    folder: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    backends = [{"name": "a", "url": "http://127.0.0.1:1", "api_key_env": "NOT_THERE"}]
    place = tmp_path / "etc"
    place.mkdir()
    config = write_toml(place / "config.toml", {"backends": backends, "log": {"dir": ".."}})

    assert commands.run(["logs", "--config", str(config), "-n", "1"]) == 0
    assert commands.run(["logs", "--config", str(place / "none.toml"), "-n", "1"]) == 1
    monkeypatch.setenv("SCENARIO_ROUTER_LOG__DIR", str(folder))
    assert commands.run(["logs", "--config", str(place / "none.toml"), "-n", "1"]) == 0
    config.write_text("[log")
    assert commands.run(["logs", "--config", str(config), "-n", "1"]) == 2
    capfdbinary.readouterr()


def test_a_closed_pipe_is_no_fault(folder: Path) -> None:
    put(folder, 0, *(made(n) for n in range(10, 3000)))
    for shape in ("--json", "--limit=2500"):
        words = [sys.executable, "-m", "router", "logs", "--log-dir", str(folder), shape]
        with subprocess.Popen(
            words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as running:
            assert running.stdout is not None
            assert running.stderr is not None
            running.stdout.read(10)
            running.stdout.close()
            assert running.stderr.read() == b""
            assert running.wait(30) == 0


# --- on a terminal, as it comes -----------------------------------------------------------------


class Terminal:
    """`logs` on a terminal of its own."""

    def __init__(self, *words: str, env: dict[str, str] | None = None) -> None:
        ours, its = pty.openpty()
        self._fd = ours
        self.process = subprocess.Popen(
            [sys.executable, "-m", "router", "logs", *words],
            cwd=ROOT, stdin=its, stdout=its, stderr=its,
            env={**os.environ, "COLUMNS": "110", "TERM": "xterm-256color", **(env or {})},
        )  # fmt: skip
        os.close(its)
        self.text = ""
        self._more = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._fd, 4096)
            except OSError:  # Linux's way to say that the other side is closed
                data = b""
            with self._more:
                self.text += data.decode()
                self._more.notify_all()
            if not data:
                return

    def wait_for(self, text: str) -> None:
        with self._more:
            assert self._more.wait_for(lambda: text in self.text, 20), self.text

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(5)
        os.close(self._fd)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    started: list[Terminal] = []

    def start(*words: str, **asked: Any) -> Terminal:
        started.append(Terminal(*words, **asked))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_it_follows_over_the_turn_of_the_hour(
    folder: Path, terminal: Callable[..., Terminal]
) -> None:
    shown = terminal("--log-dir", str(folder), "-f", "-n", "4", "--fields", "request_id,backend")
    shown.wait_for("r-7")
    assert [f"r-{n}" in shown.text for n in (3, 4, 5, 6)] == [False, True, True, True]

    path = put(folder, 0, made(8), made(9, scenario="faq"))
    shown.wait_for("r-9")
    put(folder, -3600, made(10))
    shown.wait_for("r-10")
    packed = path.with_name(path.name + ".gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    put(folder, -3600, made(11))
    shown.wait_for("r-11")

    assert [shown.text.count(f"r-{n} ") for n in range(4, 12)] == [1] * 8
    assert shown.text.count("request_id") == 1
    shown.process.send_signal(2)  # Ctrl-C
    assert shown.process.wait(20) == 0
    assert "Traceback" not in shown.text


@pytest.mark.parametrize(("env", "colours"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_are_for_terminals(
    folder: Path, terminal: Callable[..., Terminal], env: dict[str, str], colours: bool
) -> None:
    shown = terminal("--log-dir", str(folder), env=env)
    shown.process.wait(30)
    shown.wait_for("upstream_error")

    assert ("\x1b[31m" in shown.text) == colours  # red


def test_the_fields_are_those_of_the_record() -> None:
    assert set(logquery.Row.__struct_fields__) <= set(logquery.FIELDS)
