"""What is measured of labelled prompts: figures worked out by hand, and laws of all reports."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import evaluation
from router.chat import ChatRequest, Classification, Endpoint
from router.classify import Recall
from router.evaluation import BadRows, Bin, Gates, OperatingPoint, Outcome, Share
from router.verdict import Live, decide_for
from tests.support.labelled import live_in, outcome, written

DOZEN = [
    outcome("faq", "faq", 0.9, id="1", lang="en", source="shop"),
    outcome("faq", "faq", 0.8, id="2", lang="en", source="shop"),
    outcome("faq", "faq", 0.7, id="3", lang="zh", source="shop"),
    outcome("faq", "code", 0.6, id="4", lang="zh", source="desk"),
    outcome("code", "code", 0.95, id="5", stage="pattern"),
    outcome("code", "code", 0.5, id="6", stage="pattern"),
    outcome("code", "faq", 0.3, id="7", script="zh"),
    outcome("chat", "chat", 0.0, id="8", stage="default"),
    outcome("chat", "chat", 0.0, id="9", stage="default"),
    outcome("chat", "faq", 0.4, id="10"),
    outcome("chat", "chat", 0.2, id="11"),
    outcome("chat", "code", 0.85, id="12"),
]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Live:
    return live_in(tmp_path_factory.mktemp("deployed"))


# --- figures ---------------------------------------------------------------------------------


def test_accuracy_and_its_interval_are_those_worked_out_by_hand() -> None:
    report = evaluation.report(DOZEN)

    assert (report.rows, report.accuracy) == (12, 8 / 12)
    # (8 + z²/2 ± z √(8·4/12 + z²/4)) / (12 + z²) with z = 1.95996
    assert report.accuracy_interval == pytest.approx((0.39062, 0.86188), abs=1e-5)


@pytest.mark.parametrize(
    ("label", "rows", "precision", "recall", "f1"),
    [
        ("faq", 4, 3 / 5, 3 / 4, 6 / 9),
        ("code", 3, 2 / 4, 2 / 3, 4 / 7),
        ("chat", 5, 1, 3 / 5, 6 / 8),
    ],
)
def test_each_label_has_its_precision_recall_and_f1(
    label: str, rows: int, precision: float, recall: float, f1: float
) -> None:
    own = evaluation.report(DOZEN).labels[label]

    assert (own.rows, own.precision, own.recall, own.f1) == (rows, precision, recall, f1)


def test_macro_f1_is_the_mean_over_the_labels_that_rows_have() -> None:
    stray = [*DOZEN, outcome("faq", "deep")]

    assert evaluation.report(DOZEN).macro_f1 == pytest.approx((6 / 9 + 4 / 7 + 6 / 8) / 3)
    assert evaluation.report(stray).macro_f1 == pytest.approx((6 / 10 + 4 / 7 + 6 / 8) / 3)


def test_the_confusion_has_a_column_for_answers_that_are_no_label() -> None:
    assert evaluation.report([*DOZEN, outcome("faq", "deep")]).confusion == {
        "chat": {"chat": 3, "code": 1, "faq": 1, "deep": 0},
        "code": {"chat": 0, "code": 2, "faq": 1, "deep": 0},
        "faq": {"chat": 0, "code": 1, "faq": 3, "deep": 1},
    }


def test_a_row_without_a_language_has_the_one_that_was_seen() -> None:
    languages = evaluation.report(DOZEN).languages

    assert {lang: (own.rows, own.accuracy) for lang, own in languages.items()} == {
        "en": (9, 7 / 9),
        "zh": (3, 1 / 3),
    }
    # zh: faq right once of two, code never
    assert languages["zh"].macro_f1 == pytest.approx((2 * 1 / (2 + 2) + 0) / 2)


def test_rows_are_counted_by_where_they_are_from_and_by_what_decided() -> None:
    report = evaluation.report(DOZEN)

    assert report.sources == {"desk": Share(1, 0.0), "shop": Share(3, 1.0)}
    assert report.stages == {
        "default": Share(2, 1.0),
        "keyword": Share(8, 4 / 8),
        "pattern": Share(2, 1.0),
    }


def test_what_nothing_spoke_for_is_abstained_and_the_rest_measured_alone() -> None:
    report = evaluation.report(DOZEN)

    assert report.abstain_rate == 2 / 12
    assert report.answered == Share(10, 6 / 10)
    assert evaluation.report(DOZEN[7:9]).answered == Share(0, 0.0)


def test_the_calibration_error_is_the_mean_gap_of_the_bins() -> None:
    report = evaluation.report(DOZEN)

    bounds = [(own.low, own.high, own.rows) for own in report.bins]
    assert bounds == [
        *((0.0, 0.0, 2), (0.2, 0.2, 1), (0.3, 0.3, 1), (0.4, 0.4, 1), (0.5, 0.5, 1)),
        *((0.6, 0.7, 2), (0.8, 0.8, 1), (0.85, 0.85, 1), (0.9, 0.9, 1), (0.95, 0.95, 1)),
    ]
    assert report.bins[5] == Bin(0.6, 0.7, 2, pytest.approx(0.65), 0.5)  # type: ignore[arg-type]
    gaps = 2 * 1 + 0.8 + 0.3 + 0.4 + 0.5 + 2 * 0.15 + 0.2 + 0.85 + 0.1 + 0.05
    assert report.ece == pytest.approx(gaps / 12)


def test_rows_of_one_confidence_are_in_one_bin() -> None:
    rows = [outcome("faq", got, 0.5) for got in ("faq", "chat") * 30]

    assert evaluation.report(rows).bins == (Bin(0.5, 0.5, 60, 0.5, 0.5),)
    assert evaluation.report(rows).ece == 0


def thinking_rows() -> list[Outcome]:
    ordered = [True, True, False, True, True, False, True, False]
    return [
        outcome(
            "faq", "faq", think=think, thought=thought, wants_thought=thought in (0.9, 0.8, 0.4)
        )
        for think, thought in zip(ordered, (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2), strict=True)
    ]


def test_thinking_is_measured_as_decided_and_at_the_best_threshold() -> None:
    told = evaluation.report([*thinking_rows(), *DOZEN]).thinking

    assert told is not None
    assert (told.rows, told.worth) == (8, 5)
    assert (told.precision, told.recall, told.f1) == (2 / 3, 2 / 5, 4 / 8)
    assert told.best == OperatingPoint(0.5, 4 / 5, 4 / 5)


def test_rows_of_one_likelihood_are_on_one_side_of_any_threshold() -> None:
    rows = [outcome("faq", "faq", think=think) for think in (True, False, False, False)]
    told = evaluation.report(rows).thinking

    assert told is not None
    assert told.best == OperatingPoint(0.0, 1 / 4, 1.0)


def test_thinking_is_left_out_where_no_row_speaks_of_it() -> None:
    assert evaluation.report(DOZEN).thinking is None
    none_worth = evaluation.report([outcome("faq", "faq", think=False)]).thinking

    assert none_worth is not None
    assert (none_worth.best, none_worth.recall) == (None, 0.0)


def test_times_are_quantiles_and_typical_prompts_have_their_own() -> None:
    rows = [outcome("faq", "faq", us=float(n), first_us=10.0 * n, chars=n) for n in range(1, 201)]
    times = evaluation.report(rows).times

    assert (times.p50_us, times.p99_us, times.first_p50_us) == (100.0, 198.0, 1000.0)
    assert times.typical_p50_us == 150.0
    assert evaluation.report(rows[:99]).times.typical_p50_us is None


def test_the_most_confident_mistakes_come_first_and_no_more_than_asked_for() -> None:
    wrong = evaluation.report(DOZEN).mistakes

    assert [answer.id for answer in wrong] == ["12", "4", "10", "7"]
    assert (wrong[0].label, wrong[0].got, wrong[0].signals) == ("chat", "code", ("keyword a",))
    assert [answer.id for answer in evaluation.report(DOZEN, mistakes=1).mistakes] == ["12"]


def test_a_mistakes_text_is_its_beginning_on_one_line() -> None:
    (answer,) = evaluation.report([outcome("faq", "chat", text="a\n b\t" + "词" * 500)]).mistakes

    assert answer.text == "a b " + "词" * 155 + "…"
    assert len(answer.text) == 160


def test_an_alias_turns_one_answer_into_another() -> None:
    rows = [outcome("chat", "deep"), outcome("chat", "faq"), outcome("deep", "deep")]
    report = evaluation.report(rows, {"deep": "chat"})

    assert report.accuracy == 1 / 3
    assert report.confusion == {"chat": {"chat": 1, "deep": 0, "faq": 1}} | {
        "deep": {"chat": 1, "deep": 0, "faq": 0}
    }


def test_any_of_a_rows_labels_is_right_and_counts_as_the_first() -> None:
    report = evaluation.report([outcome(("faq", "chat"), "chat"), outcome(("faq", "chat"), "code")])

    assert report.accuracy == 1 / 2
    assert report.confusion == {"faq": {"faq": 1, "code": 1}}
    assert report.labels["faq"].precision == 1


def test_one_cell_is_listed_as_the_matrix_counts_it() -> None:
    listed = [answer.id for answer in evaluation.cell(DOZEN, "chat", "chat")]

    assert sorted(listed) == ["11", "8", "9"]
    assert evaluation.cell(DOZEN, "chat", "deep") == ()
    assert [a.id for a in evaluation.cell(DOZEN, "chat", "x", {"faq": "x"})] == ["10"]


# --- laws ------------------------------------------------------------------------------------

names = st.sampled_from(["faq", "code", "chat", "deep"])
shares = st.one_of(st.sampled_from([0.0, 0.5, 2 / 3, 1.0]), st.floats(0, 1))


@st.composite
def outcome_lists(draw: st.DrawFn) -> list[Outcome]:
    drawn = st.builds(
        outcome,
        st.one_of(names, st.tuples(names, names)),
        names,
        shares,
        stage=st.sampled_from(["default", "keyword", "learned"]),
        lang=st.sampled_from([None, "en", "zh"]),
        source=st.sampled_from([None, "a", "b"]),
        think=st.sampled_from([None, True, False]),
        thought=shares,
        wants_thought=st.booleans(),
        text=st.sampled_from(["a", "b"]),
        chars=st.integers(0, 400),
        us=st.floats(0, 1e3),
    )
    listed = draw(st.lists(drawn, min_size=1, max_size=40))
    return [
        msgspec.structs.replace(own, row=msgspec.structs.replace(own.row, id=str(number)))
        for number, own in enumerate(listed)
    ]


@given(outcome_lists(), st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_nothing(listed: list[Outcome], random: Any) -> None:
    shuffled = random.sample(listed, len(listed))

    assert evaluation.report(shuffled, mistakes=3) == evaluation.report(listed, mistakes=3)


@given(outcome_lists())
def test_all_tables_count_the_same_rows(listed: list[Outcome]) -> None:
    report = evaluation.report(listed, mistakes=99)

    right = sum(report.confusion[label][label] for label in report.labels)
    assert right / report.rows == report.accuracy
    assert len(report.mistakes) == report.rows - right
    for groups in (report.labels, report.languages, report.stages):
        assert sum(own.rows for own in groups.values()) == report.rows
    for label, own in report.labels.items():
        assert sum(report.confusion[label].values()) == own.rows
    assert sum(own.rows for own in report.bins) == report.rows
    low, high = report.accuracy_interval
    assert 0 <= low <= report.accuracy <= high <= 1


@given(outcome_lists())
def test_bins_are_at_most_ten_and_lie_side_by_side(listed: list[Outcome]) -> None:
    bins = evaluation.report(listed).bins

    assert len(bins) <= evaluation.BINS
    assert all(one.high < other.low for one, other in itertools.pairwise(bins))
    assert 0 <= evaluation.report(listed).ece <= 1


@given(st.lists(st.floats(0, 1), min_size=10, max_size=60, unique=True))
def test_without_ties_bins_differ_by_one_row_at_most(confidences: list[float]) -> None:
    bins = evaluation.report([outcome("faq", "faq", c) for c in confidences]).bins

    assert len(bins) == evaluation.BINS
    assert {own.rows for own in bins} <= {
        math.floor(len(confidences) / 10),
        math.ceil(len(confidences) / 10),
    }


@given(outcome_lists())
def test_no_threshold_with_enough_recall_is_more_precise(listed: list[Outcome]) -> None:
    told = evaluation.report(listed).thinking
    pairs = [(own.found.thought, own.row.think) for own in listed if own.row.think is not None]
    worth = sum(think is True for _, think in pairs)
    if told is None or not worth:
        assert told is None or told.best is None
        return
    precisions: list[float] = []
    for threshold in {thought for thought, _ in pairs}:
        given = [think for thought, think in pairs if thought >= threshold]
        if sum(think is True for think in given) >= evaluation.RECALL * worth:
            precisions.append(sum(think is True for think in given) / len(given))

    assert told.best is not None
    assert told.best.precision == max(precisions)
    assert told.best.recall >= evaluation.RECALL


# --- bounds ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gates", "line"),
    [
        (Gates(min_accuracy=0.7), "accuracy: wanted at least 0.7000, got 0.6667"),
        (Gates(min_macro_f1=0.7), "macro-F1: wanted at least 0.7000, got 0.6627"),
        (Gates(max_ece=0.1), "calibration error: wanted at most 0.1000, got 0.4583"),
        (
            Gates(min_think_precision=0.5),
            "precision of thinking at recall 0.80: wanted at least 0.5000, "
            "got no row to measure it by",
        ),
        (
            Gates(min_lang_accuracy=0.5),
            "accuracy of languages with 30 rows: wanted at least 0.5000, "
            "got no row to measure it by",
        ),
    ],
)
def test_a_missed_bound_is_named_with_what_was_wanted_and_got(gates: Gates, line: str) -> None:
    assert evaluation.missed(evaluation.report(DOZEN), gates) == [line]


def test_a_bound_that_is_just_reached_is_kept() -> None:
    report = evaluation.report([*thinking_rows(), *[outcome("faq", "faq")] * 22])
    gates = Gates(
        min_accuracy=report.accuracy,
        min_macro_f1=report.macro_f1,
        max_ece=report.ece,
        min_think_precision=0.8,
        min_lang_accuracy=1.0,
    )

    assert evaluation.missed(report, gates) == []
    assert evaluation.missed(report, Gates()) == []


def test_only_languages_with_enough_rows_are_held_to_a_bound() -> None:
    small = [outcome("faq", "chat", lang="ja")] * 29
    large = [outcome("faq", "faq" if n else "chat", lang="zh") for n in range(30)]
    report = evaluation.report([*small, *large])

    assert evaluation.missed(report, Gates(min_lang_accuracy=0.9)) == []
    assert evaluation.missed(report, Gates(min_lang_accuracy=0.99)) == [
        "accuracy of zh: wanted at least 0.9900, got 0.9667"
    ]


# --- rows ------------------------------------------------------------------------------------


def test_rows_are_read_with_what_they_say_and_the_rest_is_left_alone() -> None:
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "你"}]},
    ]
    text, turns = evaluation.rows_of(
        b"\xef\xbb\xbf"
        + written([{"text": "hi", "label": "chat", "id": 7, "native": {"any": [1]}}])
        + b" \r\n\n"
        + written(
            [
                {
                    "messages": messages,
                    "label": ["a", "b"],
                    "lang": "zh",
                    "think": True,
                    "source": "s",
                }
            ]
        ).rstrip()
    )

    assert (text.id, text.labels, text.line) == ("7", ("chat",), 1)
    assert list(text.messages) == [{"role": "user", "content": "hi"}]
    assert (turns.id, turns.labels, list(turns.messages)) == ("line 4", ("a", "b"), messages)
    assert (turns.lang, turns.think, turns.source) == ("zh", True, "s")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "malformed|truncated"),
        (b"[]", "Expected `object`"),
        (b'{"text": "a"}', "label"),
        (b'{"text": "a", "label": 5}', "label"),
        (b'{"text": "a", "label": ""}', "label is empty"),
        (b'{"text": "a", "label": []}', "label is empty"),
        (b'{"text": "a", "label": ["b", ""]}', "label is empty"),
        (b'{"text": 5, "label": "b"}', "text"),
        (b'{"label": "b"}', "either text or messages"),
        (b'{"text": "a", "messages": [], "label": "b"}', "either text or messages"),
        (b'{"messages": [], "label": "b"}', "must be the user's"),
        (b'{"messages": [{"role": "assistant"}], "label": "b"}', "must be the user's"),
        (b'{"messages": ["a"], "label": "b"}', "messages"),
        (b'{"text": "a", "label": "b", "think": "yes"}', "think"),
        (b'{"text": "\xff", "label": "b"}', "utf-8|Invalid"),
        (b'{"text": "\\ud800", "label": "b"}', "surrogate"),
        (b'{"text": "a", "label": "b", "x": ' + b"[" * 9999 + b"]" * 9999 + b"}", "recursion"),
    ],
)
def test_a_bad_row_is_told_with_its_line_and_the_reason(line: bytes, reason: str) -> None:
    good = written([{"text": "a", "label": "b"}])
    with pytest.raises(BadRows, match=rf"^line 3: .*({reason})") as caught:
        evaluation.rows_of(good + b"\n" + line + b"\n" + good)

    assert len(caught.value.faults) == 1


def test_all_bad_rows_are_told_at_once() -> None:
    with pytest.raises(BadRows) as caught:
        evaluation.rows_of(b"{\n{}\n")

    assert [fault[:7] for fault in caught.value.faults] == ["line 1:", "line 2:"]


@pytest.mark.parametrize("raw", [b"", b"\n \r\n", b"\xef\xbb\xbf"])
def test_a_file_without_rows_is_told(raw: bytes) -> None:
    with pytest.raises(BadRows, match="there are no rows"):
        evaluation.rows_of(raw)


# --- through the serving code ----------------------------------------------------------------


class Watch:
    """A clock on which each thing that is timed takes what is listed, in microseconds."""

    def __init__(self, *taken: float) -> None:
        self._steps = itertools.chain.from_iterable((0.0, us) for us in itertools.cycle(taken))
        self._now = 0.0

    def __call__(self) -> float:
        self._now += next(self._steps) / 1e6
        return self._now


@given(text=st.one_of(st.text(st.characters(codec="utf-8")), st.sampled_from(["refund", "why"])))
def test_what_is_measured_is_what_would_be_served(live: Live, text: str) -> None:
    rows = evaluation.rows_of(written([{"text": text, "label": "chat"}]))
    (own,) = evaluation.outcomes(rows, live, ticks=Watch(1))

    body = {"model": "auto", "messages": [{"role": "user", "content": text}]}
    served = decide_for(Endpoint.CHAT, json.dumps(body).encode(), {}, live)
    assert (own.found, own.text) == (served.found, text)


def test_of_a_conversation_the_last_turn_is_told_apart_and_the_turns_count(live: Live) -> None:
    def turns(*texts: str) -> dict[str, Any]:
        said = [{"role": role, "content": t} for t in texts for role in ("user", "assistant")]
        return {"messages": said[:-1], "label": "x"}

    rows = evaluation.rows_of(written([turns("python", "refund"), turns("python", "b", "c")]))

    found = [own.found.scenario for own in evaluation.outcomes(rows, live, ticks=Watch(1))]
    assert found == ["faq", "deep"]


def test_the_shortest_time_of_a_prompt_counts_and_all_take_turns(live: Live) -> None:
    rows = evaluation.rows_of(written([{"text": t, "label": "chat"} for t in ("a", "b")]))
    outcomes = evaluation.outcomes(rows, live, ticks=Watch(5, 9, 3, 12, 4, 11), repeat=3)

    assert [own.us for own in outcomes] == pytest.approx([3, 9])
    assert [own.first_us for own in outcomes] == pytest.approx([5, 9])


class Heard:
    """A classifier that notes which texts it is asked about."""

    def __init__(self, live: Live) -> None:
        self._inner = live.classifier
        self.texts: list[str] = []

    def scenario(
        self,
        request: ChatRequest,
        header_hint: str = "",
        recall: Recall | None = None,
        allowed: tuple[str, ...] | None = None,
    ) -> Classification:
        self.texts.append(request.text)
        return self._inner.scenario(request, header_hint, recall, allowed)


@pytest.mark.parametrize("content", ["refund", [{"type": "text", "text": "refund"}]])
def test_a_prompt_is_timed_with_a_text_that_nobody_remembers(live: Live, content: object) -> None:
    heard = Heard(live)
    rows = evaluation.rows_of(
        written([{"messages": [{"role": "user", "content": content}], "label": "faq"}])
    )
    evaluation.outcomes(
        rows,
        msgspec.structs.replace(live, classifier=heard),
        ticks=Watch(1),
        repeat=3,
    )

    assert len(set(heard.texts)) == 3
    assert heard.texts[0] == "refund"
    assert {text.strip() for text in heard.texts} == {"refund"}


@pytest.mark.parametrize(
    "message", [{"role": "user", "content": 5}, {"role": "user", "content": ["a"]}]
)
def test_a_row_that_serving_refuses_is_a_bad_row(live: Live, message: dict[str, Any]) -> None:
    good = {"text": "a", "label": "chat"}
    rows = evaluation.rows_of(written([good, {"messages": [message], "label": "chat"}, good]))

    with pytest.raises(BadRows, match=r"^line 2: messages\[0\]\.content") as caught:
        evaluation.outcomes(rows, live, ticks=Watch(1))
    assert len(caught.value.faults) == 1


def test_numbers_of_any_size_in_a_message_are_left_alone(live: Live) -> None:
    message = {"role": "user", "content": "refund", "more": 10**30}
    rows = evaluation.rows_of(written([{"messages": [message], "label": "faq"}]))

    (own,) = evaluation.outcomes(rows, live, ticks=Watch(1))
    assert own.found.scenario == "faq"
