"""What presets saved: figures that can be reckoned by hand, and a reason where there is none."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from multidict import MultiDict

from router.dashboard import filters
from router.dashboard.savings import LEAST, Thoughts, savings
from router.dashboard.standing import Standing
from router.dashboard.store import Store
from router.record import Record
from tests.support.logs import NOW, await_true, made, write


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    found = Store([tmp_path / "logs"], tmp_path / "cache")
    found.start()
    yield found
    found.close()


def figures(store: Store, place: Path, rows: Sequence[Record]) -> tuple[dict[str, Any], Any]:
    """(rows by scenario, the whole answer)."""
    write(place / "logs", rows)
    store.fresh(10, age_s=0)
    await_true(lambda: store.progress.records == len(rows), "all read")
    asked = filters.asked(MultiDict({"from": "-1h"}), NOW + 60)
    answer = Standing(store).ask(savings, asked)
    return {row["scenario"]: row for row in answer["rows"]}, answer


def request(
    number: int,
    scenario: str,
    *,
    wish: bool | None = None,
    sent: bool | None,
    thought: int = 0,
    answer: int = 10,
    wished_tokens: int | None = None,
    sent_tokens: int | None = None,
    **fields: Any,
) -> Record:
    params: dict[str, Any] = {"thinking": (wish, sent, "fill")}
    if wished_tokens or sent_tokens:
        params["max_new_tokens"] = (wished_tokens, sent_tokens, "cap")
    told: dict[str, Any] = {
        "scenario": scenario,
        "backend": "a",
        "backend_model": "m",
        "outcome": "ok",
        "thinking": sent,
        "params": params,
        "output_tokens": answer + thought,
        "reasoning_tokens": thought,
        "tpot_ms": 20.0,
        "finish_reason": "stop",
        "ago_s": 10,
        **fields,
    }
    return made(number, **told)


def test_a_thought_turned_off_saves_what_thoughts_of_the_scenario_take(
    store: Store, tmp_path: Path
) -> None:
    lengths = [random.Random(number).randrange(50, 500) for number in range(40)]
    rows = [request(n, "faq", wish=True, sent=True, thought=t) for n, t in enumerate(lengths)]
    rows += [request(100 + n, "faq", sent=False) for n in range(30)]
    rows += [request(200 + n, "faq", wish=False, sent=False) for n in range(30)]  # its own wish
    got, answer = figures(store, tmp_path, rows)

    mean = sum(lengths) / len(lengths)
    assert got["faq"]["turned_off"] == got["faq"]["estimated"] == 30
    assert got["faq"]["tokens_saved"] == pytest.approx(30 * mean, abs=1)
    assert got["faq"]["seconds_saved"] == pytest.approx(30 * mean * 0.020, rel=1e-3)
    assert (got["faq"]["basis"], got["faq"]["n_basis"]) == ("scenario", 40)
    assert got["faq"]["tokens_low"] < got["faq"]["tokens_saved"] < got["faq"]["tokens_high"]
    assert got["faq"]["why_not"] is None
    assert answer["details"]["assumes"] == ["thinks_by_default"]
    assert answer["total"]["tokens_saved"] == got["faq"]["tokens_saved"]


def test_what_the_backend_does_by_default_comes_before_what_it_can(
    store: Store, tmp_path: Path
) -> None:
    """It was seen not to think when nobody says otherwise: so nothing was saved."""
    rows = [request(n, "faq", sent=None, thought=0) for n in range(LEAST)]
    rows += [request(100 + n, "faq", wish=True, sent=True, thought=300) for n in range(LEAST)]
    rows += [request(200 + n, "faq", sent=False) for n in range(10)]
    got, answer = figures(store, tmp_path, rows)

    assert (got["faq"]["tokens_saved"], got["faq"]["basis"]) == (0, "seen")
    assert answer["details"]["assumes"] == []


def test_with_too_few_thoughts_there_is_no_figure(store: Store, tmp_path: Path) -> None:
    rows = [request(n, "faq", wish=True, sent=True, thought=300) for n in range(LEAST - 1)]
    rows += [request(100 + n, "faq", sent=False) for n in range(10)]
    got, _ = figures(store, tmp_path, rows)

    assert got["faq"]["why_not"] == "no_thoughts"
    assert got["faq"]["tokens_saved"] is got["faq"]["seconds_saved"] is None


def test_thoughts_of_another_model_say_nothing(store: Store, tmp_path: Path) -> None:
    rows = [
        request(n, "faq", wish=True, sent=True, thought=300, backend_model="big") for n in range(40)
    ]
    rows += [request(100 + n, "faq", sent=False) for n in range(10)]
    got, _ = figures(store, tmp_path, rows)
    assert got["faq"]["why_not"] == "no_thoughts"


def test_thoughts_about_other_work_are_told_as_such(store: Store, tmp_path: Path) -> None:
    rows = [request(n, "code", wish=True, sent=True, thought=300) for n in range(40)]
    rows += [request(100 + n, "faq", sent=False) for n in range(10)]
    got, _ = figures(store, tmp_path, rows)

    assert (got["faq"]["basis"], got["faq"]["tokens_saved"]) == ("model", 3000)
    assert got["code"]["why_not"] == "nothing_changed"
    assert got["code"]["tokens_saved"] is None


def test_a_clients_own_limit_bounds_what_was_saved(store: Store, tmp_path: Path) -> None:
    rows = [request(n, "faq", wish=True, sent=True, thought=300) for n in range(40)]
    rows += [
        request(100 + n, "faq", sent=False, answer=40, wished_tokens=100, sent_tokens=64)
        for n in range(10)
    ]
    got, _ = figures(store, tmp_path, rows)
    assert got["faq"]["tokens_saved"] == 10 * 60


def test_a_thought_that_nobody_wanted_costs(store: Store, tmp_path: Path) -> None:
    rows = [request(n, "code", wish=False, sent=True, thought=100) for n in range(5)]
    got, _ = figures(store, tmp_path, rows)

    assert (got["code"]["turned_on"], got["code"]["tokens_saved"]) == (5, -500)
    assert got["code"]["seconds_saved"] == pytest.approx(-10)


def test_what_a_cap_cut_is_counted_and_not_guessed(store: Store, tmp_path: Path) -> None:
    cut: dict[str, Any] = {"finish_reason": "length", "answer": 64, "sent_tokens": 64}
    rows = [request(n, "faq", wish=False, sent=False, **cut) for n in range(7)]
    rows += [
        request(20 + n, "faq", wish=False, sent=False, **{**cut, "wished_tokens": 64})
        for n in range(3)
    ]
    got, _ = figures(store, tmp_path, rows)

    assert got["faq"]["cut"] == 7  # the client's own limit was as low in the others
    assert got["faq"]["tokens_saved"] is None


def test_thoughts_that_are_told_in_characters_count_by_their_share(
    store: Store, tmp_path: Path
) -> None:
    rows = [
        request(
            n,
            "faq",
            wish=True,
            sent=True,
            answer=50,
            thought=150,
            reasoning_tokens=None,
            reasoning_chars=600,
            answer_chars=200,
        )
        for n in range(LEAST)
    ]
    rows += [request(100 + n, "faq", sent=False) for n in range(10)]
    got, _ = figures(store, tmp_path, rows)
    assert got["faq"]["tokens_saved"] == 1500


def test_requests_that_failed_save_nothing(store: Store, tmp_path: Path) -> None:
    rows = [request(n, "faq", wish=True, sent=True, thought=300) for n in range(40)]
    rows += [
        request(100 + n, "faq", sent=False, outcome="upstream_error", output_tokens=None)
        for n in range(10)
    ]
    got, _ = figures(store, tmp_path, rows)
    assert (got["faq"]["requests"], got["faq"]["turned_off"]) == (50, 0)


def test_without_a_measured_pace_there_are_no_seconds(store: Store, tmp_path: Path) -> None:
    rows = [request(n, "faq", wish=True, sent=True, thought=300, tpot_ms=None) for n in range(40)]
    rows += [request(100 + n, "faq", sent=False, tpot_ms=None) for n in range(10)]
    got, _ = figures(store, tmp_path, rows)

    assert got["faq"]["tokens_saved"] == 3000
    assert got["faq"]["seconds_saved"] is None


def test_a_limit_cuts_each_thought_and_not_their_mean() -> None:
    thoughts = Thoughts(20, 100.0, 0.0, tuple([0.0] * 10 + [200.0] * 10))
    assert thoughts.within(None) == 100
    assert thoughts.within(100) == 50
    assert thoughts.within(300) == 100
    assert thoughts.within(0) == 0
