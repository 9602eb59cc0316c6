"""Proposals cure what they say they cure, and say what they break."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from router import evaluation, fit, policy, suggestion, tomlfile
from router.classify import Classifier
from router.classify.learned import Learned
from router.evaluation import BadRows, Row
from router.policy import ExamplesFile, Policy, PolicyFile
from router.suggestion import CrossCheck, Effect, NewExamples, Suggestions
from router.verdict import Live
from tests.support.labelled import POLICY, written

#: right under POLICY as they stand, all of them chat
CHAT = [
    {"text": text, "label": "chat"}
    for text in (
        "good morning to you",
        "where shall we eat tonight",
        "tell me of the sea",
        "the weather is fine today",
        "my cat sleeps all day",
        "name a film for tonight",
        "周末去哪里玩比较好",
        "我今天有点难过",
        "你喜欢猫还是狗",
        "晚上吃什么好呢",
        "陪我聊聊天吧",
        "讲个笑话给我听",
    )
]
#: wrong under POLICY, for want of a word
INVOICES = [
    {"text": text, "label": "faq"}
    for text in (
        "the invoice has the wrong name",
        "send my invoice again",
        "is an invoice due to me",
        "no invoice came today",
        "怎么开发票",
        "发票抬头写错了",
        "我要发票",
        "這張發票不對",
    )
]
TOPICS: Mapping[str, Sequence[str]] = {
    "garden": ("rose", "lily", "fern", "moss", "oak", "tulip", "ivy", "birch", "daisy", "poppy"),
    "kitchen": ("soup", "bread", "cake", "stew", "rice", "pasta", "curry", "salad", "pie", "tea"),
}


def live_of(taken: Policy) -> Live:
    """What would serve under a policy, learned from here and now."""
    weights = fit.fit(taken)
    learned = None if weights is None else Learned(weights)
    served = policy.without_examples(taken)
    return Live(
        policy=served,
        classifier=Classifier(served, learned),
        pools={},
        aliases=frozenset(),
        real_model_bypass=False,
        allow_policy_off=False,
        has_keys=False,
        plans={},
    )


def rows_of(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    return evaluation.rows_of(written(rows))


def suggested(
    rows: Sequence[Mapping[str, Any]],
    text: str = POLICY,
    held_out: Sequence[Mapping[str, Any]] = (),
    **how: Any,
) -> Suggestions:
    taken = policy.parse(text)
    held_rows = rows_of(held_out) if held_out else []
    return suggestion.of(
        rows_of(rows), taken, live_of(taken), rebuild=live_of, held_out=held_rows, **how
    )


def right(rows: Sequence[Mapping[str, Any]], live: Live) -> dict[str, bool]:
    """Whether each prompt gets its label."""
    return {
        outcome.text: outcome.found.scenario in outcome.row.labels
        for outcome in evaluation.outcomes(rows_of(rows), live, ticks=lambda: 0.0, repeat=1)
    }


def changed(before: Mapping[str, bool], after: Mapping[str, bool]) -> Effect:
    """What differs, in a comparable order."""
    return Effect(
        tuple(sorted(text for text in before if after[text] and not before[text])),
        tuple(sorted(text for text in before if before[text] and not after[text])),
    )


def in_order(effect: Effect | None) -> Effect:
    assert effect is not None
    return Effect(tuple(sorted(effect.fixed)), tuple(sorted(effect.broken)))


@cache
def taught() -> str:
    """A policy that learns two topics, in prompts of one shape each."""
    return tomli_w.dumps(
        {
            "schema": 1,
            "default_scenario": "kitchen",
            "scenarios": {"garden": {}, "kitchen": {}},
            "examples": {
                "garden": {
                    "direct": [f"when do I water the {name}" for name in TOPICS["garden"]],
                    "thinking": [f"plan a bed of {name}" for name in TOPICS["garden"]],
                },
                "kitchen": {
                    "direct": [f"how hot should the {name} be" for name in TOPICS["kitchen"]],
                    "thinking": [f"plan a meal of {name}" for name in TOPICS["kitchen"]],
                },
            },
        }
    )


def pruning() -> list[dict[str, Any]]:
    """Prompts of the garden that the taught policy takes for the kitchen's."""
    return [
        {"text": f"how hot should {name} peat beds be", "label": "garden", "think": False}
        for name in TOPICS["kitchen"]
    ]


def baking() -> list[dict[str, Any]]:
    """Prompts of the kitchen that it gets right."""
    return [
        {"text": f"how hot should the {name} be now", "label": "kitchen", "think": False}
        for name in TOPICS["kitchen"]
    ]


# ------------------------------------------------------------------------------ keywords


