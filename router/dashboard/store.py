"""The request log in a DuckDB database: read piece by piece, the newest hours first.

A thread of its own follows the log folders. What it has read is told by segment and position, in
the same transaction as the rows, so that nothing is lost or counted twice whenever it is
stopped. The database is a cache: it may be deleted at any time and is then made anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import numpy.typing as npt
import structlog

from router.dashboard import segments
from router.dashboard.segments import Finder, Segment, Unpacked
from router.dashboard.standing import Mark

log = structlog.get_logger(__name__)

#: of the tables below; another number means that the cache is made anew
FORMAT = 3
#: one line; a longer one is none of ours
_LINE_BYTES = 1 << 20
#: the first piece is small, so that something is there to be shown at once
_FIRST_BYTES = 8 << 20
_PIECE_BYTES = 32 << 20
#: how long a look at the folders is good for
_LOOK_S = 1.0
#: nobody asks: nothing is read either
_QUIET_S = 5.0
_PAUSE_S = 2.0
_CACHES = 4
#: a database that is not written to for so long is somebody's who does not look any more
_KEPT_S = 30 * 86400.0

#: what is taken of a line: name in it → type. `params` and `warnings` become columns of their own
_LINE = {
    "schema": "INTEGER",
    "ts": "VARCHAR",
    "request_id": "VARCHAR",
    "session": "VARCHAR",
    "key": "VARCHAR",
    "endpoint": "VARCHAR",
    "client_model": "VARCHAR",
    "backend": "VARCHAR",
    "backend_model": "VARCHAR",
    "dialect": "VARCHAR",
    "pool": "VARCHAR",
    "scenario": "VARCHAR",
    "source": "VARCHAR",
    "confidence": "DOUBLE",
    "lang": "VARCHAR",
    "turns": "BIGINT",
    "prompt_chars": "BIGINT",
    "policy": "VARCHAR",
    "experiment": "VARCHAR",
    "arm": "VARCHAR",
    "shadow": "BOOLEAN",
    "stream": "BOOLEAN",
    "thinking": "BOOLEAN",
    "params": "STRUCT(thinking JSON, max_new_tokens JSON)",
    "warnings": "VARCHAR[]",
    "affinity": "VARCHAR",
    "moved_because": "VARCHAR",
    "retries": "BIGINT",
    "queue_ms": "DOUBLE",
    "overhead_ms": "DOUBLE",
    "ttft_ms": "DOUBLE",
    "tpot_ms": "DOUBLE",
    "total_ms": "DOUBLE",
    "input_tokens": "BIGINT",
    "cached_tokens": "BIGINT",
    "cached_share": "DOUBLE",
    "cache_miss": "VARCHAR",
    "output_tokens": "BIGINT",
    "reasoning_tokens": "BIGINT",
    "answer_chars": "BIGINT",
    "reasoning_chars": "BIGINT",
    "rescued": "BOOLEAN",
    "finish_reason": "VARCHAR",
    "status": "INTEGER",
    "outcome": "VARCHAR",
    "error_code": "VARCHAR",
}
_COLUMNS = ", ".join(f"{name}: '{kind}'" for name, kind in _LINE.items())
#: a line that is torn, or nobody's record, has no time, no id or another schema
_READ = f"""
SELECT ?::INTEGER AS segment, ?::INTEGER AS piece, try_cast(ts AS TIMESTAMP) AS began,
    began + to_microseconds((coalesce(total_ms, 0) * 1000)::BIGINT) AS ended,
    * EXCLUDE (schema, ts, params, shadow), coalesce(shadow, false) AS shadow,
    json_extract_string(params.thinking, '$[0]') AS wish,
    json_extract_string(params.thinking, '$[1]') AS sent_thinking,
    try_cast(json_extract_string(params.max_new_tokens, '$[0]') AS BIGINT) AS wished_tokens,
    try_cast(json_extract_string(params.max_new_tokens, '$[1]') AS BIGINT) AS sent_tokens
