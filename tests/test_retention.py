"""The log's folder kept in order while others write to it and read it, or die at it."""

from __future__ import annotations

import fcntl
import gzip
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import record as schema
from router import recordfiles
from router.journal import FileJournal
from router.logfile import LogFile
from router.record import Record
from router.recordfiles import Segment, hour_of, records, segments
from router.retention import DAY_S, Retention, Rules, pack, plan, remove
from tests.support.pool import POLICY
from tests.support.product import Product

NOW = 1_796_040_000.0  # 2026-11-30T12:00:00Z
FOREVER = Rules(keep_days=0, keep_mb=0, body_keep_days=0)
LIMITS = Rules(keep_days=30, keep_mb=100, body_keep_days=7)

#: a worker that has the file of the hour open, and does nothing more
STOPPED = """
import sys
from pathlib import Path
from router.logfile import LogFile
LogFile(Path(sys.argv[1]), "requests").append([b'{"ts": "x"}\\n'])
print("open", flush=True)
sys.stdin.read()
"""
#: one that is killed in the middle of packing
KILLED = """
import os, sys
from pathlib import Path
from router.retention import pack
pack(Path(sys.argv[1]), lambda worked_s: os.kill(os.getpid(), 9))
"""
#: several that tidy the same folder
TIDY = """
import sys, time
from pathlib import Path
from router.retention import Retention, Rules
keeping = Retention(Path(sys.argv[1]), Rules(keep_days=0, keep_mb=0, body_keep_days=0))
sys.stdin.readline()
keeping.tidy(float(sys.argv[2]))
print(keeping.packed, keeping.fault)
"""


def always(worked_s: float) -> bool:
    return True


def segment(name: str, size: int = 1) -> Segment:
    kind, hour = name.split("-")
    path = Path(f"{kind}-{hour.removesuffix('.gz')}.jsonl{'.gz' if hour.endswith('.gz') else ''}")
    hour = hour.removesuffix(".gz")
    return Segment(kind=kind, hour=hour, part=0, path=path, size=size)  # type: ignore[arg-type]


def put(folder: Path, hours_ago: float, count: int = 3, kind: str = "requests") -> Path:
    path = folder / f"{kind}-{hour_of(NOW - hours_ago * 3600)}.jsonl"
    with path.open("ab") as file:
        for number in range(count):
            file.write(schema.line(Record(ts="x", request_id=f"{path.name}-{number}")))
    return path


def ids(folder: Path) -> list[str]:
    return [record.request_id for record in records(segments(folder))]


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@pytest.fixture
def keeping(tmp_path: Path) -> Retention:
    return Retention(tmp_path, FOREVER)


# --- what to do ---------------------------------------------------------------------------------


def test_hours_are_packed_once_they_are_over_and_settled() -> None:
    found = [segment(f"requests-{hour_of(NOW + 60 - n * 3600)}") for n in range(4)]

    assert [s.hour[-2:] for s in plan(found, FOREVER, NOW + 60).pack] == ["09", "10"]
    assert [s.hour[-2:] for s in plan(found, FOREVER, NOW + 600).pack] == ["09", "10", "11"]


def test_bodies_go_after_their_own_days() -> None:
    old = NOW - 8 * DAY_S
    found = [segment(f"requests-{hour_of(old)}.gz"), segment(f"bodies-{hour_of(old)}.gz")]

    assert [s.kind for s in plan(found, LIMITS, NOW).remove] == ["bodies"]
    assert [s.kind for s in plan(found, LIMITS, NOW + 30 * DAY_S).remove] == ["bodies", "requests"]


def test_too_much_goes_bodies_first_and_the_oldest_first() -> None:
    mb = 1 << 20
    hours = [hour_of(NOW - n * 3600) for n in range(4)]
    found = [segment(f"requests-{hour}", 30 * mb) for hour in hours]
    found += [segment(f"bodies-{hour}", 10 * mb) for hour in hours[2:]]

    gone = plan(found, LIMITS, NOW).remove

    assert [(s.kind, s.hour) for s in gone] == [
        ("bodies", hours[3]),
        ("bodies", hours[2]),
        ("requests", hours[3]),
    ]


