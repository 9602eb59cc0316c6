"""The files of the request log: what they are called, which there are, their lines.

In: a folder that any number of routers write to and tidy meanwhile. Out: segments, oldest
first, and their lines, each once. A line that is torn or none of ours is passed over and
counted, never an error.

    for record in records(segments(folder, since=time.time() - 3600)):
        ...

An hour's file is `requests-20261130T10.jsonl`, later the same with `.gz`; `bodies-…` beside it
where bodies are kept. Where both are there, the packed one is about to take the place of the
other and holds the same: only the plain one counts, unless it is empty. An offset is of the
text, so it means the same place in either.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import zlib
from calendar import timegm
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import gmtime, strftime, strptime
from typing import BinaryIO, Literal, Protocol, TypeVar, cast

import msgspec

from router.record import SCHEMA, Record

Kind = Literal["requests", "bodies"]

PACKED = ".gz"
HOUR_S = 3600
#: a record is written when its request ends, and is of the time when it came: whoever looks for
#: the requests of an hour looks so much further
LATE_S = 3 * HOUR_S
#: a line longer than this is no record
_LONGEST = 64 << 20
_READ = 1 << 20
_NAME = re.compile(r"(requests|bodies)-(\d{8}T\d\d)(?:-([1-9]\d{0,3}))?\.jsonl(\.gz)?").fullmatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One file of the log, as it was when it was looked at."""

    kind: Kind
    hour: str  # when its lines were written, UTC: 20261130T10
    part: int  # 0, but where the hour's first file had been closed already
    path: Path
    size: int  # bytes on the disk

    @property
    def is_packed(self) -> bool:
        return self.path.name.endswith(PACKED)

    @property
    def begins(self) -> int:
        """Seconds since 1970; nothing in it was written before."""
        return timegm(strptime(self.hour, "%Y%m%dT%H"))

    @property
    def name(self) -> str:
        """What it is called, packed or not."""
        return name_of(self.kind, self.hour, self.part)


class _Dated(Protocol):
    """A record, or what was read of one."""

    schema: int
    ts: str


R = TypeVar("R", bound=_Dated)


@dataclass(slots=True)
class Skipped:
    """Lines that were passed over."""

    torn: int = 0  # no JSON: a disk that was full, a machine that stopped
    foreign: int = 0  # JSON, but no record of a schema that we know

    @property
    def total(self) -> int:
        return self.torn + self.foreign


def hour_of(seconds: float) -> str:
    """The part of a file's name that says when."""
    return strftime("%Y%m%dT%H", gmtime(seconds))


def name_of(kind: Kind, hour: str, part: int = 0) -> str:
    """What a file is called while it is written."""
    return f"{kind}-{hour}-{part}.jsonl" if part else f"{kind}-{hour}.jsonl"


def segments(
    folder: Path,
    since: float | None = None,
    until: float | None = None,
    *,
    kind: Kind = "requests",
) -> list[Segment]:
    """The files that may hold requests of this time (seconds since 1970), oldest first.

    A folder that is not there has none. Raises OSError where it cannot be read.
    """
    first = hour_of(since) if since is not None else ""
    last = hour_of(until + LATE_S) if until is not None else "~"
    found: dict[tuple[str, int], set[bool]] = {}  # by hour and part: whether packed
    for name in _names(folder):
        match = _NAME(name)
        if match is not None and match[1] == kind and first <= match[2] <= last:
            found.setdefault((match[2], int(match[3] or 0)), set()).add(match[4] is not None)
    listed = []
    for (hour, part), forms in sorted(found.items()):
        plain = folder / name_of(kind, hour, part)
        if False in forms:
            try:
                size = plain.stat().st_size
            except FileNotFoundError:
                forms.add(True)  # packed meanwhile, or removed
            else:
                if size or True not in forms:
                    listed.append(Segment(kind=kind, hour=hour, part=part, path=plain, size=size))
                    continue
        packed = plain.with_name(plain.name + PACKED)
        with contextlib.suppress(FileNotFoundError):
            size = packed.stat().st_size
            listed.append(Segment(kind=kind, hour=hour, part=part, path=packed, size=size))
    return listed


def _names(folder: Path) -> set[str]:
    """Looked at twice: while a file is renamed, one look may miss its old name and its new."""
    try:
        return {*os.listdir(folder), *os.listdir(folder)}
    except FileNotFoundError:
        return set()