FROM read_json(?, format = 'newline_delimited', ignore_errors = true,
    maximum_object_size = {_LINE_BYTES}, columns = {{{_COLUMNS}}})
WHERE schema = 1 AND request_id IS NOT NULL AND try_cast(ts AS TIMESTAMP) IS NOT NULL
    AND coalesce(total_ms, 0) BETWEEN 0 AND 1e12
"""


@dataclass(frozen=True, slots=True)
class Progress:
    """How much of the log has been read."""

    files: int
    records: int
    skipped: int  # lines that are no records: torn, or somebody else's
    done: int  # bytes of plain lines
    total: int
    fault: str | None  # why reading is stuck, in words

    @property
    def is_whole(self) -> bool:
        return self.done >= self.total


@dataclass(slots=True)
class _Read:
    """What has been read of a segment: the lines between two positions."""

    id: int
    low: int
    high: int
    state: str  # of the file when all of it was read
    skipped: int
    size: int = 0


class Store:
    """The log's rows. `query` may be called from any thread."""

    def __init__(
        self,
        folders: Sequence[Path],
        cache: Path | None,
        *,
        threads: int = 2,
        memory_mb: int = 512,
    ) -> None:
        """`cache` is a folder for the database; None: one that is gone with this process."""
        self._finder = Finder(folders)
        self._settings: dict[str, str | bool | int | float | list[str]] = {
            "threads": threads,
            "memory_limit": f"{memory_mb}MB",
            "preserve_insertion_order": False,
            # Told to tidy up after every few pieces, it would take half of the time.
            "checkpoint_threshold": "256MB",
            # Nothing is ever fetched, whatever a query says.
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
        self._private: tempfile.TemporaryDirectory[str] | None = None
        self._name = hashlib.blake2b(
            "\0".join(sorted(str(folder.absolute()) for folder in folders)).encode(), digest_size=8
        ).hexdigest()
        self._base = self._opened(cache)
        self._writer = self._base.cursor()
        self._known = self._reads()
        self._listed: list[Segment] = []
        self._unpacked: tuple[Segment, Unpacked] | None = None
        self._asked_at = time.monotonic()
        self._looked_at = -math.inf
        self._seen_at = -math.inf  # the look that what has been read is of
        self._fault: str | None = None
        self._faults: dict[tuple[str, str, str], str] = {}  # segments that cannot be read on
        self._records = self._count()
        self._mark = Mark(0, self._last_piece())
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._round = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="log reader", daemon=True)

    # ------------------------------------------------------------------ asked by others

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._base.interrupt()
            self._thread.join(10)
        self._base.close()
        if self._private is not None:
            self._private.cleanup()

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of one statement."""
        with self._base.cursor() as cursor:
            return cursor.execute(sql, values).fetchall()

    def columns(self, sql: str, values: Sequence[Any] = ()) -> list[npt.NDArray[Any]]:
        """Likewise, column by column; masked where something is null."""
        with self._base.cursor() as cursor:
            return list(cursor.execute(sql, values).fetchnumpy().values())

    @property
    def mark(self) -> Mark:
        """All rows up to here are there for whoever asks from now on."""
        return self._mark

    @contextlib.contextmanager
    def rows(
        self, sql: str, values: Sequence[Any] = (), *, at_once: int = 5000
    ) -> Iterator[Iterator[list[tuple[Any, ...]]]]:
        """The rows of one statement, some at a time: for answers that do not fit the memory."""
        with self._base.cursor() as cursor:
            cursor.execute(sql, values)
            yield iter(lambda: cursor.fetchmany(at_once), [])

    def fresh(self, patience_s: float, *, age_s: float = _LOOK_S) -> None:
        """Wait until what is on the disk has been read, or a piece of it; not for long.

        What was seen less than `age_s` ago is fresh enough.
        """
        now = self._asked_at = time.monotonic()
        with self._round:
            if self._seen_at >= now - age_s:
                return
            self._looked_at = -math.inf
            self._wake.set()
            self._round.wait_for(lambda: self._seen_at >= now - age_s, patience_s)

    @property
    def progress(self) -> Progress:
        reads = list(self._known.values())
        return Progress(
            files=len(self._listed),
            records=self._records,
            skipped=sum(read.skipped for read in reads),
            done=sum(read.high - read.low for read in reads),
            total=sum(max(read.size, read.high - read.low) for read in reads),
            fault=self._fault or next(iter([*self._faults.values(), *self._finder.faults]), None),
        )

    # ------------------------------------------------------------------ the database

    def _opened(self, cache: Path | None) -> duckdb.DuckDBPyConnection:
        """The first database that nobody else has open; a broken or outdated one is made anew."""
        if cache is not None:
            for number in range(_CACHES):
                path = cache / f"log-{self._name}-{number}.duckdb"
                with contextlib.suppress(OSError, duckdb.Error):
                    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
                    with contextlib.suppress(PermissionError):
                        cache.chmod(0o700)  # what is beside the database is as DuckDB makes it
                    found = self._opened_at(path)
                    if found is not None:
                        _drop_old(cache, self._name)
                        return found
        self._private = tempfile.TemporaryDirectory(prefix="scenario-router-")
        made = self._opened_at(Path(self._private.name) / "log.duckdb")
        assert made is not None
        return made

    def _opened_at(self, path: Path) -> duckdb.DuckDBPyConnection | None:
        """None where another process has it open."""
        for _ in range(2):
            try:
                base = duckdb.connect(str(path), config=self._settings)
                if _fits(base):
                    os.chmod(path, 0o600)
                    return base
                base.close()
            except duckdb.IOException as error:
                if "lock" in str(error).lower():
                    return None
            except duckdb.Error as error:
                log.warning("the dashboard's cache is made anew", path=str(path), reason=str(error))
            for spoiled in (path, path.with_name(path.name + ".wal")):
                spoiled.unlink(missing_ok=True)
        return None

    def _reads(self) -> dict[tuple[str, str, str], _Read]:
        rows = self._writer.execute(
            "SELECT folder, name, head, id, low, high, state, skipped FROM segments"
        ).fetchall()
        return {
            (folder, name, head): _Read(id, low, high, state, skipped, high - low)
            for folder, name, head, id, low, high, state, skipped in rows
        }

    def _count(self) -> int:
        found = self._writer.execute("SELECT count(*) FROM requests").fetchone()
        assert found is not None
        return int(found[0])

    def _last_piece(self) -> int:
        found = self._writer.execute("SELECT coalesce(max(piece), 0) FROM requests").fetchone()
        assert found is not None
        return int(found[0])

    # ------------------------------------------------------------------ reading the log

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()  # whoever calls from here on is heard after this step
            try:
                is_done = self._step()
                self._fault = None
            except duckdb.Error as error:
                if self._stopping.is_set():
                    break
                if self._fault is None:
                    log.warning("the request log cannot be read on", reason=str(error))
                self._fault = str(error)
                self._looked_at = -math.inf
                self._drop_unpacked()
                self._stopping.wait(_PAUSE_S)
                is_done = True
            with self._round:
                self._seen_at = self._looked_at
                self._round.notify_all()
            if is_done:
                is_quiet = time.monotonic() - self._asked_at > _QUIET_S
                self._wake.wait(None if is_quiet else _LOOK_S)
                self._looked_at = -math.inf
        self._drop_unpacked()

    def _step(self) -> bool:
        """Read the piece that matters most; whether there was nothing to read."""
        if time.monotonic() - self._looked_at >= _LOOK_S:
            self._look()
        for segment in self._listed:
            if not segment.is_packed and self._more(segment, self._read_on):
                return False
        for segment in self._listed:
            if self._more(segment, self._unpack if segment.is_packed else self._read_back):
                return False
        return True

    def _more(self, segment: Segment, read_more: Callable[[Segment, _Read], bool]) -> bool:
        """Whether there was more of this segment. One that cannot be read holds no other up."""
        read = self._known[segment.key]
        if read.state == segment.state:
            return False
        try:
            return read_more(segment, read)
        except FileNotFoundError:
            return False  # compressed or gone by now: seen at the next look
        except (OSError, EOFError, zlib.error) as error:
            self._drop_unpacked()
            fault = f"{segment.path.name} cannot be read: {error}"
            log.warning("a part of the request log is left out", reason=fault)
            self._faults[segment.key] = fault
            read = self._known[segment.key]
            read.state, read.size = segment.state, read.high - read.low  # until it changes
            return False

    def _look(self) -> None:
        """See which segments there are; rows of those that are gone go too."""
        looked_at = time.monotonic()
        listed = self._finder.found()
        present = {segment.key for segment in listed}
        for key in [key for key in self._known if key not in present]:
            self._forget(key)
        for segment in listed:
            read = self._known.get(segment.key)
            if read is None:
                read = self._known[segment.key] = _Read(self._new_id(), 0, 0, "", 0)
            if read.state != segment.state:
                self._faults.pop(segment.key, None)
                with contextlib.suppress(OSError):  # gone by now: seen at the next look
                    read.size = segments.plain_size(segment)
        self._listed = listed
        self._looked_at = looked_at

    def _new_id(self) -> int:
        return max((read.id for read in self._known.values()), default=0) + 1

    def _forget(self, key: tuple[str, str, str]) -> None:
        read = self._known.pop(key)
        self._faults.pop(key, None)
        with self._transaction():
            self._writer.execute("DELETE FROM requests WHERE segment = ?", [read.id])
            self._writer.execute("DELETE FROM segments WHERE id = ?", [read.id])
        self._records = self._count()
        self._mark = Mark(self._mark.epoch + 1, self._mark.piece)

    def _read_on(self, segment: Segment, read: _Read) -> bool:
        """What was written behind what has been read; whether that was anything."""
        if not read.high:
            end = segments.last_line_end(segment.path, segment.size)
            read.low = read.high = end
            if not end:
                self._settle(segment, read)  # no line is whole yet
                return False
            return self._read_back(segment, read)
        if segment.size < read.high:  # cut short, which no router does
            self._forget(segment.key)
            self._known[segment.key] = _Read(self._new_id(), 0, 0, "", 0, segment.size)
            return True
        # Not beyond the size that was seen: the next step may still go by it.
        piece = segments.after(segment.path, read.high, segment.size, _PIECE_BYTES)
        if piece:
            self._take(segment, read, piece, read.low, read.high + len(piece), "")
            return True
        if not read.low:
            self._settle(segment, read)
        return False

    def _read_back(self, segment: Segment, read: _Read) -> bool:
        """What stands before what has been read; whether that was anything."""
        if not read.low:
            return False
        limit = _PIECE_BYTES if read.high - read.low else _FIRST_BYTES
        piece = segments.before(segment.path, read.low, limit)
        if not piece:
            raise EOFError(f"{segment.path.name} is shorter than it was")
        self._take(segment, read, piece, read.low - len(piece), read.high, "")
        return True

    def _unpack(self, segment: Segment, read: _Read) -> bool:
        """The next piece of a compressed segment; whether that was anything."""
        if read.low:
            # Its end was read while it was plain. Unpacking goes forward, so it begins anew.
            self._forget(segment.key)
            read = self._known[segment.key] = _Read(self._new_id(), 0, 0, "", 0, read.size)
        if self._unpacked is None or self._unpacked[0] != segment:
            self._drop_unpacked()
            self._unpacked = segment, Unpacked(segment.path, read.high)
        piece = self._unpacked[1].piece(_PIECE_BYTES)
        if piece:
            self._take(segment, read, piece, 0, self._unpacked[1].at, "")
            return True
        self._drop_unpacked()
        self._settle(segment, read)
        return False

    def _drop_unpacked(self) -> None:
        if self._unpacked is not None:
            self._unpacked[1].close()
            self._unpacked = None

    def _settle(self, segment: Segment, read: _Read) -> None:
        """All that this file holds has been read; it is looked at again when it changes."""
        read.size = read.high
        read.state = segment.state
        if segment.is_packed:
            with self._transaction():
                self._save(segment, read)

    def _take(
        self, segment: Segment, read: _Read, piece: bytes, low: int, high: int, state: str
    ) -> None:
        """Rows of a piece, and how far reading has come with it, or neither."""
        lines = _lines_in(piece)
        mark = Mark(self._mark.epoch, self._mark.piece + 1)
        with self._transaction():
            try:
                taken = self._insert(read.id, mark.piece, piece)
            except duckdb.InvalidInputException:
                self._writer.execute("ROLLBACK")
                self._writer.execute("BEGIN")
                taken = self._insert(read.id, mark.piece, _tame(piece))
            changed = _Read(read.id, low, high, state, read.skipped + lines - taken, read.size)
            self._save(segment, changed)
        self._known[segment.key] = changed
        self._records += taken
        if taken:
            self._mark = mark

    def _insert(self, id: int, number: int, piece: bytes) -> int:
        with _as_file(piece) as path:
            self._writer.execute("INSERT INTO requests " + _READ, [id, number, path])
            found = self._writer.fetchone()
        return int(found[0]) if found is not None else 0

    def _save(self, segment: Segment, read: _Read) -> None:
        self._writer.execute("DELETE FROM segments WHERE id = ?", [read.id])
        self._writer.execute(
            "INSERT INTO segments VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [read.id, *segment.key, read.low, read.high, read.state, read.skipped],
        )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._writer.execute("BEGIN")
        try:
            yield
        except BaseException:
            with contextlib.suppress(duckdb.Error):
                self._writer.execute("ROLLBACK")
            raise
        self._writer.execute("COMMIT")


def _drop_old(cache: Path, name: str) -> None:
    """Databases of logs that nobody has looked at for long, or that are no more."""
    for path in cache.glob("log-*.duckdb*"):
        with contextlib.suppress(OSError):
            if name not in path.name and time.time() - path.stat().st_mtime > _KEPT_S:
                path.unlink()


def _fits(base: duckdb.DuckDBPyConnection) -> bool:
    """Whether the tables are there and ours; they are made in an empty database."""
    tables = {row[0] for row in base.execute("SHOW TABLES").fetchall()}
    if not tables:
        base.execute("BEGIN")
        base.execute("CREATE TABLE about (format INTEGER)")
        base.execute("INSERT INTO about VALUES (?)", [FORMAT])
        base.execute(
            "CREATE TABLE segments (id INTEGER, folder VARCHAR, name VARCHAR, head VARCHAR, "
            "low BIGINT, high BIGINT, state VARCHAR, skipped BIGINT)"
        )
        with _as_file(b"\n") as path:
            base.execute("CREATE TABLE requests AS " + _READ, [0, 0, path])
        base.execute("COMMIT")
        return True
    if not {"about", "segments", "requests"} <= tables:
        return False
    return base.execute("SELECT format FROM about").fetchall() == [(FORMAT,)]


@contextlib.contextmanager
def _as_file(piece: bytes) -> Iterator[str]:
    """A path that DuckDB reads the bytes at: of memory where the system has such files."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("piece")
        try:
            with open(fd, "wb", closefd=False) as file:
                file.write(piece)
            yield f"/proc/self/fd/{fd}"
        finally:
            os.close(fd)
    else:
        with tempfile.NamedTemporaryFile(suffix=".jsonl") as named:
            named.write(piece)
            named.flush()
            yield named.name


def _lines_in(piece: bytes) -> int:
    """Lines with anything on them."""
    if b"\n\n" in piece or piece.startswith(b"\n"):
        return sum(1 for line in piece.split(b"\n") if line)
    return piece.count(b"\n") + (not piece.endswith(b"\n"))


_any = msgspec.json.Decoder(dict[str, Any]).decode


def _tame(piece: bytes) -> bytes:
    """Those lines that are JSON objects of a sensible length: for a piece that was refused."""
    kept = []
    for line in piece.split(b"\n"):
        if len(line) < _LINE_BYTES:
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                _any(line)
                kept.append(line)
    return b"\n".join([*kept, b""])
