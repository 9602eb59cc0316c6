"""Who is in which arm: by weight, for good, and whatever else changes."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router import app, policy, tomlfile, trials
from router.chat import Endpoint
from router.config import Backend, Config
from router.offline import Unconnected
from router.policy import Policy, Rule
from router.trials import Trial
from router.verdict import Live, Verdict, decide_for

BASE = """\
schema = 1
default_scenario = "chat"
[defaults.direct]
top_p = 0.8
[scenarios.chat]
preset.thinking = false
[scenarios.faq]
match.keywords = ["refund"]
[scenarios.faq.preset]
thinking = false
max_new_tokens = { cap = 64 }
[scenarios.faq.direct]
temperature = { fill = 0.2 }
"""
SHORT = """\
[experiments.short]
scenarios = ["faq"]
[experiments.short.arms.control]
[experiments.short.arms.shorter.preset]
max_new_tokens = { cap = 32 }
"""
UNITS = [f"{number:016x}" for number in range(20_000)]


def live_of(text: str, out: Sequence[tuple[str, str]] = ()) -> Live:
    config = Config(backends=(Backend(name="a", url="http://127.0.0.1:9", model="m"),))
    taken = policy.parse(text, "p")
    return app.live_of(config, taken, app.slots_of(config, Unconnected), out)


def trial_of(
    weights: dict[str, float], *, name: str = "short", salt: str = "", share: float = 1.0
) -> Trial:
    arms = "".join(
        f"[experiments.{name}.arms.{arm}]\nweight = {weight}\n"
        + (f"preset.seed = {at}\n" if at else "")
        for at, (arm, weight) in enumerate(weights.items())
    )
    head = f'[experiments.{name}]\nscenarios = ["faq"]\nsalt = "{salt}"\nshare = {share}\n'
    found = trials.of(policy.parse(BASE + head + arms))
    assert found is not None
    return found["faq"]


def drawn(trial: Trial) -> dict[str, str | None]:
    arms = {unit: trial.arm(unit) for unit in UNITS}
    return {unit: None if arm is None else arm.name for unit, arm in arms.items()}


def asked(
    live: Live, text: str = "A refund?", session: str | None = "s-1", **headers: str
) -> Verdict:
    body = {"model": "auto", "messages": [{"role": "user", "content": text}]}
    fields = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    if session is not None:
        fields[b"x-session-id"] = session.encode()
    return decide_for(Endpoint.CHAT, json.dumps(body).encode(), fields, live)


def sessions_in(live: Live, arm: str, count: int = 3) -> list[str]:
    """Sessions that are in this arm."""
    found = []
    for number in range(10_000):
        got = asked(live, session=f"s-{number}").plan.arm
        if got is not None and got.name == arm:
            found.append(f"s-{number}")
        if len(found) == count:
            return found
    raise AssertionError(f"nobody is in {arm}")


# --- the draw ---------------------------------------------------------------------------------

weights = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d", "e"]), st.floats(0.05, 20), min_size=2, max_size=5
)


@settings(max_examples=15, deadline=None)
@given(weights)
def test_arms_get_sessions_by_their_weights(told: dict[str, float]) -> None:
    counts = Counter(drawn(trial_of(told)).values())
    whole = sum(told.values())

    for arm, weight in told.items():
        share = weight / whole
        # Twice drawn: the places by their arms, the sessions by their places.
        deviation = math.sqrt(share * (1 - share) * (1 / len(UNITS) + 1 / trials.PLACES))
        assert abs(counts[arm] / len(UNITS) - share) < 5 * deviation + 1e-9, arm


@settings(max_examples=10, deadline=None)
@given(weights, st.floats(0.05, 20))
def test_an_arm_that_is_added_takes_sessions_and_moves_nobody_else(
    told: dict[str, float], weight: float
) -> None:
    before, after = drawn(trial_of(told)), drawn(trial_of({**told, "new": weight}))

    assert {after[unit] for unit in UNITS if after[unit] != before[unit]} <= {"new"}


@settings(max_examples=10, deadline=None)
@given(st.floats(0.01, 1), st.floats(0.01, 1))
def test_a_greater_share_keeps_who_takes_part_in_their_arm(one: float, other: float) -> None:
    less, more = sorted((one, other))
    told = {"control": 1.0, "b": 1.0}
    few, many = drawn(trial_of(told, share=less)), drawn(trial_of(told, share=more))

    took_part = [unit for unit in UNITS if few[unit] is not None]
    assert abs(len(took_part) / len(UNITS) - less) < 5 * math.sqrt(0.25 / len(UNITS))
    assert [few[unit] for unit in took_part] == [many[unit] for unit in took_part]


def test_other_experiments_and_another_salt_draw_apart_from_this_one() -> None:
    told = {"control": 1.0, "b": 1.0}
    here = drawn(trial_of(told))

    assert here == drawn(trial_of(told))
    for other in (trial_of(told, name="else"), trial_of(told, salt="x")):
        both = Counter(zip(here.values(), drawn(other).values(), strict=True))
        assert len(both) == 4
        assert all(abs(count / len(UNITS) - 0.25) < 0.02 for count in both.values())


def test_what_else_is_in_the_policy_moves_nobody() -> None:
    before = live_of(BASE + SHORT)
    after = live_of(
        BASE.replace("0.8", "0.9")
        + '[experiments.other]\nscenarios = ["chat"]\n[experiments.other.arms.a]\n'
        + "[experiments.other.arms.b.preset]\nseed = 1\n"
        + SHORT
    )

    for number in range(200):
        arms = [asked(live, session=f"s-{number}").plan.arm for live in (before, after)]
        assert arms[0] is not None
        assert arms[1] is not None
        assert arms[0].name == arms[1].name


# --- what an arm is to a request --------------------------------------------------------------


def test_a_session_gets_its_arms_preset_and_control_the_scenarios_own() -> None:
    live = live_of(BASE + SHORT)

    for arm, cap in (("control", 64), ("shorter", 32)):
        for session in sessions_in(live, arm):
            verdict = asked(live, session=session)
            assert verdict.decision.value("max_new_tokens") == cap
            assert verdict.decision.value("temperature") == 0.2
            assert verdict.decision.value("top_p") == 0.8
            # all day long, and in whatever turn
            assert asked(live, "Another refund?", session).plan.arm is verdict.plan.arm


def test_an_arms_rule_goes_before_the_scenarios_in_either_mode() -> None:
    live = live_of(BASE + SHORT + "temperature = 0.9\n")
    [session] = sessions_in(live, "shorter", 1)

    assert asked(live, session=session).decision.value("temperature") == 0.9


def test_a_mode_of_an_arm_holds_in_that_mode_alone() -> None:
    text = BASE + SHORT + "[experiments.short.arms.shorter.thinking]\ntemperature = 0.9\n"
    live = live_of(text)
    [session] = sessions_in(live, "shorter", 1)

    assert asked(live, session=session).decision.value("temperature") == 0.2


def test_who_takes_no_part_gets_the_plain_preset_and_no_arm() -> None:
    live = live_of(BASE + SHORT.replace("[experiments.short]", "[experiments.short]\nshare = 1e-9"))

    verdict = asked(live)

    assert verdict.plan.arm is None
    assert verdict.decision.value("max_new_tokens") == 64


def test_a_forced_scenario_another_one_and_a_stopped_experiment_have_no_arm() -> None:
    live = live_of(BASE + SHORT)
    stopped = live_of(BASE + SHORT.replace('["faq"]', '["faq"]\nstate = "stopped"'))

    assert stopped.trials is None
    for at, headers in ((live, {"x_router_scenario": "faq"}), (stopped, {})):
        for number in range(20):
            assert asked(at, session=f"s-{number}", **headers).plan.arm is None
    assert asked(live, "Hello!").plan.arm is None


def test_an_app_that_names_its_scenario_as_a_model_takes_part() -> None:
    live = live_of(BASE + SHORT)
    body = {"model": "auto:faq", "messages": [{"role": "user", "content": "Hello!"}]}

    verdict = decide_for(Endpoint.CHAT, json.dumps(body).encode(), {b"x-session-id": b"s"}, live)

    assert verdict.plan.arm is not None


def test_without_a_session_the_requests_id_draws() -> None:
    live = live_of(BASE + SHORT.replace('["faq"]', '["chat"]'))
    raw = json.dumps({"model": "auto", "prompt": [1, 2, 3]}).encode()

    def arm(request_id: str) -> str | None:
        verdict = decide_for(Endpoint.COMPLETIONS, raw, {}, live, request_id=request_id)
        assert verdict.request.session is None
        return None if verdict.plan.arm is None else verdict.plan.arm.name

    assert {arm(f"id-{number}") for number in range(50)} == {"control", "shorter"}
    assert len({arm("id-1") for _ in range(5)}) == 1
    assert arm("") is None


def test_an_arm_that_is_out_gives_its_sessions_to_control_and_moves_nobody_else() -> None:
    more = "[experiments.short.arms.other.preset]\nseed = 5\n"
    live = live_of(BASE + SHORT + more)
    after = live_of(BASE + SHORT + more, out=[("short", "shorter"), ("else", "other")])

    for arm, then in (("shorter", "control"), ("control", "control"), ("other", "other")):
        for session in sessions_in(live, arm):
            got = asked(after, session=session)
            assert got.plan.arm is not None
            assert got.plan.arm.name == then
            wanted = 64 if then != "shorter" else 32
            assert got.decision.value("max_new_tokens") == wanted


def test_what_is_remembered_of_one_arm_is_not_told_to_another() -> None:
    live = live_of(BASE + SHORT)
    [control], [shorter] = sessions_in(live, "control", 1), sessions_in(live, "shorter", 1)

    caps = [
        asked(live, session=session).decision.value("max_new_tokens")
        for session in (control, shorter, control, shorter)
    ]

    assert caps == [64, 32, 64, 32]


def test_an_arm_may_make_a_scenario_personal() -> None:
    live = live_of(BASE + SHORT + 'session_id = "auto"\n')

    seen = set()
    for session in sessions_in(live, "shorter"):
        verdict = asked(live, session=session)
        assert verdict.request.session is not None
        assert verdict.decision.value("session_id") == verdict.request.session.hash
        seen.add(verdict.request.session.hash)
    assert len(seen) == 3


def test_an_arms_policy_differs_in_its_scenarios_alone() -> None:
    taken: Policy = policy.parse(BASE + SHORT)
    arm = trials.variant(taken, taken.file.experiments["short"], "shorter")

    changed = {key for key in taken.presets if taken.presets[key] != arm.presets[key]}

    assert {scenario for scenario, _ in changed} == {"faq"}
    for mode in (None, False, True):
        [cap] = [e for e in arm.presets["faq", mode] if e.name == "max_new_tokens"]
        assert cap.rule == Rule(cap=32)


def test_promises_are_kept_by_the_scenario_whatever_is_tried(tmp_path: Path) -> None:
    from router import policycheck

    promise = '[[tests]]\nprompt = "A refund?"\nscenario = "faq"\nthinking = false\n'
    arm = SHORT.replace("max_new_tokens = { cap = 32 }", "thinking = true")

    assert policycheck.broken(live_of(BASE + promise + arm)) == []


# --- what is wrong in a file ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "path", "words"),
    [
        ('["faq"]', '["fap"]', "experiments.short.scenarios", "did you mean 'faq'"),
        ('["faq"]', "[]", "experiments.short.scenarios", "at least 1"),
        ("arms.shorter", "arms.Shorter", "experiments.short.arms.Shorter", "lower-case"),
        ("cap = 32", "cop = 32", "experiments.short.arms.shorter.preset", "'cap'"),
        ("max_new_tokens", "max_tokns", "experiments.short.arms.shorter.preset", "unknown"),
        ("cap = 32", "cap = 0", "experiments.short.arms.shorter.preset", "[1"),
        ("[experiments.short.arms.control]", "", "experiments.short.arms", "at least 2"),
        ("arms.control]", "arms.control]\npreset.seed = 1", "experiments.short", "is control"),
        ("arms.control]", "arms.control]\nweight = 0", "experiments.short", "above 0"),
        ("arms.control]", "arms.control]\nweigth = 2", "experiments.short.arms", "'weight'"),
        ("[experiments.short.arms.control]", "share = 0\n[experiments.short.arms.control]",
         "experiments.short.share", "greater than 0"),
        ("[experiments.short.arms.control]", 'state = "off"\n[experiments.short.arms.control]',
         "experiments.short.state", "'running' or 'stopped'"),
        ("[experiments.short.arms.control]",
         "guard.error_rat = 0.1\n[experiments.short.arms.control]",
         "experiments.short.guard", "'error_rate'"),
        ("[experiments.short.arms.control]",
         "guard.min_requests = 3\n[experiments.short.arms.control]",
         "experiments.short.guard", "20"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_place(old: str, new: str, path: str, words: str) -> None:
    text = BASE + SHORT
    assert old in SHORT
    with pytest.raises(tomlfile.FileFault) as caught:
        policy.parse(BASE + SHORT.replace(old, new, 1), "p.toml")

    found = [m for m in caught.value.mistakes if m.path.startswith(path) and words in m.message]
    assert found, caught.value
    first = text[: text.index("[experiments")].count("\n") + 1
    assert all(m.line is not None and m.line >= first for m in found)


def test_two_experiments_want_no_scenario_at_once_unless_one_is_stopped() -> None:
    other = SHORT.replace("experiments.short", "experiments.more")

    with pytest.raises(tomlfile.FileFault, match="already"):
        policy.parse(BASE + SHORT + other)
    stopped = other.replace('["faq"]', '["faq"]\nstate = "stopped"')
    assert policy.parse(BASE + SHORT + stopped).file.experiments["more"].state == "stopped"


def test_control_is_the_first_arm_or_the_one_that_says_so() -> None:
    text = BASE + SHORT
    named = (
        "[experiments.short]\nscenarios = ['faq']\n[experiments.short.arms.b.preset]\nseed = 1\n"
        "[experiments.short.arms.a]\ncontrol = true\n"
    )

    assert policy.parse(text).file.experiments["short"].control == "control"
    assert policy.parse(BASE + named).file.experiments["short"].control == "a"


def test_an_experiment_is_another_one_when_what_it_does_is() -> None:
    def digest(text: str) -> str:
        return policy.parse(BASE + text).file.experiments["short"].digest

    for same in ('title = "x"', 'goal = "ttft"', "margin = 0.1"):
        assert digest(
            SHORT.replace("[experiments.short]", f"[experiments.short]\n{same}")
        ) == digest(SHORT)
    for old, new in (("32", "33"), ('["faq"]', '["chat"]'), ("short]", "short]\nsalt = 'x'")):
        assert digest(SHORT.replace(old, new, 1)) != digest(SHORT)