@given(
    ages=st.lists(st.integers(-2, 2000), max_size=30, unique=True),
    size=st.integers(0, 20 << 20),
    kind=st.sampled_from(["requests", "bodies"]),
)
def test_the_hour_that_runs_is_never_touched(ages: list[int], size: int, kind: str) -> None:
    found = [segment(f"{kind}-{hour_of(NOW + 60 - age * 3600)}", size) for age in ages]
    todo = plan(found, LIMITS, NOW + 60)

    for chosen in (*todo.remove, *todo.pack):
        assert chosen.begins + 3600 <= NOW + 60
    assert not set(todo.remove) & set(todo.pack)
    left = sum(s.size for s in found if s not in todo.remove)
    assert left <= 100 << 20 or all(
        s.begins + 3600 > NOW + 60 for s in found if s not in todo.remove
    )


# --- doing it -----------------------------------------------------------------------------------


def test_a_packed_file_holds_the_same_and_keeps_its_time(
    tmp_path: Path, keeping: Retention
) -> None:
    path = put(tmp_path, 5, count=5000)
    text, told = path.read_bytes(), ids(tmp_path)
    os.utime(path, (NOW, NOW))

    keeping.tidy(NOW)

    (packed,) = tmp_path.iterdir()
    assert packed.name == path.name + ".gz"
    assert gzip.decompress(packed.read_bytes()) == text
    assert (packed.stat().st_mtime, packed.stat().st_mode & 0o777) == (NOW, 0o644 & 0o777)
    assert ids(tmp_path) == told
    assert (keeping.packed, keeping.fault) == (1, None)


def test_a_file_that_a_stopped_worker_has_open_waits(tmp_path: Path, keeping: Retention) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-c", STOPPED, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert worker.stdout is not None
    try:
        assert worker.stdout.readline() == "open\n"
        later = (segments(tmp_path)[0].begins) + 40 * DAY_S
        keeping.tidy(later)
        assert not segments(tmp_path)[0].is_packed
        assert not remove(segments(tmp_path)[0].path)
    finally:
        worker.kill()  # the kernel takes its lock back
        worker.communicate()

    keeping.tidy(later)

    assert segments(tmp_path)[0].is_packed


def test_what_a_killed_one_left_half_done_is_done_by_the_next(
    tmp_path: Path, keeping: Retention
) -> None:
    path = put(tmp_path, 5, count=5000)
    told = ids(tmp_path)
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], timeout=60, check=False)
    assert done.returncode == -9
    assert len(names(tmp_path)) == 2  # its draft is there, and no reader takes it for a file
    assert ids(tmp_path) == told

    keeping.tidy(NOW)

    assert names(tmp_path) == [path.name + ".gz"]
    assert ids(tmp_path) == told


def test_one_that_died_between_the_two_names_leaves_one_of_them(
    tmp_path: Path, keeping: Retention
) -> None:
    path = put(tmp_path, 5)
    told = ids(tmp_path)
    (tmp_path / (path.name + ".gz")).write_bytes(gzip.compress(path.read_bytes()))
    assert ids(tmp_path) == told

    keeping.tidy(NOW)

    assert names(tmp_path) == [path.name + ".gz"]
    assert ids(tmp_path) == told


def test_told_to_stop_it_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = put(tmp_path, 5, count=5000)
    before = path.read_bytes()

    assert not pack(path, lambda worked_s: False)

    assert names(tmp_path) == [path.name]
    assert path.read_bytes() == before


