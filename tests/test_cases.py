"""Trouble that really happened, replayed against the router as a process.

Each case tells what a client sends, what the upstreams answer and what must hold.
Ours are in `tests/cases/`, one a file. A larger collection may be laid beside the
checkout as one file of replayable cases; `SCENARIO_ROUTER_CASES` names another place.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import tomli_w

from tests.support.casefile import Case, from_folder, from_lines
from tests.support.caseverify import verify_patiently
from tests.support.product import ROOT

OWN = from_folder(Path(__file__).parent / "cases")
BESIDE = from_lines(
    Path(
        os.environ.get("SCENARIO_ROUTER_CASES") or ROOT.parent / "shared" / "cases" / "cases.jsonl"
    )
)

NOTHING: frozenset[str] = frozenset()
REDIS = frozenset({"redis"})

# Cases that want sessions kept in Redis. A set: the part of the case that needs no
# Redis is carried out today, less these actions and checks. None: there is no such part.
# `test_sessions_in_redis_are_refused` fails on the day that the store exists; then
# the case moves out of this table.
AWAITS_REDIS: Mapping[str, frozenset[str] | None] = {
    "BR-052": REDIS,  # balancing by load holds with any store
    "BR-053": None,  # two processes agree only through a common store
    "BR-059": REDIS,  # times and outcomes hold; nothing can freeze
    "BR-060": None,  # nothing pins a session yet
}

# (case, number of the `should` check) → why this product chose otherwise. An entry
# whose check holds is an error, as is one that names no check.
CHOSEN_OTHERWISE: Mapping[tuple[str, int], str] = {}


def runnable(cases: list[Case]) -> list[Case]:
    return [case for case in cases if AWAITS_REDIS.get(case.id, NOTHING) is not None]


@pytest.mark.parametrize("case", runnable([*OWN, *BESIDE]), ids=lambda case: case.id)
def test_the_case_holds(case: Case, tmp_path: Path) -> None:
    without = AWAITS_REDIS.get(case.id) or NOTHING
    findings = verify_patiently(case, tmp_path, without=without)

    excused = {index for id_, index in CHOSEN_OTHERWISE if id_ == case.id}
    broken = [f for f in findings if not (f.kind == "should" and f.index in excused)]
    assert not broken, "\n".join([str(case), *map(str, broken)])
    held = excused - {f.index for f in findings if f.kind == "should"}
    assert not held, f"{case}: should[{held}] holds; take it out of the table"


@pytest.mark.parametrize("case_id", sorted(AWAITS_REDIS))
def test_sessions_in_redis_are_refused(case_id: str, tmp_path: Path) -> None:
    """A store that is not there is not silently another one."""
    config = {
        "policy": {"file": str(ROOT / "policies" / "default.toml")},
        "backends": [{"name": "a", "url": "http://127.0.0.1:9"}],
        "affinity": {"store": "redis", "url_env": "REDIS_URL"},
    }
    path = tmp_path / f"{case_id}.toml"
    path.write_text(tomli_w.dumps(config), encoding="utf-8")

    done = subprocess.run(
        [sys.executable, "-m", "router", "check", "--config", str(path)],
        cwd=ROOT,
        env={**os.environ, "REDIS_URL": "redis://127.0.0.1:9/0"},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode != 0, f"{case_id} can be carried out in full now"
    assert "affinity" in done.stdout + done.stderr


def test_every_excuse_names_a_check() -> None:
    should = {(case.id, index) for case in BESIDE for index in range(len(case.should))}

    assert not BESIDE or set(CHOSEN_OTHERWISE) <= should
