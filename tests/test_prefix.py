"""Why a prompt was not found in a cache: the first thing that differs is the cause."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import prefix
from router.prefix import Turn

SYSTEM = {"role": "system", "content": "You answer briefly. " * 20}
USER = {"role": "user", "content": "How long is the Rhine?"}
ANSWER = {"role": "assistant", "content": "1,233 km."}
MORE = {"role": "user", "content": "And the Elbe?"}
FIRST = [SYSTEM, USER]
SECOND = [SYSTEM, USER, ANSWER, MORE]


def turn(
    messages: list[Any],
    *,
    backend: str = "a",
    tokens: int = 1000,
    thinking: bool = False,
    tools: bytes = b"[]",
) -> Turn:
    return prefix.turn(backend, tokens, thinking, tools, json.dumps(messages).encode())


def missed(before: Turn, now: Turn, *, keeps_prefix: bool = True) -> prefix.Miss:
    found = prefix.finding(before, now, 0, keeps_prefix=keeps_prefix)
    assert found.miss is not None
    return found.miss


def test_what_was_found_has_no_cause() -> None:
    found = prefix.finding(turn(FIRST), turn(SECOND, tokens=1600), 960, keeps_prefix=True)

    assert (found.share, found.miss) == (0.6, None)


def test_a_first_turn_has_nothing_to_find() -> None:
    assert prefix.finding(None, turn(FIRST), 0, keeps_prefix=True).miss is None


LATE = [{**SYSTEM, "content": "It is 10:31. " + str(SYSTEM["content"])}, *SECOND[1:]]
EARLY = [{**SYSTEM, "content": "It is 10:27. " + str(SYSTEM["content"])}, USER]


@pytest.mark.parametrize(
    ("before", "now", "kind", "words"),
    [
        (turn(FIRST), turn(SECOND, backend="b"), "moved", "from a to b"),
        (turn(FIRST), turn(SECOND, tools=b'[{"type":"function"}]'), "tools", "tools"),
        (turn(EARLY), turn(LATE), "first-message", "byte 10"),
        (turn(SECOND), turn([SYSTEM, USER, {**ANSWER, "content": "Long."}]), "history", "2"),
        (turn(SECOND), turn([SYSTEM, USER]), "history", "cut short"),
        (turn(FIRST, tokens=40), turn(SECOND), "short", "blocks"),
        (turn(FIRST), turn(SECOND, thinking=True), "thinking", "switched"),
        (turn(FIRST), turn(SECOND), "evicted", "memory"),
    ],
)
def test_the_cause_is_the_first_thing_that_differs(
    before: Turn, now: Turn, kind: str, words: str
) -> None:
    miss = missed(before, now)

    assert miss.kind == kind
    assert words in miss.text


def test_a_server_that_keeps_no_prefix_is_the_cause_of_all() -> None:
    assert missed(turn(FIRST), turn(SECOND), keeps_prefix=False).kind == "no-cache"


MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant"]), "content": st.text(max_size=200)}
    ),
    min_size=1,
    max_size=5,
)


@given(MESSAGES, MESSAGES)
def test_a_longer_history_is_never_taken_for_a_changed_one(old: list[Any], new: list[Any]) -> None:
    assert missed(turn(old), turn(old + new)).kind == "evicted"