def test_of_many_routers_one_packs_each_file(tmp_path: Path) -> None:
    for hours in range(2, 12):
        put(tmp_path, hours, count=200)
    told = ids(tmp_path)
    routers = [
        subprocess.Popen(
            [sys.executable, "-c", TIDY, str(tmp_path), str(NOW)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(3)
    ]  # fmt: skip
    for router in routers:
        assert router.stdin is not None
        router.stdin.write("go\n")
        router.stdin.flush()
    answers = [router.communicate(timeout=60)[0].split() for router in routers]

    assert sum(int(packed) for packed, _ in answers) == 10
    assert {fault for _, fault in answers} == {"None"}
    assert all(name.endswith(".jsonl.gz") for name in names(tmp_path))
    assert ids(tmp_path) == told


def test_readers_see_every_record_once_while_files_are_packed(tmp_path: Path) -> None:
    for hours in range(2, 40):
        put(tmp_path, hours, count=20)
    told = ids(tmp_path)
    is_over = threading.Event()
    seen: list[list[str]] = []

    def read() -> None:
        while not is_over.is_set():
            seen.append(ids(tmp_path))

    reader = threading.Thread(target=read)
    reader.start()
    for chosen in segments(tmp_path):
        pack(chosen.path, always)
    is_over.set()
    reader.join()

    assert all(s.is_packed for s in segments(tmp_path))
    assert [found for found in seen if found != told] == []


def test_an_empty_file_goes(tmp_path: Path, keeping: Retention) -> None:
    put(tmp_path, 5, count=0)

    keeping.tidy(NOW)

    assert names(tmp_path) == []


def test_old_files_go_in_both_forms(tmp_path: Path) -> None:
    kept = Retention(tmp_path, Rules(keep_days=1, keep_mb=0, body_keep_days=0))
    old, new = put(tmp_path, 30), put(tmp_path, 3)
    (tmp_path / (old.name + ".gz")).write_bytes(gzip.compress(old.read_bytes()))
    put(tmp_path, 3000, kind="bodies")
    (tmp_path / "notes.txt").write_text("mine")
    kept.tidy(NOW)

    assert kept.removed == 1
    assert names(tmp_path) == sorted(
        [f"bodies-{hour_of(NOW - 3000 * 3600)}.jsonl.gz", "notes.txt", new.name + ".gz"]
    )


def test_a_folder_that_cannot_be_tidied_is_told_of(tmp_path: Path, keeping: Retention) -> None:
    path = put(tmp_path, 5)
    (tmp_path / f".{path.name}.gz").mkdir()  # where it would be packed into

    keeping.tidy(NOW)
    assert keeping.fault is not None
    assert "Is a directory" in keeping.fault
    assert ids(tmp_path) == [f"{path.name}-{n}" for n in range(3)]

    (tmp_path / f".{path.name}.gz").rmdir()
    keeping.tidy(NOW)
    assert keeping.fault is None
    assert segments(tmp_path)[0].is_packed


# --- the other side: whoever appends -------------------------------------------------------------


def test_nobody_appends_to_an_hour_that_is_packed(tmp_path: Path) -> None:
    """A clock that was put back, or a worker that was stopped before it opened its file."""
    file = LogFile(tmp_path, "requests")
    file.append([schema.line(Record(ts="x", request_id="early"))])
    file.close()
    (first,) = segments(tmp_path)
    assert pack(first.path, always)

    file.append([schema.line(Record(ts="x", request_id="late"))])

    assert ids(tmp_path) == ["early", "late"]
    assert [(s.part, s.is_packed) for s in segments(tmp_path)] == [(0, True), (1, False)]
    file.close()


def test_nobody_appends_to_a_file_that_is_being_packed(tmp_path: Path) -> None:
    path = tmp_path / recordfiles.name_of("requests", hour_of(time.time()))
    path.write_bytes(schema.line(Record(ts="x", request_id="early")))
    with path.open("r+b") as packer:
        fcntl.flock(packer, fcntl.LOCK_EX)
        file = LogFile(tmp_path, "requests")
        file.append([schema.line(Record(ts="x", request_id="late"))])
        file.close()

    assert ids(tmp_path) == ["early", "late"]
    assert path.read_bytes().count(b"\n") == 1


def test_an_hour_that_is_over_is_let_go_without_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.journal._LOOK_S", 0.01)
    now = [NOW]
    monkeypatch.setattr("router.logfile.time.time", lambda: now[0])
    journal = FileJournal(tmp_path, flush_s=0.001, limit=10)
    journal.write(Record(ts="x", request_id="r"))
    pause = threading.Event()
    for _ in range(2000):
        if journal.written:
            break
        pause.wait(0.005)
    (first,) = segments(tmp_path)
    assert not pack(first.path, always)

    now[0] += 3600
    for _ in range(2000):
        if pack(first.path, always):
            break
        pause.wait(0.005)
    journal.close()

    assert segments(tmp_path)[0].is_packed


def test_a_router_does_it_when_it_starts(tmp_path: Path) -> None:
    log = tmp_path / "logs"
    log.mkdir()
    now = time.time()
    old = log / f"requests-{hour_of(now - 40 * DAY_S)}.jsonl"
    last = log / f"requests-{hour_of(now - 5 * 3600)}.jsonl"
    for path in (old, last):
        path.write_bytes(schema.line(Record(ts="x", request_id=path.name)))
    config = {"backends": [{"name": "a", "url": "http://127.0.0.1:9", "model": "m"}]}
    with Product.start(tmp_path, config, policy=POLICY) as product:
        pause = threading.Event()
        for _ in range(1000):
            kept = product.get("/router/status")["log"]["kept"]
            if kept["packed"]:
                break
            pause.wait(0.01)

    assert kept == {"packed": 1, "removed": 1, "fault": None}
    assert names(log) == [last.name + ".gz"]
    assert ids(log) == [last.name]
