"""What the fuzzer has found is read once more, without it: no input breaks a promise again."""

from __future__ import annotations

import pytest

from tests.fuzz.__main__ import CORPUS, DICTIONARIES, REGRESSIONS, read
from tests.fuzz.source import cuttings
from tests.fuzz.targets import TARGETS, check_of

KEPT_BYTES = 300_000


@pytest.mark.parametrize("name", TARGETS)
def test_every_input_that_was_kept_keeps_the_promises(name: str) -> None:
    check = check_of(name)
    inputs = [*(CORPUS / name).iterdir(), *(REGRESSIONS / name).glob("*")]

    for path in inputs:
        try:
            check(path.read_bytes())
        except Exception as error:
            raise AssertionError(f"python -m tests.fuzz.one {name} {path}") from error


def test_what_is_kept_is_small_and_belongs_to_a_target() -> None:
    files = [path for folder in (CORPUS, REGRESSIONS) for path in folder.rglob("*")]

    assert {path.name for path in files if path.is_dir()} == set(TARGETS)
    assert sum(path.stat().st_size for path in files if path.is_file()) < KEPT_BYTES
    words = {f"{target.dictionary}.dict" for target in TARGETS.values() if target.dictionary}
    assert {path.name for path in DICTIONARIES.iterdir()} == words


@pytest.mark.parametrize("seed", [0, 1, 7, 255])
def test_pieces_are_all_of_it(seed: int) -> None:
    raw = bytes(range(50))

    for pieces in cuttings(raw, seed):
        assert b"".join(pieces) == raw
        assert len(pieces) > 1
        assert all(pieces)


FINE = """\
#23 INITED cov: 12 ft: 40 corp: 9/2kb exec/s: 0 rss: 70Mb
#900 NEW    cov: 15 ft: 44 corp: 11/2kb lim: 4 exec/s: 0 rss: 70Mb L: 3/4 MS: 1 EraseBytes-
#1200 DONE   cov: 15 ft: 44 corp: 11/2kb lim: 4 exec/s: 60 rss: 70Mb
Done 1200 runs in 20 second(s)
"""
BROKEN = """\
#23 INITED cov: 12 ft: 40 corp: 9/2kb exec/s: 0 rss: 70Mb

 === Uncaught Python exception: ===
AssertionError: another cut, other requests
Traceback (most recent call last):
artifact_prefix='x/edge-'; Test unit written to x/edge-crash-01
"""


def test_a_run_without_findings_is_told_by_its_numbers() -> None:
    run = read("edge", FINE, 19.5)

    assert (run.runs, run.cpu_s, run.branches, run.new_branches) == (1200, 19.5, 15, 3)
    assert (run.inputs, run.findings, run.error) == (11, (), "")


def test_a_finding_is_told_with_its_input() -> None:
    run = read("edge", BROKEN, 1.0)

    assert run.findings == ("x/edge-crash-01",)
    assert run.error == "AssertionError: another cut, other requests"


def test_a_fuzzer_that_does_not_start_is_no_success() -> None:
    assert read("edge", "ModuleNotFoundError: No module named 'atheris'\n", 0.1).error
