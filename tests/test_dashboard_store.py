"""The log's rows in the database are what stands in the files, whatever becomes of the files."""

from __future__ import annotations

import gzip
import os
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router import record as records
from router.dashboard import queries, segments
from router.dashboard import store as stores
from router.dashboard.store import Store
from tests.support.logs import (
    await_true,
    dashboard,
    is_record,
    lines_in,
    made,
    pack,
    records_in,
    write,
)

#: lines that are no records of ours; a torn one ends where the disk was full
FOREIGN = (
    b"",
    b"\xff\xfe\x00 nonsense",
    b"[1, 2]",
    b"null",
    b'{"a": 1}',
    b'{"schema": 2, "ts": "2026-01-01T00:00:00Z", "request_id": "later"}',
    b'{"schema": 1, "ts": "no time", "request_id": "timeless"}',
    b'{"schema": 1, "ts": "2026-01-01T00:00:00Z"}',
    b'{"schema": 1, "ts": "2026-01-01T00:00:00Z", "request_id": "to',
    records.line(made(1))[:200],
)


def caught_up(store: Store) -> None:
    """All that is on the disk now has been read."""
    store.fresh(10, age_s=0)
    await_true(lambda: store.progress.is_whole, str(store.progress))
    store.fresh(10, age_s=0)


def counted(store: Store) -> Counter[str]:
    return Counter(dict(store.query("SELECT request_id, count(*) FROM requests GROUP BY ALL")))


def check(store: Store, folders: list[Path]) -> None:
    """The rows are the records in the files, and the rest was counted."""
    caught_up(store)
    lines = lines_in(folders)
    expected = Counter(record["request_id"] for record in records_in(folders))
    assert counted(store) == expected
    progress = store.progress
    assert progress.records == expected.total()
    assert progress.skipped == sum(1 for line in lines if not is_record(line))
    assert progress.fault is None


class Log(RuleBasedStateMachine):
    """Workers that append, a disk that fills up, a keeper that packs and deletes, a reader."""

    def __init__(self) -> None:
        super().__init__()
        self._place = tempfile.TemporaryDirectory()
        self._folder = Path(self._place.name) / "logs"
        self._cache = Path(self._place.name) / "cache"
        self._number = 0
        self._store: Store | None = None

    @initialize(pieces=st.sampled_from([40_000, 90_000, 1 << 20]))
    def begin(self, pieces: int) -> None:
        """A piece holds some lines or all of them, and the longest of torn ones in a row."""
        stores._FIRST_BYTES, stores._PIECE_BYTES = pieces // 2, pieces
        self._folder.mkdir()
        self._open()

    def _open(self) -> None:
        self._store = Store([self._folder], self._cache, threads=1, memory_mb=128)
        self._store.start()

    def _segment(self, hour: int, router: int) -> Path:
        folder = self._folder if router == 0 else self._folder / f"router-{router}"
        folder.mkdir(exist_ok=True)
        return folder / f"requests-20260101T{hour:02d}.jsonl"

    def _append(self, path: Path, piece: bytes) -> None:
        packed = path.with_name(path.name + ".gz")
        if not packed.exists():  # nobody writes to an hour that was packed
            with path.open("ab") as file:
                file.write(piece)

    @rule(
        hour=st.integers(0, 2),
        router=st.integers(0, 1),
        count=st.sampled_from([1, 2, 60]),
        cut=st.integers(0, 300),
    )
    def append_records(self, hour: int, router: int, count: int, cut: int) -> None:
        """A batch, whole or (with a cut) without its end, which may come later or never."""
        lines = []
        for _ in range(count):
            self._number += 1
            lines.append(records.line(made(self._number)))
        batch = b"".join(lines)
        self._append(self._segment(hour, router), batch[: len(batch) - cut])

    @rule(hour=st.integers(0, 2), line=st.sampled_from(FOREIGN), has_end=st.booleans())
    def append_something(self, hour: int, line: bytes, has_end: bool) -> None:
        self._append(self._segment(hour, 0), line + b"\n" * has_end)

    @rule()
    def end_torn_lines(self) -> None:
        """As the journal does once there is room again."""
        for path in self._folder.rglob("requests-*.jsonl"):
            self._append(path, b"\n")

    @rule(hour=st.integers(0, 2), router=st.integers(0, 1))
    def pack_one(self, hour: int, router: int) -> None:
        path = self._segment(hour, router)
        if path.exists():
            pack(path)

    @rule(hour=st.integers(0, 2))
    def packed_and_plain_stand_side_by_side(self, hour: int) -> None:
        path = self._segment(hour, 0)
        if path.exists():
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))

    @rule(hour=st.integers(0, 2))
    def delete_an_hour(self, hour: int) -> None:
        for path in self._folder.glob(f"requests-20260101T{hour:02d}.*"):
            path.unlink()

    @rule()
    def start_anew(self) -> None:
        assert self._store is not None
        self._store.close()
        self._open()

    @rule()
    def look_in_the_middle(self) -> None:
        assert self._store is not None
        self._store.fresh(1, age_s=0)

    @precondition(lambda self: self._store is not None)
    @invariant()
    def rows_are_what_the_files_say(self) -> None:
        assert self._store is not None
        check(self._store, [self._folder])

    def teardown(self) -> None:
        if self._store is not None:
            self._store.close()
        self._place.cleanup()


