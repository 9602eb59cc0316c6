"""What workers share of experiments: nothing is lost, nothing is counted twice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from router.trialfiles import TrialFiles

OUT = ("short", "half", "0123456789ab")


@pytest.fixture
def files(tmp_path: Path) -> TrialFiles:
    return TrialFiles(tmp_path, Path("config.toml"))


def left_behind(files: TrialFiles, pid: int, told: str = '{"schema": 1, "sums": {}}') -> Path:
    """What a worker of this host with this number had counted."""
    files.keep({})
    [own] = (files.folder / "sums").iterdir()
    path = own.with_name("-".join([str(pid), *own.name.split("-")[1:]]))
    path.write_text(told)
    return path


def gone_pid() -> int:
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"],
                           capture_output=True, check=True)  # fmt: skip
    return int(ended.stdout)


def test_an_arm_that_is_out_is_out_for_all_until_it_is_started(
    files: TrialFiles, tmp_path: Path
) -> None:
    other = TrialFiles(tmp_path, Path("config.toml"))

    assert files.stop(OUT, "too slow") is None
    assert other.out()[OUT]["because"] == "too slow"
    assert TrialFiles(tmp_path, Path("another.toml")).out() == {}
    assert other.start(OUT) is None
    assert files.out() == {}


def test_where_nothing_can_be_written_it_holds_here_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    files = TrialFiles(tmp_path / "file", Path("config.toml"))

    assert files.stop(OUT, "x") is not None
    assert OUT in files.out()
    assert files.keep({}) is not None
    files.start(OUT)
    assert files.out() == {}


def test_each_workers_count_is_its_own_and_seen_by_the_others(
    files: TrialFiles, tmp_path: Path
) -> None:
    other = TrialFiles(tmp_path, Path("config.toml"))
    files.keep({"k": {"a": 1}})
    other.keep({"k": {"a": 2}})

    assert files.others() == [{"k": {"a": 2}}]
    assert other.others() == [{"k": {"a": 1}}]


def test_what_a_worker_that_is_gone_had_counted_is_taken_over_once(
    files: TrialFiles, tmp_path: Path
) -> None:
    left_behind(files, gone_pid(), '{"schema": 1, "sums": {"k": {"a": 3}}}')
    other = TrialFiles(tmp_path, Path("config.toml"))

    assert [files.inherit(), other.inherit()].count([{"k": {"a": 3}}]) == 1
    assert files.inherit() == other.inherit() == []


def test_a_worker_that_runs_and_one_of_another_host_are_left_their_own(files: TrialFiles) -> None:
    running = left_behind(files, os.getppid())
    foreign = running.with_name(f"{gone_pid()}-0badc0de-1.json")
    foreign.write_text('{"schema": 1, "sums": {"k": {"a": 4}}}')

    assert files.inherit() == []
    assert running.exists()
    assert {"k": {"a": 4}} in files.others()


@pytest.mark.parametrize("text", ['{"k": {}}', '{"schema": 2, "sums": {"k": {}}}'])
def test_what_another_version_has_counted_is_left_for_it(files: TrialFiles, text: str) -> None:
    path = left_behind(files, gone_pid(), text)

    assert files.others() == []
    assert files.inherit() == []
    assert path.read_text() == text


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00"])
def test_what_is_torn_or_not_ours_is_passed_over(files: TrialFiles, text: str) -> None:
    left_behind(files, gone_pid(), text)
    (files.folder / "sums" / "strange").write_text(text)
    (files.folder / "out").mkdir()
    (files.folder / "out" / "a.b").write_text(text)
    (files.folder / "out" / ".".join(OUT)).write_text(text)

    assert files.others() == []
    assert files.inherit() == []
    assert files.out() == {OUT: {}}
    assert files.begun("x", "y") == 0.0


def test_counting_begins_anew_for_all(files: TrialFiles, tmp_path: Path) -> None:
    assert files.begun("short", "d1") == 0.0
    assert files.begin_anew("short", "d1") is None

    assert TrialFiles(tmp_path, Path("config.toml")).begun("short", "d1") > 0
    assert files.begun("short", "d2") == 0.0
    (files.folder / "begun" / "short.d2").write_text('{"on": 5}')
    assert files.begun("short", "d2") == 0.0
