"""What is learned from examples: keys of a text, sums of weights, and the fit itself.

Laws on a small policy that is learned from in the test's own process. The seams between the
parts of the fit are tested too: they are where its arithmetic can be done in another way.
"""

from __future__ import annotations

import random
import struct
from collections import defaultdict
from collections.abc import Sequence
from math import exp, sqrt
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from router import fit
from router.chat import Classification
from router.classify import Classifier, features, grams
from router.classify.han import SIMPLIFIED, TRADITIONAL
from router.classify.learned import Learned, familiarity, key_text
from router.classify.weights import FORMAT, Line, Weights, sigmoid
from tests.support import taught
from tests.support.taught import EXAMPLES, policy_of, said

READER = taught.classifier()
LEARNED = Learned(taught.taught())
#: of each scenario, none of them among the examples
PLAIN = [
    ("support", "退款怎么还没到账？"),
    ("support", "Where is my order, the tracking page shows nothing."),
    ("code", "写一个函数判断闰年。"),
    ("code", "Write a function that reads a csv file."),
    ("chat", "周末去哪里看电影比较好？"),
    ("chat", "Hello, do you like cats?"),
]
# No lone surrogates, which are no text; learned and folded alone they must not hurt either.
TEXTS = st.text(st.characters(codec="utf-8"), max_size=60)
ANYTHING = st.text(st.characters(exclude_categories=()), max_size=60)


def every_text() -> list[str]:
    return [text for kinds in EXAMPLES.values() for texts in kinds.values() for text in texts]


def likelihoods(*log_odds: float) -> list[float]:
    powers = [exp(value) for value in log_odds]
    return [power / sum(powers) for power in powers]


def as_bytes(**changes: Any) -> bytes:
    """The weights of the changed policy, as they are kept."""
    return msgspec.msgpack.encode(taught.weights_of(policy_of(**changes)))


# --- keys of a text -------------------------------------------------------------------


@given(ANYTHING, st.integers(0, 5000))
def test_the_keys_of_a_text_are_few_whatever_its_length(text: str, copies: int) -> None:
    words = grams.HEAD_CHARS + 1 + grams.TAIL_CHARS + len(("^", "$"))

    keys = grams.of(text * copies, len(text) * copies)

    # words, pairs, two beginnings, the second word, and seven of its shape
    assert 0 < len(keys) <= 4 * words + 8


@given(TEXTS, TEXTS)
def test_only_the_two_ends_of_a_text_give_words(one: str, other: str) -> None:
    start, end = "start " * 70, " end" * 20
    first, second = (
        {key for key in grams.of(f"{start}{middle}{end}", 1000) if not str(key).startswith("#")}
        for middle in (one, other)
    )

    assert first == second


@pytest.mark.parametrize(
    ("one", "other"), [("3 apples", "42 apples"), ("付 3.5 元", "付 12,000 元")]
)
def test_a_number_is_a_number(one: str, other: str) -> None:
    assert grams.of(one, 8) == grams.of(other, 8)


def test_the_forms_of_a_word_have_a_key_in_common() -> None:
    forms = [grams.of(word, 10) for word in ("translate", "translation", "translating")]

    assert {"tran", "transl"} <= set.intersection(*forms)


@given(ANYTHING)
def test_a_key_as_it_is_kept_is_no_other_key(text: str) -> None:
    keys = grams.of(text, len(text))

    assert len({key_text(key) for key in keys}) == len(keys)


# --- sums of weights ------------------------------------------------------------------

EXTREMES = (-32768, -32767, -1, 0, 1, 32767)


