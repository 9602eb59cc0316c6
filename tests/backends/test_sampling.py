"""Each knob of sampling, asked for by the client and forced by the policy: the text tells."""

from __future__ import annotations

from typing import Any

import pytest

from tests.backends.engines import on, on_each
from tests.backends.policy import KNOBS, PLAIN
from tests.backends.talk import Reply, Talk

STORY = "Write a short story about a ship."
#: to be asked of each of these ways, and to land the same
WAYS = ("client", "policy")

everyway = pytest.mark.parametrize("way", WAYS)


def asked(talk: Talk, knob: str, way: str, question: str = STORY) -> Reply:
    if way == "client":
        return talk.ask(question, scenario=PLAIN, **KNOBS[knob])
    return talk.ask(question, scenario=knob)


def greedy(talk: Talk, question: str = STORY) -> str:
    return talk.ask(question, temperature=0).text


@everyway
def test_temperature_zero_is_the_same_each_time(talk: Talk, way: str) -> None:
    first, second = (asked(talk, "greedy", way) for _ in range(2))

    assert first.text == second.text == greedy(talk)
    assert first.text.startswith("Once there was a ")
    assert first.finish == "stop"


def test_a_seed_repeats_and_another_varies(talk: Talk) -> None:
    # Half a computation from a cache may differ in its last digits from a whole one.
    seeds: dict[str, Any] = {"temperature": 1.5, "use_cache": False}
    first = [talk.ask(STORY, seed=seed, **seeds).text for seed in range(4)]
    again = [talk.ask(STORY, seed=seed, **seeds).text for seed in range(4)]

    assert first == again
    assert len(set(first)) > 1


@everyway
@pytest.mark.parametrize("knob", ["top-k", "top-p", "min-p"])
def test_a_narrow_choice_is_greedy_at_any_temperature(talk: Talk, knob: str, way: str) -> None:
    texts = {asked(talk, knob, way).text for _ in range(3)}

    assert texts == {greedy(talk)}


def test_without_a_narrow_choice_the_same_heat_varies(talk: Talk) -> None:
    """Otherwise the test above would prove nothing."""
    wide: dict[str, Any] = {"temperature": 2, "top_k": 0, "top_p": 1, "min_p": 0, "max_tokens": 40}

    assert len({talk.ask(STORY, seed=seed, **wide).text for seed in range(4)}) > 1


@everyway
@pytest.mark.parametrize("knob", ["repetition", "frequency"])
def test_a_penalty_changes_what_is_likeliest(talk: Talk, knob: str, way: str) -> None:
    assert asked(talk, knob, way).text != greedy(talk)


@on("llamacpp", "vllm")
@everyway
def test_a_penalty_on_presence_changes_what_is_likeliest(talk: Talk, way: str) -> None:
    assert asked(talk, "presence", way).text != greedy(talk)


@everyway
def test_a_stop_text_ends_the_answer(talk: Talk, way: str) -> None:
    before, stop, _ = greedy(talk).partition("found")
    reply = asked(talk, "stopped", way)

    assert stop
    assert reply.text.removesuffix(stop).strip() == before.strip()
    assert reply.finish == "stop"


LANDING = {
    "llamacpp": tuple(KNOBS),
    "vllm": tuple(KNOBS),
    "transformers": tuple(knob for knob in KNOBS if knob != "presence"),
}


@on_each("knob", LANDING)
def test_what_lands_is_not_warned_of(talk: Talk, knob: str) -> None:
    reply = asked(talk, knob, "policy")

    assert reply.warnings == ""
    told = reply.headers["x-router-params"].split("; ")
    assert {entry.partition("=")[0] for entry in told} == {"thinking", *KNOBS[knob]}
    assert all(entry.endswith(" force") for entry in told if not entry.startswith("thinking"))
