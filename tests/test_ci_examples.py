"""The examples for pipelines call commands that exist, with flags that they know."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from router import commands

ROOT = Path(__file__).resolve().parents[1]
WORKFLOW = ROOT / "docs" / "ci" / "github-actions.yml"
HOOKS = ROOT / ".pre-commit-hooks.yaml"
MEASURING = ROOT / "docs" / "measuring.md"


def loaded(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def of_workflow() -> list[str]:
    steps = loaded(WORKFLOW)["jobs"]["policy"]["steps"]
    lines = [line.strip() for step in steps for line in step.get("run", "").splitlines()]
    return [line for line in lines if line.startswith("scenario-router ")]


def of_hooks() -> list[str]:
    return [shlex.join([*hook["entry"].split(), *hook.get("args", [])]) for hook in loaded(HOOKS)]


def of_docs() -> list[str]:
    text = MEASURING.read_text(encoding="utf-8").replace("\\\n", " ")
    return re.findall(r"^scenario-router .+$", text, re.M)


@pytest.mark.parametrize("line", [*of_workflow(), *of_hooks(), *of_docs()])
def test_its_command_parses(line: str) -> None:
    words = shlex.split(line.partition(" > ")[0], comments=True)
    args = commands.parser(words[1]).parse_args(words[1:])

    assert args.verb == words[1]


def test_a_change_is_checked_evaluated_measured_and_compared() -> None:
    assert [line.split()[1] for line in of_workflow()] == ["check", "eval", "up", "bench", "ab"]
    assert [line.split()[1] for line in of_hooks()] == ["check", "eval", "bench"]


def test_what_is_kept_of_a_run_is_what_was_written() -> None:
    text = WORKFLOW.read_text(encoding="utf-8")
    kept = loaded(WORKFLOW)["jobs"]["policy"]["steps"][-1]["with"]["path"].split()

    assert all(f"--html {name}" in text for name in kept if name.endswith(".html"))


def test_hooks_start_where_policies_change() -> None:
    for hook in loaded(HOOKS):
        assert re.search(hook["files"], "policies/default.toml")
        assert hook["pass_filenames"] is False
