"""One line of the files on the disk: a request's whole record, and what was said in it.

The database keeps what views need; the line itself, with fields that are newer than we are, is
looked up in its file. Bodies lie in files of their own, where that was asked for.
"""

from __future__ import annotations

import gzip
import mmap
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from router import recordfiles
from router.dashboard.segments import files_in
from router.recordfiles import PACKED

_LINE_BYTES = 32 << 20
_BLOCK = 4 << 20

_decode = msgspec.json.Decoder(dict[str, Any]).decode


def record(folder: str, name: str, request_id: str) -> dict[str, Any] | None:
    """The whole line about a request; None where it is not to be had any more."""
    for path in (Path(folder) / name, Path(folder) / (name + PACKED)):
        with suppress(OSError, EOFError, zlib.error):
            found = _find(path, request_id)
            if found is not None:
                return found
    return None


def body(folder: str, request_id: str, begun: datetime) -> dict[str, Any] | None:
    """What was asked and answered; None where it is not kept.

    Messages are as in a request: `{role, content}`, and `parts` for what was not stored of them.
    """
    at = begun.replace(tzinfo=UTC).timestamp()
    with suppress(OSError):
        for file in recordfiles.segments(Path(folder), at, at, kind="bodies"):
            with suppress(OSError, EOFError, zlib.error):
                found = _find(file.path, request_id)
                if found is not None:
                    return {**found, "prompt": _messages(found.get("prompt"))}
    return None


def _messages(prompt: Any) -> list[dict[str, Any]]:
    if not isinstance(prompt, list):
        return []
    return [
        {
            "role": str(message.get("role") or ""),
            "content": str(message.get("text") or ""),
            "parts": message.get("parts") or [],
        }
        for message in prompt
        if isinstance(message, dict)
    ]


def has_bodies(folders: Sequence[Path]) -> bool:
    return any(True for _ in files_in(folders, "bodies"))


def _find(path: Path, request_id: str) -> dict[str, Any] | None:
    """The last line with this id."""
    wanted = msgspec.json.encode(request_id)
    lines = _in_packed(path, wanted) if path.name.endswith(PACKED) else _in_plain(path, wanted)
    found = None
    for line in lines:
        with suppress(msgspec.DecodeError, RecursionError):
            read = _decode(line)
            if read.get("request_id") == request_id:
                found = read
    return found


def _in_plain(path: Path, wanted: bytes) -> Iterator[bytes]:
    """Lines that hold these bytes."""
    with path.open("rb") as file:
        if not path.stat().st_size:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            at = text.find(wanted)
            while at >= 0:
                begin = text.rfind(b"\n", 0, at) + 1
                end = text.find(b"\n", at)
                if 0 <= end - begin < _LINE_BYTES:
                    yield text[begin:end]
                at = text.find(wanted, end) if end >= 0 else -1


def _in_packed(path: Path, wanted: bytes) -> Iterator[bytes]:
    rest = b""
    with gzip.open(path) as file:
        while block := file.read(_BLOCK):
            lines, _, rest = (rest + block).rpartition(b"\n")
            if wanted in lines:
                yield from (line for line in lines.split(b"\n") if wanted in line)
            if len(rest) > _LINE_BYTES:
                rest = b""
