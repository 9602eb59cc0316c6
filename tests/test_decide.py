"""What is done with each parameter, against a few lines that say what should be."""

from __future__ import annotations

import copy
import json
from itertools import combinations, permutations, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import decide, dialects, rewrite, verdict
from router.chat import ChatRequest, Endpoint, ParamDecision
from router.classify import Classifier
from router.errors import InvalidValue
from router.params import PARAMS, is_number
from tests.support.journey import asked, by_name, decided, found, policy_of

ABSENT: Any = object()
CLIENT_VALUES = [ABSENT, None, 0, 5, 1.5, 100, -1, "7", "words", True, [1]]
WORDS = {"force": 3, "fill": 8, "cap": 10, "floor": 2}
RULES = [
    *[{word: value} for word, value in WORDS.items()],
    *[{"fill": 8, "cap": 10}, {"fill": 8, "floor": 2}, {"cap": 10, "floor": 2}],
    {"fill": 8, "cap": 10, "floor": 2},
    {"strip": True},
    {},
]
UNLIMITED_BELOW: dict[str, int | None] = {"max_new_tokens": 0, "top_k": 1, "seed": None}


def toml(rule: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{name} = {json.dumps(value)}" for name, value in rule.items()) + "}"


def expected(name: str, rule: dict[str, Any], client: Any) -> tuple[Any, str] | None:
    """(value, origin) by the words of the contract; None where nothing is decided or sent."""
    was_sent = client is not ABSENT
    if rule.get("strip"):
        return (None, "strip") if was_sent else None
    if "force" in rule:
        return rule["force"], "force"
    value, origin = (client, "client") if was_sent else (rule.get("fill"), "fill")
    if value == "7":
        value = 7  # servers read a number in a text, so a limit must
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    below = UNLIMITED_BELOW[name]
    is_unlimited = value is not None and is_number and below is not None and value < below
    is_bounded = value is None or (is_number and not is_unlimited)
    # where a bound must hold and nobody names a number, the operator's own is taken
    if "floor" in rule and is_bounded and (value is None or value < rule["floor"]):
        nothing = rule.get("fill", rule["floor"]) if value is None else rule["floor"]
        value, origin, is_number = nothing, "floor", True
    if "cap" in rule and (value is None or is_unlimited or (is_number and value > rule["cap"])):
        nothing = rule.get("fill", rule["cap"]) if value is None else rule["cap"]
        value, origin = nothing, "cap"
    return None if value is None and not was_sent else (value, origin)


@pytest.mark.parametrize("rule", RULES, ids=toml)
@pytest.mark.parametrize("name", list(UNLIMITED_BELOW))
def test_every_rule_does_what_it_says_to_every_client(name: str, rule: dict[str, Any]) -> None:
    policy = policy_of(f"{name} = {toml(rule)}" if rule else "")
    for client in CLIENT_VALUES:
        request = asked({} if client is ABSENT else {name: client})

        found = by_name(decided(request, policy)).get(name)

        wanted = expected(name, rule, client)
        if not rule and client is not ABSENT:
            wanted = (7 if client == "7" else client), "client"
        got = None if found is None else (found.value, found.origin)
        assert got == wanted, f"client {client!r}"
        if found is not None:
            assert found.was_sent == (client is not ABSENT)


def test_a_bare_value_forces_and_a_bare_default_fills() -> None:
    policy = policy_of(
        "thinking = false\ntemperature = 0.2",
        more="[defaults.direct]\ntemperature = 0.9\ntop_p = 0.8\n",
    )

    params = by_name(decided(asked({"temperature": 1.0, "top_p": 0.5}), policy))
    assert (params["temperature"].value, params["temperature"].origin) == (0.2, "force")
    assert (params["top_p"].value, params["top_p"].origin) == (0.5, "client")
    params = by_name(decided(asked({}), policy))
    assert (params["top_p"].value, params["top_p"].origin) == (0.8, "defaults")


def test_a_scenarios_fill_goes_before_a_default_and_after_the_client() -> None:
    policy = policy_of(
        "thinking = false\ntop_p = {fill = 0.7}", more="[defaults.direct]\ntop_p = 0.8\n"
    )

    assert by_name(decided(asked({}), policy))["top_p"].value == 0.7
    assert by_name(decided(asked({"top_p": 0.1}), policy))["top_p"].value == 0.1


