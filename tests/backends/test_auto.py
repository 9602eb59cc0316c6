"""An engine that the configuration does not name is recognised, and spoken to in its own words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends.engines import Engine, on
from tests.backends.policy import BUDGET, CAP, policy
from tests.backends.talk import Talk
from tests.support.product import ROOT, Product


def unnamed(engine: Engine, folder: Path) -> Product:
    """A router that is told of the engine where it is and nothing more."""
    backend = {"name": "found", "url": engine.url, "dialect": "auto"}
    return Product.start(folder, {"backends": [backend]}, policy=policy())


def test_an_engine_is_recognised_and_its_model_found(engine: Engine, tmp_path: Path) -> None:
    story = "Write a short story about a ship."
    with unnamed(engine, tmp_path) as front:
        with Talk(front.url) as talk:
            reply = talk.ask(story, scenario="repetition")
            plain = talk.ask(story, scenario="greedy")
        [status] = front.get("/router/status")["backends"]

    assert (status["dialect"], status["model"]) == (engine.name, engine.model)
    assert reply.warnings == ""
    assert reply.text != plain.text


@on("vllm")
@pytest.mark.parametrize("how", ["whole", "stream"])
def test_a_budget_that_the_doctor_saw_honoured_ends_the_thought(
    engine: Engine, tmp_path: Path, how: str
) -> None:
    subprocess.run(
        [sys.executable, "-m", "router", "doctor", engine.url], cwd=ROOT, check=True, timeout=200
    )
    with unnamed(engine, tmp_path) as front, Talk(front.url) as talk:
        reply = (talk.ask if how == "whole" else talk.stream)("Count to 70.", scenario="short")

    assert reply.text.strip().startswith("I counted to ")
    assert reply.finish == "stop"
    assert reply.completion_tokens <= BUDGET + CAP
    assert "x-router-rescued" not in reply.headers
