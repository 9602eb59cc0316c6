"""What is remembered of sessions: how long, how many, and that it reaches the requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.ports import Sessions
from router.sessions import MemorySessions
from tests.support import taught
from tests.support.clocks import HandClock
from tests.support.product import Product
from tests.support.rawclient import RawReply, exchange, request_bytes
from tests.support.script import chat_ok
from tests.support.scripted import ScriptedBackend


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


def test_the_latest_scenario_of_a_session_is_known(clock: HandClock) -> None:
    sessions: Sessions = MemorySessions(clock)

    sessions.settled("a", "code")
    sessions.settled("b", "faq")
    sessions.settled("a", "chat")

    assert (sessions.scenario("a"), sessions.scenario("b")) == ("chat", "faq")
    assert sessions.scenario("c") is None


def test_a_session_is_forgotten_after_its_time_and_not_before(clock: HandClock) -> None:
    sessions = MemorySessions(clock, ttl_s=60)
    sessions.settled("a", "code")

    clock.at += 60
    assert sessions.scenario("a") == "code"
    clock.at += 0.001
    assert sessions.scenario("a") is None


def test_a_turn_begins_the_time_anew_and_a_look_does_not(clock: HandClock) -> None:
    sessions = MemorySessions(clock, ttl_s=60)
    for session in ("a", "b"):
        sessions.settled(session, "code")

    clock.at += 40
    sessions.settled("a", "code")
    assert sessions.scenario("b") == "code"
    clock.at += 40

    assert (sessions.scenario("a"), sessions.scenario("b")) == ("code", None)


def test_of_too_many_the_longest_silent_is_forgotten_first(clock: HandClock) -> None:
    sessions = MemorySessions(clock, limit=3)
    for session in ("a", "b", "c"):
        sessions.settled(session, session.upper())
    sessions.settled("a", "A")

    sessions.settled("d", "D")

    assert [sessions.scenario(session) for session in "abcd"] == ["A", None, "C", "D"]
    assert len(sessions) == 3


@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("xyz"), st.integers(0, 30))),
    st.integers(1, 5),
)
def test_memory_is_what_a_plain_list_of_turns_says(
    turns: list[tuple[str, str, int]], limit: int
) -> None:
    clock = HandClock()
    sessions = MemorySessions(clock, ttl_s=60, limit=limit)
    told: list[tuple[str, str, float]] = []

    for session, scenario, pause in turns:
        clock.at += pause
        sessions.settled(session, scenario)
        told = [turn for turn in told if turn[0] != session]
        told = [*told, (session, scenario, clock.at)][-limit:]

    assert len(sessions) == len(told)
    expected = {session: scenario for session, scenario, at in told if clock.at - at <= 60}
    assert {s: sessions.scenario(s) for s in "abcdefgh" if sessions.scenario(s)} == expected


# --- end to end -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with ScriptedBackend([chat_ok("Done.")]) as backend:
        one = {"name": "one", "url": backend.url, "model": "qwen3-0.6b"}
        folder = tmp_path_factory.mktemp("sessions")
        with Product.start(folder, {"backends": [one]}, policy=taught.table()) as running:
            yield running


def ask(product: Product, text: str, headers: Mapping[str, str], **members: Any) -> RawReply:
    body = {"model": "auto", "messages": [{"role": "user", "content": text}], **members}
    reply = exchange(
        product.port,
        request_bytes("POST", "/v1/chat/completions", {**headers, "x-router-debug": "true"}, body),
    )
    assert reply.status == 200
    return reply


JOB = "Write a Python function that merges two csv files."


def test_a_follow_up_without_history_is_what_its_session_was(product: Product) -> None:
    mine, other = {"x-session-id": "mine"}, {"x-session-id": "other"}

    assert ask(product, JOB, mine).header("x-router-scenario") == "code"
    first, second = ask(product, "go on", mine), ask(product, "继续", mine)
    stranger = ask(product, "go on", other)

    assert first.header("x-router-scenario") == second.header("x-router-scenario") == "code"
    assert first.header("x-router-source") == second.header("x-router-source") == "sticky"
    assert stranger.header("x-router-scenario") == "chat"


def test_a_session_named_in_the_body_is_remembered_too(product: Product) -> None:
    assert ask(product, JOB, {}, user="u1").header("x-router-scenario") == "code"

    assert ask(product, "one more", {}, user="u1").header("x-router-scenario") == "code"
    assert ask(product, "one more", {}, user="u2").header("x-router-scenario") == "chat"


def test_a_scenario_asked_for_by_name_is_remembered_as_well(product: Product) -> None:
    session = {"x-session-id": "by name"}
    hinted = ask(product, "Hello, how are you?", {**session, "x-router-scenario": "support"})

    assert hinted.header("x-router-scenario") == "support"
    assert ask(product, "and then?", session).header("x-router-scenario") == "support"


def test_two_strangers_with_the_same_words_share_no_session(product: Product) -> None:
    # Without a name, a session is known by its first words: the same for both, so it tells
    # nothing of either.
    named = ask(product, "shorter", {"x-router-scenario": "code"})
    again = ask(product, "shorter", {})

    assert named.header("x-router-scenario") == "code"
    assert again.header("x-router-source") != "sticky"
    assert again.header("x-router-scenario") == "chat"
