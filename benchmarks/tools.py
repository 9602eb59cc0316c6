"""The programs a run needs: what is missing, and the two of ours that are compiled first."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
APT_PACKAGES = {"wrk": "wrk", "nginx": "nginx", "cc": "gcc libc6-dev"}
NAIVE_NEEDS = ("aiohttp", "uvloop")


def find(program: str) -> str | None:
    """Its path; sbin is searched too, as it is not on every user's PATH."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def what_to_install(peers: Iterable[str]) -> list[str]:
    """One sentence for each thing that is missing."""
    missing = [program for program in APT_PACKAGES if find(program) is None]
    advice = []
    if missing:
        packages = " ".join(APT_PACKAGES[program] for program in missing)
        advice.append(f"{', '.join(missing)} not found: apt-get install {packages}")
    modules = [name for name in NAIVE_NEEDS if find_spec(name) is None]
    if modules and "naive_aiohttp" in peers:
        names = " ".join(modules)
        advice.append(f"peer naive_aiohttp needs {names}: python -m pip install {names}")
    return advice


def compiled(program: str, folder: Path) -> Path:
    """Build src/<program>.c into `folder`."""
    binary = folder / program
    source = HERE / "src" / f"{program}.c"
    subprocess.run(["cc", "-O2", "-o", str(binary), str(source)], check=True)
    return binary
