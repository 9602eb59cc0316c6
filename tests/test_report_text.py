"""The report for a terminal: it fits, it aligns, and rows cannot write what they like there."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import evaluation, report_text
from tests.support.labelled import outcome


def columns(line: str) -> int:
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in line
    )


def told(*outcomes: evaluation.Outcome) -> list[str]:
    return list(report_text.lines(evaluation.report(outcomes)))


def test_the_figures_are_there() -> None:
    text = "\n".join(
        told(
            outcome("faq", "faq", 0.75, think=True, thought=0.6, wants_thought=True, chars=200),
            outcome("faq", "code", 0.25, id="r7", source="desk", signals=("keyword x", "y")),
        )
    )

    for expected in (
        "accuracy    0.500  (95 % interval 0.095 to 0.905)",
        "thinking    precision 1.000, recall 1.000, F1 1.000  (1 of 1 rows are worth it)",
        "precision 1.000 at recall ≥ 0.80, from 0.600 on",
        "time        p50 10 µs, p99 10 µs; p50 in the first run 20 µs",
        "p50 10 µs for 100 to 300 characters",
        "faq       2      1.000   0.500  0.667",
        "desk          1     0.000",
        "  r7: faq > code, 0.25 by keyword, en: keyword x; y",
        "0.250 to 0.250     1  0.250     0.000",
    ):
        assert expected in text


def test_figures_stand_in_line_below_names_of_any_width() -> None:
    lines = told(outcome("退款咨询", "faq"), outcome("faq", "faq"), outcome("ｆａｑ", "faq"))
    table = lines[lines.index("") + 1 :]
    table = table[: table.index("")]

    assert len(table) == 4
    assert len({columns(line) for line in table}) == 1


@given(
    st.lists(
        st.builds(
            outcome,
            st.text(min_size=1),
            st.sampled_from(["faq", "copywriting", "聊天"]),
            id=st.text(),
            lang=st.text(min_size=1),
            source=st.text(min_size=1),
            signals=st.tuples(st.text(), st.text()),
            text=st.text(st.characters() | st.sampled_from("中文 \x1b[2J\u202e"), max_size=300),
            us=st.floats(0, 1e9),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_every_line_fits_and_holds_nothing_that_a_terminal_obeys(
    listed: list[evaluation.Outcome],
) -> None:
    for line in told(*listed):
        assert columns(line) <= report_text.WIDTH
        assert line.isprintable()


@pytest.mark.parametrize("text", ["词" * 160, "word " * 32, "w" * 160, "", "a" * 95 + " b"])
def test_a_wrapped_text_loses_no_letter(text: str) -> None:
    mistake = evaluation.report([outcome("faq", "chat", text=text)]).mistakes
    lines = list(report_text.answers("title", mistake))

    assert "".join(lines[2:]).replace(" ", "") == text.replace(" ", "")
    assert lines[0] == "title (1)"


def test_where_the_matrix_is_too_wide_the_commonest_mistakes_are_told() -> None:
    many = [outcome(f"scenario-{n}", f"scenario-{n}") for n in range(40)]
    lines = told(*many, outcome("faq", "chat"), outcome("faq", "chat"), outcome("chat", "faq"))

    start = next(n for n, line in enumerate(lines) if line.startswith("label > got"))
    assert [line.split() for line in lines[start + 1 : start + 3]] == [
        ["faq", ">", "chat", "2"],
        ["chat", ">", "faq", "1"],
    ]
