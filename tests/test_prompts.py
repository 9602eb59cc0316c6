"""The shipped policy on labelled prompts that it never learned from, as an operator would ask."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from router import policy as policies
from router.classify.features import fold
from router.commands import run
from tests.support.product import ROOT

PROMPTS = Path(__file__).parent / "prompts"
GATES = {
    "single.jsonl": ["--min-accuracy", "0.82", "--min-macro-f1", "0.82", "--max-ece", "0.06"],
    "conversations.jsonl": ["--min-accuracy", "0.78"],
}


@pytest.mark.parametrize("name", GATES)
def test_prompts_from_elsewhere_are_told_apart(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    arguments = ["eval", str(PROMPTS / name), "--alias", "assistant=chat", *GATES[name]]

    assert run(arguments) == 0, capsys.readouterr()


def test_no_prompt_was_learned_from() -> None:
    policy = policies.load(ROOT / "policies" / "default.toml")
    learned = {
        fold(text)
        for examples in policy.file.examples.values()
        for text in (*examples.direct, *examples.thinking)
    }
    rows = [json.loads(line) for line in (PROMPTS / "single.jsonl").read_text().splitlines()]

    assert len(rows) > 400
    assert [row["id"] for row in rows if fold(row["text"].strip()) in learned] == []
