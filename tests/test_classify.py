"""Which scenario a request belongs to: laws of the evidence, on small policies.

What is learned from examples has tests of its own; here nothing is learned.
"""

from __future__ import annotations

from math import exp
from typing import Any

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from router.chat import Classification, sampled
from router.classify import Classifier, features
from router.classify.words import Words
from router.errors import InvalidValue, ModelNotFound
from router.policy import parse
from tests.support.journey import asked

POLICY = """
schema = 1
default_scenario = "chat"
[classify]
keyword = 1.2
pattern = 1.2
structure = 1.0
[thinking]
keywords = ["step by step", "证明"]
[scenarios.faq]
priority = 5
match.keywords = ["refund", "退款", "order*"]
match.patterns = ['订单号?\\s*\\d+']
[scenarios.code]
match.keywords = ["python", "c++", "refund policy code"]
match.has = ["code"]
[scenarios.long]
match.chars = { min = 5000 }
match.structure_weight = 3.0
[scenarios.gated]
match.keywords = ["python"]
match.require.turns = { min = 3 }
[scenarios.chat]
"""
CLASSIFIER = Classifier(parse(POLICY))


def told(text: str, *, hint: str = "", model: str = "auto", **body: Any) -> Classification:
    messages = [{"role": "user", "content": text}]
    return CLASSIFIER.scenario(asked({"model": model, "messages": messages, **body}), hint)


@pytest.mark.parametrize(
    ("text", "scenario"),
    [
        ("I want a refund", "faq"),
        ("REFUND please", "faq"),
        ("ＲＥＦＵＮＤ please", "faq"),
        ("refunded", "chat"),
        ("prerefund", "chat"),
        ("请问怎么退款呢", "faq"),
        ("a退款b", "faq"),
        ("ordering now", "faq"),
        ("disorder", "chat"),
        ("我的订单号 12345", "faq"),
        ("订单 a", "chat"),
        ("learn python3", "chat"),
        ("用python写", "code"),
        ("I like c++.", "code"),
        ("```x```", "code"),
        ("hello", "chat"),
        ("", "chat"),
        ("x" * 5000, "long"),
    ],
)
def test_words_patterns_and_shapes_tell(text: str, scenario: str) -> None:
    assert told(text).scenario == scenario


def test_nothing_spoken_is_the_default_with_no_confidence() -> None:
    found = told("hello")

    assert (found.scenario, found.source, found.confidence) == ("chat", "default", 0.0)


def likelihood(*log_odds: float) -> float:
    """Of the first among these."""
    return exp(log_odds[0]) / sum(map(exp, log_odds))


def test_a_keyword_is_worth_log_odds_over_the_default() -> None:
    assert told("refund").confidence == pytest.approx(likelihood(1.2, 0))


def test_a_word_counts_once_however_often_it_stands_there() -> None:
    assert told("refund refund refund").confidence == told("refund").confidence


def test_a_rival_lowers_the_confidence_and_more_evidence_raises_it() -> None:
    assert told("refund python").confidence == pytest.approx(likelihood(1.2, 1.2, 0))
    assert told("refund 退款").confidence == pytest.approx(likelihood(2.4, 0))
    assert told("refund 退款 订单号 1").confidence == pytest.approx(likelihood(3.6, 0))


def test_the_policy_says_what_evidence_is_worth() -> None:
    worth = POLICY.replace("keyword = 1.2", "keyword = 0.5").replace(
        "pattern = 1.2", "pattern = 2.0"
    )
    reader = Classifier(parse(worth.replace("structure = 1.0", "structure = 0.25")))

    def confidence(text: str) -> float:
        return reader.scenario(
            asked({"model": "auto", "messages": [{"role": "user", "content": text}]})
        ).confidence

    assert confidence("refund") == pytest.approx(likelihood(0.5, 0))
    assert confidence("订单号 1") == pytest.approx(likelihood(2.0, 0))
    assert confidence("```x```") == pytest.approx(likelihood(0.25, 0))
    assert confidence("x" * 5000) == pytest.approx(likelihood(3.0, 0))


@given(st.lists(st.integers(0, 4), min_size=3, max_size=3))
def test_confidence_is_the_winners_share_of_all_likelihood(counts: list[int]) -> None:
    head = 'schema = 1\ndefault_scenario = "z"\nclassify.keyword = 1.2\n'
    words = {name: [f"{name}{letter}" for letter in "pqrs"] for name in ("a", "b", "c")}
    tables = "".join(f"[scenarios.{n}]\nmatch.keywords = {w}\n" for n, w in words.items())
    reader = Classifier(parse(f"{head}{tables}[scenarios.z]\n"))
    spoken = [
        word for name, count in zip(words, counts, strict=True) for word in words[name][:count]
    ]

    found = reader.scenario(
        asked({"model": "auto", "messages": [{"role": "user", "content": " ".join(spoken)}]})
    )

    # A scenario that nothing speaks for is out of question, but for the default.
    evidence = sorted([1.2 * count for count in counts if count], reverse=True)
    assert found.confidence == pytest.approx(likelihood(*evidence, 0) if evidence else 0)


def test_priority_breaks_ties_only() -> None:
    assert told("refund python").scenario == "faq"
    assert told("refund python ```x```").scenario == "code"


def test_a_gate_keeps_evidence_out() -> None:
    assert told("python").scenario == "code"
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}] * 2
    request = asked({"messages": [*turns, {"role": "user", "content": "python"}]})

    assert CLASSIFIER.scenario(request).scenario == "code"  # the earlier of two equals
    assert CLASSIFIER.scenario(request).confidence == pytest.approx(likelihood(1.2, 1.2, 0))