def test_a_cap_holds_whatever_a_default_fills() -> None:
    policy = policy_of(
        "thinking = false\ntemperature = {cap = 0.3}",
        more="[defaults.direct]\ntemperature = 0.7\n",
    )

    param = by_name(decided(asked({}), policy))["temperature"]

    assert (param.value, param.origin) == (0.3, "cap")


@pytest.mark.parametrize("mode", ["direct", "thinking"])
def test_a_modes_own_rules_hold_in_that_mode_alone(mode: str) -> None:
    policy = policy_of("", more=f"[scenarios.chat.{mode}]\ntemperature = 0.1\n")
    wants = {"enable_thinking": mode == "thinking"}

    assert by_name(decided(asked(wants), policy))["temperature"].value == 0.1
    other = {"enable_thinking": mode != "thinking"}
    assert "temperature" not in by_name(decided(asked(other), policy))


LIMITS = PARAMS["max_new_tokens"].spellings


@pytest.mark.parametrize("spellings", [*permutations(LIMITS, 2), LIMITS], ids="-".join)
def test_all_spellings_of_the_limit_are_one_and_the_smallest_counts(
    spellings: tuple[str, ...],
) -> None:
    request = asked({name: 50 + 10 * place for place, name in enumerate(spellings)})

    assert by_name(decided(request, policy_of()))["max_new_tokens"].value == 50
    capped = by_name(decided(request, policy_of("max_new_tokens = {cap = 20}")))
    assert (capped["max_new_tokens"].value, capped["max_new_tokens"].origin) == (20, "cap")


@pytest.mark.parametrize("spelling", LIMITS)
@pytest.mark.parametrize("value", ["nan", "inf", "1e400", "999999", 10**30, -1, 1e308, "1e308"])
@pytest.mark.parametrize("dialect", ["vllm", "llamacpp", "transformers", "flat"])
def test_nothing_a_client_writes_gets_past_a_cap(spelling: str, value: Any, dialect: str) -> None:
    """What arrives is the cap; a text that is no number is the client's error."""
    request = asked({spelling: value})
    decision = decided(request, policy_of("max_new_tokens = {cap = 64}"))
    changes = rewrite.changes(request, decision)
    if not is_number(decision.value("max_new_tokens")):
        with pytest.raises(InvalidValue):
            dialects.encode(request, changes, dialects.of(dialect), "")
        return

    wire = dialects.encode(request, changes, dialects.of(dialect), "")

    body = json.loads(wire.body)
    sent = [body[name] for name in LIMITS if name in body]
    assert len(sent) == 1
    assert sent[0] == 64


def test_a_cap_on_an_extra_holds_for_the_client_too() -> None:
    policy = policy_of("[scenarios.chat.preset.extra]\nmin_tokens = {cap = 5}")
    request = asked({"min_tokens": 100})
    decision = decided(request, policy)

    wire = dialects.encode(request, rewrite.changes(request, decision), dialects.of("vllm"), "")

    assert json.loads(wire.body)["min_tokens"] == 5


@pytest.mark.parametrize(
    ("rule", "client", "sent"),
    [
        ("5", ABSENT, 5),
        ("5", 7, 5),
        ("{fill = 5}", ABSENT, 5),
        ("{fill = 5}", 7, 7),
        ("{fill = 5}", None, None),
        ("{strip = true}", 7, ABSENT),
        ("{floor = 5}", 3, 5),
        ('"text"', ABSENT, "text"),
        ("{a = 1}", ABSENT, {"a": 1}),
    ],
)
def test_an_extra_is_sent_as_it_is(rule: str, client: Any, sent: Any) -> None:
    policy = policy_of(f"extra.min_tokens = {rule}")
    request = asked({} if client is ABSENT else {"min_tokens": client})
    decision = decided(request, policy)

    wire = dialects.encode(request, rewrite.changes(request, decision), dialects.of("vllm"), "")

    assert json.loads(wire.body).get("min_tokens", ABSENT) == sent