def test_a_missing_keyword_is_found() -> None:
    found = suggested([*CHAT, *INVOICES])

    assert (found.rows, found.mistakes, found.confusions) == (20, 8, (("faq", "chat", 8),))
    assert {(word.label, word.text) for word in found.keywords} == {
        ("faq", "invoice"),
        ("faq", "发票"),
    }
    assert (found.total.before, found.total.after, found.total.broken) == (12, 20, 0)


def test_a_keyword_is_said_to_do_what_it_does() -> None:
    rows = [*CHAT, *INVOICES, {"text": "invoice, what a word", "label": "chat"}]
    held_out = [
        {"text": "where is the invoice", "label": "faq"},
        {"text": "invoice rhymes with in voice", "label": "chat"},
        {"text": "good evening", "label": "chat"},
    ]

    found = suggested(rows, held_out=held_out)

    assert len(found.keywords) == 2
    taken = policy.parse(POLICY)
    before, unseen = right(rows, live_of(taken)), right(held_out, live_of(taken))
    for word in found.keywords:
        taken = suggestion.with_keywords(taken, [(word.label, word.text)])
        after, then = right(rows, live_of(taken)), right(held_out, live_of(taken))
        assert in_order(word.effect) == changed(before, after)
        assert in_order(word.check) == changed(unseen, then)
        before, unseen = after, then
    assert found.total.after == sum(before.values())
    assert found.check is not None
    assert (found.check.before, found.check.after) == (2, sum(unseen.values()))
    assert sum(len(word.effect.broken) for word in found.keywords) == 1


def test_a_keyword_that_breaks_more_than_it_fixes_is_not_proposed() -> None:
    """It is rare among other texts, but one of them is asked for all day."""
    asked = {"label": "chat", "text": "invoice"}
    unharmed = suggested([*CHAT, *INVOICES, asked])
    assert [word.text for word in unharmed.keywords] == ["发票", "invoice"]

    harmed = suggested([*CHAT, *INVOICES, *([asked] * 5)])

    assert [word.text for word in harmed.keywords] == ["发票"]
    assert harmed.total.broken == 0


def test_a_word_within_a_proposed_one_would_count_twice_and_is_not_proposed() -> None:
    """Two keywords would outdo the one that speaks for another scenario here."""
    texts = ("我的验证码", "收不到验证码", "验证码错了", "请验证", "没有验证")
    rivals = ("验证码和退款", "退款要验证码吗", "用验证码退款")
    rows = [{"text": text, "label": "code"} for text in (*texts, *rivals)]

    assert [word.text for word in suggested([*CHAT, *rows]).keywords] == ["验证"]


def test_what_other_labels_say_as_often_is_not_proposed() -> None:
    """The examples of the policy count as texts of theirs."""
    text = POLICY + '\n[examples.code]\ndirect = ["draw an invoice", "parse the invoice"]\n'

    assert suggested([*CHAT, *INVOICES[:4]], text).keywords == ()


def test_words_of_every_kind_of_text_are_not_proposed() -> None:
    """All the mistakes begin alike, and so do the rows that are right."""
    rows = [{"text": f"please {row['text']}", "label": row["label"]} for row in [*CHAT, *INVOICES]]

    words = [word.text for word in suggested(rows).keywords]

    assert "invoice" in words
    assert not any("please" in word for word in words)


def test_nothing_is_proposed_where_there_is_nothing_to_compare_with() -> None:
    assert suggested(INVOICES).keywords == ()


def test_a_keyword_that_is_there_is_not_proposed_again() -> None:
    """Of a word that is there but does not win, only another word could tip the scales."""
    text = POLICY.replace('"python"', '"python", "invoice"')

    words = [word.text for word in suggested([*CHAT, *INVOICES[:4]], text).keywords]

    assert "invoice" not in words


def test_a_piece_of_a_word_is_not_proposed_for_the_word() -> None:
    rows = [
        {"text": text, "label": "faq"}
        for text in ("登录验证码收不到", "我的验证码错了", "重发验证码", "验证码在哪")
    ]

    words = [word.text for word in suggested([*CHAT, *rows]).keywords]

    assert words == ["验证码"]


def test_a_pair_of_words_is_found_where_neither_alone_says_it() -> None:
    rows = [
        *({"text": f"a ring {end}", "label": "chat"} for end in ("shines", "fell", "is gold")),
        *({"text": f"bearer {end}", "label": "chat"} for end in ("of news", "bonds", "or guest")),
        *({"text": f"ring bearer {end}", "label": "faq"} for end in ("who", "when", "where")),
    ]

    assert [word.text for word in suggested([*CHAT, *rows]).keywords] == ["ring bearer"]


