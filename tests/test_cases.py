"""Trouble that really happened, replayed against the router as a process.

Each case tells what a client sends, what the upstreams answer and what must hold.
Ours are in `tests/cases/`, one a file. A larger collection may be laid beside the
checkout as one file of replayable cases; `SCENARIO_ROUTER_CASES` names another place.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.casefile import Case, from_folder, from_lines
from tests.support.caseverify import verify_patiently
from tests.support.product import ROOT

OWN = from_folder(Path(__file__).parent / "cases")
BESIDE = from_lines(
    Path(
        os.environ.get("SCENARIO_ROUTER_CASES") or ROOT.parent / "shared" / "cases" / "cases.jsonl"
    )
)

# (case, number of the `should` check) → why this product chose otherwise. An entry
# whose check holds is an error, as is one that names no check.
CHOSEN_OTHERWISE: Mapping[tuple[str, int], str] = {}


@pytest.mark.parametrize("case", [*OWN, *BESIDE], ids=lambda case: case.id)
def test_the_case_holds(case: Case, tmp_path: Path) -> None:
    findings = verify_patiently(case, tmp_path)

    excused = {index for id_, index in CHOSEN_OTHERWISE if id_ == case.id}
    broken = [f for f in findings if not (f.kind == "should" and f.index in excused)]
    assert not broken, "\n".join([str(case), *map(str, broken)])
    held = excused - {f.index for f in findings if f.kind == "should"}
    assert not held, f"{case}: should[{held}] holds; take it out of the table"


def test_every_excuse_names_a_check() -> None:
    should = {(case.id, index) for case in BESIDE for index in range(len(case.should))}

    assert not BESIDE or set(CHOSEN_OTHERWISE) <= should