TestLog = Log.TestCase
TestLog.settings = settings(
    max_examples=50,
    stateful_step_count=14,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.fixture(autouse=True)
def usual_pieces() -> object:
    yield
    stores._FIRST_BYTES, stores._PIECE_BYTES = 8 << 20, 32 << 20
    return None


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    write(folder, [made(number) for number in range(500)])
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_a_second_start_reads_nothing_again(logs: Path, cache: Path) -> None:
    first = Store([logs], cache)
    first.start()
    caught_up(first)
    first.close()
    second = Store([logs], cache)
    assert second.progress.records == 500
    second.close()


def test_two_readers_of_one_folder_each_have_all(logs: Path, cache: Path) -> None:
    """DuckDB lets one process have a database; the second takes another."""
    with dashboard(logs, cache=cache) as other:
        await_true(lambda: other.get("meta").json()["log"]["records"] == 500, "the first reader")
        store = Store([logs], cache / "dashboard")
        store.start()
        check(store, [logs])
        assert len(list((cache / "dashboard").glob("*.duckdb"))) == 2
        store.close()


def test_a_cache_that_is_no_database_is_made_anew(logs: Path, cache: Path) -> None:
    store = Store([logs], cache)
    store.close()
    (kept,) = cache.glob("*.duckdb")
    kept.write_bytes(b"nonsense" * 1000)
    store = Store([logs], cache)
    store.start()
    check(store, [logs])
    store.close()


def test_a_cache_of_another_format_is_made_anew(
    logs: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store([logs], cache)
    store.start()
    caught_up(store)
    store.close()
    monkeypatch.setattr(stores, "FORMAT", stores.FORMAT + 1)
    store = Store([logs], cache)
    assert store.progress.records == 0
    store.start()
    check(store, [logs])
    store.close()


def test_caches_that_nobody_looks_at_go(logs: Path, cache: Path) -> None:
    cache.mkdir()
    for name, age_s in (("log-0000-0.duckdb", 40 * 86400), ("log-1111-0.duckdb", 86400)):
        (cache / name).write_bytes(b"x")
        os.utime(cache / name, (time.time() - age_s,) * 2)
    Store([logs], cache).close()
    assert not (cache / "log-0000-0.duckdb").exists()
    assert (cache / "log-1111-0.duckdb").exists()


def test_without_a_place_for_the_cache_it_works_all_the_same(logs: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    store = Store([logs], blocked / "cache")
    store.start()
    check(store, [logs])
    store.close()


def test_the_log_folder_is_left_as_it_was(logs: Path, cache: Path) -> None:
    before = {path: path.read_bytes() for path in logs.iterdir()}
    for path in [*before, logs]:
        path.chmod(0o500 if path == logs else 0o400)
    store = Store([logs], cache)
    store.start()
    caught_up(store)
    store.close()
    logs.chmod(0o700)
    assert {path: path.read_bytes() for path in logs.iterdir()} == before


def test_a_broken_packed_hour_is_told_and_holds_nothing_up(logs: Path, cache: Path) -> None:
    whole = gzip.compress(
        b"".join(records.line(made(number, ago_s=0)) for number in range(9000, 12000))
    )
    (logs / "requests-20200101T00.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    (logs / "requests-20200101T01.jsonl.gz").write_bytes(b"not gzip at all")
    store = Store([logs], cache)
    store.start()
    caught_up(store)
    assert store.progress.records >= 500
    assert "requests-20200101T0" in (store.progress.fault or "")
    (logs / "requests-20200101T00.jsonl.gz").write_bytes(whole)
    (logs / "requests-20200101T01.jsonl.gz").unlink()
    check(store, [logs])
    store.close()


def test_lines_longer_than_any_record_cost_themselves_alone(logs: Path, cache: Path) -> None:
    (path, *_) = logs.glob("requests-*.jsonl")
    with path.open("ab") as file:
        file.write(b'{"schema": 1, "x": "' + b"y" * (3 << 20) + b'"}\n')
        file.write(records.line(made(777_777)))
    store = Store([logs], cache)
    store.start()
    caught_up(store)
    assert store.progress.records == 501
    assert store.progress.skipped == 1
    store.close()


def test_a_segment_that_begins_anew_under_its_name_is_another(logs: Path, cache: Path) -> None:
    (path, *_) = logs.glob("requests-*.jsonl")
    store = Store([logs], cache)
    store.start()
    caught_up(store)
    path.write_bytes(b"".join(records.line(made(number)) for number in range(5000, 5010)))
    check(store, [logs])
    store.close()


def test_the_newest_hour_is_there_first(tmp_path: Path, cache: Path) -> None:
    logs = tmp_path / "logs"
    write(logs, [made(number, ago_s=3600 * (number % 30)) for number in range(300)])
    store = Store([logs], cache)
    seen = []
    while not store._step():
        seen.append(store.query("SELECT min(began) FROM requests")[0][0])
    store.close()
    assert len(seen) > 2
    assert seen == sorted(seen, reverse=True)


def test_an_hour_that_is_packed_while_its_end_alone_was_read_is_whole(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "_FIRST_BYTES", 5000)
    monkeypatch.setattr(stores, "_PIECE_BYTES", 9000)
    logs = tmp_path / "logs"
    write(logs, [made(number, ago_s=0) for number in range(60)])
    (path,) = logs.iterdir()
    store = Store([logs], cache)
    store._step()
    assert 0 < store.progress.records < 60
    pack(path)
    store.start()
    check(store, [logs])
    store.close()


def test_what_grows_after_it_was_looked_at_is_not_taken_for_cut_short(
    logs: Path, cache: Path
) -> None:
    store = Store([logs], cache)
    while not store._step():
        pass
    newest = max(logs.iterdir())
    with newest.open("ab", buffering=0) as file:
        file.write(records.line(made(1000)))
        store._look()
        file.write(records.line(made(1001)))
        counts = []
        for _ in range(4):
            store._step()
            counts.append(store.query("SELECT count(*) FROM requests")[0][0])
    assert counts == [501] * 4
    store.start()
    check(store, [logs])
    store.close()


def test_links_are_not_followed(logs: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "requests-20260101T00.jsonl").write_bytes(records.line(made(1)))
    os.symlink(secret, logs / "inside")
    os.symlink(secret / "requests-20260101T00.jsonl", logs / "requests-20260101T05.jsonl")
    found = {file.path for file in segments.files_in([logs], "requests")}
    assert found == {path for path in logs.iterdir() if not path.is_symlink()}


def test_what_is_repeated_in_the_background_is_not_of_now(tmp_path: Path) -> None:
    now = time.time()
    stamp = records.timestamp(now - 5)
    write(
        tmp_path / "logs",
        [made(n, ts=stamp, total_ms=1.0, shadow=n >= 30) for n in range(90)],
    )
    store = Store([tmp_path / "logs"], None)
    store.start()
    try:
        caught_up(store)
        assert queries.live(store, now)["requests_per_s"] == 30 / queries.LIVE_S
    finally:
        store.close()