def test_keywords_compare_as_the_classifier_compares() -> None:
    """Full width, case and traditional characters are one."""
    rows = [
        {"text": text, "label": "faq"}
        for text in ("ＩＮＶＯＩＣＥ please", "Invoice missing", "my invoice", "one INVOICE more")
    ]

    assert [word.text for word in suggested([*CHAT, *rows]).keywords] == ["invoice"]


def test_a_label_without_a_scenario_is_told() -> None:
    rows = [*CHAT, *({**row, "label": "billing"} for row in INVOICES)]

    found = suggested(rows)

    assert (found.mistakes, found.unknown, found.keywords) == (8, 8, ())


def test_limits_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suggestion, "CANDIDATES", 1)

    found = suggested([*CHAT, *INVOICES])

    assert len(found.keywords) == 1
    assert any("1 were tried" in note for note in found.notes)


def test_keywords_that_would_help_beyond_the_limit_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(suggestion, "KEYWORDS", 1)

    found = suggested([*CHAT, *INVOICES])

    assert len(found.keywords) == 1
    assert found.notes == ("more than 1 keywords would help; add these and ask again",)


# ------------------------------------------------------------------------------ examples


def test_mistakes_become_examples_and_the_effect_is_that_of_learning_them() -> None:
    rows = [*pruning(), *baking()]

    found = suggested(rows, taught())

    assert found.mistakes == 10
    taken = suggestion.with_keywords(
        policy.parse(taught()), [(word.label, word.text) for word in found.keywords]
    )
    after = right(rows, live_of(suggestion.with_examples(taken, found.examples)))
    assert found.keywords or found.examples
    assert found.total.after == sum(after.values()) > found.total.before


def test_without_a_keyword_in_common_only_examples_are_left() -> None:
    rows: list[dict[str, Any]] = [
        {"text": "how hot should it be under glass", "label": "garden", "think": True},
        {"text": "should seedlings be hot", "label": "garden"},
        *baking(),
    ]
    before = right(rows, live_of(policy.parse(taught())))
    assert list(before.values())[:2] == [False, False]

    found = suggested(rows, taught())

    [new] = found.examples
    assert (new.label, new.direct, new.thinking, new.unsaid) == (
        "garden",
        ("should seedlings be hot",),
        ("how hot should it be under glass",),
        1,
    )
    taken = suggestion.with_examples(policy.parse(taught()), [new])
    assert in_order(new.effect) == changed(before, right(rows, live_of(taken)))


def test_no_more_examples_than_wanted_are_taken() -> None:
    rows = [
        {"text": "how hot should it be under glass", "label": "garden"},
        {"text": "should seedlings be hot", "label": "garden"},
        *baking(),
    ]

    found = suggested(rows, taught(), examples=1)

    assert [len(new.texts) for new in found.examples] == [1]
    assert found.notes == ("2 prompts of garden would do as examples, 1 were taken",)
    assert suggested(rows, taught(), examples=0).examples == ()


@pytest.mark.parametrize(
    "unclear",
    [
        {"label": ["garden", "chores"]},
        {"label": "chores"},
        {"text": "should seedlings be hot " + "and dry " * 40},
        {
            "text": None,
            "messages": [
                {"role": "user", "content": "hello"},
                {"role": "user", "content": "should seedlings be hot"},
            ],
        },
    ],
)
def test_a_prompt_that_does_not_speak_for_itself_is_no_example(unclear: dict[str, Any]) -> None:
    row = {"text": "should seedlings be hot", "label": "garden", **unclear}
    row = {name: value for name, value in row.items() if value is not None}

    found = suggested([row, *baking()], taught())

    assert (found.mistakes, found.examples) == (1, ())


def test_a_prompt_with_two_labels_in_two_rows_is_no_example() -> None:
    twice = [{"text": "should seedlings be hot", "label": label} for label in TOPICS]

    assert suggested([*twice, *baking()], taught()).examples == ()


def test_a_prompt_that_is_and_is_not_worth_a_thought_is_no_example() -> None:
    row = {"text": "should seedlings be hot", "label": "garden"}

    found = suggested([{**row, "think": True}, {**row, "think": False}, *baking()], taught())

    assert (found.mistakes, found.examples) == (2, ())


def test_examples_that_break_more_than_they_fix_are_not_proposed() -> None:
    """One strange prompt would turn many that are nearly the same."""
    odd = {"text": "how hot should the stew be now", "label": "garden"}
    same = [
        {"text": f"how hot should the stew be now{'!' * n}", "label": "kitchen"} for n in (1, 2)
    ]
    taken = policy.parse(taught())
    new = NewExamples(label="garden", direct=(odd["text"],), thinking=(), unsaid=1)
    after = right([odd, *same], live_of(suggestion.with_examples(taken, [new])))
    assert list(after.values()) == [True, False, False]

    found = suggested([odd, *same], taught())

    assert found.examples == ()
    assert found.total.before == found.total.after