# --- thinking ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "body", "wants_thought", "value", "origin"),
    [
        ("", {}, False, None, None),
        ("", {"enable_thinking": True}, False, True, "client"),
        ("", {"messages": "/no_think"}, False, False, "client"),
        ("thinking = true", {}, False, True, "force"),
        ("thinking = false", {"enable_thinking": True}, False, False, "force"),
        ("thinking = false", {"messages": "/think"}, False, False, "force"),
        ("thinking = {fill = true}", {}, False, True, "fill"),
        ("thinking = {fill = true}", {"enable_thinking": False}, False, False, "client"),
        ("thinking = {fill = false}", {"messages": "/think"}, False, True, "client"),
        ('thinking = {fill = "auto"}', {}, False, False, "fill"),
        ('thinking = {fill = "auto"}', {}, True, True, "fill"),
        ('thinking = {fill = "auto"}', {"enable_thinking": False}, True, False, "client"),
        ('thinking = "auto"', {}, True, True, "force"),
        ('thinking = "auto"', {}, False, False, "force"),
        ('thinking = "auto"', {"enable_thinking": True}, False, False, "force"),
        ("thinking = {strip = true}", {"enable_thinking": True}, False, None, "strip"),
        (
            "thinking = {fill = true}",
            {"response_format": {"type": "json_object"}},
            False,
            False,
            "guard",
        ),
        ("thinking = true", {"response_format": {"type": "json_object"}}, False, False, "guard"),
        ('thinking = "auto"', {"response_format": {"type": "json_object"}}, True, False, "guard"),
        (
            "thinking = true",
            {"response_format": {"type": "json_object"}, "enable_thinking": False},
            False,
            False,
            "guard",
        ),
        (
            "thinking = {fill = false}",
            {"response_format": {"type": "json_object"}, "enable_thinking": True},
            False,
            True,
            "client",
        ),
        (
            "thinking = {fill = true}",
            {"tools": [{"type": "function"}], "tool_choice": "required"},
            False,
            False,
            "guard",
        ),
        ("thinking = {fill = true}", {"tools": [{"type": "function"}]}, False, True, "fill"),
        ("thinking = {fill = true}", {"reasoning_effort": "none"}, False, False, "client"),
        ("thinking = {fill = false}", {"enable_thinking": None}, False, None, "client"),
        (
            "thinking = {fill = true}",
            {"enable_thinking": False, "messages": "/think"},
            False,
            False,
            "client",
        ),
    ],
)
def test_thinking_is_resolved_in_the_order_of_authority(
    preset: str, body: dict[str, Any], wants_thought: bool, value: bool | None, origin: str | None
) -> None:
    if "messages" in body:
        body = {**body, "messages": [{"role": "user", "content": f"hi {body['messages']}"}]}

    decision = decided(asked(body), policy_of(preset), wants_thought=wants_thought)

    assert decision.thinking is value
    param = by_name(decision).get("thinking")
    assert (None if param is None else param.origin) == origin


def test_a_guard_that_is_off_guards_nothing() -> None:
    policy = policy_of(
        "thinking = {fill = true}\nmax_new_tokens = {cap = 5}\nthinking_budget = 5",
        more="[scenarios.chat.guard]\nstructured_output = false\n",
    )

    decision = decided(asked({"response_format": {"type": "json_object"}}), policy)

    assert decision.thinking is True
    assert "max_new_tokens" in by_name(decision)


@pytest.mark.parametrize(
    "body",
    [{"response_format": {"type": "json_object"}}, {"tools": [{"type": "function"}]}],
    ids=["json", "tools"],
)
@pytest.mark.parametrize(
    "rule",
    [
        "max_new_tokens = {cap = 5}",
        "max_new_tokens = 5",
        'stop = ["\\n"]',
        "repetition_penalty = 1.5",
        "presence_penalty = {fill = 1.0}",
        "frequency_penalty = {floor = 1.0}",
    ],
)
def test_a_guard_keeps_presets_away_from_what_must_stay_whole(
    body: dict[str, Any], rule: str
) -> None:
    name = rule.split(" ")[0]
    policy = policy_of(f"thinking = false\ntemperature = 0.1\n{rule}")

    untouched = by_name(decided(asked(body), policy))
    sent = by_name(decided(asked({**body, name: 100}), policy))

    assert name not in untouched
    assert (sent[name].value, sent[name].origin) == (100, "client")
    assert untouched["temperature"].origin == "force"
    assert any("guard" in reason for reason in decided(asked(body), policy).because)


