"""Labelled prompts for tests: a small deployment on disk, rows, and outcomes made by hand."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from router.chat import Classification
from router.commands import offline
from router.evaluation import Outcome, Row
from router.verdict import Live

CONFIG = """
[policy]
file = "policy.toml"
[[backends]]
name = "a"
url = "http://127.0.0.1:9"
"""
POLICY = """
schema = 1
default_scenario = "chat"
[thinking]
keywords = ["why"]
[scenarios.faq]
match.keywords = ["refund", "退款"]
[scenarios.code]
match.keywords = ["python"]
[scenarios.deep]
match.turns = { min = 3 }
match.structure_weight = 5.0
[scenarios.chat]
"""


def deployed(folder: Path) -> Path:
    """A configuration and its policy in the folder; the configuration's path."""
    (folder / "policy.toml").write_text(POLICY, encoding="utf-8")
    (folder / "config.toml").write_text(CONFIG, encoding="utf-8")
    return folder / "config.toml"


def live_in(folder: Path) -> Live:
    live = offline.live(argparse.Namespace(config=deployed(folder), policy=None))
    assert live is not None
    return live


def written(rows: Sequence[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def outcome(
    label: str | tuple[str, ...],
    got: str,
    confidence: float = 0.5,
    *,
    id: str = "",
    stage: str = "keyword",
    lang: str | None = None,
    script: str = "en",
    source: str | None = None,
    think: bool | None = None,
    thought: float = 0.0,
    wants_thought: bool = False,
    text: str = "a prompt",
    signals: tuple[str, ...] = ("keyword a",),
    chars: int = 8,
    us: float = 10.0,
    first_us: float = 20.0,
) -> Outcome:
    """A row and what it got, without a classifier."""
    row = Row(
        line=1,
        id=id,
        labels=(label,) if isinstance(label, str) else label,
        messages=({"role": "user", "content": text},),
        lang=lang,
        think=think,
        source=source,
    )
    found = Classification(got, stage, confidence, signals, script, chars, wants_thought, thought)
    return Outcome(row, found, text, us, first_us)
