"""Samples to figures, pairs to verdicts, answers to choices: pure, by hand-made samples."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from router.measure import judging, prompts, summary
from router.measure.asking import Sample
from router.measure.comparing import Comparison, is_settled
from router.measure.judging import Choice, Judged, Pair
from router.measure.prompts import BadPrompts, Prompt
from router.measure.reading import Answer
from router.measure.statistics import Verdict
from router.measure.summary import Gates


def sample(arm: str, turn: int, total_ms: float = 100.0, **other: Any) -> Sample:
    whole: dict[str, Any] = {
        "prompt": turn,
        "began_s": 0.1 * turn,
        "late_ms": 0.0,
        "ttft_ms": total_ms / 10,
        "tpot_ms": 5.0,
        "output_tokens": 20,
        "has_usage": True,
        "input_tokens": 9,
        "finish": "stop",
        "status": 200,
        "is_second": False,
        "error": None,
        "text": "The Danube.",
        "thought": "",
        "scenario": "faq",
        "policy": "abc",
        "backend": "local",
        "overhead_ms": 0.3,
        "warnings": None,
        **other,
    }
    return Sample(arm=arm, turn=turn, total_ms=total_ms, **whole)


# --- one arm -----------------------------------------------------------------------------------


def test_failures_are_counted_and_do_not_make_a_server_look_fast() -> None:
    good = [sample("s", turn, 100.0) for turn in range(8)]
    bad = [sample("s", 8 + turn, 1.0, error="status 500: no") for turn in range(2)]
    seen = summary.summary("s", good + bad)

    assert (seen.requests, seen.succeeded, seen.success) == (10, 8, 0.8)
    assert seen.errors == {"status 500: no": 2}
    assert seen.spreads["total_ms"].min == 100.0
    assert seen.success_interval[0] < 0.8 < seen.success_interval[1]


def test_answers_that_were_cut_or_empty_are_told() -> None:
    rows = [sample("s", 0, finish="length"), sample("s", 1, text=" "), sample("s", 2)]
    seen = summary.summary("s", rows)

    assert (seen.cut, seen.empty) == (1, 1)


def test_tokens_a_second_are_those_while_an_answer_is_written() -> None:
    seen = summary.summary("s", [sample("s", 0, tpot_ms=20.0, output_tokens=11)])

    assert seen.tokens_per_s == pytest.approx(50)


def test_nothing_measured_is_no_figure_and_no_pass() -> None:
    seen = summary.summary("s", [])

    assert seen.spreads == {}
    assert summary.missed(seen, [], Gates(min_success=0.5)) == ["s: no request was made"]


@pytest.mark.parametrize(
    ("gates", "finds"),
    [
        (Gates(max_p95_ratio=1.5), "times the average"),
        (Gates(min_success=0.98), "success 95.0% < 98.0%"),
        (Gates(max_p95_ms=500), "p95 1000 ms > 500 ms"),
        (Gates(max_ttft_p95_ms=50), "p95 to the first token 100 ms > 50 ms"),
        (Gates(min_saved=0.2), "time saved: nothing was measured"),
        (Gates(max_p95_ratio=9, min_success=0.9, max_p95_ms=2000), None),
        (Gates(), None),
    ],
)
def test_bounds_are_held_or_named(gates: Gates, finds: str | None) -> None:
    rows = [sample("s", turn, 1000.0 if turn % 10 == 0 else 100.0) for turn in range(38)]
    rows += [sample("s", 38 + turn, error="no") for turn in range(2)]
    missed = summary.missed(summary.summary("s", rows), [], gates)

    assert len(missed) == (finds is not None)
    assert all(finds is not None and finds in text for text in missed)


def test_where_nothing_succeeds_no_bound_is_needed_to_fail() -> None:
    seen = summary.summary("s", [sample("s", 0, error="no")])

    assert summary.missed(seen, [], Gates()) == ["s: no request succeeded"]


# --- two arms ----------------------------------------------------------------------------------


def test_what_is_saved_comes_from_pairs_in_which_both_were_answered() -> None:
    rows = []
    for turn in range(12):
        rows += [sample("a", turn, 200.0, output_tokens=80)]
        rows += [sample("b", turn, 50.0, output_tokens=20, error="no" if turn == 3 else None)]
    both = summary.pairs(rows, "a", "b")
    time, _, tokens = summary.savings(both, seed=1)

    assert len(both) == 11
    assert (time.quantity, time.pairs) == ("total_ms", 11)
    assert time.share == pytest.approx(0.75)
    assert tokens.low == pytest.approx(0.75)


def test_what_is_added_is_the_median_over_pairs() -> None:
    steps = [1.0, 2.0, 3.0, 4.0, 500.0]
    rows = [sample("a", turn, 100.0) for turn in range(5)]
    rows += [sample("b", turn, 100.0 + step) for turn, step in enumerate(steps)]
    total, _ = summary.added(summary.pairs(rows, "a", "b"))

    assert total.quantity == "total_ms"
    assert total.median == pytest.approx(3.0)


def compared(ratio: float, count: int, **b: Any) -> Comparison:
    random = Random(4)
    comparison = Comparison("a", "b", margin=0.05, share_margin=0.05, planned=200)
    for turn in range(count):
        noise = random.gauss(0, 0.1)
        rows = [
            sample("a", turn, 100.0),
            sample("b", turn, 100.0 * ratio * 2.718**noise, **b),
        ]
        random.shuffle(rows)
        for row in rows:
            comparison.add(row)
    return comparison


def verdicts(comparison: Comparison) -> dict[str, Verdict]:
    return {each.quantity: each.verdict for each in comparison.findings()}


def test_a_slower_side_is_worse_whoever_was_asked_first() -> None:
    found = verdicts(compared(1.3, 60))

    assert found["total"] is Verdict.WORSE
    assert found["ttft"] is Verdict.WORSE
    assert found["output_tokens"] is Verdict.SAME


def test_two_that_are_alike_end_as_no_difference() -> None:
    comparison = compared(1.0, 400)

    assert set(verdicts(comparison).values()) == {Verdict.SAME}
    assert is_settled(comparison.findings())


def test_too_few_pairs_say_not_yet_and_how_many_it_may_take() -> None:
    findings = {each.quantity: each for each in compared(1.0, 15).findings()}

    assert findings["total"].verdict is Verdict.NOT_YET
    assert (findings["total"].likely_pairs or 0) > 15
    assert not is_settled(list(findings.values()))


def test_a_side_that_fails_is_worse_in_success_alone() -> None:
    found = verdicts(compared(1.0, 120, error="status 500"))

    assert found == {"success": Verdict.WORSE}


def test_a_side_that_is_cut_is_worse_in_that() -> None:
    assert verdicts(compared(1.0, 120, finish="length"))["cut"] is Verdict.WORSE


# --- an answer as it arrives -------------------------------------------------------------------


def test_the_first_text_is_timed_and_usage_is_read() -> None:
    answer = Answer()
    lines = [
        'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}',
        "",
        'data: {"choices":[{"delta":{"reasoning_content":"Hm."}}]}',
        'data: {"choices":[{"delta":{"content":"Yes."},"finish_reason":"stop"}]}',
        'data: {"choices":[],"usage":{"completion_tokens":7,"prompt_tokens":3}}',
        "data: [DONE]",
    ]
    for at, line in enumerate(lines):
        answer.line(line, float(at))

    assert (answer.text, answer.thought, answer.finish) == ("Yes.", "Hm.", "stop")
    assert (answer.first_at, answer.output_tokens, answer.is_done) == (2.0, 7, True)


def test_an_error_in_a_stream_is_one() -> None:
    answer = Answer()
    answer.line('data: {"error": {"message": "the backend broke"}}', 0.0)

    assert answer.error == "an error in the stream: the backend broke"
    assert not answer.is_done


# --- prompts -----------------------------------------------------------------------------------


def test_the_built_in_prompts_are_ten_of_each_scenario_and_language() -> None:
    shipped = ("faq", "copywriting", "assistant", "code", "reasoning", "summary", "transform")
    for scenario in (*shipped, "chat"):
        for lang in ("zh", "en"):
            found = prompts.read(scenarios=[scenario], lang=lang)
            assert len({prompt.text for prompt in found}) >= 10


def test_a_pass_has_each_prompt_once() -> None:
    asked = [Prompt(n, ({"role": "user", "content": str(n)},)) for n in range(5)]
    stream = prompts.passes(asked, Random(1))

    assert sorted(next(stream).id for _ in range(5)) == list(range(5))
    assert sorted(next(stream).id for _ in range(5)) == list(range(5))


@pytest.mark.parametrize("line", ["not json", "{}", '{"messages": []}'])
def test_a_bad_file_of_prompts_is_told_by_its_line(line: str, tmp_path: Any) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "Hi"}\n' + line + "\n")

    with pytest.raises(BadPrompts, match=r"prompts\.jsonl, line 2"):
        prompts.read(path)


# --- which answer is better --------------------------------------------------------------------


def test_sides_are_shuffled_and_counted_back() -> None:
    judged = []
    for number in range(40):
        pair = Pair("run", number, "?", "from a", "from b")
        choice = Choice.LEFT if pair.sides[0] == "from b" else Choice.RIGHT
        judged.append(Judged("run", number, choice))

    assert {each.choice for each in judged} == {Choice.LEFT, Choice.RIGHT}
    counted = judging.count(judged)
    assert (counted.a, counted.b, counted.same) == (0, 40, 0)
    assert counted.low > 0
    assert "B is preferred" in judging.told(counted)


def test_the_last_verdict_on_a_pair_counts() -> None:
    rows = [Judged("run", 1, Choice.LEFT), Judged("run", 1, Choice.SAME)]
    counted = judging.count(rows)

    assert (counted.a + counted.b, counted.same) == (0, 1)
    assert judging.told(judging.count([])) == "no verdicts"


@pytest.mark.parametrize(
    ("first", "second", "choice"),
    [
        ("1", "2", Choice.LEFT),
        ("Answer **2**.", "1", Choice.RIGHT),
        ("1", "1", Choice.SAME),  # it likes what stands first
        ("same", "same", Choice.SAME),
        ("I cannot say", "2", Choice.SAME),
    ],
)
def test_a_model_that_contradicts_itself_has_no_say(
    first: str, second: str, choice: Choice
) -> None:
    pair = Pair("run", 1, "?", "a", "b")

    assert judging.agreed(pair, first, second, "model m").choice is choice


def test_the_page_says_nothing_of_who_is_who() -> None:
    page = judging.page([Pair("run", 1, "Which <river>?", "The Danube.", "The Rhine.")])

    assert "Which &lt;river&gt;?" in page
    assert "data-a" not in page
    assert "script-src 'sha256-" in page