@settings(max_examples=60)
@given(
    text=st.text(st.sampled_from("的一是不了人我在有他这中大来上国ab1 ,?"), max_size=200),
    columns=st.integers(2, 9),
    known=st.floats(0, 1),
    dice=st.randoms(use_true_random=False),
)
def test_packed_sums_are_plain_ones(
    text: str, columns: int, known: float, dice: random.Random
) -> None:
    keys = sorted(grams.of(text, len(text)), key=key_text)
    rows = {key: row_of(columns + 2, dice) for key in keys if dice.random() <= known}
    weights = weights_with({key_text(key): row for key, row in rows.items()}, columns)

    reading = Learned(weights).read(text, len(text))

    scores = [
        constant + weights.unit / sqrt(len(keys)) * sum(row[column] for row in rows.values())
        for column, constant in enumerate(weights.constant)
    ]
    share = familiarity(len(rows))
    assert reading.log_odds == pytest.approx(
        [
            weights.slope * share * score + offset
            for score, offset in zip(scores, weights.offsets, strict=False)
        ]
    )
    assert reading.follows == pytest.approx(sigmoid(2.0 * scores[-2] + 0.5))
    assert reading.think_score == pytest.approx(scores[-1])


def row_of(columns: int, dice: random.Random) -> list[int]:
    if dice.random() < 0.3:
        return [dice.choice((-32768, 32767))] * columns
    return [dice.choice((*EXTREMES, dice.randint(-32768, 32767))) for _ in range(columns)]


@pytest.mark.parametrize("value", [-32768, 32767])
def test_hundreds_of_the_largest_weights_do_not_spill_into_the_next_column(value: int) -> None:
    text = "".join(map(chr, range(0x4E00, 0x4E00 + grams.HEAD_CHARS + grams.TAIL_CHARS)))
    keys = grams.of(text, len(text))
    rows = {key_text(key): [value, 0, -1 - value, 0, 1] for key in keys}
    weights = weights_with(rows, 3)

    reading = Learned(weights).read(text, len(text))

    scale = weights.unit * sqrt(len(keys))
    assert len(keys) > 200
    assert reading.log_odds[:3] == pytest.approx(
        [
            weights.slope * (constant + scale * step) + offset
            for constant, step, offset in zip(
                weights.constant, (value, 0, -1 - value), weights.offsets, strict=False
            )
        ]
    )
    assert reading.think_score == pytest.approx(weights.constant[-1] + scale)


def weights_with(rows: dict[str, list[int]], columns: int) -> Weights:
    """Weights of so many scenarios, and of nothing but these keys."""
    return Weights(
        format=FORMAT,
        scenarios=tuple(f"s{number}" for number in range(columns)),
        keys=tuple(rows),
        rows=b"".join(struct.pack(f"<{columns + 2}h", *row) for row in rows.values()),
        unit=1e-5,
        constant=tuple(0.1 * number for number in range(columns + 2)),
        slope=3.0,
        offsets=tuple(-0.2 * number for number in range(columns)),
        follows=Line(2.0, 0.5),
        thinks=None,
        think_from=0.5,
        abstain_below=0.0,
        measured={},
    )


@given(st.floats(allow_nan=False))
def test_a_likelihood_stays_one_however_large_the_score(x: float) -> None:
    assert 0 <= sigmoid(x) <= 1
    assert sigmoid(x) + sigmoid(-x) == pytest.approx(1)


# --- any text -------------------------------------------------------------------------


@given(ANYTHING)
def test_whatever_is_folded_can_be_read(text: str) -> None:
    reading = LEARNED.read(features.fold(text), len(text))

    assert len(reading.log_odds) == 3
    assert 0 <= reading.follows <= 1


@given(TEXTS, st.integers(1, 3))
def test_any_text_is_classified_with_a_likelihood(text: str, turns: int) -> None:
    found = said(READER, *[text] * turns)

    assert found.scenario in EXAMPLES
    assert 0 < found.confidence <= 1
    assert 0 <= found.thought <= 1
    assert found == said(taught.classifier(taught.taught()), *[text] * turns)


@pytest.mark.parametrize(
    "unit", ["a", "为", "1", ":", ": ", '"', "\n", "(", "？", "ß", "İ", "ﬃ", "𝒳"]
)
def test_a_very_long_text_is_classified(unit: str) -> None:
    text = (unit * 200_000)[:200_000]

    assert 0 < said(READER, text).confidence <= 1
    assert len(features.fold_sampled(text, 2000, 1000)) <= 3 * 3001


# --- one text in many spellings -------------------------------------------------------

_FORMS = defaultdict(list, {simple: [simple] for simple in SIMPLIFIED})
for _traditional, _simple in zip(TRADITIONAL, SIMPLIFIED, strict=True):
    _FORMS[_simple].append(_traditional)
