"""Builds the wheel: as it is, or with the modules of the request path compiled by mypyc.

    pip wheel .                                 pure Python, for every machine
    SCENARIO_ROUTER_COMPILE=1 pip wheel .       for this Python and platform; needs a C compiler

Which modules those are stands in pyproject.toml. Their sources are in the wheel all the same,
for tracebacks. Compiling happens in a folder of its own; nothing is left in the tree.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SWITCH = "SCENARIO_ROUTER_COMPILE"
PACKAGE = "router"
#: gives the library that holds them its name: scenario_router__mypyc
_GROUP = "scenario_router"
# What is installed beside it must make no difference to what comes out.
_MYPY_INI = """\
[mypy]
no_site_packages = True
ignore_missing_imports = True
follow_imports = silent
"""


class CompiledHook(BuildHookInterface):  # type: ignore[type-arg]
    """Called by hatchling for each wheel."""

    _folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def is_wanted(self) -> bool:
        return os.environ.get(SWITCH) == "1"

    def dependencies(self) -> list[str]:
        """What compiling needs, in the environment that pip builds in."""
        found: list[str] = self.config["needs"]
        return found if self.is_wanted else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the compiled modules to a wheel that is to have them."""
        if version == "editable" or not self.is_wanted:
            return
        self._folder = tempfile.TemporaryDirectory(prefix="scenario-router-")
        folder = Path(self._folder.name)
        self.app.display_info(f"compiling {len(self.config['modules'])} modules")
        for path in compiled(Path(self.root), self.config["modules"], folder):
            build_data["force_include"][str(path)] = str(path.relative_to(folder))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._folder is not None:
            self._folder.cleanup()


def compiled(root: Path, modules: list[str], folder: Path) -> list[Path]:
    """Compile modules of the package at `root` in an empty `folder`; what came out, inside it.

    Raises RuntimeError, with what mypyc or the C compiler said.
    """
    shutil.copytree(root / PACKAGE, folder / PACKAGE, ignore=shutil.ignore_patterns("*.so"))
    (folder / "mypy.ini").write_text(_MYPY_INI)
    paths = [_path(folder, module) for module in modules]
    done = subprocess.run(
        [sys.executable, os.path.abspath(__file__), *paths],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    found = [*folder.glob(f"*{suffix}"), *(folder / PACKAGE).rglob(f"*{suffix}")]
    if done.returncode or len(found) != len(modules) + 1:
        raise RuntimeError(f"the modules could not be compiled ({SWITCH}=1):\n{done.stdout}")
    return found


def _path(folder: Path, module: str) -> str:
    path = Path(PACKAGE, *module.split("."))
    is_package = (folder / path).is_dir()
    return str(path / "__init__.py" if is_package else path.with_suffix(".py"))


def _compile(paths: list[str]) -> None:
    """In the working directory: extension modules beside these sources."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    extensions = mypycify(
        ["--config-file=mypy.ini", *paths], opt_level="2", debug_level="0", group_name=_GROUP
    )
    distribution = Distribution({"name": PACKAGE, "ext_modules": extensions})
    command = distribution.get_command_obj("build_ext")
    command.inplace = True
    command.ensure_finalized()
    command.run()


if __name__ == "__main__":
    _compile(sys.argv[1:])
