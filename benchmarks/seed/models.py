"""The two models of a run, and where they lie: the big one in the cache, the tiny one here."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from router import trained
from tests.backends.tiny import gguf

REPOSITORY = Path(__file__).resolve().parents[2]
TINY = REPOSITORY / "tests" / "backends" / "tiny" / "qwen3"
#: the number is that of the recipe in weights.py
NAME = "qwen3-0.6b-shape-1"


def random_weights(python: str, say: Callable[[str], None]) -> Path:
    """Qwen3-0.6B's shape with random weights, made once by a Python that has torch."""
    folder = trained.folder() / "models" / NAME
    if not folder.exists():
        say(f"making {folder} (1.2 GB, once)")
        folder.parent.mkdir(parents=True, exist_ok=True)
        script = Path(__file__).with_name("weights.py")
        subprocess.run([python, str(script), str(TINY), str(folder)], check=True)
    return folder


def tiny(folder: Path) -> Path:
    """The tiny model that thinks, as one file for llama.cpp."""
    return gguf.write(TINY, folder / "tiny-qwen3.gguf")
