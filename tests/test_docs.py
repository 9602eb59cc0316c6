"""The documents say what is so: README blocks run, schemas and examples are current."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from router import __version__, tomlfile
from router import config as configs
from router import policy as policies
from router import record as records
from router.commands import VERBS
from router.commands.schema import KINDS, schema_of

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.M | re.S)


def blocks(language: str) -> list[tuple[str, str]]:
    return [(what.strip(), text) for kind, what, text in BLOCK.findall(README) if kind == language]


@pytest.mark.parametrize("what", KINDS)
def test_the_published_schemas_are_those_of_the_code(what: str) -> None:
    published = json.loads((ROOT / "docs" / "schemas" / f"{what}.json").read_text())

    assert published == json.loads(json.dumps(schema_of(what)))


def test_the_shipped_configuration_and_policies_load() -> None:
    configs.load(ROOT / "config.toml", environ={})
    shipped = sorted((ROOT / "policies").glob("*.toml"))

    assert [policies.load(path).name for path in shipped] == [str(path) for path in shipped]


def test_the_changelog_begins_with_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

    assert re.search(r"^## (\S+)", changelog, re.M)[1] == __version__  # type: ignore[index]


def test_every_command_in_the_readme_exists_and_parses() -> None:
    commands = [
        line
        for _, text in blocks("sh")
        for line in text.splitlines()
        if line.startswith("scenario-router ")
    ]
    assert commands
    for line in commands:
        words = shlex.split(line, comments=True)
        assert words[1] in VERBS, line


def test_every_command_is_in_the_readme() -> None:
    assert [verb for verb in VERBS if f"`{verb}`" not in README] == []


def test_the_readmes_explain_prints_what_the_readme_says(tmp_path: Path) -> None:
    shown = [(what, text) for what, text in blocks("text") if what.startswith("explain ")]
    assert shown
    for what, text in shown:
        ran = subprocess.run(
            [sys.executable, "-m", "router", *shlex.split(what)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        # Likelihoods may differ in a last digit from one processor's arithmetic to another's.
        told, said = (re.split(r"(\b[01]\.\d\d\b)", whole.strip()) for whole in (ran.stdout, text))
        assert told[::2] == said[::2]
        assert list(map(float, told[1::2])) == pytest.approx(list(map(float, said[1::2])), abs=0.05)


@pytest.mark.parametrize("text", [text for _, text in blocks("python")])
def test_python_blocks_compile_and_import_what_exists(text: str) -> None:
    compile(text, "README.md", "exec")


@pytest.mark.parametrize("text", [text for _, text in blocks("toml")])
def test_toml_blocks_are_sound(text: str) -> None:
    if "[[backends]]" in text:
        path = Path(configs.DEFAULT_FILE)
        value = tomlfile.table(text, str(path))
        tomlfile.model(configs.Config, value, text, str(path))
    else:
        policies.parse(text, "README.md", ROOT / "policies")


def test_the_readmes_table_of_record_fields_is_complete() -> None:
    fields = records.json_schema()["$defs"]["Record"]["properties"]
    table = README.split("<!-- record fields -->")[1]

    assert [name for name in fields if f"`{name}`" not in table] == []


def test_the_layers_hold() -> None:
    ran = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout
