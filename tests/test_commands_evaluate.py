"""`eval` as it is typed: files in, tables or JSON or a page out, and exit codes that gate."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from router import commands
from tests.support.labelled import deployed, written

ROWS: list[dict[str, Any]] = [
    {"id": "a", "text": "refund please", "label": "faq", "lang": "en", "think": False},
    {"id": "b", "text": "怎么退款", "label": "faq", "lang": "zh", "think": False},
    {"id": "c", "text": "python, why?", "label": "code", "think": True, "source": "desk"},
    {"id": "d", "text": "python <script>alert(1)</script>", "label": ["faq", "chat"]},
    {
        "id": "e",
        "messages": [
            {"role": "user", "content": "python"},
            {"role": "assistant", "content": "ok"},
            {"role": "user", "content": "thanks"},
        ],
        "label": ["faq", "chat"],
    },
]


def evaluated(folder: Path, *flags: str, rows: bytes | None = None) -> int:
    (folder / "rows.jsonl").write_bytes(written(ROWS) if rows is None else rows)
    return commands.run(
        ["eval", str(folder / "rows.jsonl"), "--config", str(deployed(folder)), *flags]
    )


def document(folder: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    evaluated(folder, "--json", *flags)
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_rows_are_measured_through_the_deployment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = document(tmp_path, capsys)

    assert (told["file"], told["rows"], told["accuracy"]) == ("rows.jsonl", 5, 4 / 5)
    assert told["confusion"] == {"code": {"code": 1, "faq": 0}, "faq": {"code": 1, "faq": 3}}
    assert told["sources"] == {"desk": {"rows": 1, "accuracy": 1.0}}
    assert (told["thinking"]["rows"], told["thinking"]["worth"]) == (3, 1)
    assert [mistake["id"] for mistake in told["mistakes"]] == ["d"]
    assert told["missed"] == []


def test_the_tables_are_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluated(tmp_path) == 0

    out, err = capsys.readouterr()
    assert out.startswith("rows.jsonl under policy ")
    assert "accuracy    0.800" in out
    assert "  d: faq > code, " in out
    assert err == ""


def test_another_policy_can_be_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.toml"
    other.write_text('schema = 1\ndefault_scenario = "faq"\n[scenarios.faq]\n')

    told = document(tmp_path, capsys, "--policy", str(other))
    assert told["stages"] == {"default": {"rows": 5, "accuracy": 4 / 5}}


def test_an_alias_counts_one_answer_as_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = document(tmp_path, capsys, "--alias", "code=chat", "--alias", "faq=code")

    assert told["aliases"] == {"code": "chat", "faq": "code"}
    assert told["confusion"] == {
        "code": {"code": 0, "faq": 0, "chat": 1},
        "faq": {"code": 2, "faq": 2, "chat": 0},
    }


def test_names_that_lead_nowhere_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = written([{"text": "a", "label": ["fqa", "x"]}])

    assert evaluated(tmp_path, "--alias", "cat=dog", rows=rows) == 0
    err = capsys.readouterr().err.splitlines()
    assert err == [
        "note: the policy has no scenario 'cat', which --alias names",
        "note: no answer can be right where the label is 'fqa or x'",
    ]


def test_one_cell_of_the_matrix_is_shown_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = document(tmp_path, capsys, "--show", "faq>faq", "--show", "faq > code", "--mistakes=0")

    ids = {pair: [answer["id"] for answer in told["shown"][pair]] for pair in told["shown"]}
    assert sorted(ids.pop("faq>faq")) == ["a", "b", "e"]
    assert ids == {"faq>code": ["d"]}
    assert told["mistakes"] == []

    evaluated(tmp_path, "--show", "faq>code", "--show", "code>faq", "--mistakes", "0")
    out = capsys.readouterr().out
    assert "faq>code (1)\n  d: faq > code" in out
    assert out.endswith("code>faq (0)\n")


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--min-accuracy", "0.81"), "accuracy"),
        (("--min-macro-f1", "0.9"), "macro-F1"),
        (("--max-ece", "0"), "calibration error"),
        (("--min-lang-accuracy", "0.5"), "accuracy of languages with 30 rows"),
        (("--min-think-precision", "0.5"), "precision of thinking"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_a_missed_bound_is_one_line_and_exit_code_1(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[str, ...],
    named: str,
    as_json: bool,
) -> None:
    rows = written([{k: v for k, v in row.items() if k != "think"} for row in ROWS])
    code = evaluated(tmp_path, *flags, *["--json"] * as_json, rows=rows)

    out, err = capsys.readouterr()
    assert code == 1
    assert err.startswith(f"missed: {named}")
    assert err.count("\n") == 1
    if as_json:
        assert [f"missed: {line}\n" for line in json.loads(out)["missed"]] == [err]


def test_bounds_that_are_kept_are_exit_code_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bounds = ("--min-accuracy=0.8", "--min-macro-f1=0.5", "--max-ece=1", "--min-think-precision=0")

    assert evaluated(tmp_path, *bounds) == 0
    assert evaluated(tmp_path, "--min-lang-accuracy=1", rows=written(ROWS[:1] * 30)) == 0
    assert capsys.readouterr().err == ""


def test_bad_rows_are_exit_code_2_with_their_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = written(ROWS[:1]) + b"\n{\n" + written([{"label": "faq"}] * 30)

    assert evaluated(tmp_path, rows=rows) == 2
    out, err = capsys.readouterr()
    told = err.splitlines()
    assert out == ""
    assert [line.split(":")[0] for line in told[:2]] == ["line 3", "line 4"]
    assert told[-1] == "and 11 more"
    assert len(told) == 21


@pytest.mark.parametrize(
    "flags",
    [
        ("--min-accuracy", "75"),
        ("--max-ece", "nan"),
        ("--min-macro-f1", "much"),
        ("--alias", "code"),
        ("--alias", "=chat"),
        ("--show", "faq"),
        ("--repeat", "0"),
        ("--mistakes", "-1"),
    ],
)
def test_flags_that_mean_nothing_are_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        evaluated(tmp_path, *flags)

    assert ended.value.code == 2
    assert flags[0] in capsys.readouterr().err


def test_files_that_cannot_be_used_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ["--config", str(deployed(tmp_path))]
    assert commands.run(["eval", str(tmp_path / "none.jsonl"), *config]) == 2
    assert "none.jsonl: No such file" in capsys.readouterr().err
    assert evaluated(tmp_path, "--html", str(tmp_path / "none" / "page.html")) == 2
    assert "page.html: No such file" in capsys.readouterr().err
    assert commands.run(["eval", "-", *config, "--policy", str(tmp_path / "none.toml")]) == 1
    assert "none.toml" in capsys.readouterr().err


def test_the_page_is_written_where_it_was_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"

    assert evaluated(tmp_path, "--html", str(page)) == 0
    assert "&lt;script&gt;alert(1)" in page.read_text(encoding="utf-8")
    assert "<script" not in page.read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("config.toml", "page.html", "policy.toml", "rows.jsonl"),
    ]


def test_all_but_the_times_is_the_same_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = document(tmp_path, capsys), document(tmp_path, capsys, "--repeat", "1")

    del first["times"], second["times"]
    assert first == second


def test_rows_come_from_standard_input_too(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "router", "eval", "-", "--config", str(deployed(tmp_path))],
        input=written(ROWS),
        capture_output=True,
        check=True,
    )

    assert ran.stdout.startswith(b"standard input under policy ")
    assert ran.stderr == b""
