"""`suggest` as it is typed: mistakes in, proposals out, and nothing written unless asked."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from router import commands, policy
from tests.support.labelled import CONFIG, deployed, written
from tests.test_suggestion import CHAT, INVOICES, baking, taught

SEEDLINGS: list[dict[str, Any]] = [
    {"text": 'should "seedlings" be hot', "label": "garden"},
    {"text": "how hot should it be under glass", "label": "garden", "think": True},
    *baking(),
]


def of_words(folder: Path, *flags: str, rows: bytes | None = None) -> int:
    """Against a policy that goes by keywords."""
    (folder / "rows.jsonl").write_bytes(written([*CHAT, *INVOICES]) if rows is None else rows)
    return commands.run(
        ["suggest", str(folder / "rows.jsonl"), "--config", str(deployed(folder)), *flags]
    )


def of_examples(folder: Path, *flags: str, rows: Sequence[Mapping[str, Any]] = SEEDLINGS) -> int:
    """Against a policy that learns."""
    (folder / "config.toml").write_text(CONFIG)
    if not (folder / "policy.toml").exists():
        (folder / "policy.toml").write_text(taught())
    (folder / "rows.jsonl").write_bytes(written(rows))
    config = str(folder / "config.toml")
    return commands.run(["suggest", str(folder / "rows.jsonl"), "--config", config, *flags])


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_keywords_are_proposed_with_the_lines_to_paste(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert of_words(tmp_path) == 0

    out, err = capsys.readouterr()
    assert out.startswith("rows.jsonl under policy ")
    assert "8 mistakes in 20 rows\n      8  faq > chat\n" in out
    assert (
        '  faq: "发票" fixes 4, breaks 0; in 4 mistakes of faq, in 0 texts of other labels\n' in out
    )
    assert "      + 怎么开发票\n" in out
    assert "12 of 20 right → 20 (fixed 8, broken 0)" in out
    assert out.endswith(
        f"in {tmp_path / 'policy.toml'}, [scenarios.faq.match], "
        'at the end of keywords (after a comma):\n  "发票", "invoice",\n'
    )
    assert err == ""


def test_a_scenario_without_keywords_is_given_a_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{**row, "label": "deep"} for row in INVOICES]

    of_words(tmp_path, rows=written([*CHAT, *rows]))

    assert '[scenarios.deep.match]:\n  keywords = ["发票", "invoice"]\n' in capsys.readouterr().out


def test_what_is_pasted_does_what_was_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_words(tmp_path)
    pasted = capsys.readouterr().out.splitlines()[-1].strip()
    config = deployed(tmp_path)
    file = tmp_path / "policy.toml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('"退款"]', f'"退款", {pasted}]'), encoding="utf-8")

    commands.run(["eval", str(tmp_path / "rows.jsonl"), "--config", str(config), "--json"])

    assert json.loads(capsys.readouterr().out)["accuracy"] == 1.0


def test_nothing_is_written_unless_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCENARIO_ROUTER_CACHE", str(tmp_path / "cache"))
    of_examples(tmp_path, rows=baking())  # all are right: only what serves is in the cache
    (tmp_path / "rows.jsonl").write_bytes(written(SEEDLINGS))
    before = contents(tmp_path)
    capsys.readouterr()

    assert of_examples(tmp_path) == 0

    assert contents(tmp_path) == before
    out = capsys.readouterr().out
    assert '[examples.garden]\ndirect = [\n  "should \\"seedlings\\" be hot",\n]\n' in out
    assert "1 direct (1 say nothing of thinking), 1 thinking, fixes 2, breaks 0\n" in out
    assert out.endswith('above the first [table]:\n  examples_files = ["OUT.toml"]\n')


def test_what_is_written_serves_as_it_was_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    out_file = tmp_path / "mine" / "out.toml"

    assert of_examples(tmp_path, "--write", str(out_file)) == 0

    *_, written_to, _, line = capsys.readouterr().out.splitlines()
    assert written_to == f"written to {out_file}"
    assert line == '  examples_files = ["mine/out.toml"]'
    file = tmp_path / "policy.toml"
    file.write_text(f"{line.strip()}\n{taught()}")
    assert policy.load(file).file.examples["garden"].thinking[-1] == SEEDLINGS[1]["text"]
    commands.run(
        ["eval", str(tmp_path / "rows.jsonl"), "--config", str(tmp_path / "config.toml"), "--json"]
    )
    assert json.loads(capsys.readouterr().out)["accuracy"] == 1.0


def test_a_file_that_the_policy_names_already_is_kept_in_its_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "old.toml").write_text("")
    (tmp_path / "policy.toml").write_text(f'examples_files = ["old.toml"]\n{taught()}')

    of_examples(tmp_path, "--write", str(tmp_path / "new.toml"))

    assert capsys.readouterr().out.endswith(
        'in place of its examples_files:\n  examples_files = ["old.toml", "new.toml"]\n'
    )


def test_an_existing_file_is_overwritten_by_force_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out_file = tmp_path / "out.toml"
    out_file.write_text("mine")

    assert of_examples(tmp_path, "--write", str(out_file)) == 2
    assert out_file.read_text() == "mine"
    assert capsys.readouterr().err == f"{out_file}: exists: --force overwrites it\n"

    assert of_examples(tmp_path, "--write", str(out_file), "--force") == 0
    assert out_file.read_text().startswith("[examples.garden]\n")


@pytest.mark.parametrize("name", ["policy.toml", "config.toml", "rows.jsonl", "old.toml"])
def test_no_file_in_use_is_overwritten_even_by_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / "old.toml").write_text("")
    (tmp_path / "policy.toml").write_text(f'examples_files = ["old.toml"]\n{taught()}')
    (tmp_path / "link.toml").symlink_to(tmp_path / name)

    assert of_examples(tmp_path, "--write", str(tmp_path / name), "--force") == 2
    before = contents(tmp_path)
    assert of_examples(tmp_path, "--write", str(tmp_path / "link.toml"), "--force") == 2

    assert contents(tmp_path) == before
    assert "is in use: choose another name" in capsys.readouterr().err


def test_a_place_where_no_file_can_be(tmp_path: Path) -> None:
    assert of_examples(tmp_path, "--write", str(tmp_path)) == 2
    assert of_examples(tmp_path, "--write", str(tmp_path / "no" / "out.toml")) == 2
    assert not (tmp_path / "no").exists()


def test_keywords_are_never_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out_file = tmp_path / "out.toml"

    assert of_words(tmp_path, "--write", str(out_file)) == 0

    assert not out_file.exists()
    assert capsys.readouterr().out.endswith(
        f"{out_file} was not written: no examples are proposed\n"
    )


def test_held_out_rows_are_told_beside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.jsonl"
    other.write_bytes(written([{"text": "invoice?", "label": "faq"}, INVOICES[0]]))

    of_words(tmp_path, "--check", str(other))

    out = capsys.readouterr().out
    assert '  faq: "invoice" fixes 4, breaks 0 (held out: fixes 1, breaks 0); ' in out
    assert "0 of 1 right → 1 (fixed 1, broken 0); 1 that are in both files left out\n" in out


def test_the_same_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert of_examples(tmp_path, "--json", "--write", str(tmp_path / "out.toml")) == 0

    told = json.loads(capsys.readouterr().out)
    assert (told["file"], told["rows"], told["mistakes"], told["written"]) == (
        "rows.jsonl",
        12,
        2,
        True,
    )
    [new] = told["examples"]
    assert (new["label"], new["thinking"]) == ("garden", [SEEDLINGS[1]["text"]])
    assert told["total"] == {"rows": 12, "before": 10, "after": 12, "fixed": 2, "broken": 0}
    assert told["examples_toml"] == (tmp_path / "out.toml").read_text()


def test_fewer_examples_can_be_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_examples(tmp_path, "--examples", "1")
    assert "2 prompts of garden would do as examples, 1 were taken" in capsys.readouterr().out

    assert of_examples(tmp_path, "--examples", "0") == 0
    assert "nothing to propose: no change was found that helps\n" in capsys.readouterr().out


def test_all_right_is_said_and_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert of_words(tmp_path, rows=written(CHAT)) == 0

    out = capsys.readouterr().out
    assert out.endswith("0 mistakes in 12 rows\n\nnothing to propose\n")


def test_rows_come_from_standard_input_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(written([*CHAT, *INVOICES]))))

    assert commands.run(["suggest", "-", "--config", str(deployed(tmp_path))]) == 0

    assert capsys.readouterr().out.startswith("standard input under policy ")


def test_labels_that_lead_nowhere_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_words(tmp_path, rows=written([*CHAT, {"text": "a", "label": "no\x1b[31m"}]))

    out = capsys.readouterr().out
    assert "      1  no[31m > chat\n" in out
    assert "note: 1 of them have a label that is no scenario of the policy\n" in out


def test_prompts_cannot_paint_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{**SEEDLINGS[0], "text": "should seedlings\x1b[31m\u202e be hot"}, *baking()]

    of_examples(tmp_path, rows=rows)

    out = capsys.readouterr().out
    assert '  "should seedlings\\u001b[31m\\u202e be hot",\n' in out
    assert all(letter.isprintable() for letter in out.replace("\n", ""))


@pytest.mark.parametrize("rows", [b"", b"{}\n", b'{"text": "a", "label": ""}\n'])
def test_bad_rows_are_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: bytes
) -> None:
    assert of_words(tmp_path, rows=rows) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert err


def test_a_missing_file_is_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert of_words(tmp_path, "--check", str(tmp_path / "none.jsonl")) == 2

    assert "none.jsonl: No such file" in capsys.readouterr().err


def test_a_policy_that_cannot_be_used_is_a_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("schema = 2")

    assert of_words(tmp_path, "--policy", str(broken)) == 1
    assert str(broken) in capsys.readouterr().err


def test_examples_that_cannot_be_learned_are_a_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCENARIO_ROUTER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.executable", str(tmp_path / "no-python"))

    assert of_examples(tmp_path) == 1
    assert "learning from the examples failed" in capsys.readouterr().err


def test_the_environment_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = dict(os.environ)
    of_examples(tmp_path)
    assert dict(os.environ) == before

    monkeypatch.delenv("SCENARIO_ROUTER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    of_examples(tmp_path)
    assert "SCENARIO_ROUTER_CACHE" not in os.environ
