"""The log's files: each line once, whatever is torn, packed, renamed or removed meanwhile."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import record as schema
from router import recordfiles
from router.record import Record
from router.recordfiles import Follower, Segment, Skipped, lines, records, segments

HOUR = 1_796_040_000  # 2026-11-30T12:00:00Z
ODD = b'\xff\xfe{"schema": 1', b'"text"', b'{"schema": 2, "ts": "x"}', b"{}", b"[1]", b'{"sche'


def line_of(number: int) -> bytes:
    return schema.line(Record(ts="2026-11-30T12:00:00.000Z", request_id=f"r-{number}"))


def put(folder: Path, name: str, *numbers: int, tail: bytes = b"") -> Path:
    """A file of these records, packed where its name says so."""
    text = b"".join(map(line_of, numbers)) + tail
    path = folder / name
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return path


def ids(chosen: list[Segment]) -> list[str]:
    return [record.request_id for record in records(chosen)]


def told(found: list[bytes]) -> list[str]:
    return [record.request_id for line in found if (record := recordfiles.read(line, Skipped()))]


def test_segments_come_by_time_whatever_else_lies_in_the_folder(tmp_path: Path) -> None:
    for name in (
        "requests-20261130T12.jsonl",
        "requests-20261130T12-1.jsonl",
        "requests-20261130T09.jsonl.gz",
        "requests-20261201T00.jsonl",
        "bodies-20261130T12.jsonl",
        ".requests-20261130T12.jsonl.gz",
        "requests-20261130T12.jsonl.bak",
        "notes.txt",
    ):
        put(tmp_path, name, 1)

    found = segments(tmp_path)

    assert [segment.path.name for segment in found] == [
        "requests-20261130T09.jsonl.gz",
        "requests-20261130T12.jsonl",
        "requests-20261130T12-1.jsonl",
        "requests-20261201T00.jsonl",
    ]
    assert [segment.begins for segment in found][1] == HOUR
    assert [s.path.name for s in segments(tmp_path, kind="bodies")] == ["bodies-20261130T12.jsonl"]
    assert segments(tmp_path / "not there") == []


def test_a_time_range_opens_only_files_that_may_hold_it(tmp_path: Path) -> None:
    for hour in range(6, 20):
        put(tmp_path, f"requests-20261130T{hour:02}.jsonl", hour)

    found = segments(tmp_path, since=HOUR + 60, until=HOUR + 120)

    # A request that came in this hour is written when it ends.
    assert [segment.hour[-2:] for segment in found] == ["12", "13", "14", "15"]


def test_what_is_being_packed_is_read_once(tmp_path: Path) -> None:
    put(tmp_path, "requests-20261130T12.jsonl", 1, 2)
    put(tmp_path, "requests-20261130T12.jsonl.gz", 1, 2)

    assert ids(segments(tmp_path)) == ["r-1", "r-2"]


def test_an_empty_file_hides_no_packed_one(tmp_path: Path) -> None:
    put(tmp_path, "requests-20261130T12.jsonl")
    put(tmp_path, "requests-20261130T12.jsonl.gz", 1, 2)

    assert ids(segments(tmp_path)) == ["r-1", "r-2"]


def test_what_was_packed_since_it_was_listed_is_read_all_the_same(tmp_path: Path) -> None:
    plain = put(tmp_path, "requests-20261130T12.jsonl", 1, 2)
    listed = segments(tmp_path)
    put(tmp_path, "requests-20261130T12.jsonl.gz", 1, 2)
    plain.unlink()

    assert ids(listed) == ["r-1", "r-2"]


def test_what_was_removed_since_it_was_listed_is_nothing(tmp_path: Path) -> None:
    path = put(tmp_path, "requests-20261130T12.jsonl", 1)
    listed = segments(tmp_path)
    path.unlink()

    assert ids(listed) == []


@pytest.mark.parametrize("name", ["requests-20261130T12.jsonl", "requests-20261130T12.jsonl.gz"])
def test_torn_and_foreign_lines_are_passed_over_and_counted(tmp_path: Path, name: str) -> None:
    odd = b"\n".join(ODD[:-1]) + b"\n\n" + line_of(2) + ODD[-1]
    put(tmp_path, name, 1, tail=odd)
    skipped = Skipped()

    found = [record.request_id for record in records(segments(tmp_path), skipped)]

    assert found == ["r-1", "r-2"]
    assert (skipped.torn, skipped.foreign) == (2, 4)


def test_a_packed_file_that_is_cut_off_gives_what_is_left_of_it(tmp_path: Path) -> None:
    path = put(tmp_path, "requests-20261130T12.jsonl.gz", *range(2000))
    path.write_bytes(path.read_bytes()[:-200])

    found = ids(segments(tmp_path))

    assert 0 < len(found) < 2000
    assert found == [f"r-{number}" for number in range(len(found))]


def test_a_line_without_an_end_takes_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordfiles, "_LONGEST", 4096)
    monkeypatch.setattr(recordfiles, "_READ", 1024)
    put(tmp_path, "requests-20261130T12.jsonl", 1, tail=b"x" * 50_000 + b"\n" + line_of(2))

    assert ids(segments(tmp_path)) == ["r-1", "r-2"]


@given(
    texts=st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"")), max_size=12),
    ended=st.booleans(),
    size=st.integers(1, 40),
    packed=st.booleans(),
)
def test_any_offset_that_was_given_is_where_to_go_on(
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[bytes],
    ended: bool,
    size: int,
    packed: bool,
) -> None:
    text = b"\n".join(texts) + (b"\n" if ended else b"")
    path = tmp_path_factory.mktemp("log") / f"requests-20261130T12.jsonl{'.gz' if packed else ''}"
    path.write_bytes(gzip.compress(text) if packed else text)
    (segment,) = segments(path.parent)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recordfiles, "_READ", size)
        found = list(lines(segment))

        *whole, rest = text.split(b"\n")
        assert [line for _, line in found] == whole + ([rest] if rest else [])
        for number, (offset, _) in enumerate(found):
            assert list(lines(segment, offset)) == found[number + 1 :]


def test_a_follower_gives_each_line_once_across_the_hours(tmp_path: Path) -> None:
    first = put(tmp_path, "requests-20261130T12.jsonl", 1)
    follower = Follower(tmp_path)
    assert told(list(follower.new())) == ["r-1"]
    assert told(list(follower.new())) == []

    whole = line_of(2)
    with first.open("ab") as file:
        file.write(whole[:20])
        file.flush()
        assert told(list(follower.new())) == []  # not ended yet
        file.write(whole[20:] + line_of(3))
    assert told(list(follower.new())) == ["r-2", "r-3"]

    with first.open("ab") as file:
        file.write(line_of(4))
    put(tmp_path, "requests-20261130T13.jsonl", 5)
    assert told(list(follower.new())) == ["r-4", "r-5"]

    with first.open("ab") as file:
        file.write(line_of(6))  # by a worker that was held up
    put(tmp_path, "requests-20261130T12.jsonl.gz", 1, 2, 3, 4, 6)
    first.unlink()
    assert told(list(follower.new())) == ["r-6"]
    assert told(list(follower.new())) == []


def test_a_follower_from_the_end_gives_only_what_is_new(tmp_path: Path) -> None:
    put(tmp_path, "requests-20261130T11.jsonl.gz", 1)
    path = put(tmp_path, "requests-20261130T12.jsonl", 2)
    follower = Follower(tmp_path, from_end=True)

    with path.open("ab") as file:
        file.write(line_of(3))

    assert told(list(follower.new())) == ["r-3"]


def test_a_follower_begins_anew_where_a_file_was_emptied(tmp_path: Path) -> None:
    path = put(tmp_path, "requests-20261130T12.jsonl", 1, 2)
    follower = Follower(tmp_path)
    list(follower.new())
    path.write_bytes(line_of(3))

    assert told(list(follower.new())) == ["r-3"]
