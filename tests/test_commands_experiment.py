"""`experiment` on a file and on a running router: how arms stand, and the winner written down."""

from __future__ import annotations

import io
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from router import commands, policy, promotion, referee, trials
from router.evidence import ArmSums
from router.policy import Policy
from router.trialfiles import TrialFiles
from tests.support.product import write_toml
from tests.support.script import chat_ok
from tests.support.trying import POLICY as RUNNING
from tests.support.trying import ask, paced_backend, start
from tests.test_evidence import record

POLICY = """\
# What we serve.
schema = 1
default_scenario = "chat"

[defaults.direct]
top_p = 0.8 # [card]

[scenarios.chat]
preset.thinking = { fill = false } # never by itself

# The shortest answers.
[scenarios.faq]
title = "FAQ" # for people

[scenarios.faq.preset]
thinking = { fill = false } # [own]
max_new_tokens = { cap = 64 } # [A] the article

[scenarios.faq.direct]
temperature = { fill = 0.2 } # cold

# Would half do?
[experiments.short]
scenarios = ["faq", "chat"]

[experiments.short.arms.control]

[experiments.short.arms.shorter]
weight = 2

[experiments.short.arms.shorter.preset]
max_new_tokens = { cap = 32 }
temperature = 0.1

[experiments.short.arms.shorter.thinking]
top_k = { fill = 10 } # last
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SCENARIO_ROUTER_CACHE", str(tmp_path / "cache"))
    (tmp_path / "policy.toml").write_text(POLICY, encoding="utf-8")
    one = {"name": "one", "url": "http://127.0.0.1:9", "model": "m"}
    return write_toml(
        tmp_path / "config.toml", {"backends": [one], "policy": {"file": "policy.toml"}}
    )


def run(config: Path, *args: str) -> int:
    return commands.run(["experiment", *args, "--config", str(config)])


def written(config: Path) -> str:
    return (config.parent / "policy.toml").read_text(encoding="utf-8")


def served(taken: Policy) -> dict[Any, Any]:
    return {
        key: {entry.name: (entry.rule, entry.default) for entry in entries}
        for key, entries in taken.presets.items()
    }


# --- promote ----------------------------------------------------------------------------------


def test_a_winner_is_written_where_a_person_would_and_every_comment_stays(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(config, "promote", "short", "shorter", "--yes") == 0

    text = written(config)
    assert [line for line in text.splitlines() if "#" in line] == [
        line.replace("64", "32")
        for line in POLICY.splitlines()
        if "#" in line and "cold" not in line  # that value is gone: the arm's holds in either mode
    ]
    assert "max_new_tokens = { cap = 32 } # [A] the article" in text
    assert 'scenarios = ["faq", "chat"]\nstate = "stopped"\n' in text
    assert text.index("[scenarios.chat.thinking]") < text.index("# The shortest answers.")
    shown = capsys.readouterr().out
    assert "-max_new_tokens = { cap = 64 } # [A] the article" in shown
    assert "+max_new_tokens = { cap = 32 } # [A] the article" in shown


def test_what_was_promoted_serves_as_the_arm_did(config: Path) -> None:
    before = policy.parse(POLICY)
    arm = trials.variant(before, before.file.experiments["short"], "shorter")

    run(config, "promote", "short", "shorter", "--yes")

    after = policy.parse(written(config))
    assert served(after) == served(arm)
    assert trials.of(after) is None


def test_nothing_is_written_without_a_yes(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))

    assert run(config, "promote", "short", "shorter") == 1
    assert written(config) == POLICY


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("promote", "short", "longer"), "no arm 'longer'"),
        (("promote", "shirt", "shorter"), "no experiment 'shirt'"),
        (("promote", "short", "--offline"), "no single one is better (shorter: not yet)"),
        (("stop", "shirt", "--offline"), "no experiment 'shirt'"),
        (("show", "shirt", "--offline"), "no experiment 'shirt'; there are: short"),
    ],
)
def test_what_is_not_there_is_told(
    config: Path, args: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(config, *args, "--yes") == 1
    assert words in capsys.readouterr().err
    assert written(config) == POLICY


def test_a_link_stays_one_and_line_ends_and_rights_are_kept(config: Path) -> None:
    real = config.parent / "real.toml"
    real.write_bytes(POLICY.replace("\n", "\r\n").encode())
    real.chmod(0o640)
    link = config.parent / "policy.toml"
    link.unlink()
    link.symlink_to(real)

    assert run(config, "promote", "short", "shorter", "--yes") == 0

    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    data = real.read_bytes()
    assert data.count(b"\r\n") == data.count(b"\n") > POLICY.count("\n")


VALUES = {
    "temperature": st.sampled_from([0.1, {"fill": 0.3}, {"cap": 0.9, "floor": 0.2}]),
    "max_new_tokens": st.sampled_from([8, {"cap": 16}, {"strip": True}]),
    "thinking": st.sampled_from([True, {"fill": False}, "auto"]),
    "stop": st.sampled_from([["\n"], {"fill": ["a", 'b"c']}]),
    "extra": st.sampled_from([{"foo": 1}, {"foo": {"cap": 2}, "bar": {"x": [1, "é"]}}]),
}
NEVER_IN_A_MODE = {"thinking"}
presets = st.fixed_dictionaries({}, optional=VALUES)
modes = st.fixed_dictionaries(
    {}, optional={name: value for name, value in VALUES.items() if name not in NEVER_IN_A_MODE}
)


@settings(max_examples=60, deadline=None)
@given(own=presets, own_direct=modes, arm=presets, arm_direct=modes, arm_thinking=modes)
def test_whatever_an_arm_says_is_promoted_to_what_it_served(
    own: Any, own_direct: Any, arm: Any, arm_direct: Any, arm_thinking: Any
) -> None:
    text = tomli_w.dumps(
        {
            "schema": 1,
            "default_scenario": "chat",
            "scenarios": {"chat": {"preset": own, "direct": own_direct}},
            "experiments": {
                "x": {
                    "scenarios": ["chat"],
                    "arms": {
                        "a": {},
                        "b": {"preset": arm, "direct": arm_direct, "thinking": arm_thinking},
                    },
                }
            },
        }
    )
    taken = policy.parse(text)

    after = policy.parse(promotion.promoted(taken, "x", "b"))

    wanted = served(trials.variant(taken, taken.file.experiments["x"], "b"))
    assert served(after) == wanted


# --- without a router -------------------------------------------------------------------------


def test_the_file_alone_is_stopped_and_started(config: Path) -> None:
    assert run(config, "stop", "short", "--offline", "--yes") == 0
    assert trials.of(policy.parse(written(config))) is None
    assert run(config, "start", "short", "--offline", "--yes") == 0
    assert trials.of(policy.parse(written(config))) is not None
    assert written(config).replace('state = "running"\n', "") == POLICY
    assert run(config, "stop", "short", "shorter", "--offline") == 2


def test_what_routers_left_is_listed_and_the_better_arm_promoted_by_itself(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken, random = policy.parse(POLICY), Random(1)
    arms = {"control": ArmSums(), "shorter": ArmSums()}
    for number in range(800):
        for arm, by in (("control", 1.0), ("shorter", 0.6)):
            arms[arm].add(record(number, total_ms=100 * by * (1 + random.random() / 10)))
    digest = trials.basis(taken.file.experiments["short"], taken)
    key = referee.key_of("short", digest, 0.0)
    files = TrialFiles(tmp_path / "cache", config)
    assert files.keep({key: {arm: sums.told() for arm, sums in arms.items()}}) is None

    assert run(config, "list", "--offline") == 0
    shown = capsys.readouterr().out
    assert "control: 800 requests" in shown
    assert "better: total -" in shown
    assert run(config, "list", "--offline", "--json") == 0
    told = json.loads(capsys.readouterr().out)["experiments"][0]
    assert told["arms"][1]["effect"]["high"] < 0.62
    assert run(config, "promote", "short", "--offline", "--yes") == 0
    assert "cap = 32 } # [A] the article" in written(config)


# --- with one ---------------------------------------------------------------------------------


def test_a_running_router_is_asked_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with paced_backend() as backend, start(tmp_path, backend, RUNNING) as product:
        backend.set_script([chat_ok("The Danube.")])
        for number in range(6):
            ask(product, f"s-{number}")
        at = ("--url", product.url)

        assert commands.run(["experiment", "list", *at]) == 0
        assert "pace: running" in capsys.readouterr().out
        assert commands.run(["experiment", "stop", "pace", "slow", *at]) == 0
        assert "STOPPED: stopped by command" in capsys.readouterr().out
        assert commands.run(["experiment", "start", "pace", "slow", *at, "--json"]) == 0
        arms = json.loads(capsys.readouterr().out)["experiments"][0]["arms"]
        assert [(arm["state"], arm["requests"]) for arm in arms] == [("running", 0)] * 3
        assert commands.run(["experiment", "stop", "pace", "nope", *at]) == 1
        assert "There are: slow, same" in capsys.readouterr().err
        assert commands.run(["experiment", "stop", *at]) == 2
    assert commands.run(["experiment", "list", *at]) == 1
    assert "--offline" in capsys.readouterr().err