def test_several_choices_are_not_drawn_greedily_by_a_preset() -> None:
    policy = policy_of("temperature = 0.0")

    assert "temperature" not in by_name(decided(asked({"n": 2}), policy))
    assert by_name(decided(asked({"n": 2, "temperature": 0.9}), policy))["temperature"].value == 0.9
    assert (
        by_name(decided(asked({"n": 2, "temperature": 0}), policy_of()))["temperature"].value == 0
    )
    assert by_name(decided(asked({}), policy))["temperature"].value == 0


# --- room for thought -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "budget", "body", "sent"),
    [
        ("64", "512", {}, 576),
        ("{cap = 64}", "512", {}, 576),
        ("{fill = 64}", "{cap = 512}", {}, 576),
        ("{cap = 64}", "512", {"max_tokens": 2000}, 576),
        ("{cap = 64}", "512", {"max_tokens": 100}, 100),
        ("{cap = 64}", "512", {"max_tokens": 30}, 30),
        ("{cap = 64}", "512", {"max_tokens": -1}, 576),
        ("{cap = 64}", "512", {"max_tokens": None}, 576),
        ("{cap = 64}", "{cap = 512}", {"thinking_budget": 100}, 164),
        ("{cap = 64}", "{cap = 512}", {"thinking_budget": -1}, 576),
        ("{cap = 64}", "{fill = 512}", {"thinking_budget": -1}, ABSENT),
        ("{cap = 64}", "{fill = 512}", {"thinking_budget": "inf"}, ABSENT),
        ("{cap = 64}", "{fill = 512}", {"thinking_budget": "nan"}, ABSENT),
        ("{cap = 64}", "{fill = 512}", {"thinking_budget": "words"}, ABSENT),
        ("{cap = 64}", "", {}, ABSENT),
        ("{cap = 64}", "", {"max_tokens": 500}, 500),
        ("{fill = 64}", "", {"max_tokens": 50}, 50),
    ],
)
def test_a_limit_on_answers_leaves_room_for_the_thought_before_them(
    limit: str, budget: str, body: dict[str, Any], sent: Any
) -> None:
    preset = f"thinking = true\nmax_new_tokens = {limit}\n"
    preset += f"thinking_budget = {budget}" if budget else ""

    decision = decided(asked(body), policy_of(preset))

    param = by_name(decision).get("max_new_tokens")
    assert (ABSENT if param is None else param.value) == sent
    lifted = [warning for warning in decision.warnings if "lifted" in warning]
    assert bool(lifted) == (sent is ABSENT or (not budget and "cap" in limit))


def test_without_thought_the_limit_is_as_it_was_written_and_no_budget_is_sent() -> None:
    policy = policy_of("thinking = false\nmax_new_tokens = {cap = 64}\nthinking_budget = 512")

    params = by_name(decided(asked({}), policy))

    assert params["max_new_tokens"].value == 64
    assert "thinking_budget" not in params


# --- purity -------------------------------------------------------------------------------------

BODIES = st.fixed_dictionaries(
    {},
    optional={
        "max_tokens": st.sampled_from([None, 0, 5, 500, -1, "9", "x"]),
        "max_completion_tokens": st.sampled_from([7, 70]),
        "temperature": st.sampled_from([None, 0, 0.10, 2, "0.5"]),
        "top_k": st.sampled_from([-1, 0, 5]),
        "enable_thinking": st.sampled_from([True, False, None]),
        "chat_template_kwargs": st.sampled_from([{}, {"enable_thinking": True}, {"x": 1}, None]),
        "reasoning_effort": st.sampled_from(["none", "low", None]),
        "thinking_budget": st.sampled_from([5, -1]),
        "response_format": st.sampled_from([None, {"type": "json_object"}]),
        "tools": st.sampled_from([[], [{"type": "function"}]]),
        "stop": st.sampled_from(["x", ["x"], None]),
        "stream": st.booleans(),
        "stream_options": st.sampled_from([None, {}, {"include_usage": True}]),
        "n": st.sampled_from([1, 2]),
        "repeat_penalty": st.sampled_from([1.1]),
        "min_tokens": st.sampled_from([1, 100]),
        "model": st.sampled_from(["auto", "served", ""]),
        "extra_body": st.sampled_from([{"top_p": 0.3}, {"max_tokens": 3}]),
    },
)
POLICIES = [
    policy_of(),
    policy_of("thinking = {fill = false}\nmax_new_tokens = {cap = 64}\ntemperature = 0.2"),
    policy_of(
        "thinking = true\nmax_new_tokens = {cap = 64}\nthinking_budget = {cap = 512}\n"
        "top_k = {fill = 20}\nrepetition_penalty = 1.1\nuse_cache = true\n"
        "extra.min_tokens = {cap = 9}"
    ),
    policy_of(
        'thinking = "auto"\nstop = {strip = true}\nsession_id = "auto"\nmin_p = {floor = 0.1}',
        more="[defaults.direct]\ntop_p = 0.8\ntemperature = {fill = 0.6, floor = 0.1}\n",
    ),
]


