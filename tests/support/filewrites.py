"""The ways in which editors and deployment tools save a file that somebody watches."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any


def write_file(path: Path, text: str, how: Mapping[str, Any]) -> None:
    """Save the file as `how["how"]` says."""
    match how["how"]:
        case "in_place":
            path.write_text(text, encoding="utf-8")
        case "in_place_pieces":
            with path.open("w", encoding="utf-8") as file:
                for number, piece in enumerate(pieces(text, how["split"])):
                    if number:
                        time.sleep(how["pause_ms"] / 1000)
                    file.write(piece)
                    file.flush()
        case "rename":
            _beside(path, text).replace(path)
        case "delete_create":
            path.unlink()
            path.write_text(text, encoding="utf-8")
        case "symlink_swap":
            link = path.with_name(f"{path.name}.link")
            link.symlink_to(_beside(path, text))
            link.replace(path)
        case other:
            raise ValueError(f"no such way to write: {other}")


def _beside(path: Path, text: str) -> Path:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix="new-", suffix=".tmp")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    return Path(name)


def pieces(text: str, split: Sequence[float]) -> list[str]:
    """The text cut at these parts of its length, moved to the ends of lines.

    So each half of a TOML file is TOML again: the half-written file that is hardest
    to tell from a whole one.
    """
    ends = [text.index("\n", int(part * len(text))) + 1 for part in split]
    bounds = [0, *ends, len(text)]
    return [text[a:b] for a, b in pairwise(bounds)]