SPELT = [
    *(text for _, text in PLAIN),
    "退款 refund，訂單號 12345 (c++)!",
    "Tell me: what is 「記憶體」 & why?",
    "继续",
    'Read "this": {"a": [1, 2]} = 5 ~ 6 @ 7% #8 ^9 \\ |10|;',
]
WORDS = {"support": {"match": {"keywords": ["refund", "退款"], "patterns": ["订单号?\\s*\\d+"]}}}
WORDED = taught.classifier(
    scenarios={"support": {}, "code": {"match": {"keywords": ["c++"]}}, "chat": {}, **WORDS}
)


def full_width(character: str) -> str:
    """As East Asian keyboards write it; other characters are themselves."""
    if character == " ":
        return "\u3000"
    return chr(ord(character) + 0xFEE0) if "!" <= character <= "~" else character


@st.composite
def spellings(draw: st.DrawFn) -> tuple[str, str]:
    """A prompt, and the same with any of its characters in another width, case or form."""
    prompt = draw(st.sampled_from(SPELT))
    choice = draw(st.lists(st.integers(0, 7), min_size=len(prompt), max_size=len(prompt)))
    varied = []
    for character, bits in zip(prompt, choice, strict=True):
        if bits & 1 and character.isascii():
            character = character.upper()
        if bits & 2:
            character = full_width(character)
        if bits & 4:
            character = _FORMS.get(character, [character])[-1]
        varied.append(character)
    return prompt, "".join(varied)


@given(spellings())
def test_width_case_and_traditional_forms_change_nothing(spelt: tuple[str, str]) -> None:
    prompt, varied = spelt

    assert said(WORDED, varied) == said(WORDED, prompt)


@pytest.mark.parametrize("prompt", SPELT)
def test_a_text_wholly_in_full_width_capitals_is_the_same(prompt: str) -> None:
    varied = "".join(map(full_width, prompt.upper()))

    assert varied != prompt or not prompt.isascii()
    assert said(WORDED, varied) == said(WORDED, prompt)


# --- the order of a file does not matter ----------------------------------------------


@settings(max_examples=20)
@given(st.randoms(use_true_random=False))
def test_examples_in_any_order_give_the_same_weights(dice: random.Random) -> None:
    kinds = [(name, kind) for name, known in EXAMPLES.items() for kind in known]
    dice.shuffle(kinds)
    shuffled: dict[str, dict[str, list[str]]] = {}
    for name, kind in kinds:
        texts = list(EXAMPLES[name][kind])
        shuffled.setdefault(name, {})[kind] = dice.sample(texts, len(texts))
    follow_ups = dice.sample(list(taught.FOLLOW_UPS), len(taught.FOLLOW_UPS))

    assert as_bytes(examples=shuffled, conversation={"follow_ups": follow_ups}) == as_bytes()


def test_scenarios_in_any_order_give_the_same_predictions() -> None:
    backwards = taught.classifier(scenarios={"chat": {}, "code": {}, "support": {}})

    for text in (*every_text(), *(text for _, text in PLAIN), *taught.FOLLOW_UPS):
        turned, straight = said(backwards, text), said(READER, text)
        assert turned.scenario == straight.scenario
        assert turned.confidence == pytest.approx(straight.confidence, rel=1e-4)
        assert turned.thought == pytest.approx(straight.thought, rel=1e-4)


def test_the_same_text_twice_is_one_example() -> None:
    support = list(EXAMPLES["support"]["direct"])
    twice = {**EXAMPLES, "support": {"direct": [*support, *support[:5]]}}

    assert as_bytes(examples=twice) == as_bytes()


def test_a_text_that_is_also_listed_without_a_word_on_thinking_is_one_example() -> None:
    listed = {"support": {"match": {"examples": list(EXAMPLES["support"]["direct"])}}}

    assert as_bytes(scenarios={**listed, "code": {}, "chat": {}}) == as_bytes()


