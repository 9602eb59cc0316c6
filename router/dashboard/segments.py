"""The pieces that a request log is in: which there are, and their bytes, a piece at a time.

What its files are called is `recordfiles`'. Here a segment is known by its name and by its first
line, so that one hour's lines stay the same segment when somebody compresses them meanwhile;
positions are those of the plain lines. Nothing is written here.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from router import recordfiles
from router.recordfiles import Kind

_HEAD_BYTES = 4096
_DEPTH = 3
_BLOCK = 1 << 16


@dataclass(frozen=True, slots=True)
class Segment:
    """Lines of one hour, as they lie on the disk now."""

    folder: str
    name: str  # packed or not
    head: str  # of what it begins with
    path: Path
    is_packed: bool
    size: int  # of the file
    mtime_ns: int

    @property
    def key(self) -> tuple[str, str, str]:
        """What it is known by, compressed or not."""
        return self.folder, self.name, self.head

    @property
    def state(self) -> str:
        """Changes whenever the file does."""
        return f"{self.is_packed:d}:{self.size}:{self.mtime_ns}"


class Finder:
    """Finds the segments of some folders. Heads are read again only where a file has changed."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = tuple(folders)
        self._heads: dict[Path, tuple[tuple[int, int, int], str]] = {}
        self.faults: list[str] = []  # files that cannot be read

    def found(self) -> list[Segment]:
        """All segments, the newest first."""
        seen: dict[Path, tuple[tuple[int, int, int], str]] = {}
        faults: list[str] = []
        found: list[tuple[tuple[str, int], Segment]] = []
        for file in files_in(self._folders, "requests"):
            path = file.path
            with _noting(path, faults):
                stat = path.stat()
                state = stat.st_ino, stat.st_size, stat.st_mtime_ns
                known = self._heads.get(path)
                is_same = known is not None and known[0] == state
                head = known[1] if known is not None and is_same else _head(path, file.is_packed)
                if not head:
                    continue
                seen[path] = state, head
                segment = Segment(
                    str(path.parent),
                    file.name,
                    head,
                    path,
                    file.is_packed,
                    stat.st_size,
                    stat.st_mtime_ns,
                )
                found.append(((file.hour, file.part), segment))
        self._heads, self.faults = seen, faults
        found.sort(key=lambda aged: aged[0], reverse=True)
        return [segment for _, segment in found]


@contextmanager
def _noting(path: Path, faults: list[str]) -> Iterator[None]:
    """Whatever is wrong with one file is noted, and is nothing to the others."""
    try:
        yield
    except FileNotFoundError:
        pass  # gone by now
    except (OSError, EOFError, zlib.error) as error:
        faults.append(f"{path.name} cannot be read: {error}")


def files_in(folders: Iterable[Path], kind: Kind) -> Iterator[recordfiles.Segment]:
    """Files of log folders and of the folders in them, not very deep; links are not followed."""
    stack = [(folder, 0) for folder in dict.fromkeys(folders)]
    while stack:
        folder, depth = stack.pop()
        with suppress(OSError):
            for file in recordfiles.segments(folder, kind=kind):
                if not file.path.is_symlink():
                    yield file
        if depth < _DEPTH:
            with suppress(OSError), os.scandir(folder) as entries:
                stack += [
                    (Path(entry.path), depth + 1)
                    for entry in entries
                    if entry.is_dir(follow_symlinks=False)
                ]


def _head(path: Path, is_packed: bool) -> str:
    """A hash of the first line; nothing while there is no whole line."""
    with gzip.open(path) if is_packed else path.open("rb") as file:
        begun = file.read(_HEAD_BYTES)
    line, end, _ = begun.partition(b"\n")
    if not end and len(begun) < _HEAD_BYTES:
        return ""
    return hashlib.blake2b(line, digest_size=12).hexdigest()


def plain_size(segment: Segment) -> int:
    """Bytes of its lines; of a compressed one as its last four bytes say it."""
    if not segment.is_packed:
        return segment.size
    with segment.path.open("rb") as file:
        file.seek(-4, os.SEEK_END)
        return int.from_bytes(file.read(4), "little")


def last_line_end(path: Path, size: int) -> int:
    """Where the last line ends that is whole within a size; what follows is still being written."""
    with path.open("rb") as file:
        at = size
        while at:
            begin = max(at - _BLOCK, 0)
            file.seek(begin)
            found = file.read(at - begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            at = begin
    return 0


def after(path: Path, at: int, size: int, limit: int) -> bytes:
    """Whole lines from a position on to a size, some bytes at most; of a longer line what fits."""
    with path.open("rb") as file:
        file.seek(at)
        return whole_lines(file.read(min(limit, size - at)), limit)


def before(path: Path, at: int, limit: int) -> bytes:
    """Whole lines up to a position, so many bytes at most."""
    begin = max(at - limit, 0)
    with path.open("rb") as file:
        file.seek(begin)
        piece = file.read(at - begin)
    if not begin:
        return piece
    cut = piece.find(b"\n") + 1
    return piece[cut:] if 0 < cut < len(piece) else piece


def whole_lines(piece: bytes, limit: int) -> bytes:
    cut = piece.rfind(b"\n") + 1
    return piece if not cut and len(piece) >= limit else piece[:cut]


class Unpacked:
    """The lines of a compressed segment, forward from a position."""

    def __init__(self, path: Path, at: int) -> None:
        self._file = gzip.open(path)  # noqa: SIM115  # read a piece at a time, closed by `close`
        self._rest = b""
        self.at = at
        left = at
        while left:
            skipped = self._file.read(min(left, 1 << 20))
            if not skipped:
                raise EOFError("shorter than it was")
            left -= len(skipped)

    def piece(self, limit: int) -> bytes:
        """The next whole lines; nothing at the end. Raises OSError, EOFError or zlib.error."""
        read = self._rest + self._file.read(limit - len(self._rest))
        piece = whole_lines(read, limit)
        self._rest = read[len(piece) :]
        self.at += len(piece)
        return piece

    def close(self) -> None:
        self._file.close()
