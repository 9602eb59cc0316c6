"""Files that workers share: whatever a crash or a hand left there, it counts or is nothing."""

from __future__ import annotations

import json
import math
from typing import Any, cast

from router import capabilities, trials
from router import policy as policies
from router.dialects import DIALECTS
from router.referee import Referee, _Known, describe, out_of
from router.trialfiles import TrialFiles
from tests.fuzz import folders, source

FOLDER = folders.new("shared")
POLICY = policies.parse(
    """
schema = 1
default_scenario = "chat"
[scenarios.chat]
[experiments.short]
scenarios = ["chat"]
guard.error_rate = 0.1
guard.total_ratio = 1.2
guard.min_requests = 20
[experiments.short.arms.control]
[experiments.short.arms.half]
preset.max_new_tokens = { cap = 32 }
"""
)
WRITTEN = POLICY.file.experiments["short"]
DIGEST = trials.basis(WRITTEN, POLICY)
#: what is counted under the digest stands under this word in an input
MARK = b"KEY"
BETWEEN = b"\0"


def check(data: bytes) -> None:
    """When counting began; an arm that is out; sums of another worker; a capability file."""
    given = source.of(data)
    parts = [*given.raw.split(BETWEEN), b"", b"", b""][:4]
    key = f"short.{DIGEST}.0.0".encode()
    files = TrialFiles(FOLDER, FOLDER / "config.toml")
    places = (
        files.folder / "begun" / f"short.{DIGEST}",
        files.folder / "out" / f"short.half.{WRITTEN.digest}",
        files.folder / "sums" / "1-ffffffff-1.json",
        capabilities.path_for("http://b", FOLDER),
    )
    for place, content in zip(places, parts, strict=True):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.replace(MARK, key))
    check_experiment(files)
    found = capabilities.read(places[3])
    if found is not None:
        for dialect in DIALECTS.values():
            fitted = capabilities.fitted(dialect, found)
            assert fitted.name == dialect.name
            assert fitted.context is None or fitted.context > 0


def check_experiment(files: TrialFiles) -> None:
    begun = files.begun("short", DIGEST)
    assert math.isfinite(begun)
    referee = Referee(cast(Any, None), cast(Any, None), files)
    seen = referee._look({"short": _Known(WRITTEN, DIGEST)}, {}, is_dirty=False)
    assert out_of(POLICY, seen.out) == {("short", "half")}
    told = describe("short", WRITTEN, seen.merged["short"], seen.out)
    json.loads(json.dumps(told, allow_nan=False))
    for arm in told["arms"]:
        assert arm["requests"] >= 0