def test_a_header_goes_before_a_model_name_and_both_before_words() -> None:
    both = told("python", hint="faq", model="auto:long")
    assert (both.scenario, both.source, both.confidence) == ("faq", "header", 1.0)
    alias = told("python", model="auto:long")
    assert (alias.scenario, alias.source) == ("long", "alias")


@given(
    text=st.lists(st.sampled_from(["refund", "退款", "python", "c++", "```x```", "订单号 1"])).map(
        " ".join
    ),
    scenario=st.sampled_from(list(CLASSIFIER.policy.scenarios)),
)
def test_no_evidence_outweighs_a_hint(text: str, scenario: str) -> None:
    header, alias = told(text, hint=scenario), told(text, model=f"auto:{scenario}")

    assert (header.scenario, header.source, header.confidence) == (scenario, "header", 1.0)
    assert (alias.scenario, alias.source, alias.confidence) == (scenario, "alias", 1.0)


@given(st.lists(st.sampled_from(["refund", "python", "hello", "订单号 1", "证明"])).map(" ".join))
def test_a_rule_that_does_not_apply_changes_nothing(text: str) -> None:
    more = POLICY + 'match.keywords = ["zither"]\nmatch.patterns = ["zith.r"]\n'

    request = asked({"model": "auto", "messages": [{"role": "user", "content": text}]})

    assert Classifier(parse(more)).scenario(request) == CLASSIFIER.scenario(request)


def test_a_hint_that_names_nothing_is_refused_with_what_exists() -> None:
    with pytest.raises(InvalidValue, match="faq"):
        told("hi", hint="faqs")
    with pytest.raises(ModelNotFound, match="auto:faq") as caught:
        told("hi", model="auto:faqs")
    assert caught.value.code == "model_not_found"


def test_words_that_call_for_thought_are_told_whatever_the_scenario() -> None:
    assert told("refund step by step").wants_thought
    assert told("请证明").wants_thought
    assert not told("refund").wants_thought
    assert told("step by step", hint="faq").wants_thought
    assert (told("请证明").thought, told("refund").thought) == (1.0, 0.0)


def test_only_the_users_words_vote() -> None:
    request = asked(
        {
            "messages": [
                {"role": "system", "content": "answer with python"},
                {"role": "user", "content": "python"},
                {"role": "assistant", "content": "refund"},
                {"role": "user", "content": "thanks"},
                {"role": "tool", "content": "退款"},
            ]
        }
    )

    assert CLASSIFIER.scenario(request).source == "default"


PATTERNS = [
    r"^\s*\d{4}\s*$",
    "订单号?",
    "HELLO",
    "h.llo|你好",
    r"\bStraße\b",
    "a{2,}",
    r"[.!?]$",
    "É",
]


@given(
    st.text(max_size=20)
    | st.lists(st.sampled_from(["2024", "订单", "hello", "你好", "straße", "aa", "é", "."])).map(
        " ".join
    )
)
def test_patterns_are_found_as_one_by_one_whatever_is_done_to_be_fast(text: str) -> None:
    tables = "".join(
        f"[scenarios.s{n}]\nmatch.patterns = ['{p}']\n" for n, p in enumerate(PATTERNS)
    )
    words = Words(parse(f'schema = 1\ndefault_scenario = "s0"\n{tables}'))
    folded = features.fold(text.encode("utf-8", "ignore").decode())

    found = {scenario for scenario, *_ in words.found(folded).evidence}

    options = re2.Options()
    options.case_sensitive = False
    assert found == {
        f"s{number}"
        for number, pattern in enumerate(PATTERNS)
        if re2.compile(pattern, options).search(folded)
    }


def test_a_policy_without_words_classifies() -> None:
    bare = Classifier(parse('schema = 1\ndefault_scenario = "a"\n[scenarios.a]\n'))

    assert bare.scenario(asked({})).scenario == "a"


@given(st.text(max_size=60), st.integers(0, 3))
def test_any_text_is_classified_and_the_same_twice(text: str, more: int) -> None:
    text = text.encode("utf-8", "ignore").decode() + " refund" * more

    first, second = told(text), told(text)

    assert first == second
    assert 0.0 <= first.confidence < 1.0
    assert (first.confidence == 0.0) is (first.source == "default")
    assert first.scenario in CLASSIFIER.policy.scenarios


@pytest.mark.parametrize(
    ("text", "lang"),
    [
        ("hello", "en"),
        ("你好世界", "zh"),
        ("用 Python 写一个函数", "zh"),
        ("please explain 你 to me", "en"),
        ("こんにちは世界", "ja"),
        ("안녕하세요", "ko"),
        ("12345 !?", "other"),
        ("", "other"),
        ("Привет", "other"),
    ],
)
def test_the_main_script_is_told(text: str, lang: str) -> None:
    assert features.language(features.fold(text)) == lang


@given(st.text(max_size=40), st.integers(0, 10), st.integers(0, 10))
def test_a_sample_is_the_text_or_its_two_ends(text: str, head: int, tail: int) -> None:
    sample = sampled(text, head, tail)

    assert sample == text if len(text) <= head + tail else len(sample) == head + tail + 1
    assert sample.startswith(text[:head])
    assert sample.endswith(text[len(text) - min(tail, len(text)) :])


@given(st.text(max_size=40), st.integers(0, 200_000))
def test_what_is_read_of_a_text_is_bounded(text: str, copies: int) -> None:
    text = (text * copies)[:200_000]

    seen = features.of(asked({"messages": [{"role": "user", "content": text}]}), 2000, 1000)

    assert seen.chars == len(text)
    assert len(seen.text) <= 3 * (2000 + 1 + 1000)  # folding makes three characters of one at most
