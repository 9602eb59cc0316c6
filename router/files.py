"""Files that others read or write meanwhile: told apart by their state, written whole.

And those that we are made of, for processes that are to be like this one.
"""

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


def write_whole(
    path: Path,
    content: bytes,
    *,
    mode: int | None = None,
    owner: tuple[int, int] | None = None,
) -> None:
    """Write a file so that nobody ever reads half of it; its folder is made. Raises OSError.

    `mode` and `owner` (user and group) are as usual where they are left out.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if mode is None:
            draft.write_bytes(content)
        else:
            draft.touch(mode=0o600)  # nobody else can read it before it is what it shall be
            draft.write_bytes(content)
            if owner is not None and owner != (os.geteuid(), os.getegid()):
                os.chown(draft, *owner)
            draft.chmod(mode)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def own_environment() -> dict[str, str]:
    """For a process that is to run the very code that runs here, wherever that came from."""
    here = str(Path(__file__).parent.parent)
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


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