def test_a_keyword_that_occurs_nowhere_changes_nothing() -> None:
    more = {"support": {"match": {"keywords": ["zither"], "patterns": ["zith.r"]}}}
    scenarios = {**more, "code": {}, "chat": {}}

    assert as_bytes(scenarios=scenarios) == as_bytes()
    reader = taught.classifier(scenarios=scenarios)
    for text in every_text():
        assert said(reader, text) == said(READER, text)


@given(text=st.sampled_from([text for _, text in PLAIN]), scenario=st.sampled_from([*EXAMPLES]))
def test_a_hint_goes_before_all_that_was_learned(text: str, scenario: str) -> None:
    header, alias = said(WORDED, text, hint=scenario), said(WORDED, text, model=f"auto:{scenario}")

    assert (header.scenario, header.source, header.confidence) == (scenario, "header", 1.0)
    assert (alias.scenario, alias.source, alias.confidence) == (scenario, "alias", 1.0)
    assert header.thought == alias.thought == said(WORDED, text).thought


# --- evidence from words joins what was learned ---------------------------------------


@pytest.mark.parametrize(("scenario", "text"), PLAIN)
def test_what_was_not_learned_by_heart_is_recognised(scenario: str, text: str) -> None:
    found = said(READER, text)

    assert text not in every_text()
    assert (found.scenario, found.source) == (scenario, "learned")


@given(
    text=st.sampled_from([text for _, text in PLAIN]),
    words=st.lists(st.sampled_from("qrs"), max_size=3, unique=True),
    worth=st.floats(0.1, 5),
)
def test_words_add_their_worth_to_what_was_learned(
    text: str, words: Sequence[str], worth: float
) -> None:
    reader = taught.classifier(
        taught.taught(),
        classify={"keyword": worth},
        scenarios={"support": {"match": {"keywords": ["q", "r", "s"]}}, "code": {}, "chat": {}},
    )
    text = " ".join([text, *words])

    found = said(reader, text)

    support, code, chat = LEARNED.read(features.fold(text), len(text)).log_odds
    likely = likelihoods(support + worth * len(words), code, chat)
    assume(max(likely) > 0.6)  # with less it may be no guess at all
    assert found.confidence == pytest.approx(max(likely))
    assert [*EXAMPLES][likely.index(max(likely))] == found.scenario


SHOUTING = taught.classifier(
    taught.taught(),
    classify={"keyword": 1.2},
    scenarios={
        "support": {"match": {"keywords": ["csv", "函数", "file", "reads", "write", "function"]}},
        "code": {},
        "chat": {},
    },
)


def test_one_stray_keyword_does_not_shout_down_what_is_plain() -> None:
    for text in ("Write a program that sorts a csv in Python.", "写一个函数判断闰年。"):
        found = said(SHOUTING, text)
        assert (found.scenario, found.source) == ("code", "learned")
        assert found.confidence < said(READER, text).confidence


def test_a_keyword_tips_what_is_open() -> None:
    text = "the csv"
    likely = likelihoods(*LEARNED.read(text, len(text)).log_odds)
    assert likely[0] < max(likely) < 0.6

    found = said(SHOUTING, text)

    assert (found.scenario, found.source) == ("support", "keyword")
    assert "keyword csv" in found.signals


def test_several_keywords_win() -> None:
    text = "the csv function reads a file"

    found = said(SHOUTING, text)

    assert said(READER, text).scenario == "code"
    assert (found.scenario, found.source) == ("support", "keyword")


LEGAL = {"legal": {"match": {"keywords": ["contract", "合同"]}}}


@pytest.mark.parametrize("text", [text for _, text in PLAIN])
@pytest.mark.parametrize("word", ["contract", "合同"])
def test_a_scenario_without_examples_wins_by_one_keyword(text: str, word: str) -> None:
    reader = taught.classifier(scenarios={"support": {}, "code": {}, "chat": {}, **LEGAL})

    assert said(reader, text).scenario != "legal"
    found = said(reader, f"{text} {word}")
    assert (found.scenario, found.source) == ("legal", "keyword")
    assert found.signals == (f"keyword {word}",)


