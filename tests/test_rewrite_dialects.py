"""How each kind of server is told: what lands where, what is lost, and nothing else touched."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import dialects, parse, rewrite
from router.chat import Endpoint
from router.errors import InvalidValue
from router.params import PARAMS
from router.policy import Policy
from tests.support.journey import MESSAGES, asked, body_of, decided, policy_of, wired

NAMES = sorted(dialects.DIALECTS)
LIMITS = PARAMS["max_new_tokens"].spellings
NOTHING = policy_of()
#: where each server reads the common parameters; None: it has no place for it
MAX = {name: "max_new_tokens" if name == "flat" else "max_tokens" for name in NAMES}
TOP_K: dict[str, str | None] = {
    **dict.fromkeys(NAMES, "top_k"),
    "transformers": "generation_config.top_k",
    "ollama": None,
    "openai": None,
}
PENALTY: dict[str, str | None] = {
    **dict.fromkeys(NAMES, "repetition_penalty"),
    "llamacpp": "repeat_penalty",
    "transformers": "generation_config.repetition_penalty",
    "ollama": None,
    "openai": None,
}
THINKING: dict[str, str | None] = {
    **dict.fromkeys(NAMES, "chat_template_kwargs.enable_thinking"),
    "ollama": "reasoning_effort",
    "flat": "enable_thinking",
    "openai": None,
}


def at(body: dict[str, Any], path: str) -> Any:
    """The value at a dotted path; generation_config is JSON inside a text."""
    top, _, inner = path.partition(".")
    value = body.get(top)
    if not inner:
        return value
    if top == "generation_config":
        assert isinstance(value, str)
        value = json.loads(value)
    return None if value is None else value.get(inner)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [True, False])
def test_thinking_is_said_where_each_server_reads_it(name: str, value: bool) -> None:
    wire = wired(asked({}), policy_of(f"thinking = {str(value).lower()}"), name)
    path = THINKING[name]

    if path is None:
        assert body_of(wire) == {}
        assert any("thinking" in warning for warning in wire.warnings)
    else:
        words = {"ollama": "medium" if value else "none"}
        assert at(body_of(wire), path) == words.get(name, value)
        assert wire.warnings == ()
        assert wire.params["thinking"] is value


@pytest.mark.parametrize("name", [name for name in NAMES if THINKING[name]])
@pytest.mark.parametrize(
    "body",
    [
        {"enable_thinking": False},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"think": False},
        {"thinking": {"type": "disabled"}},
        {"reasoning_effort": "none"},
    ],
    ids=json.dumps,
)
def test_any_spelling_of_thinking_arrives_as_the_one_the_server_reads(
    name: str, body: dict[str, Any]
) -> None:
    sent = body_of(wired(asked(body), NOTHING, name))

    assert at(sent, THINKING[name] or "") in (False, "none")
    for stray in {"enable_thinking", "think", "thinking"} - {THINKING[name]}:
        assert stray not in sent
    if name not in ("vllm", "llamacpp", "sglang", "transformers"):
        assert "chat_template_kwargs" not in sent


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("spelling", LIMITS)
def test_any_spelling_of_the_limit_arrives_as_one_the_server_reads(
    name: str, spelling: str
) -> None:
    paths = dialects.of(name).places["max_new_tokens"].paths
    sent = body_of(wired(asked({spelling: 50}), NOTHING, name))

    assert sent == {spelling if spelling in paths else MAX[name]: 50}


@pytest.mark.parametrize("name", NAMES)
def test_a_forced_limit_replaces_every_spelling(name: str) -> None:
    wire = wired(
        asked(dict.fromkeys(LIMITS, 500)), policy_of("thinking = false\nmax_new_tokens = 64"), name
    )

    assert [value for key, value in body_of(wire).items() if key in LIMITS] == [64]
    assert wire.params["max_new_tokens"] == 64


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("param", "places", "value"),
    [("top_k", TOP_K, 20), ("repetition_penalty", PENALTY, 1.1)],
    ids=["top_k", "repetition_penalty"],
)
def test_sampling_extras_are_said_where_they_are_read_or_named_as_lost(
    name: str, param: str, places: dict[str, str | None], value: Any
) -> None:
    wire = wired(asked({}), policy_of(f"{param} = {value}"), name)
    path = places[name]

    if path is None:
        assert body_of(wire) == {}
        assert any(param in warning for warning in wire.warnings)
        assert param not in wire.params
    else:
        assert at(body_of(wire), path) == value
        assert wire.warnings == ()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("spelling", ["repetition_penalty", "repeat_penalty"])
def test_a_clients_penalty_is_renamed_where_the_server_calls_it_something_else(
    name: str, spelling: str
) -> None:
    path = PENALTY[name]
    wire = wired(asked({spelling: 1.25}), NOTHING, name)

    if path is not None:
        assert at(body_of(wire), path) == 1.25
        assert spelling == path or spelling not in body_of(wire)
    elif name == "openai":
        assert body_of(wire) == {spelling: 1.25}  # an unknown server may know it
    else:
        assert body_of(wire) == {}
        assert any("repetition_penalty" in warning for warning in wire.warnings)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("param", ["temperature", "top_p", "seed", "stop", "frequency_penalty"])
def test_what_the_common_api_has_is_said_by_its_own_name(name: str, param: str) -> None:
    value: Any = {"seed": 5, "stop": ["x"]}.get(param, 0.5)

    wire = wired(asked({}), policy_of(f"{param} = {json.dumps(value)}"), name)

    assert body_of(wire) == {param: value}
    assert wire.warnings == ()


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_a_policy_sets_is_said_lost_with_a_warning_or_known_to_be_nothing(
    name: str,
) -> None:
    dialect = dialects.of(name)
    values = {"bool": "true", "int": "3", "float": "0.5", "text": '"x"', "texts": '["x"]'}
    for param in PARAMS.values():
        choice = json.dumps(param.choices[-1]) if param.choices else ""
        preset = f"{param.name} = {values.get(param.kind, choice)}"
        if param.name == "thinking_budget":
            preset += "\nthinking = true"
        wire = wired(asked({}), policy_of(preset), name)
        is_warned = any(param.name in warning for warning in wire.warnings)
        is_said = param.name in wire.params
        is_nothing = param.name in dialect.quiet or param.name in dialect.does
        assert is_said or is_warned or is_nothing, param.name
        assert not (is_said and is_warned), param.name


@pytest.mark.parametrize("name", NAMES)
def test_the_models_name_is_the_backends(name: str) -> None:
    assert body_of(wired(asked({"model": "auto"}), NOTHING, name, "served")) == {"model": "served"}
    assert body_of(wired(asked({}), NOTHING, name, "served")) == {"model": "served"}
    same = asked({"model": "served", "stream": True, "stream_options": {"include_usage": True}})
    assert wired(same, NOTHING, name, "served").body == same.raw


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stream", [True, False, None])
def test_usage_is_asked_for_on_streams_alone(name: str, stream: bool | None) -> None:
    sent = body_of(wired(asked({"stream": stream}), NOTHING, name))

    asks = stream is True and dialects.of(name).takes_stream_options
    assert sent.get("stream_options") == ({"include_usage": True} if asks else None)


def test_other_stream_options_stay() -> None:
    body = {"stream": True, "stream_options": {"continuous_usage_stats": False}}

    assert body_of(wired(asked(body), NOTHING, "vllm"))["stream_options"] == {
        "continuous_usage_stats": False,
        "include_usage": True,
    }


@pytest.mark.parametrize("name", ["vllm", "llamacpp", "sglang", "transformers"])
def test_template_arguments_are_merged_not_replaced(name: str) -> None:
    request = asked({"chat_template_kwargs": {"documents": [1], "enable_thinking": True}})

    sent = body_of(wired(request, policy_of("thinking = false"), name))

    assert sent["chat_template_kwargs"] == {"documents": [1], "enable_thinking": False}


def test_template_arguments_of_another_kind_give_way() -> None:
    sent = body_of(
        wired(asked({"chat_template_kwargs": "x"}), policy_of("thinking = true"), "vllm")
    )

    assert sent == {"chat_template_kwargs": {"enable_thinking": True}}


# --- transformers serve ---------------------------------------------------------------------


def test_a_strict_server_gets_nothing_outside_its_list() -> None:
    unknown = {"mystery": 1, "cache_salt": "a", "min_tokens": 5, "options": {"top_k": 5}}

    wire = wired(asked({**unknown, "seed": 1}), NOTHING, "transformers", "served")

    assert body_of(wire) == {"seed": 1, "model": "served"}
    for name in unknown:
        assert any(name in warning for warning in wire.warnings)


@given(
    st.dictionaries(
        st.sampled_from([*PARAMS.keys() - {"stream"}, "mystery", "user", "n", "tools"]), st.just(1)
    )
)
def test_a_strict_server_gets_nothing_outside_its_list_whatever_is_sent(
    body: dict[str, Any],
) -> None:
    wire = wired(asked(body), policy_of("top_k = 5\nmin_p = 0.1\nuse_cache = true"), "transformers")

    assert set(json.loads(wire.body)) <= set(dialects.of("transformers").allowed or ())


def test_its_generation_config_is_a_text_that_says_the_sampling_switch_and_its_limit() -> None:
    sent = body_of(wired(asked({}), policy_of("top_k = 20\nmin_p = 0.1"), "transformers"))

    assert set(sent) == {"generation_config"}
    assert json.loads(sent["generation_config"]) == {
        "top_k": 20,
        "min_p": 0.1,
        "do_sample": True,
        "max_new_tokens": 1024,
    }


def test_greedy_decoding_is_said_as_no_sampling() -> None:
    policy = policy_of("top_k = 20\ntemperature = 0\nmax_new_tokens = 64")

    sent = body_of(wired(asked({}), policy, "transformers"))

    assert json.loads(sent["generation_config"]) == {"top_k": 20, "do_sample": False}
    assert sent["max_tokens"] == 64


def test_without_such_parameters_there_is_no_generation_config() -> None:
    assert body_of(wired(asked({"seed": 1}), NOTHING, "transformers")) == {"seed": 1}


def test_a_clients_own_generation_config_is_merged_and_its_own_words_stay() -> None:
    own = {"num_beams": 2, "max_new_tokens": 50, "do_sample": False}
    request = asked({"generation_config": json.dumps(own)})

    sent = body_of(wired(request, policy_of("top_k = 20"), "transformers"))

    assert json.loads(sent["generation_config"]) == {**own, "top_k": 20}


@pytest.mark.parametrize("own", ["not json", "{", "[1]", "", None, {"top_k": 1}, 5])
def test_a_generation_config_that_is_none_gives_way(own: Any) -> None:
    request = asked({"generation_config": own})

    sent = body_of(wired(request, policy_of("top_k = 20"), "transformers"))

    assert json.loads(sent["generation_config"])["top_k"] == 20


# --- what a client said that the server understands ---------------------------------------------


@pytest.mark.parametrize("effort", ["minimal", "low", "high", "none"])
def test_an_effort_that_a_server_knows_stays_as_the_client_said_it(effort: str) -> None:
    request = asked({"reasoning_effort": effort})

    assert wired(request, NOTHING, "ollama").body == request.raw


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("switch", ["include_reasoning", "separate_reasoning", "return_reasoning"])
def test_where_a_thought_goes_is_the_routers_own_business(name: str, switch: str) -> None:
    """Only a server that nobody knows may have its own idea of such a switch."""
    wire = wired(asked({switch: False}), NOTHING, name)

    assert wire.params["reasoning_output"] == "drop"
    assert body_of(wire) == ({switch: False} if name == "openai" else {})
    assert wire.warnings == ()


@pytest.mark.parametrize("name", NAMES)
def test_what_is_to_be_collected_is_streamed_to_us_with_its_usage(name: str) -> None:
    wire = wired(asked({}), policy_of('stream = "collect"'), name)

    sent = json.loads(wire.body)
    assert sent["stream"] is True
    if dialects.of(name).takes_stream_options:
        assert sent["stream_options"] == {"include_usage": True}


def test_a_server_that_gives_up_streams_alone_streams_whatever_is_asked() -> None:
    whole = json.loads(wired(asked({}), NOTHING, "transformers").body)
    streamed = asked({"stream": True})

    assert whole["stream"] is True
    assert wired(streamed, NOTHING, "transformers").body == streamed.raw


OUTSIDE = [
    ("vllm", "temperature", 2.5, 2),
    ("vllm", "temperature", -1, 0),
    ("vllm", "top_p", 0, 1e-6),
    ("vllm", "top_p", 1.5, 1),
    ("vllm", "top_k", -7, -1),
    ("vllm", "min_p", 2.0, 1),
    ("vllm", "presence_penalty", 3, 2),
    ("vllm", "max_tokens", 0, 1),
    ("vllm", "max_tokens", -1, None),
    ("vllm", "repetition_penalty", 0, None),
    ("transformers", "temperature", -1, 0),
    ("transformers", "max_tokens", 0, 1),
    ("transformers", "frequency_penalty", -2, None),
    ("llamacpp", "repetition_penalty", -1, None),
]


@pytest.mark.parametrize(("name", "member", "value", "sent"), OUTSIDE)
def test_a_number_outside_of_what_a_server_takes_is_the_nearest_inside_or_left_out(
    name: str, member: str, value: float, sent: float | None
) -> None:
    wire = wired(asked({member: value}), NOTHING, name)

    assert body_of(wire) == ({} if sent is None else {member: sent})
    [warning] = wire.warnings
    assert f"{value}" in warning


def test_a_number_that_a_server_takes_goes_without_a_word() -> None:
    for name in ("vllm", "transformers", "llamacpp"):
        wire = wired(asked({"temperature": 0.5, "max_tokens": 5}), NOTHING, name)
        assert wire.warnings == ()
        assert body_of(wire) == {"temperature": 0.5, "max_tokens": 5}


def test_a_limit_beyond_the_context_is_the_context() -> None:
    short = msgspec.structs.replace(dialects.of("vllm"), context=2048)
    request = asked({"max_tokens": 100_000})
    changes = rewrite.changes(request, decided(request, NOTHING))

    wire = dialects.encode(request, changes, short, "")

    assert body_of(wire) == {"max_tokens": 2048}
    assert "2048" in wire.warnings[0]


@pytest.mark.parametrize("value", ["hot", True, [1]])
@pytest.mark.parametrize("name", NAMES)
def test_a_value_of_the_wrong_kind_is_refused_but_by_a_server_of_unknown_kind(
    name: str, value: Any
) -> None:
    request = asked({"temperature": value})

    if name == "openai":
        assert wired(request, NOTHING, name).body == request.raw
        return
    with pytest.raises(InvalidValue) as refused:
        wired(request, NOTHING, name)
    assert refused.value.param == "temperature"


@pytest.mark.parametrize("name", ["vllm", "llamacpp", "sglang", "ollama", "openai"])
def test_a_request_that_nothing_is_decided_about_arrives_byte_for_byte(name: str) -> None:
    raw = (
        b' {"messages" : [{"role":"user","content":"\\u4f60\\ud83d\\ude00"}],\n'
        b' "temperature":0.10 ,"top_p":1E-1,"seed":9007199254740993,"mystery":{"a" : [ ]},'
        b'"user":null,"stop":[ "x" ]}\n'
    )

    assert wired(asked(raw), NOTHING, name).body == raw


@pytest.mark.parametrize("spelling", ["enable_thinking", "reasoning_effort", "think"])
def test_a_stripped_switch_is_gone_in_every_spelling(spelling: str) -> None:
    request = asked({spelling: "low" if spelling == "reasoning_effort" else True})

    assert body_of(wired(request, policy_of("thinking = {strip = true}"), "vllm")) == {}


@pytest.mark.parametrize("name", NAMES)
def test_a_stripped_parameter_is_gone_in_every_spelling_without_a_warning(name: str) -> None:
    request = asked({**dict.fromkeys(LIMITS, 5), "repeat_penalty": 1.5, "stop": "x"})
    policy = policy_of(
        "max_new_tokens = {strip = true}\nrepetition_penalty = {strip = true}\n"
        "stop = {strip = true}"
    )
    wire = wired(request, policy, name)

    assert body_of(wire) == {}
    assert wire.warnings == ()


# --- the other endpoints ------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_completions_limit_has_one_name(name: str) -> None:
    request = asked({"max_completion_tokens": 5}, Endpoint.COMPLETIONS)

    assert body_of(wired(request, NOTHING, name)) == {MAX[name]: 5}


def test_a_completion_cannot_be_told_to_think() -> None:
    request = asked({"temperature": 0.5, "enable_thinking": True}, Endpoint.COMPLETIONS)
    wire = wired(request, NOTHING, "vllm")

    assert body_of(wire) == {"temperature": 0.5}
    assert any("thinking" in warning for warning in wire.warnings)


@pytest.mark.parametrize("endpoint", [Endpoint.COMPLETIONS, Endpoint.RESPONSES])
@pytest.mark.parametrize("dialect", ["vllm", "flat"])
def test_no_limit_is_lifted_for_a_thought_that_cannot_be_asked_for(
    endpoint: Endpoint, dialect: str
) -> None:
    policy = policy_of("thinking = {fill = false}\nmax_new_tokens = {cap = 64}")

    sent = body_of(wired(asked({"enable_thinking": True}, endpoint), policy, dialect))

    assert list(sent.values()) == [64]


@pytest.mark.parametrize("spelling", LIMITS)
def test_a_responses_limit_is_max_output_tokens(spelling: str) -> None:
    request = asked({spelling: 500}, Endpoint.RESPONSES)

    sent = body_of(wired(request, policy_of("max_new_tokens = {cap = 64}"), "vllm"))

    assert sent == {"max_output_tokens": 64}


def test_no_usage_is_asked_for_on_a_stream_of_responses() -> None:
    request = asked({"stream": True}, Endpoint.RESPONSES)

    assert json.loads(wired(request, NOTHING, "vllm").body) == {"stream": True, "input": "hi"}


# --- saying it again changes nothing --------------------------------------------------------------

POLICIES: list[Policy] = [
    NOTHING,
    policy_of(
        "thinking = {fill = false}\nmax_new_tokens = {cap = 64}\ntemperature = 0.2\n"
        "top_p = {floor = 0.1}\nstop = {strip = true}"
    ),
    policy_of(
        "thinking = true\nmax_new_tokens = {cap = 64}\nthinking_budget = {cap = 512}\n"
        "repetition_penalty = 1.1\nuse_cache = true\nextra.min_tokens = 9"
    ),
    policy_of("thinking = {fill = true}\nmax_new_tokens = {fill = 64}\nmin_p = 0.1"),
    policy_of(
        "thinking = {fill = false}\nmax_new_tokens = {fill = 64}\ntop_k = {cap = 30}",
        more="[defaults.direct]\ntop_p = 0.8\ntemperature = {fill = 0.6, floor = 0.1}\n",
    ),
]
SWITCHES = {"enable_thinking", "chat_template_kwargs", "reasoning_effort"}
# top_k, min_p and the repetition penalty are left to their own test: a strict server
# gets them inside a text, where the second pass does not look for them.
AGAIN = st.fixed_dictionaries(
    {},
    optional={
        **{name: st.sampled_from([None, 0, 5, 500, -1, "9"]) for name in LIMITS},
        "temperature": st.sampled_from([None, 0, 0.10, 2]),
        "enable_thinking": st.sampled_from([True, False]),
        "chat_template_kwargs": st.sampled_from([{"enable_thinking": True}, {"x": 1}]),
        "reasoning_effort": st.sampled_from(["none", "low"]),
        "response_format": st.sampled_from([{"type": "json_object"}]),
        "stop": st.sampled_from(["x", ["x"]]),
        "stream": st.booleans(),
        "stream_options": st.sampled_from([{}, {"include_usage": True}]),
        "mystery": st.sampled_from([1, None]),
        "extra_body": st.sampled_from([{"top_p": 0.3}, {"max_tokens": 3}]),
    },
)


@given(
    AGAIN, st.sampled_from(POLICIES), st.sampled_from(NAMES), st.sampled_from(list(Endpoint)[:3])
)
def test_what_was_rewritten_once_is_not_rewritten_again(
    body: dict[str, Any], policy: Policy, name: str, endpoint: Endpoint
) -> None:
    if endpoint is not Endpoint.CHAT:  # cannot be told to think; see the test of that
        body = {key: value for key, value in body.items() if key not in SWITCHES}
    first = wired(asked(body, endpoint), policy, name, "served").body

    second = wired(parse.chat_request(endpoint, first, {}), policy, name, "served").body

    assert json.loads(second) == json.loads(first)
    assert second == first


@pytest.mark.parametrize("name", NAMES)
def test_a_null_counts_as_sent_for_those_behind_us_too(name: str) -> None:
    """Dropped with its unknown spelling, it would look to a second router as never sent."""
    sent = body_of(
        wired(asked({"max_new_tokens": None}), policy_of("max_new_tokens = {fill = 5}"), name)
    )

    assert sent == {MAX[name]: None}


def test_the_messages_are_the_same_bytes_in_every_dialect() -> None:
    raw = b'{"messages":[ {"role":"user","content":"\\u0068i"} ],"max_new_tokens":5}'
    for name in NAMES:
        request = parse.chat_request(Endpoint.CHAT, raw, {})
        sent = parse.chat_request(Endpoint.CHAT, wired(request, POLICIES[2], name).body, {})
        assert bytes(sent.values["messages"]) == bytes(request.values["messages"])
    assert MESSAGES == [{"role": "user", "content": "hi"}]
