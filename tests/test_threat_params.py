"""What an operator forces, caps or strips holds, however a client spells it and a server reads it.

Servers are played by how they read JSON: the last of a name or the first, letter case or not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from router import dialects, policy, splice
from router.chat import Endpoint
from router.classify import Classifier
from router.errors import ClientError, InvalidJson, InvalidValue
from router.verdict import Live, Verdict, decide_for

CAP = 64
POLICY = f"""
schema = 1
default_scenario = "chat"
[scenarios.chat.preset]
max_new_tokens = {{ cap = {CAP} }}
thinking = false
temperature = 0.2
top_k = {{ strip = true }}
extra.best_of = {{ strip = true }}
extra.generation_config = {{ strip = true }}
[scenarios.chat.guard]
tools = false
structured_output = false
"""
SPELLINGS = (
    "max_tokens", "max_completion_tokens", "max_new_tokens", "max_output_tokens", "n_predict"
)  # fmt: skip
START = '{"model":"auto","messages":[{"role":"user","content":"Hi."}]'


@pytest.fixture(scope="module")
def live() -> Live:
    taken = policy.parse(POLICY, "policy", Path())
    return Live(
        policy=taken,
        classifier=Classifier(taken),
        pools={},
        aliases=frozenset(),
        real_model_bypass=False,
        allow_policy_off=True,
        has_keys=False,
        plans={},
    )


def verdict(live: Live, members: str) -> Verdict:
    return decide_for(Endpoint.CHAT, f"{START},{members}}}".encode(), {}, live)


def sent(live: Live, members: str, dialect: str) -> bytes:
    found = verdict(live, members)
    request = found.request
    return found.told(dialects.of(dialect), "m").patch.apply(request.raw, request.spans)


def last_wins(raw: bytes) -> Any:
    return json.loads(raw)


def first_wins(raw: bytes) -> Any:
    return json.loads(raw, object_pairs_hook=lambda pairs: dict(reversed(pairs)))


def any_case(raw: bytes) -> Any:
    """As Go's encoding/json: the later of two names that fold to the same."""

    def folded(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {name.casefold(): value for name, value in pairs}

    return json.loads(raw, object_pairs_hook=folded)


READERS = (last_wins, first_wins, any_case)


@pytest.mark.parametrize("dialect", dialects.DIALECTS)
@pytest.mark.parametrize(
    "members",
    [
        '"max_tokens":100000',
        '"max_tokens":-1',
        '"max_tokens":null',
        '"max_tokens":1e30',
        '"max_tokens":18446744073709551616',
        '"max_tokens":"100000"',
        '"max_tokens":"1_000"',
        '"max_tokens":" 1000 "',
        '"max_tokens":"１０００"',
        '"max_tok\\u0065ns":100000',
        ",".join(f'"{name}":100000' for name in SPELLINGS),
        '"max_tokens":7,"MAX_TOKENS":100000',
        '"MAX_TOKENS":100000,"max_tokens":7',
        '"Max_Completion_Tokens":100000',
        '"max_to\u212aen\u017f":100000,"max_tokens":7',  # Kelvin and long s fold to k and s
        '"extra_body":{"max_tokens":100000}',
        '"max_tokens":7,"extra_body":{"max_tokens":100000}',
        '"extra_body":{"extra_body":{"max_tokens":100000},"max_tokens":100000}',
        '"tools":[{"type":"function","function":{"name":"f"}}],"max_tokens":100000',
    ],
)
def test_no_spelling_is_a_way_round_a_cap(live: Live, dialect: str, members: str) -> None:
    raw = sent(live, members, dialect)

    for read in READERS:
        told = read(raw)
        limits = {name: told[name] for name in SPELLINGS if name in told}
        assert limits, raw
        assert all(type(value) is int and 0 < value <= CAP for value in limits.values()), limits


@pytest.mark.parametrize("dialect", dialects.DIALECTS)
@pytest.mark.parametrize(
    "value", ["true", "[100000]", '{"a":100000}', '"0x400"', '"inf"', '"nan"', '"1e400"', '"many"']
)
def test_a_limit_that_is_no_number_is_refused(live: Live, dialect: str, value: str) -> None:
    """No cap can be held against it, and some server would take it for a number."""
    with pytest.raises(InvalidValue, match="max_tokens must be a number"):
        sent(live, f'"max_tokens":{value}', dialect)


@pytest.mark.parametrize("value", ["9" * 5000, "1e400", "-1e400", "0." + "1" * 5000 + "e999999"])
@pytest.mark.parametrize("name", ["max_tokens", "temperature", "seed"])
def test_a_number_that_nobody_can_hold_is_the_clients_error(
    live: Live, name: str, value: str
) -> None:
    with pytest.raises(ClientError):
        sent(live, f'"{name}":{value}', "vllm")


@pytest.mark.parametrize(
    "members",
    [
        '"max_tokens":7,"max_tokens":100000',
        '"max_tokens":7,"max_tok\\u0065ns":100000',
        '"model":"other"',
        '"messages":[{"role":"user","content":"Another prompt."}]',
        '"extra_body":{"max_tokens":7,"max_tokens":100000}',
    ],
)
def test_a_name_that_stands_twice_is_refused(live: Live, members: str) -> None:
    """Which of the two counts, we and a server might see differently."""
    with pytest.raises(InvalidJson, match="twice"):
        sent(live, members, "vllm")


def test_in_a_long_body_nobody_looks_which_name_is_doubled() -> None:
    """It took seconds for a body of the size that is allowed, and nobody else was served."""
    raw = b'{"a":[' + b'"",' * 50_000 + b'""],"b":1,"b":2}'

    with pytest.raises(InvalidJson, match="The body has a key twice"):
        splice.members(raw)


@pytest.mark.parametrize(
    "members",
    [
        '"model ":"other"',
        '"Model":"other","MODEL":"other"',
        '"Messages":[{"role":"user","content":"Another prompt."}]',
        '"STREAM":true',
        '"Stream_Options":{}',
        '"N":100',
    ],
)
@pytest.mark.parametrize("dialect", dialects.DIALECTS)
def test_what_was_judged_is_what_is_read(live: Live, dialect: str, members: str) -> None:
    """The prompt that was classified, the model that was chosen."""
    told = any_case(sent(live, members, dialect))

    assert told["model"] == "m"
    assert told["messages"][0]["content"] == "Hi."
    assert "n" not in told
    if dialect != "transformers":  # is always asked for a stream
        assert "stream" not in told


def test_what_is_left_out_for_its_letters_is_said(live: Live) -> None:
    told = verdict(live, '"MAX_TOKENS":100000').told(dialects.of("vllm"), "m")

    assert told.warnings == ("MAX_TOKENS was left out: it differs from max_tokens in case alone",)


@pytest.mark.parametrize(
    "members",
    [
        '"enable_thinking":true',
        '"think":"high"',
        '"thinking":{"type":"enabled"}',
        '"chat_template_kwargs":{"enable_thinking":true}',
        '"chat_template_kwargs":[true]',
        '"extra_body":{"chat_template_kwargs":{"enable_thinking":true}}',
        '"enable_thinking":null',
    ],
)
def test_no_spelling_switches_thinking_on_where_it_is_forced_off(live: Live, members: str) -> None:
    told = json.loads(sent(live, members, "vllm"))

    assert told["chat_template_kwargs"]["enable_thinking"] is False
    assert not {"enable_thinking", "think", "thinking"} & told.keys()


def test_a_template_argument_that_stands_twice_is_refused(live: Live) -> None:
    twice = '"chat_template_kwargs":{"enable_thinking":false,"enable_thinking":true}'
    with pytest.raises(InvalidJson, match="twice"):
        sent(live, twice, "vllm")


def test_ollama_hears_no_louder_word_than_ours(live: Live) -> None:
    told = json.loads(
        sent(live, '"reasoning":{"effort":"high"},"reasoning_effort":"high"', "ollama")
    )

    assert told["reasoning_effort"] == "none"
    assert "reasoning" not in told
    assert json.loads(sent(live, '"max_tokens":0', "ollama"))["max_tokens"] == 1


@pytest.mark.parametrize("dialect", dialects.DIALECTS)
def test_what_is_stripped_is_gone(live: Live, dialect: str) -> None:
    members = '"top_k":50,"best_of":9,"generation_config":"{\\"top_k\\":50,\\"num_beams\\":9}"'
    told = json.loads(sent(live, members, dialect))

    assert not {"top_k", "best_of"} & told.keys()
    if "generation_config" in told:  # what transformers serve is told by us
        assert {"top_k", "num_beams"}.isdisjoint(json.loads(told["generation_config"]))


def test_names_of_a_clients_own_fill_no_memory_and_no_log(live: Live) -> None:
    found = verdict(live, ",".join(f'"{"x" * 5000}{n}":1' for n in range(100)))
    told = found.told(dialects.of("transformers"), "m")

    assert found.plan.said == {}
    assert len(told.warnings) < 25
    assert max(map(len, told.warnings)) < 200


@pytest.mark.parametrize("raw", [b'"\\ud800"', b'"\\udc00\\ud800"', b'"\xed\xa0\x80"', b'"\xff"'])
@pytest.mark.parametrize("place", ["model", "content", "name", "session_id"])
def test_half_characters_are_the_clients_error_or_go_on_as_they_are(
    live: Live, raw: bytes, place: str
) -> None:
    members = {b"model": b'"auto"', b"content": b'"Hi."', b"session_id": b'"s"'}
    name = raw if place == "name" else b'"name"'
    if place != "name":
        members[place.encode()] = raw
    body = b'{"model":%b,"session_id":%b,%b:1,"messages":[{"role":"user","content":%b}]}' % (
        members[b"model"],
        members[b"session_id"],
        name,
        members[b"content"],
    )
    try:
        found = decide_for(Endpoint.CHAT, body, {}, live)
    except ClientError as fault:
        fault.body().decode("utf-8")
    else:
        told = found.told(dialects.of("vllm"), "m")
        assert raw in told.patch.apply(body, found.request.spans)