def test_where_another_keyword_speaks_priority_decides() -> None:
    text = "Write a csv function about a contract."
    code = {"code": {"match": {"keywords": ["csv"]}}}
    equals = {"support": {}, **code, "chat": {}, **LEGAL}
    preferred = {**equals, "legal": {**LEGAL["legal"], "priority": 1}}

    assert said(taught.classifier(scenarios=equals), text).scenario == "code"
    assert said(taught.classifier(scenarios=preferred), text).scenario == "legal"


def test_a_gate_holds_for_what_was_learned_too() -> None:
    gate = {"match": {"require": {"chars": {"max": 12}}}}
    reader = taught.classifier(scenarios={"support": gate, "code": {}, "chat": {}})
    short, long = "退款怎么还没到账？", "退款怎么还没到账？我等了很久很久了。"

    assert said(reader, short) == said(READER, short)
    assert said(READER, long).scenario == "support"
    assert said(reader, long).scenario != "support"
    _, code, chat = LEARNED.read(features.fold(long), len(long)).log_odds
    assert said(reader, long).confidence == pytest.approx(max(likelihoods(code, chat)))


def test_nothing_learned_is_left_behind_shut_gates() -> None:
    shut = {"match": {"require": {"has": ["image"]}}}
    reader = taught.classifier(
        scenarios={"support": shut, "code": shut, "chat": shut, "other": {}},
        default_scenario="other",
    )

    assert said(reader, "退款怎么还没到账？").scenario == "other"


def test_what_is_not_likely_enough_is_no_guess() -> None:
    cautious = msgspec.structs.replace(taught.taught(), abstain_below=0.999)
    reader = taught.classifier(cautious, default_scenario="code")
    text = "Hello, do you like cats?"

    found = said(reader, text)

    assert (found.scenario, found.source) == ("code", "default")
    _, code, _ = likelihoods(*LEARNED.read(features.fold(text), len(text)).log_odds)
    assert found.confidence == pytest.approx(code)
    [signal] = found.signals
    assert "chat" in signal


def test_a_keyword_is_evidence_enough_not_to_abstain() -> None:
    cautious = msgspec.structs.replace(taught.taught(), abstain_below=1.0)
    reader = taught.classifier(cautious, scenarios={**WORDS, "code": {}, "chat": {}})

    assert said(reader, "退款怎么还没到账？").source != "default"
    assert said(reader, "快递怎么还没到？").source == "default"


# --- thinking -------------------------------------------------------------------------

THINK_WORDS = {"keywords": ["prove", "证明", "step by step"]}


def thinking(text: str, weights: Weights | None = None, **words: Any) -> Classification:
    return said(taught.classifier(weights, thinking={**THINK_WORDS, **words}), text)


@pytest.mark.parametrize(
    "text", ["写一个排序，并证明它。", "Add types to this class, step by step."]
)
def test_the_policys_words_raise_how_likely_thinking_pays(text: str) -> None:
    weights = taught.weights_of(policy_of(thinking=THINK_WORDS))
    assert weights.thinks is not None
    assert weights.thinks.words > 0

    assert thinking(text, weights).thought > said(taught.classifier(weights), text).thought


@pytest.mark.parametrize("weight", [0.0, 3.0, 50.0])
def test_the_policy_may_say_what_its_words_add(weight: float) -> None:
    text, free = (
        "Hello, prove that you like cats.",
        said(READER, "Hello, prove that you like cats."),
    )

    found = thinking(text, taught.weights_of(policy_of(thinking={**THINK_WORDS, "weight": weight})))

    told = taught.weights_of(policy_of(thinking={**THINK_WORDS, "weight": weight})).thinks
    assert told is not None
    assert told.words == weight
    score = LEARNED.read(features.fold(text), len(text)).think_score
    assert found.thought == pytest.approx(sigmoid(told.slope * score + told.offset + weight))
    assert 0 < free.thought < 1


@given(st.sampled_from(every_text()), st.floats(0, 1.1))
def test_thinking_is_wanted_from_the_threshold_on(text: str, threshold: float) -> None:
    reader = taught.classifier(msgspec.structs.replace(taught.taught(), think_from=threshold))

    found = said(reader, text)

    assert found.wants_thought is (found.thought >= threshold)
    assert found.thought == said(READER, text).thought