@given(BODIES, st.sampled_from(POLICIES), st.sampled_from(sorted(dialects.DIALECTS)))
def test_stages_leave_their_input_as_it_was_and_decide_the_same_twice(
    body: dict[str, Any], policy: Any, dialect: str
) -> None:
    request = asked(body)
    before = snapshot(request)
    first = decide.preset(request, found(), policy)
    changes = rewrite.changes(request, first)
    kept_decision, kept_changes = repr(first), repr(changes)

    try:
        wire = dialects.encode(request, changes, dialects.of(dialect), "served")
    except InvalidValue as fault:
        # What nobody knows may take anything but for a limit, which must be none that is passed by.
        is_known = dialect != "openai" or "tokens" in str(fault.param)
    else:
        is_known = True
        assert snapshot(request) == before
        assert (repr(first), repr(changes)) == (kept_decision, kept_changes)
        assert decide.preset(asked(body), found(), policy) == first
        assert dialects.encode(request, changes, dialects.of(dialect), "served") == wire
    assert is_known


def snapshot(request: ChatRequest) -> Any:
    """All that a request holds, copied deep."""
    return copy.deepcopy(
        (
            request.raw,
            dict(request.spans),
            {name: bytes(value) for name, value in request.values.items()},
            {name: (sent.value, sent.spellings) for name, sent in request.params.items()},
            (request.text, request.turns, request.has, request.notes, request.session),
        )
    )


@given(
    st.lists(
        st.tuples(BODIES, st.sampled_from(["hi", "hi /think", "你好"])), min_size=2, max_size=6
    ),
    st.sampled_from(POLICIES),
)
def test_a_remembered_decision_is_the_one_that_would_be_made_anew(
    requests: list[tuple[dict[str, Any], str]], policy: Any
) -> None:
    remembering = live(policy)
    for body, text in requests * 2:
        raw = json.dumps({**body, "messages": [{"role": "user", "content": text}]}).encode()
        remembered = verdict.decide_for(Endpoint.CHAT, raw, {}, remembering)
        anew = verdict.decide_for(Endpoint.CHAT, raw, {}, live(policy))

        assert remembered.decision == anew.decision
        for dialect in dialects.DIALECTS.values():
            try:
                fresh = anew.told(dialect, "served")
            except InvalidValue:
                with pytest.raises(InvalidValue):
                    remembered.told(dialect, "served")
                continue
            told = remembered.told(dialect, "served")
            assert told == fresh
            assert told.patch.apply(remembered.request.raw, remembered.request.spans) == (
                fresh.patch.apply(anew.request.raw, anew.request.spans)
            )


def live(policy: Any) -> verdict.Live:
    return verdict.Live(
        policy=policy,
        classifier=Classifier(policy),
        pools={},
        aliases=frozenset({"served"}),
        real_model_bypass=False,
        allow_policy_off=True,
        has_keys=False,
        plans={},
    )


def test_every_pair_of_limits_over_all_clients_ends_within_both() -> None:
    """Where a floor and a cap both speak, what is sent lies between them."""
    for (floor, cap), client in product(combinations([1, 10, 50], 2), [0, 5, 20, 100, -1, None]):
        policy = policy_of(f"max_new_tokens = {{floor = {floor}, cap = {cap}}}")
        param = by_name(decided(asked({"max_tokens": client}), policy))["max_new_tokens"]
        assert floor <= param.value <= cap


def test_a_decision_names_each_parameter_once() -> None:
    decision = decided(asked({"max_tokens": 5, "n_predict": 6, "top_k": 1}), POLICIES[2])

    names = [param.name for param in decision.params]
    assert len(names) == len(set(names))
    assert all(isinstance(param, ParamDecision) for param in decision.params)