class Reading:
    """One pass over a file's lines, from an offset in its text."""

    def __init__(self, segment: Segment, offset: int = 0) -> None:
        self._segment = segment
        self._offset = offset
        self.rest = b""  # at its end: the beginning of a line that is not ended

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """(where the next one begins, line), for each line that is ended.

        Of a file that was packed since it was listed the packed one is read, of one that was
        removed nothing. Raises OSError where a file cannot be read.
        """
        offset = self._offset
        held: list[bytes] = []  # of the open line
        size = 0
        is_passing = False  # over a line that is too long
        for chunk in _chunks(self._segment.path, offset):
            head, *others = chunk.split(b"\n")
            held.append(head)
            size += len(head)
            for other in others:
                offset += size + 1
                if not is_passing:
                    yield offset, b"".join(held)
                is_passing = False
                held, size = [other], len(other)
            if size > _LONGEST:
                is_passing = True
            if is_passing:
                held = []
        self.rest = b"".join(held)


def lines(segment: Segment, offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """(where the next one begins, line); the last one may be torn. Raises OSError."""
    reading = Reading(segment, offset)
    for offset, line in reading:
        yield offset, line
    if reading.rest:
        yield offset + len(reading.rest), reading.rest


def _chunks(path: Path, offset: int) -> Iterator[bytes]:
    """The text of a file from an offset, packed or not, by whichever of its names it has now."""
    file = _opened(path)
    if file is None:
        return
    with file:
        file.seek(offset)
        while True:
            try:
                chunk = file.read(_READ)
            except (EOFError, gzip.BadGzipFile, zlib.error):
                return  # cut off: what came before it counts
            if not chunk:
                return
            yield chunk


def _opened(path: Path) -> BinaryIO | None:
    if not path.name.endswith(PACKED):
        with contextlib.suppress(FileNotFoundError):
            return path.open("rb", buffering=0)
        path = path.with_name(path.name + PACKED)
    with contextlib.suppress(FileNotFoundError):
        return cast(BinaryIO, gzip.open(path, "rb"))
    return None


def records(
    chosen: Iterable[Segment] | Segment, skipped: Skipped | None = None
) -> Iterator[Record]:
    """What the lines of these segments say; `skipped` is counted up."""
    skipped = skipped if skipped is not None else Skipped()
    for segment in (chosen,) if isinstance(chosen, Segment) else chosen:
        for _, line in lines(segment):
            record = read(line, skipped)
            if record is not None:
                yield record


_decode = msgspec.json.Decoder(Record).decode


def read(line: bytes, skipped: Skipped) -> Record | None:
    """One line's record; None, and counted, where it is none that we know. Blank ones are not."""
    return read_as(_decode, line, skipped)


def read_as(decode: Callable[[bytes], R], line: bytes, skipped: Skipped) -> R | None:
    """Likewise by a decoder of one's own, of as much of a record as one asks about."""
    if not line.strip():
        return None
    try:
        record = decode(line)
    except msgspec.ValidationError:
        skipped.foreign += 1
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        skipped.torn += 1
    else:
        if record.schema == SCHEMA and record.ts:
            return record
        skipped.foreign += 1
    return None


class Follower:
    """Lines as they are written, across the turn of the hour. Never waits."""

    def __init__(
        self,
        folder: Path,
        *,
        kind: Kind = "requests",
        since: float | None = None,
        from_end: bool = False,
    ) -> None:
        """`since` leaves out older files, `from_end` all that is there already."""
        self._folder = folder
        self._kind: Kind = kind
        self._since = since
        self._read: dict[str, int | None] = {}  # name → how far; None: packed, and read whole
        if from_end:
            for segment in self._listed():
                self._read[segment.name] = None if segment.is_packed else segment.size

    def new(self) -> Iterator[bytes]:
        """Each whole line that was not given yet."""
        for segment in self._listed():
            done = self._read.get(segment.name, 0)
            if segment.is_packed:
                if done is None:
                    continue
            elif done is None or segment.size < done:
                done = 0  # somebody emptied it
            elif segment.size == done:
                continue
            for offset, line in Reading(segment, done):
                self._read[segment.name] = offset
                yield line
            if segment.is_packed:
                self._read[segment.name] = None

    def _listed(self) -> list[Segment]:
        return segments(self._folder, self._since, kind=self._kind)
