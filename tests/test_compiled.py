"""The compiled build: what is in it, and that nothing is in it that must not be."""

from __future__ import annotations

import ast
import os
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import router
from router import compiled
from tests.support.product import ROOT

HOOK = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"][
    "build"
]["targets"]["wheel"]["hooks"]["custom"]
PACKAGE = Path(router.__file__).parent
#: set where the tests run on a compiled build (`make test-compiled`)
IS_COMPILED = "TEST_COMPILED" in os.environ


def source_of(module: str) -> Path:
    path = PACKAGE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@pytest.mark.parametrize("module", HOOK["modules"])
def test_a_compiled_module_holds_nothing_that_mypyc_would_change(module: str) -> None:
    tree = ast.parse(source_of(module).read_text(encoding="utf-8"))

    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    bases = {ast.unparse(base) for node in classes for base in node.bases}
    keywords = [keyword.arg for node in classes for keyword in node.keywords]

    assert not bases & {"msgspec.Struct", "Struct", "Table"}
    assert not keywords


def test_what_runs_is_what_the_build_was_told() -> None:
    wanted = sorted(source_of(name) for name in HOOK["modules"]) if IS_COMPILED else []

    assert sorted(PACKAGE / f"{name}.py" for name in compiled.modules()) == wanted


def test_a_compiled_module_has_its_source_beside_it() -> None:
    for name in HOOK["modules"]:
        module = import_module(f"router.{name}")
        assert module.__file__ is not None
        assert module.__file__.endswith(".so") == IS_COMPILED
        assert source_of(name).is_file()
