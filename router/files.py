"""Files that others read or write meanwhile: told apart by their state, written whole."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

#: what tells one state of files from another; of a file that is not there: nothing
Signature = tuple[tuple[int, ...], ...]


def signature_of(files: Iterable[Path]) -> Signature:
    return tuple(map(_state_of, files))


def _state_of(path: Path) -> tuple[int, ...]:
    """Of the file that a path leads to in the end, through whatever links."""
    try:
        stat = path.stat()
    except OSError:
        return ()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that nobody ever reads half of it; its folder is made. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def rewrite(path: Path, text: str) -> None:
    """Put a text in the place of a person's file, which keeps line ends, rights and owner.

    A link goes on leading to it. Raises OSError.
    """
    real = path.resolve()
    was, state = real.read_bytes(), real.stat()
    write_whole(real, (text.replace("\n", "\r\n") if b"\r\n" in was else text).encode())
    real.chmod(state.st_mode & 0o7777)
    with contextlib.suppress(PermissionError):  # only root may give a file away
        os.chown(real, state.st_uid, state.st_gid)