def test_thinking_is_learned_from_examples_of_either_kind() -> None:
    hard = said(READER, "证明这个图算法的复杂度，并推导最坏情况。")
    easy = said(READER, "怎么用 git 撤销提交？")

    assert hard.scenario == easy.scenario == "code"
    assert (hard.wants_thought, easy.wants_thought) == (True, False)


def test_without_examples_for_thinking_words_alone_decide() -> None:
    quick = {name: {"direct": list(known["direct"])} for name, known in EXAMPLES.items()}
    weights = taught.weights_of(policy_of(examples=quick, thinking=THINK_WORDS))
    reader = taught.classifier(weights, thinking=THINK_WORDS)

    assert weights.thinks is None
    for text in ("退款怎么还没到账？", "设计一个无锁队列。"):
        quiet, spoken = said(reader, text), said(reader, f"{text} step by step")
        assert (quiet.wants_thought, quiet.thought) == (False, 0.0)
        assert (spoken.wants_thought, spoken.thought) == (True, 1.0)


# --- the fit --------------------------------------------------------------------------


def test_fewer_than_two_scenarios_with_examples_teach_nothing() -> None:
    assert fit.fit(policy_of(examples={})) is None
    assert fit.fit(policy_of(examples={"code": EXAMPLES["code"]})) is None
    assert fit.fit(policy_of(conversation={})) is not None


def test_without_follow_ups_no_turn_is_one() -> None:
    weights = taught.weights_of(policy_of(conversation={}))

    assert weights.follows is None
    assert Learned(weights).read("go on", 5).follows == 0.0


def test_follow_ups_are_told_from_jobs() -> None:
    for text in taught.FOLLOW_UPS:
        assert LEARNED.read(text, len(text)).follows > 0.5
    for text in every_text():
        assert LEARNED.read(features.fold(text), len(text)).follows < 0.5


def test_examples_that_say_nothing_teach_to_abstain() -> None:
    texts = every_text()
    random.Random(3).shuffle(texts)  # labels at random: a guess is worth nothing
    names = [f"s{number}" for number in range(8)]
    parts = {name: {"direct": texts[at::8]} for at, name in enumerate(names)}
    policy = policy_of(
        scenarios={name: {} for name in names}, default_scenario="s0", examples=parts
    )

    reader = Classifier(policy, Learned(taught.weights_of(policy)))
    for text in ("Where is my parcel?", "写一个函数判断闰年。", "What shall we cook tonight?"):
        assert reader.scenario(taught.talk(text)).source == "default"
        assert taught.classifier().scenario(taught.talk(text)).source == "learned"


def test_the_fit_measures_itself_on_examples_left_out() -> None:
    measured = taught.taught().measured

    assert measured["examples"] == len(every_text())
    assert 0.7 < measured["accuracy"] < 1.0  # all of them would be right had it seen them
    assert all(said(READER, t).scenario == name for name, t in labelled())


def labelled() -> list[tuple[str, str]]:
    return [
        (name, text)
        for name, known in EXAMPLES.items()
        for texts in known.values()
        for text in texts
    ]


def test_a_scenario_with_more_examples_is_not_more_likely_for_that() -> None:
    few = {**EXAMPLES, "support": {"direct": list(EXAMPLES["support"]["direct"])[::3]}}
    weights = taught.weights_of(policy_of(examples=few))

    # Where nothing is known of a text, the scores of many examples are pulled up: the
    # offsets must take that back.
    assert weights.constant[0] < min(weights.constant[1:3])
    assert weights.offsets[0] > max(weights.offsets[1:])


def parts_of_the_fit() -> tuple[list[set[grams.Key]], fit.Floats]:
    """The keys of each example, and what each should score."""
    examples = fit.examples_of(policy_of())
    keys = [grams.of(features.fold(e.text), len(e.text)) for e in examples]
    return keys, fit._targets(examples, tuple(EXAMPLES))


NOBODY = np.array([], np.intp)


