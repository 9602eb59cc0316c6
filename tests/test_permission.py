"""What a key is for is all that it gets, and whoever asks for more is told what it may have."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import choosing, explain, permission
from router.chat import Endpoint
from router.classify import Classifier
from router.errors import PoolNotAllowed, RouterError, ScenarioNotAllowed
from router.keyring import Grant
from router.policy import parse
from router.verdict import Live, Verdict, decide_for
from tests.support.taught import classifier, talk

POLICY = parse("""
schema = 1
default_scenario = "chat"
[scenarios.faq]
pool = "small"
match.keywords = ["refund"]
[scenarios.code]
pool = "big"
match.keywords = ["python", "script"]
[scenarios.proof]
pool = "big"
match.keywords = ["prove"]
[scenarios.chat]
pool = "small"
[scenarios.follow]
pool = "big"
match.continues = "chat"
match.turns = { min = 1 }
""")
LIVE = Live(
    policy=POLICY,
    classifier=Classifier(POLICY),
    pools={"small": (), "big": ()},
    aliases=frozenset({"gpt"}),
    real_model_bypass=False,
    allow_policy_off=True,
    has_keys=True,
    plans={},
)
NAMES = list(POLICY.scenarios)


def asked(
    text: str, grant: Grant | None, *, model: str = "auto", scenario: str | None = None
) -> Verdict:
    raw = json.dumps({"model": model, "messages": [{"role": "user", "content": text}]}).encode()
    headers = {} if scenario is None else {b"x-router-scenario": scenario.encode()}
    return decide_for(Endpoint.CHAT, raw, headers, LIVE, grant=grant)


def key(*scenarios: str, pools: Any = None) -> Grant:
    return Grant("k", scenarios or None, None if pools is None else frozenset(pools))


# --- what is classified -------------------------------------------------------------------


def test_a_key_without_limits_changes_nothing() -> None:
    for text in ("A refund?", "Prove it.", "Hello."):
        with_key, without = asked(text, Grant("k")), asked(text, None)
        assert (with_key.found, with_key.plan) == (without.found, without.plan)
        assert with_key.request.session != without.request.session  # which is the key's own


def test_the_best_of_what_it_may_have_is_taken_and_the_verdict_says_why() -> None:
    found = asked("A python script that we prove, then refund.", key("faq", "proof")).found
    open_to_all = asked("A python script that we prove, then refund.", None).found

    assert open_to_all.scenario == "code"
    assert found.scenario == "faq"  # of two as likely, the earlier in the policy
    assert found.source == "keyword"
    assert found.signals == ("keyword refund", "code is not for this key")


def test_where_nothing_speaks_for_any_of_them_the_policys_default_is_taken() -> None:
    found = asked("A python script.", key("proof", "chat")).found

    assert (found.scenario, found.source) == ("chat", "default")
    assert found.signals[-1] == "code is not for this key"


def test_without_that_default_it_is_the_first_that_the_key_lists() -> None:
    assert asked("A python script.", key("proof", "faq")).found.scenario == "proof"
    assert asked("A python script.", key("faq", "proof")).found.scenario == "faq"


def test_a_scenario_that_continues_another_is_none_for_whom_it_is_closed() -> None:
    assert asked("Hello.", None).found.scenario == "follow"
    assert asked("Hello.", key("chat")).found.scenario == "chat"


def test_a_closed_pool_closes_its_scenarios() -> None:
    verdict = asked("Prove it.", key(pools=["small"]))

    assert verdict.found.scenario == "chat"
    assert verdict.decision.pool == "small"


words = st.sampled_from(["refund", "python", "script", "prove", "hello", "and", "then"])
grants = st.builds(
    Grant,
    st.just("k"),
    st.none() | st.lists(st.sampled_from(NAMES), min_size=1, unique=True).map(tuple),
    st.none() | st.frozensets(st.sampled_from(["small", "big", "none"]), min_size=1),
)


@given(text=st.lists(words, min_size=1).map(" ".join), grant=grants)
def test_whatever_is_asked_nothing_closed_is_given(text: str, grant: Grant) -> None:
    open_ones = [
        name
        for name, scenario in POLICY.scenarios.items()
        if (grant.scenarios is None or name in grant.scenarios)
        and permission.may_reach(grant, scenario.pool)
    ]
    if not open_ones:
        with pytest.raises((PoolNotAllowed, ScenarioNotAllowed)):
            asked(text, grant)
        return

    verdict = asked(text, grant)

    assert verdict.found.scenario in open_ones
    assert permission.may_reach(grant, verdict.decision.pool)
    free = asked(text, None).found
    if free.scenario in open_ones:
        assert verdict.found == free  # who may have the best gets it


@given(data=st.data())
def test_with_examples_learned_it_holds_as_well(data: st.DataObject) -> None:
    reader = classifier()
    names = list(reader.policy.scenarios)
    allowed = tuple(data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True)))
    text = data.draw(st.sampled_from(["退款什么时候能到账？", "Write a function.", "go on", "?"]))

    assert reader.scenario(talk(text), allowed=allowed).scenario in allowed


# --- what is asked for by name ---------------------------------------------------------------


@pytest.mark.parametrize("way", [{"scenario": "code"}, {"model": "auto:code"}])
def test_a_closed_scenario_asked_for_by_name_is_refused_with_those_that_are_open(
    way: dict[str, str],
) -> None:
    with pytest.raises(ScenarioNotAllowed) as caught:
        asked("A refund?", key("faq", "chat"), **way)

    fault = caught.value
    assert (fault.status, fault.type, fault.code) == (
        403,
        "permission_error",
        "scenario_not_allowed",
    )
    assert "'code'" in fault.message
    assert "faq, chat" in fault.message
    assert asked("A refund?", key("faq", "code"), **way).found.scenario == "code"


def test_one_whose_pool_is_closed_is_refused_for_that() -> None:
    with pytest.raises(PoolNotAllowed) as caught:
        asked("A refund?", key(pools=["small"]), scenario="code")

    assert caught.value.code == "pool_not_allowed"
    assert "'big'" in caught.value.message
    assert "faq, chat" in caught.value.message


@pytest.mark.parametrize("way", [{"scenario": "nix"}, {"model": "auto:nix"}])
def test_who_names_none_of_ours_is_told_of_its_own_alone(way: dict[str, str]) -> None:
    with pytest.raises(RouterError) as caught:
        asked("A refund?", key("faq", "chat"), **way)

    assert "faq" in caught.value.message
    assert "code" not in caught.value.message


def test_a_key_for_what_the_policy_no_longer_has_is_told_so() -> None:
    with pytest.raises(ScenarioNotAllowed, match="gone"):
        asked("A refund?", key("gone"))
    with pytest.raises(PoolNotAllowed, match="other"):
        asked("A refund?", key(pools=["other"]))


# --- what is not classified ------------------------------------------------------------------


def test_a_key_for_scenarios_has_no_way_past_them() -> None:
    limited = key("faq")

    with pytest.raises(ScenarioNotAllowed, match=r"x-router-policy: off"):
        permission.check_unclassified(limited, Endpoint.CHAT, b"/v1/chat/completions")
    with pytest.raises(ScenarioNotAllowed, match=r"/v1/messages is none"):
        permission.check_unclassified(limited, Endpoint.OTHER, b"/v1/messages?beta=true")
    permission.check_unclassified(key(pools=["small"]), Endpoint.OTHER, b"/v1/messages")


def test_what_no_scenario_is_decided_for_goes_to_the_first_open_pool() -> None:
    assert permission.default_pool(None, LIVE.pools) == "small"
    assert permission.default_pool(key(pools=["big"]), LIVE.pools) == "big"
    assert permission.default_pool(None, {"a": (), "default": ()}) == "default"
    assert permission.default_pool(key(pools=["a"]), {"a": (), "default": ()}) == "a"
    assert permission.default_pool(None, {}) == "default"
    with pytest.raises(PoolNotAllowed):
        choosing.pool_of(LIVE, None, key(pools=["other"]))


# --- explained -------------------------------------------------------------------------------


def test_explain_shows_the_key_and_what_it_opens() -> None:
    limited = key("faq", "chat", pools=["small"])

    told = explain.told(asked("Prove it.", limited), LIVE, (), limited)

    assert told["key"] == {"name": "k", "scenarios": ("faq", "chat"), "pools": ["small"]}
    assert told["because"][-1] == "proof is not for this key"
    assert explain.told(asked("Hi", None), LIVE, ())["key"] is None
