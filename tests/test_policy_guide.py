"""The policy guide says what is so: blocks load, rows of tables are tried, commands are taken."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from router import policy as policies
from router.commands import parser
from router.config import Backend
from router.params import PARAMS
from router.policy import Guard, Match, Policy, Structure
from router.policycheck import findings
from tests.support.journey import HEAD, asked, body_of, policy_of, wired
from tests.support.product import ROOT

GUIDE = ROOT / "docs" / "policy.md"
PAGES = [GUIDE, GUIDE.with_name("policy.zh.md")]
BACKEND = Backend.model_validate({"name": "a", "url": "http://127.0.0.1:1", "dialect": "vllm"})


def told(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", told(page), re.M | re.S)


def rows(page: Path, heading: str) -> list[list[str]]:
    """The cells of each row of the table between two marks; those of its head are left out."""
    (table,) = re.findall(rf"<!-- {heading} -->\n(.*?)<!-- {heading} -->", told(page), re.S)
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in table.strip().splitlines()]
    return [[cell.strip() for cell in line] for line in lines[2:]]


def policy_in(block: str) -> Policy:
    """A block as the policy that it is, or in the least that makes it one."""
    if block.startswith("schema"):
        return policies.parse(block, str(GUIDE), ROOT / "policies")
    return policies.parse(f"{HEAD}[scenarios.chat]\n{block}", str(GUIDE))


TOML = [block for page in PAGES for block in blocks(page, "toml")]
RULES = [row for page in PAGES for row in rows(page, "rules")]


@pytest.mark.parametrize("block", TOML)
def test_every_block_is_sound_and_no_rule_in_it_does_nothing(block: str) -> None:
    found = [finding.mistake.message for finding in findings(policy_in(block), [BACKEND])]

    wanted = re.findall(r'^pool = "(\w+)"', block, re.M)
    assert all(any(f"pool {pool!r}" in message for pool in wanted) for message in found), found
    assert len(found) == len(wanted)


@pytest.mark.parametrize("block", [block for block in TOML if "[[tests]]" in block])
def test_its_promises_are_kept(block: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "policies" / "examples", tmp_path / "examples")
    (tmp_path / "policy.toml").write_text(block, encoding="utf-8")

    ran = subprocess.run(
        [sys.executable, "-m", "router", "check", "--policy", str(tmp_path / "policy.toml")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize(("rule", "sent", "gone_out"), RULES)
def test_every_row_of_the_rules_comes_to_what_it_says(rule: str, sent: str, gone_out: str) -> None:
    policy = policy_of(span(rule))

    body = body_of(wired(asked(members(sent)), policy, "vllm"))

    assert body == members(gone_out)


def span(cell: str) -> str:
    (text,) = re.findall(r"^`(.+)`$", cell)
    return str(text).replace("\\|", "|")


def members(cell: str) -> dict[str, Any]:
    if not cell.startswith("`"):
        return {}  # nothing, in whichever language
    found: dict[str, Any] = json.loads(f"{{{span(cell)}}}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_parameter_is_there_with_all_its_spellings(page: Path) -> None:
    listed = {
        span(name): set(re.findall(r"`([^`]+)`", spellings))
        for name, _, spellings in rows(page, "parameters")
    }

    assert listed.pop("extra.<name>") == set()
    assert listed == {name: set(param.spellings) for name, param in PARAMS.items()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_values_of_a_parameter_are_those_that_it_takes(page: Path) -> None:
    """Each number and word that the table names is taken; what lies outside is not."""
    for name, values, _ in rows(page, "parameters"):
        param = PARAMS.get(span(name))
        if param is None:
            continue
        for word in re.findall(r"`([^`]+)`", values):
            value = tomllib.loads(f"x = {word}")["x"]
            assert value == "auto" or param.fault(value) is None, (name, word)
        if param.choices:
            named = re.findall(r'`"(\w+)"`', values)
            assert set(named) == set(param.choices)
        for number in re.findall(r"-?\d+", values):
            bound = int(number)
            assert bound in (param.low, param.high) or param.fault(bound) is None, (name, bound)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_condition_and_no_guard_is_left_out(page: Path) -> None:
    text = told(page)

    for key in (*Match.names(), *Guard.names()):
        assert f"`{key}`" in text, key
    for word in (*get_args(get_args(_kind("has"))[0]), *get_args(get_args(_kind("lang"))[0])):
        assert f"`{word}`" in text, word


def _kind(name: str) -> Any:
    return get_type_hints(Structure)[name]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_its_commands_are_taken(page: Path) -> None:
    spans = re.findall(r"`(scenario-router [^`]+)`", told(page))
    lines = [
        re.sub(r"\s+#.*", "", line) for block in blocks(page, "sh") for line in block.splitlines()
    ]
    commands = [shlex.split(line)[1:] for line in (*spans, *lines)]

    assert len(commands) > 5
    for words in commands:
        parser(words[0]).parse_args(words)  # a refusal ends the program