def test_a_policy_that_does_not_learn_is_not_made_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suggestion, "KEYWORDS", 0)
    seeds = [{"text": f"sow the {name} seeds", "label": "code"} for name in TOPICS["garden"]]

    found = suggested([*INVOICES, *seeds])

    assert (found.mistakes, found.examples) == (18, ())


# ------------------------------------------------------------------------------ honesty


def test_the_cross_check_counts_what_carries_over_to_other_prompts() -> None:
    more = [{"text": f"{n}, invoice", "label": "faq"} for n in ("so", "oh", "well", "now")]
    alone = [{"text": "who may return a hat", "label": "faq"}]

    found = suggested([*CHAT, *INVOICES[:4], *more, *alone])

    # Each half learns "invoice" from four prompts and cures the four of the other.
    assert [word.text for word in found.keywords] == ["invoice"]
    assert found.cross_check == CrossCheck(mistakes=9, fixed=8, right=12, broken=0)


def test_the_cross_check_does_not_count_what_was_learned_by_heart() -> None:
    rows = [
        {"text": "how hot should it be under glass", "label": "garden"},
        {"text": "is a pie rich", "label": "garden"},
        *baking(),
    ]

    found = suggested(rows, taught())

    assert found.total.fixed == 2
    assert found.cross_check is not None
    assert found.cross_check.fixed < 2


def test_one_mistake_cannot_be_cross_checked() -> None:
    rows = [{"text": "should seedlings be hot", "label": "garden"}, *baking()]

    found = suggested(rows, taught())

    assert len(found.examples) == 1
    assert found.cross_check is None


def test_held_out_rows_that_were_learned_from_are_left_out() -> None:
    held_out = [INVOICES[0], {"text": " Send my INVOICE  again", "label": "faq"}, INVOICES[5]]

    found = suggested([*CHAT, *INVOICES[:5]], held_out=held_out)

    assert found.shared == 2
    assert found.check is not None
    assert found.check.rows == 1


def test_the_order_of_rows_changes_nothing() -> None:
    rows = [*pruning(), *baking(), {"text": "should seedlings be hot", "label": "garden"}]
    words = [*CHAT, *INVOICES]
    found, by_words = suggested(rows, taught()), suggested(words)

    for seed in range(3):
        random.Random(seed).shuffle(rows)
        random.Random(seed).shuffle(words)
        assert suggested(rows, taught()) == found
        assert suggested(words) == by_words


def test_nothing_is_proposed_where_all_is_right() -> None:
    found = suggested(CHAT)

    assert (found.mistakes, found.keywords, found.examples, found.cross_check) == (0, (), (), None)


def test_the_policy_that_was_given_stays_as_it_is() -> None:
    taken = policy.parse(taught())
    live = live_of(taken)
    before = msgspec.structs.astuple(taken)

    suggestion.of(rows_of([*pruning(), *baking()]), taken, live, rebuild=live_of)

    assert msgspec.structs.astuple(taken) == before
    assert right(baking(), live) == dict.fromkeys((row["text"] for row in baking()), True)


def test_rows_that_serving_refuses_are_told() -> None:
    rows = [{"messages": [{"role": "user", "content": 7}], "label": "faq"}]

    with pytest.raises(BadRows):
        suggested(rows)


# ------------------------------------------------------------------------------ as TOML


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=3),
    st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=3),
)
def test_what_is_written_is_read_as_it_was(direct: list[str], thinking: list[str]) -> None:
    new = NewExamples(label="faq", direct=tuple(direct), thinking=tuple(thinking), unsaid=0)

    text = suggestion.examples_toml([new])

    read = tomlfile.model(ExamplesFile, tomlfile.table(text, "new"), text, "new")
    assert read.examples["faq"].model_dump() == {"direct": new.direct, "thinking": new.thinking}
    assert all(letter.isprintable() for letter in text.replace("\n", ""))


def test_changed_policies_are_as_if_they_had_been_written_so() -> None:
    new = NewExamples(label="chat", direct=("a",), thinking=("b",), unsaid=0)
    taken = policy.parse(POLICY + '[examples.chat]\ndirect = ["c"]\n')

    changed_file = suggestion.with_examples(
        suggestion.with_keywords(taken, [("faq", "invoice"), ("chat", "hello")]), [new]
    ).file

    table = taken.file.model_dump()
    table["schema"] = table.pop("schema_")
    table["scenarios"]["faq"]["match"]["keywords"] += ("invoice",)
    table["scenarios"]["chat"]["match"]["keywords"] += ("hello",)
    table["examples"]["chat"] = {"direct": ["c", "a"], "thinking": ["b"]}
    assert changed_file == PolicyFile.model_validate(table)
