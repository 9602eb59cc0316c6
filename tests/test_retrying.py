"""When a request is asked again, and that retries stay few."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import retrying
from router.retrying import Budget

# --- which ------------------------------------------------------------------------------

everything = st.fixed_dictionaries(
    {"sent": st.booleans(), "answered": st.just(True), "was_stale": st.booleans()}
)


@given(st.none() | st.integers(100, 599), everything)
def test_nothing_is_asked_again_after_the_first_byte(
    status: int | None, facts: dict[str, bool]
) -> None:
    assert not retrying.is_retryable(status, **facts)


@given(st.integers(100, 599), st.booleans())
def test_of_answers_only_those_without_work_done_are_asked_for_again(
    status: int, was_stale: bool
) -> None:
    is_retryable = retrying.is_retryable(status, sent=True, answered=False, was_stale=was_stale)

    assert is_retryable == (status in (502, 503, 504))


@pytest.mark.parametrize(
    ("sent", "was_stale", "expected"),
    [
        (False, False, True),  # no connection
        (True, True, True),  # a kept-alive one that the backend was about to close
        (True, False, False),  # too late, or broken with the request on it
    ],
)
def test_without_an_answer_it_must_be_sure_that_nothing_was_processed(
    sent: bool, was_stale: bool, expected: bool
) -> None:
    found = retrying.is_retryable(None, sent=sent, answered=False, was_stale=was_stale)

    assert found == expected


# --- how many ---------------------------------------------------------------------------


@given(
    st.floats(0, 1),
    st.floats(0, 5),
    st.lists(st.tuples(st.booleans(), st.floats(0, 30)), max_size=200),
)
def test_retries_are_a_share_of_requests_and_a_few_a_second(
    share: float, least: float, calls: list[tuple[bool, float]]
) -> None:
    budget, now = Budget(share, least), 50.0
    requests = retries = 0
    for is_request, passed in calls:
        now += passed
        if is_request:
            budget.asked(now)
            requests += 1
        else:
            retries += budget.may_retry(now)

        # The ten seconds before the start count as quiet ones.
        assert retries <= share * requests + least * (now - 50 + 10) + 1e-6


def test_where_everything_fails_every_fifth_is_asked_again() -> None:
    budget, retries = Budget(share=0.2, least=0), 0
    for request in range(20_000):
        budget.asked(request / 100)
        retries += budget.may_retry(request / 100)

    assert retries / 20_000 == pytest.approx(0.2, rel=0.01)


def test_without_requests_there_are_the_few_and_then_none() -> None:
    budget = Budget(share=0.2, least=3)

    assert sum(budget.may_retry(0) for _ in range(100)) == 30
    assert not budget.may_retry(0)


def test_none_are_given_where_none_are_allowed() -> None:
    budget = Budget(share=0, least=0)
    budget.asked(0)

    assert not budget.may_retry(0)


@given(st.floats(-1e9, 1e9))
def test_after_some_quiet_there_is_a_retry_wherever_the_clock_jumped(to: float) -> None:
    budget = Budget()
    while budget.may_retry(1e6):
        pass

    budget.may_retry(to)
    assert budget.may_retry(to + 60)


# --- how long ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "left"), [(100.0, 30.0), (110.0, 20.0), (130.0, 0.0), (500.0, 0.0), (50.0, 30.0)]
)
def test_all_tries_together_have_the_time_of_one(now: float, left: float) -> None:
    assert retrying.left_s(100.0, now, 30.0) == left