def test_an_example_left_out_scores_as_if_it_had_never_been_seen() -> None:
    keys, targets = parts_of_the_fit()
    everybody = np.arange(len(keys))

    _, left_out = fit._ridge(fit._Table(keys).likeness(), targets, everybody)

    for one in everybody[::5]:
        others = np.delete(everybody, one)
        table = fit._Table([keys[other] for other in others])
        duals, _ = fit._ridge(table.likeness(), targets[others], NOBODY)
        row_of_key = dict(zip(table.keys, table.weights(duals), strict=True))
        shared = [row_of_key[key] for key in keys[one] if key in row_of_key]
        constant = duals.sum(0) * fit._CONSTANT**2
        score = np.sum(shared, axis=0) / sqrt(len(keys[one])) + constant
        assert np.allclose(left_out[one], score, atol=2e-4)


def test_likeness_is_the_share_of_keys_in_common() -> None:
    keys, _ = parts_of_the_fit()

    likeness = fit._Table(keys).likeness()

    plain = [[len(a & b) / sqrt(len(a) * len(b)) for b in keys] for a in keys]
    assert np.allclose(likeness, np.array(plain) + fit._CONSTANT**2, atol=1e-5)
    assert fit._Table(keys).counts.max() > fit._OFTEN  # both ways of counting are in use


def test_what_serves_says_what_was_fitted() -> None:
    keys, targets = parts_of_the_fit()
    texts = [features.fold(example.text) for example in fit.examples_of(policy_of())]
    likeness = fit._Table(keys).likeness()
    duals, _ = fit._ridge(likeness.copy(), targets, NOBODY)
    weights = taught.taught()

    for text, scores in zip(texts, likeness @ duals, strict=True):
        reading = LEARNED.read(text, len(text))
        share = familiarity(len(grams.of(text, len(text))))
        expected = weights.slope * share * scores[:3] + np.array(weights.offsets)
        assert np.allclose(reading.log_odds, expected, atol=5e-3)
        assert reading.think_score == pytest.approx(scores[-1], abs=1e-3)


def test_a_text_in_no_known_words_is_judged_by_nothing() -> None:
    assert familiarity(len(grams.of("", 0))) == 0.0
    assert familiarity(100) == 1.0
    assert LEARNED.read("zzzz " * 50, 250).log_odds == LEARNED.weights.offsets


def positive_definite(size: int, seed: int) -> fit.Floats:
    draw = np.random.default_rng(seed)
    thin = draw.standard_normal((size, max(1, size // 2))).astype(np.float32)
    matrix = thin @ thin.T / np.float32(size) + np.eye(size, dtype=np.float32)
    return np.asarray(matrix, np.float32)


def check_solver(size: int, columns: int, seed: int) -> None:
    matrix = positive_definite(size, seed)
    draw = np.random.default_rng(seed + 1)
    asked = draw.standard_normal((size, columns)).astype(np.float32)

    found = fit._solved(fit._factored(matrix.copy()), asked)

    assert np.allclose(found, np.linalg.solve(matrix, asked), atol=1e-3)


@pytest.mark.parametrize(
    "size", [1, fit._BLOCK - 1, fit._BLOCK, fit._BLOCK + 1, 2 * fit._BLOCK + 7]
)
def test_the_solver_in_blocks_solves_as_numpys_does(size: int) -> None:
    check_solver(size, 3, seed=size)


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 9), st.integers(0, 1000))
def test_the_size_of_a_block_does_not_matter(
    size: int, columns: int, block: int, seed: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit, "_BLOCK", block)
        check_solver(size, columns, seed)


def test_only_the_heaviest_keys_are_kept() -> None:
    everything = taught.taught()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit, "_KEPT_KEYS", 100)
        few = taught.weights_of(policy_of())

    heaviest = [max(map(abs, row)) for row in struct.iter_unpack("<5h", few.rows)]
    rest = {
        key: max(map(abs, row))
        for key, row in zip(
            everything.keys, struct.iter_unpack("<5h", everything.rows), strict=True
        )
        if key not in few.keys
    }
    assert len(few.keys) == len(heaviest) == 100
    assert min(heaviest) >= max(rest.values())
    assert Classifier(policy_of(), Learned(few)).scenario(taught.talk("hi")).scenario in EXAMPLES
