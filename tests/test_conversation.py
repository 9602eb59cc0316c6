"""A turn in its conversation: follow-ups, new jobs, tool loops, and what is remembered.

The messages tell the turns before; where a client sends none, its session's last scenario does.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.chat import Classification, Endpoint
from router.classify import Classifier
from tests.support import taught
from tests.support.journey import asked
from tests.support.taught import EXAMPLES, said, talk

READER = taught.classifier()
#: not among the examples, in both languages
JOBS = {
    "support": ("退款怎么还没到账？", "How long does a refund take, and can I change my order?"),
    "code": ("写一个函数判断闰年。", "Write a Python function that merges two csv files."),
    "chat": ("周末去哪里看电影比较好？", "Hello, do you like cats or dogs?"),
}
EACH_JOB = [(name, text) for name, texts in JOBS.items() for text in texts]
#: of these, some were learned from
FOLLOW_UPS = ("继续", "go on", "and then?", "然后", "one more please")
KEYWORD = {"support": {"match": {"keywords": ["refund"]}}, "code": {}, "chat": {}}
CONTINUING = {
    "support": {},
    "code": {},
    "chat": {},
    "companion": {"match": {"continues": "chat", "turns": {"min": 3}}},
}
CONTINUED = taught.classifier(scenarios=CONTINUING)


class Memory:
    """Remembers one scenario for some sessions, and who was asked for."""

    def __init__(self, scenario: str | None = None) -> None:
        self.known = scenario
        self.asked_for: list[str] = []

    def __call__(self, session: str) -> str | None:
        self.asked_for.append(session)
        return self.known


def fresh() -> Classifier:
    """A classifier that has seen nothing yet."""
    return taught.classifier(taught.taught())


# --- turns that lean on the turns before them -----------------------------------------


@pytest.mark.parametrize(("scenario", "job"), EACH_JOB)
@pytest.mark.parametrize("follow_up", FOLLOW_UPS)
def test_a_bare_follow_up_stays_with_the_turn_before(
    scenario: str, job: str, follow_up: str
) -> None:
    found = said(READER, job, follow_up)

    assert (found.scenario, found.source) == (scenario, "sticky")
    assert any(signal.startswith("follow-up ") for signal in found.signals)


@pytest.mark.parametrize(("scenario", "job"), EACH_JOB)
@pytest.mark.parametrize("row", [*permutations(FOLLOW_UPS[:3], 2), *permutations(FOLLOW_UPS[:3])])
def test_follow_ups_in_a_row_stay_with_the_job(
    scenario: str, job: str, row: tuple[str, ...]
) -> None:
    found = said(READER, job, *row)

    assert (found.scenario, found.source) == (scenario, "sticky")


@pytest.mark.parametrize(
    ("before", "job", "scenario"),
    [
        (other, job, scenario)
        for scenario, job in EACH_JOB
        for name, other in EACH_JOB
        if name != scenario
    ],
)
def test_a_new_job_is_itself_whatever_was_before(before: str, job: str, scenario: str) -> None:
    for turns in ((before,), (before, "继续"), (before, before, "go on")):
        found = said(READER, *turns, job)
        assert (found.scenario, found.source) == (scenario, "learned")


def test_a_follow_up_is_the_latest_job_and_not_the_first() -> None:
    (_, support), (_, code) = EACH_JOB[0], EACH_JOB[2]

    assert said(READER, support, code, "继续").scenario == "code"
    assert said(READER, code, support, "继续").scenario == "support"


def test_a_turn_between_is_read_along_with_the_one_before() -> None:
    text = "那要等几天？"
    support, chat = JOBS["support"][0], JOBS["chat"][0]

    assert said(READER, support, text).scenario == "support"
    assert said(READER, chat, text).scenario == "chat"


def test_keywords_vote_in_the_last_turn_alone() -> None:
    reader = taught.classifier(taught.taught(), scenarios=KEYWORD)
    plain = "Where should I go with my refund this weekend?"
    other = "Where should I go with my parents this weekend?"
    job = "Do you have a good idea for a dinner?"

    assert said(reader, plain, job).confidence == said(READER, plain, job).confidence
    assert said(reader, other, plain).confidence < said(READER, other, plain).confidence


def test_a_follow_up_thinks_as_the_job_before_it_does() -> None:
    hard = "证明这个图算法的复杂度，并推导最坏情况。"
    easy = "怎么用 git 撤销提交？"

    assert said(READER, hard, "继续").wants_thought
    assert not said(READER, easy, "继续").wants_thought


def test_what_was_learned_from_nothing_follows_nothing() -> None:
    reader = Classifier(taught.policy_of(scenarios=KEYWORD, examples={}))

    assert said(reader, "refund").scenario == "support"
    assert said(reader, "refund", "go on").source == "default"


def test_responses_are_conversations_too() -> None:
    items: list[dict[str, Any]] = [
        {"role": "user", "content": JOBS["code"][1]},
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": "go on"},
    ]

    found = READER.scenario(asked({"model": "auto", "input": items}, Endpoint.RESPONSES))

    assert (found.scenario, found.source) == ("code", "sticky")


@given(
    st.lists(st.sampled_from([*FOLLOW_UPS, *(text for _, text in EACH_JOB)]), min_size=1),
    st.text(st.characters(codec="utf-8"), max_size=30),
)
def test_any_conversation_is_classified(turns: list[str], last: str) -> None:
    found = said(READER, *turns, last)

    assert found.scenario in EXAMPLES
    assert 0 < found.confidence <= 1
    assert 0 <= found.thought <= 1


# --- who has a voice ------------------------------------------------------------------

CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def tool_loop(*turns: str, rounds: int, result: str = "42") -> Classification:
    """What a conversation is taken for after so many calls of a tool."""
    messages: list[dict[str, Any]] = []
    for text in turns:
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": "ok"}]
    messages.pop()
    for _ in range(rounds):
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "1", "content": result},
        ]
    # Never seen before: nothing may be right only because it was remembered.
    return fresh().scenario(asked({"model": "auto", "messages": messages, "tools": TOOLS}))


@pytest.mark.parametrize("turns", [*((job,) for _, job in EACH_JOB), (JOBS["code"][0], "继续")])
def test_a_tool_loop_changes_nothing(turns: tuple[str, ...]) -> None:
    begun = tool_loop(*turns, rounds=0)

    for rounds in (1, 2, 5):
        assert tool_loop(*turns, rounds=rounds, result="Where is my refund?") == begun


WORDS = st.lists(
    st.sampled_from(["refund", "Python", "go on", "证明", *(text for _, text in EACH_JOB)]),
    max_size=3,
).map(" ".join)


@given(st.sampled_from(EACH_JOB), st.sampled_from(["", *FOLLOW_UPS]), st.lists(WORDS, min_size=4))
def test_only_the_user_has_a_voice(job: tuple[str, str], last: str, others: list[str]) -> None:
    def told(system: str, answer: str, call: str, result: str) -> Classification:
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": system},
            {"role": "user", "content": job[1]},
            {"role": "assistant", "content": answer},
            *([{"role": "user", "content": last}] if last else []),
            {"role": "assistant", "content": call, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "1", "content": result},
        ]
        reader = taught.classifier(taught.taught(), scenarios=KEYWORD)
        return reader.scenario(asked({"model": "auto", "messages": messages}))

    assert told(*others[:4]) == told("", "", "", "")


# --- a scenario that continues another ------------------------------------------------


def test_a_continuing_scenario_takes_over_only_in_its_shape() -> None:
    chat = JOBS["chat"][0]

    second, third = said(CONTINUED, chat, "继续"), said(CONTINUED, chat, "继续", "go on")

    assert (second.scenario, second.source) == ("chat", "sticky")
    assert (third.scenario, third.source) == ("companion", "structure")
    assert third.signals[-1] == "structure turns >= 3"


def test_a_continuing_scenario_takes_no_turn_that_speaks_for_itself() -> None:
    found = said(CONTINUED, JOBS["chat"][0], "继续", JOBS["chat"][1])

    assert (found.scenario, found.source) == ("chat", "learned")


@pytest.mark.parametrize("scenario", ["support", "code"])
def test_a_continuing_scenario_takes_no_other_ones_place(scenario: str) -> None:
    found = said(CONTINUED, JOBS[scenario][0], "继续", "go on")

    assert (found.scenario, found.source) == (scenario, "sticky")


def test_a_continuing_scenario_takes_what_nothing_speaks_for() -> None:
    cautious = msgspec.structs.replace(taught.taught(), abstain_below=1.0)
    reader = taught.classifier(cautious, scenarios=CONTINUING)
    job = JOBS["support"][1]

    assert said(reader, job).source == "default"
    found = said(reader, job, job, job)
    assert (found.scenario, found.source) == ("companion", "structure")


def test_a_shape_alone_does_not_speak_for_a_continuing_scenario() -> None:
    assert all(
        said(CONTINUED, text, text, text) == said(READER, text, text, text) for _, text in EACH_JOB
    )


# --- a session's memory, where there is no history ------------------------------------


@pytest.mark.parametrize("scenario", EXAMPLES)
@pytest.mark.parametrize("follow_up", FOLLOW_UPS)
def test_a_follow_up_without_history_is_what_its_session_was(scenario: str, follow_up: str) -> None:
    memory = Memory(scenario)
    request = talk(follow_up, session="s1")

    found = fresh().scenario(request, recall=memory)

    assert (found.scenario, found.source) == (scenario, "sticky")
    assert request.session is not None
    assert memory.asked_for == [request.session.hash]


@pytest.mark.parametrize(
    ("turns", "members"),
    [
        ((JOBS["chat"][0], "继续"), {"session": "s1"}),
        (("继续",), {}),
        ((JOBS["code"][1],), {"session": "s1"}),
        (("继续",), {"session": "s1", "model": "auto:chat"}),
    ],
    ids=["with its history", "known by its fingerprint only", "a job", "a hint"],
)
def test_a_session_is_not_asked_for(turns: tuple[str, ...], members: dict[str, str]) -> None:
    memory = Memory("support")
    request = talk(*turns, **members)

    found = fresh().scenario(request, recall=memory)

    assert memory.asked_for == []
    assert found == fresh().scenario(request)


@pytest.mark.parametrize("known", [None, "gone since the policy changed"])
def test_a_session_that_tells_nothing_changes_nothing(known: str | None) -> None:
    memory = Memory(known)
    request = talk("继续", session="s1")

    assert fresh().scenario(request, recall=memory) == fresh().scenario(request)
    assert len(memory.asked_for) == 1


def test_what_is_remembered_of_one_session_is_not_told_another() -> None:
    reader = fresh()
    alone = fresh().scenario(talk("go on", session="other"), recall=Memory())

    for scenario in EXAMPLES:
        found = said(reader, "go on", session="mine", recall=Memory(scenario))
        assert (found.scenario, found.source) == (scenario, "sticky")

    assert reader.scenario(talk("go on", session="other"), recall=Memory()) == alone


def test_a_turn_may_change_the_scenario_of_its_session() -> None:
    reader = fresh()
    known = {"scenario": "support"}

    def turn(text: str) -> str:
        found = said(reader, text, session="s1", recall=lambda _: known["scenario"])
        known["scenario"] = found.scenario
        return found.scenario

    told = [turn(text) for text in ("继续", JOBS["code"][0], "继续", JOBS["chat"][0], "go on")]

    assert told == ["support", "code", "code", "chat", "chat"]


# --- what is remembered of turns ------------------------------------------------------


@given(
    st.lists(
        st.lists(
            st.sampled_from([*FOLLOW_UPS, *(text for _, text in EACH_JOB)]), min_size=1, max_size=3
        ),
        max_size=12,
    )
)
def test_a_remembered_answer_is_the_one_that_would_be_given(talks: list[list[str]]) -> None:
    reader = fresh()

    told = [said(reader, *turns) for turns in [*talks, *talks]]

    assert told == [said(fresh(), *turns) for turns in [*talks, *talks]]


def test_an_answer_is_the_same_after_a_thousand_others() -> None:
    reader = fresh()
    before = said(reader, "继续")

    for number in range(1000):
        said(reader, f"写一个函数 {number}")

    assert said(reader, "继续") == before
    assert len(reader._remembered) < 1000


def test_a_strangers_words_do_not_settle_what_a_known_session_means() -> None:
    reader = taught.classifier()
    said(reader, "go on", session="other", recall=lambda _: None)
    found = said(reader, "go on", session="mine", recall=lambda _: "code")
    assert (found.scenario, found.source) == ("code", "sticky")


def test_what_continues_a_remembered_session_is_not_told_another() -> None:
    scenarios = {
        "support": {},
        "code": {},
        "chat": {},
        "desk": {"match": {"continues": "support", "chars": {"max": 100}}},
    }
    reader = taught.classifier(scenarios=scenarios)
    assert said(reader, "go on", session="mine", recall=lambda _: "support").scenario == "desk"
    assert said(reader, "go on", session="other", recall=lambda _: None).scenario == "chat"


@pytest.mark.parametrize(
    "names", [["plain", "support", "code", "chat"], ["support", "code", "chat", "plain"]]
)
def test_a_default_scenario_without_examples_is_no_rival(names: list[str]) -> None:
    reader = taught.classifier(scenarios={n: {} for n in names}, default_scenario="plain")
    found = said(reader, "退款什么时候能到账？")
    assert found.scenario == "support"
    assert found.confidence > 0.9


def test_a_follow_up_stays_with_a_job_known_by_its_code_block() -> None:
    reader = taught.classifier(
        scenarios={
            "support": {},
            "code": {"match": {"has": ["code"], "structure_weight": 5.0}},
            "chat": {},
        }
    )
    assert said(reader, "```\nx = 1\n```").scenario == "code"
    assert said(reader, "```\nx = 1\n```", "继续").scenario == "code"


def test_a_follow_up_stays_with_a_job_known_by_its_length() -> None:
    reader = taught.classifier(
        scenarios={
            "support": {},
            "code": {},
            "chat": {},
            "long": {"match": {"chars": {"min": 1000}, "structure_weight": 5.0}},
        }
    )
    assert said(reader, "cats " * 300).scenario == "long"
    assert said(reader, "cats " * 300, "继续").scenario == "long"


def test_earlier_turns_are_seen_at_their_own_place() -> None:
    first = {"match": {"turns": {"max": 1}, "structure_weight": 9.0}}
    reader = taught.classifier(scenarios={"support": {}, "code": {}, "chat": {}, "first": first})
    assert said(reader, "cats").scenario == "first"
    assert said(reader, "cats", "继续").scenario == "first"
    assert said(reader, "cats", "继续", "go on").scenario == "first"
