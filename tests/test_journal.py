"""Records to disk: whole lines, none lost without being counted, and never an exception."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from router.journal import FileJournal
from router.record import Record

WRITER = """
import sys
from pathlib import Path
from router.journal import FileJournal
from router.record import Record
folder, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
journal = FileJournal(folder, flush_s=0.001, limit=10_000)
for number in range(count):
    journal.write(Record(request_id=f"{name}-{number}", warnings=("x" * (number * 37 % 3000),)))
journal.close()
print(journal.written, journal.dropped)
"""
# A limit on the file's size is a disk that is full in the middle of a line.
FULL_DISK = """
import resource, sys, threading
from pathlib import Path
from router.journal import FileJournal
from router.record import Record
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
journal = FileJournal(Path(sys.argv[1]), flush_s=0.001, limit=10_000)
for number in range(100):
    journal.write(Record(request_id=f"r-{number}"))
pause = threading.Event()
while journal.fault is None:
    pause.wait(0.002)
print(journal.fault)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
journal.close()
print(journal.written, journal.dropped)
"""


def lines_of(folder: Path) -> list[bytes]:
    return [line for path in sorted(folder.glob("*")) for line in path.read_bytes().splitlines()]


def records_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines_of(folder)]


def until(holds: Callable[[], bool]) -> None:
    """Wait for the journal's thread; the bound only ends a test that has failed."""
    pause = threading.Event()
    for _ in range(2000):
        if holds():
            return
        pause.wait(0.005)
    raise AssertionError("the journal never got there")


def record(number: int) -> Record:
    return Record(request_id=f"r-{number}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "logs"


@pytest.fixture
def journal(folder: Path) -> Iterator[FileJournal]:
    journal = FileJournal(folder, flush_s=0.001, limit=1000)
    yield journal
    journal.close()


def test_every_record_is_a_line_in_the_file_of_its_hour(journal: FileJournal, folder: Path) -> None:
    for number in range(500):
        journal.write(record(number))
    journal.close()

    assert [line["request_id"] for line in records_of(folder)] == [f"r-{n}" for n in range(500)]
    assert (journal.written, journal.dropped, journal.fault) == (500, 0, None)
    for path in folder.iterdir():
        assert re.fullmatch(r"requests-\d{8}T([01]\d|2[0-3])\.jsonl", path.name)


def test_the_folder_is_made_with_those_above_it(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path / "a" / "b", flush_s=0.001, limit=100)
    journal.write(record(1))
    journal.close()

    assert len(lines_of(tmp_path / "a" / "b")) == 1


def test_records_are_written_without_waiting_for_the_end(
    journal: FileJournal, folder: Path
) -> None:
    journal.write(record(1))
    until(lambda: journal.written == 1)
    journal.write(record(2))
    until(lambda: journal.written == 2)

    assert len(lines_of(folder)) == 2


def test_a_file_for_others_to_append_to_keeps_what_is_there(folder: Path) -> None:
    for number in range(3):
        journal = FileJournal(folder, flush_s=0.001, limit=100)
        journal.write(record(number))
        journal.close()

    assert [line["request_id"] for line in records_of(folder)] == ["r-0", "r-1", "r-2"]


def test_several_processes_append_whole_lines_to_the_same_file(folder: Path) -> None:
    count = 400
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder), name, str(count)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("a", "b", "c")
    ]
    told = [writer.communicate(timeout=60)[0].split() for writer in writers]

    assert told == [[str(count), "0"]] * 3
    names = [line["request_id"] for line in records_of(folder)]
    assert sorted(names) == sorted(f"{n}-{i}" for n in "abc" for i in range(count))
    for name in "abc":
        own = [int(text[2:]) for text in names if text.startswith(name)]
        assert own == sorted(own)


def test_a_file_in_place_of_the_folder_costs_lines_only_until_it_is_gone(
    journal: FileJournal, folder: Path
) -> None:
    folder.write_text("in the way")
    journal.write(record(1))
    until(lambda: journal.fault is not None)
    journal.write(record(2))
    assert (journal.written, journal.dropped) == (0, 0)

    folder.unlink()
    until(lambda: journal.written == 2)

    assert journal.fault is None
    assert [line["request_id"] for line in records_of(folder)] == ["r-1", "r-2"]


def test_what_cannot_be_written_at_the_end_is_counted(folder: Path) -> None:
    folder.write_text("in the way")
    journal = FileJournal(folder, flush_s=0.001, limit=100)
    for number in range(5):
        journal.write(record(number))
    journal.close()

    assert (journal.written, journal.dropped) == (0, 5)
    assert journal.fault


def test_no_more_wait_for_the_disk_than_may_and_the_rest_is_counted(folder: Path) -> None:
    folder.write_text("in the way")
    journal = FileJournal(folder, flush_s=0.001, limit=10)
    for number in range(10):
        journal.write(record(number))
    until(lambda: journal.fault is not None)
    for number in range(10, 50):
        journal.write(record(number))

    folder.unlink()
    journal.close()

    assert journal.written + journal.dropped == 50
    assert journal.written == len(lines_of(folder))
    assert 10 <= journal.written < 50


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_log_that_is_taken_away_is_begun_anew(
    journal: FileJournal, folder: Path, what: str
) -> None:
    journal.write(record(1))
    until(lambda: journal.written == 1)
    for path in folder.iterdir():
        path.unlink()
    if what == "folder":
        folder.rmdir()

    journal.write(record(2))
    until(lambda: journal.written == 2)

    assert [line["request_id"] for line in records_of(folder)] == ["r-2"]


def test_a_full_disk_tears_one_line_and_loses_none(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(folder)], capture_output=True, text=True, timeout=60
    )

    *_, fault, counts = done.stdout.splitlines()
    assert fault == "File too large"
    assert counts == "100 0"
    whole, torn = [], []
    for line in lines_of(folder):
        try:
            whole.append(json.loads(line)["request_id"])
        except json.JSONDecodeError:
            torn.append(line)
    assert whole == [f"r-{number}" for number in range(100)]
    assert len(torn) <= 1


def test_a_journal_that_is_switched_off_writes_nothing(folder: Path) -> None:
    journal = FileJournal(folder, flush_s=0.001, limit=10, is_enabled=False)
    for number in range(50):
        journal.write(record(number))
    journal.close()

    assert (journal.written, journal.dropped, folder.exists()) == (0, 0, False)
