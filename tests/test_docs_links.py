"""Every page is in the index, every link leads somewhere, and what is said of installing works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.support.product import ROOT
from tests.support.redisstand import free_port

DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")])
INSTALL = (DOCS / "install.md").read_text(encoding="utf-8")
#: [text](target), but in code; images too
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


@cache
def prose(path: Path) -> str:
    """A page without its blocks of code and its spans."""
    text = re.sub(r"^\s*```.*?^\s*```\s*$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", "", text)


@cache
def anchors(path: Path) -> set[str]:
    """What a link to a heading of this page may be called, as GitHub calls it."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    found = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target):
            continue  # elsewhere
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(path), target


def test_every_page_is_in_the_index() -> None:
    index = DOCS / "README.md"
    linked = {(DOCS / target.partition("#")[0]).resolve() for target in LINK.findall(prose(index))}

    assert [page.name for page in DOCS.glob("*.md") if page != index and page not in linked] == []
    for folder in (path for path in DOCS.iterdir() if path.is_dir() and path.name != "images"):
        assert folder in linked or any(folder in path.parents for path in linked), folder.name


# ---------------------------------------------------------------- install.md


@pytest.mark.skipif(not (ROOT / "router").is_dir(), reason="this tree has no sources of ours")
def test_what_is_said_of_installing_works(tmp_path: Path) -> None:
    """The blocks that are marked to be run, one after another, in a copy of the source.

    Nothing is fetched: what the package needs is lent by the environment of the tests.
    """
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("router", "policies"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    blocks = re.findall(r"^```sh run\n(.*?)^```$", INSTALL, re.M | re.S)
    port = str(free_port())
    script = "".join(blocks)
    for said, done in {
        "8088": port,
        "status |": f"status --url http://127.0.0.1:{port} |",
        # Putting pip into an environment is Python's own business, and takes it five seconds.
        "-m venv venv": "-m venv --without-pip venv",
        "venv/bin/pip install": "python3 -m pip --python venv/bin/python install",
    }.items():
        assert said in script
        script = script.replace(said, done)
    lent = os.pathsep.join(path for path in sys.path if path.endswith("-packages"))

    # A router that is left behind, where a line before its end fails, ends with its shell.
    script = "trap 'kill $! 2>/dev/null || true' EXIT\n" + script
    ran = subprocess.run(
        ["timeout", "300", "sh", "-eu", "-c", script],
        cwd=tmp_path,
        env={
            **os.environ,  # what was learned from the shipped examples may be in the cache
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": lent,
            "SCENARIO_ROUTER_SERVER__PORT": port,
            "PIP_NO_INDEX": "1",
            "PIP_NO_DEPS": "1",
            "PIP_NO_BUILD_ISOLATION": "0",  # which is how pip spells "without"
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "compiled no" in ran.stdout
    assert "\nsound\n" in ran.stdout
    assert '"status": "ok"' in ran.stdout
    assert "not ready: no backend is usable (gpu: cannot be reached)" in ran.stdout


def test_its_locks_and_its_files_are_there() -> None:
    named = set(re.findall(r"[\w/.-]+\.lock", INSTALL))

    assert named == {"requirements.lock", "requirements-build.lock"}
    assert all((ROOT / name).exists() for name in named)
    assert "SCENARIO_ROUTER_COMPILE=1" in INSTALL
