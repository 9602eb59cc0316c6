"""Sound policies get no finding, and each rule that does nothing or harm gets its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from router import app, config, policy, policycheck
from router.classify.features import fold
from router.classify.words import Words
from router.config import Backend
from router.offline import Unconnected
from router.policycheck import Finding
from router.policycheck.matches import NEUTRAL, read_as
from router.policycheck.needs import every_way_needs
from router.tomlfile import FileFault
from router.verdict import Live
from tests.support.product import ROOT, write_toml

HEAD = 'schema = 1\ndefault_scenario = "chat"\n'
CHAT = '[scenarios.chat]\ntitle = "Chat"\n'


def backend(dialect: str, name: str = "one", pool: str = "default") -> Backend:
    return Backend.model_validate(
        {"name": name, "url": "http://127.0.0.1:9", "dialect": dialect, "pool": pool}
    )


def found_in(text: str, backends: Sequence[Backend] = (backend("vllm"),)) -> list[Finding]:
    return policycheck.findings(policy.parse(HEAD + text + CHAT), backends)


def lines_of(text: str, words: str) -> list[int]:
    """The lines of a whole policy in which these words stand."""
    lines = (HEAD + text + CHAT).splitlines()
    return [number for number, line in enumerate(lines, start=1) if words in line]


def told(text: str, backends: Sequence[Backend] = (backend("vllm"),)) -> list[tuple[str, str]]:
    return [(each.severity, each.mistake.path) for each in found_in(text, backends)]


def scenario(match: str = "", *, name: str = "faq", more: str = "") -> str:
    return f"[scenarios.{name}.match]\n{match}\n{more}\n"


SHAPE = 'has = ["image"]'


# --- what nobody needs to hear of ------------------------------------------------------------


def test_the_shipped_policy_has_no_fault() -> None:
    shipped = policy.load(ROOT / "policies" / "default.toml")

    faults = [
        finding
        for finding in policycheck.findings(shipped, [backend("vllm")])
        if finding.severity == "fault"
    ]

    assert faults == []


@pytest.mark.parametrize(
    "text",
    [
        scenario('keywords = ["refund", "退款", "order*", "c++", "=>", "💰", "e-mail"]'),
        scenario("patterns = ['\\border ?\\d+', '订单号?\\d+', '^thanks?$', '(?i)RMA-\\d+']"),
        scenario("patterns = ['\\p{Lu}rder', '[A-Z]{3}-\\d', 'É', '訂單\\d']"),
        scenario("patterns = ['(?-i:rma)(?P<Number>\\S\\pP\\d)']"),
        scenario('keywords = ["refund"]') + scenario('keywords = ["refunds"]', name="other"),
        # a word that a gate keeps out of one of the two takes nobody's vote
        scenario('keywords = ["refund"]\nrequire.turns = { max = 2 }')
        + scenario('keywords = ["refund"]\nrequire.turns = { min = 3 }', name="later"),
        '[thinking]\nkeywords = ["why"]\n' + scenario('keywords = ["why"]'),
        scenario("turns = { min = 3 }\nrequire.turns = { min = 3 }"),
        scenario("chars = { min = 5 }\nrequire.turns = { max = 1 }"),
        scenario('lang = "zh"\nrequire.lang = ["zh", "ja"]'),
        scenario('examples = ["Where is my parcel?", "我的包裹呢？"]'),
        '[examples.faq]\ndirect = ["Where is it?"]\n[scenarios.faq]\n',
        # what differs in digits alone may be two examples of one scenario
        scenario('examples = ["Solve 3x = 6.", "Solve 4x = 8!"]'),
        scenario(SHAPE, more='[scenarios.faq.preset]\nthinking = "auto"\n')
        + '[thinking]\npatterns = ["\\\\bwhy\\\\b"]\n',
        scenario(SHAPE, more='[scenarios.faq.preset]\nthinking = "auto"\n')
        + '[examples.faq]\nthinking = ["Why is it late?"]\n',
        scenario(SHAPE, more="[scenarios.faq.preset]\ntemperature = 0\nthinking = false\n"),
        scenario(SHAPE, more="[scenarios.faq.preset]\nmax_new_tokens = { cap = 64 }\n"),
        scenario(
            SHAPE,
            more="[scenarios.faq.preset]\nthinking = true\nmax_new_tokens = { cap = 64 }\n"
            "thinking_budget = { fill = 500 }\n",
        ),
        scenario(SHAPE, more="[scenarios.faq.guard]\ntools = false\n"),
        scenario(SHAPE, more="[scenarios.faq.preset]\nextra.top_a = 1\n"),
    ],
)
def test_a_sound_policy_has_no_finding(text: str) -> None:
    assert found_in(text) == []


# --- words -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("match", "severity", "path", "words"),
    [
        ('keywords = ["refund", "x", "REFUND"]', "note", "keywords[2]", "counted once, so drop"),
        ('keywords = ["refund", "ｒｅｆｕｎｄ"]', "note", "keywords[1]", "already"),
        ('keywords = ["refund", " refund*"]', "note", "keywords[1]", "already"),
        ("patterns = ['a\\d', 'b\\d', 'a\\d']", "note", "patterns[2]", "counted twice"),
        ('keywords = ["*able"]', "note", "keywords[0]", "only at the end"),
        ('keywords = ["x", "foo*bar"]', "note", "keywords[1]", "only at the end"),
        ('keywords = ["order *"]', "note", "keywords[0]", "edge"),
        ('keywords = ["two\\nlines"]', "note", "keywords[0]", "single spaces"),
        ('keywords = ["two  words"]', "note", "keywords[0]", "single spaces"),
        ('keywords = ["cafe\\u0301"]', "note", "keywords[0]", "NFC"),
        ('keywords = ["คืนเงิน"]', "note", "keywords[0]", "without spaces"),
        ('keywords = ["??!"]', "note", "keywords[0]", "punctuation"),
        ('keywords = ["，"]', "note", "keywords[0]", "punctuation"),
        ('keywords = ["the"]', "note", "keywords[0]", "English texts about nothing"),
        ('keywords = ["的"]', "note", "keywords[0]", "Chinese texts about nothing"),
        ('keywords = ["refunds"]\nrequire.chars.max = 6', "note", "keywords[0]", "never read"),
        ("patterns = ['x*']", "fault", "patterns[0]", "empty"),
        ("patterns = ['b\\d', '^']", "fault", "patterns[1]", "10 of 10"),
        ("patterns = ['(refund)?']", "fault", "patterns[0]", "empty"),
        ("patterns = ['.']", "fault", "patterns[0]", "10 of 10"),
        ("patterns = ['(?s).+']", "fault", "patterns[0]", "10 of 10"),
        ("patterns = ['[^x]']", "fault", "patterns[0]", "about nothing"),
        ("patterns = ['^\\s*$']", "note", "patterns[0]", "empty text alone"),
        ("patterns = ['[A-Z]']", "note", "patterns[0]", "English"),
        ("patterns = ['\\p{Han}']", "note", "patterns[0]", "Chinese"),
        ("patterns = ['(?-i:RMA)-\\d']", "note", "patterns[0]", "capitals"),
        ("patterns = ['(?s-i)\\p{Lu}\\d']", "note", "patterns[0]", "capitals"),
        ("patterns = ['straße \\d']", "note", "patterns[0]", "never matches, as letters"),
        ("patterns = ['(straße|strasse) \\d']", "note", "patterns[0]", "nothing can take"),
        ("patterns = ['straße \\d']", "note", "patterns[0]", "ß as ss"),
        ("title = 1", "note", "", "x-router-scenario: faq"),
        ("turns.min = 3\nrequire.turns.max = 2", "fault", "turns", "exclude each other"),
        ("chars = {max = 9}\nrequire.chars = {min = 10}", "fault", "chars", "exclude each other"),
        ('lang = "en"\nrequire.lang = "zh"', "fault", "lang", "exclude each other"),
    ],
)
def test_words_and_shapes_that_can_never_count(
    match: str, severity: str, path: str, words: str
) -> None:
    text = scenario(match) if match != "title = 1" else '[scenarios.faq]\ntitle = "FAQ"\n'

    [finding] = found_in(text)

    assert finding.severity == severity
    where = "scenarios.faq.match." if path else "scenarios.faq"
    assert finding.mistake.path == where + path
    assert words in finding.mistake.message
    assert finding.mistake.line is not None


def test_a_word_or_pattern_of_two_scenarios_cancels_out_and_both_are_named() -> None:
    text = (
        scenario("keywords = [\n  'x',\n  'Refund',\n]\npatterns = ['a\\d']")
        + scenario("keywords = [\n  'y', # not refund\n  'refund',\n]\n", name="code")
        + scenario("patterns = ['a\\d']\nkeywords = ['REFUND*']", name="other")
    )

    findings = {finding.mistake.path: finding.mistake for finding in found_in(text)}

    assert set(findings) == {
        "scenarios.code.match.keywords[1]",
        "scenarios.other.match.patterns[0]",
        "scenarios.other.match.keywords[0]",
    }
    assert "votes for faq too" in findings["scenarios.code.match.keywords[1]"].message
    assert "faq and code too" in findings["scenarios.other.match.keywords[0]"].message
    assert "faq too" in findings["scenarios.other.match.patterns[0]"].message
    assert [findings["scenarios.code.match.keywords[1]"].line] == lines_of(text, "  'refund'")


def test_a_repeated_entry_is_told_on_its_own_line_and_not_on_the_first() -> None:
    text = scenario('keywords = [\n  "a1", "refund",\n  "b1",\n  "refund", "c1",\n]\n')

    [finding] = found_in(text)

    assert finding.mistake.line == lines_of(text, '"refund"')[1]


def test_an_entry_that_is_written_with_escapes_is_told_on_the_line_of_its_list() -> None:
    text = scenario('keywords = [\n  "a1",\n  "\\u002aable",\n]\n')

    [finding] = found_in(text)

    assert [finding.mistake.line] == lines_of(text, "keywords")


@pytest.mark.parametrize(
    ("pattern", "needs"),
    [
        ("ß", True),
        ("ß?", False),
        ("ß*x", False),
        ("ß+", True),
        ("ß+?x", True),
        ("ß{0,3}x", False),
        ("ß{2}x", True),
        ("xßy|ßz", True),
        ("xßy|z", False),
        ("(?:a|ß)", False),
        ("(?P<name>ß|ßb)c", True),
        ("(?s)ß", True),
        ("(?i:ß)?", False),
        ("()|ß", False),
        ("[ß]", True),
        ("[ßs]", False),
        ("[^ß]", False),
        ("[]ß]", False),
        (r"[\]ß]", False),
        ("[[:alpha:]ß]", False),
        (r"\ß", False),
        (r"\(ß", True),
        (r"\p{Latin}ß", True),
        (r"\Q|\Eß", True),
        (r"\x{df}|ß", False),
        ("", False),
    ],
)
def test_what_a_pattern_cannot_do_without(pattern: str, needs: bool) -> None:
    assert every_way_needs(pattern, "ß") is needs


ATOMS = st.sampled_from(["a", "b", "ß", ".", "[aß]", "[ß]", "[^a]", r"\w", "^", "(?i)"])
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["?", "*", "+", "{0,2}", "{1,2}", "??"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
    ),
    max_leaves=8,
)
WITHOUT = ["".join(letters) for size in range(5) for letters in product("ab", repeat=size)]


@given(PATTERNS)
def test_a_pattern_that_needs_a_letter_matches_no_text_without_it(pattern: str) -> None:
    matches = [text for text in WITHOUT if re2.search(pattern, text)]

    assert not (matches and every_way_needs(pattern, "ß")), matches


@given(st.text(min_size=1, max_size=12), st.sampled_from(["", "*"]))
def test_a_keyword_is_looked_for_as_the_check_reads_it(word: str, ending: str) -> None:
    try:
        taken = policy.parse(
            HEAD + scenario(f"keywords = [{json.dumps(word + ending, ensure_ascii=False)}]") + CHAT
        )
    except FileFault:
        return
    [keyword] = taken.scenarios["faq"].match.keywords

    signals = [entry[3] for entry in Words(taken).found(read_as(keyword)).evidence]

    assert signals == [f"keyword {read_as(keyword)}"]


def test_the_neutral_texts_have_nothing_to_do_with_any_job() -> None:
    shipped = policy.load(ROOT / "policies" / "default.toml")
    words = Words(shipped)

    for text in (text for texts in NEUTRAL.values() for text in texts):
        assert len(words.found(fold(text)).evidence) <= 1, text


@pytest.mark.parametrize("pattern", ["(?=x)", "(?<!x)y", "(x)\\1", "(?P=x)", "x++", "(?>x)"])
def test_a_pattern_that_needs_backtracking_is_refused_by_its_name(pattern: str) -> None:
    with pytest.raises(FileFault) as caught:
        policy.parse(HEAD + scenario(f"patterns = ['{pattern}']") + CHAT)

    [mistake] = caught.value.mistakes
    assert "RE2 matches in linear time" in mistake.message
    names = ("lookahead", "lookbehind", "backreference", "possessive quantifier", "atomic group")
    assert any(name in mistake.message for name in names)
    assert mistake.line == 4


@pytest.mark.parametrize("entry", ["\\n", " \\t* ", "\\u3000"])
def test_a_keyword_of_white_space_is_refused_and_not_a_crash_later(entry: str) -> None:
    with pytest.raises(FileFault, match="empty"):
        policy.parse(HEAD + scenario(f'keywords = ["{entry}"]') + CHAT)


# --- presets ---------------------------------------------------------------------------------


def preset(rules: str, *, table: str = "preset") -> str:
    return scenario(SHAPE, more=f"[scenarios.faq.{table}]\n{rules}\n")


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        (
            preset("max_new_tokens = { cap = 64 }") + "[scenarios.faq.guard]\ntools = false\n",
            "scenarios.faq.guard.tools",
            "max_new_tokens = 64",
        ),
        (
            preset("max_new_tokens = 80") + "[scenarios.faq.guard]\nstructured_output = false\n",
            "scenarios.faq.guard.structured_output",
            "JSON longer than max_new_tokens = 80",
        ),
        (
            preset("thinking = true\ntemperature = 0"),
            "scenarios.faq.preset.temperature",
            "DO NOT use greedy decoding",
        ),
        (
            preset("thinking = true") + "[defaults.thinking]\ntop_k = 1\n",
            "defaults.thinking.top_k",
            "top_k comes to 1",
        ),
        (
            preset("temperature = { fill = 0.0 }", table="thinking"),
            "scenarios.faq.thinking.temperature",
            "with thinking on temperature comes to 0",
        ),
        (
            preset("thinking = true\nmax_new_tokens = { cap = 64 }"),
            "scenarios.faq.preset.max_new_tokens",
            "lifted whenever faq thinks",
        ),
        (
            preset('thinking = { fill = "auto" }'),
            "scenarios.faq.preset.thinking",
            "no thinking ever",
        ),
    ],
)
def test_presets_that_cut_what_must_be_whole_or_undo_themselves(
    text: str, path: str, words: str
) -> None:
    [finding] = found_in(text)

    assert (finding.severity, finding.mistake.path) == ("note", path)
    assert words in finding.mistake.message
    assert finding.mistake.line is not None


@pytest.mark.parametrize(
    "text",
    [
        preset("temperature = { fill = 0 }", table="thinking")
        + "[defaults.thinking]\ntemperature = { floor = 0.3 }\n",
        preset("temperature = 0", table="direct"),
        preset("temperature = { fill = 0 }", table="thinking")
        + "[scenarios.chat.preset]\nthinking = false\n[scenarios.faq.preset]\nthinking = false\n",
    ],
)
def test_what_a_floor_or_a_switch_keeps_from_being_greedy_is_no_finding(text: str) -> None:
    parsed = policy.parse(HEAD + text + ("" if "scenarios.chat" in text else CHAT))

    assert policycheck.findings(parsed, [backend("vllm")]) == []


def test_a_default_that_is_greedy_is_told_once_and_not_by_each_scenario() -> None:
    findings = told(scenario(SHAPE) + "[defaults.thinking]\ntemperature = 0\n")

    assert findings == [("note", "defaults.thinking.temperature")]


def test_a_rule_that_no_backend_hears_differs_from_one_that_some_do_not() -> None:
    text = preset("top_k = 5") + "[defaults.direct]\ntop_p = 0.9\n"
    deaf, hearing = backend("openai", "deaf"), backend("vllm", "hearing")

    [nobody] = found_in(text, [deaf])
    [somebody] = found_in(text, [deaf, hearing])

    assert nobody.mistake.path == somebody.mistake.path == "scenarios.faq.preset.top_k"
    assert "no backend of the pool 'default' can be told top_k" in nobody.mistake.message
    assert "depends on the backend" in somebody.mistake.message
    assert "deaf" in somebody.mistake.message
    assert found_in(text, [hearing]) == []
    assert "no backend" not in found_in(text, [deaf, backend("auto")])[0].mistake.message
    assert found_in(text, [backend("auto")]) == []


def test_what_the_router_does_itself_no_backend_needs_to_hear() -> None:
    text = preset('reasoning_output = "drop"\nstream = "collect"')

    assert found_in(text, [backend(name) for name in ("vllm", "openai", "transformers")]) == []


def test_a_backend_of_another_pool_has_nothing_to_hear() -> None:
    text = preset("top_k = 5") + "[scenarios.faq]\npool = 'gpu'\n"

    both = [backend("openai"), backend("vllm", "two", pool="gpu")]

    assert found_in(text, both) == []


def test_the_same_loss_in_several_rules_is_one_finding_with_their_lines() -> None:
    text = preset("top_k = 5") + "[defaults.thinking]\ntop_k = 20\n"

    [finding] = found_in(text, [backend("openai")])

    first, second = lines_of(text, "top_k")
    assert finding.mistake.line == first
    assert finding.mistake.message.endswith(f"(likewise line {second})")


def test_a_scenario_without_a_backend_is_a_fault() -> None:
    findings = found_in(scenario(SHAPE) + "[scenarios.faq]\npool = 'gpu'\n")

    assert [(f.severity, f.mistake.path) for f in findings] == [("fault", "scenarios.faq.pool")]
    assert "'gpu', which has no backend; there are default" in findings[0].mistake.message


# --- examples --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "severity", "path", "words"),
    [
        (
            '[examples.faq]\ndirect = ["Is it late?"]\nthinking = ["x y", " is  IT late?"]\n',
            "fault",
            "examples.faq.thinking[1]",
            "faq without thinking and of faq with thinking",
        ),
        (
            '[examples.faq]\ndirect = ["Is it late?"]\n[examples.chat]\ndirect = ["is it late?"]\n',
            "fault",
            "examples.chat.direct[0]",
            "of faq without thinking and of chat without thinking",
        ),
        (
            '[examples.faq]\ndirect = ["Is it late?"]\n'
            '[scenarios.chat.match]\nexamples = ["Ｉs it late?"]\n',
            "fault",
            "examples.faq.direct[0]",
            "of chat and of faq without thinking",
        ),
        (
            '[examples.faq]\ndirect = ["Take 3 + 4."]\nthinking = ["take 358 + 471"]\n',
            "note",
            "examples.faq.thinking[0]",
            "hardly tell them apart",
        ),
        (
            '[examples.faq]\ndirect = ["Is it late?", "Is it  late?"]\n',
            "note",
            "examples.faq.direct[1]",
            "already",
        ),
        (
            '[examples.faq]\ndirect = ["Is it late?"]\n'
            '[scenarios.faq.match]\nexamples = ["Is it late?"]\n',
            "note",
            "examples.faq.direct[0]",
            "already",
        ),
        ('[examples.faq]\ndirect = ["Is it late?", " "]\n', "note", "examples.faq.direct[1]", "em"),
        (
            '[[tests]]\nprompt = "Hm"\nscenario = "faq"\n'
            '[[tests]]\nprompt = "IS IT LATE?"\nscenario = "faq"\n'
            '[examples.faq]\ndirect = ["Is it late?"]\n',
            "note",
            "tests[1].prompt",
            "proves nothing",
        ),
        (
            '[examples.faq]\ndirect = ["Is it late?", "迟到了吗？"]\n'
            '[examples.chat]\ndirect = ["Good morning", "早上好"]\n'
            '[scenarios.more.match]\nexamples = ["Add it up"]\n',
            "note",
            "scenarios.more.match.examples",
            "no example of more is Chinese",
        ),
    ],
)
def test_examples_that_contradict_each_other_or_teach_nothing(
    text: str, severity: str, path: str, words: str
) -> None:
    more = "" if "scenarios.faq" in text else "[scenarios.faq]\n"
    chat = "" if "scenarios.chat" in text else CHAT
    parsed = policy.parse(HEAD + text + more + chat)

    [finding] = policycheck.findings(parsed, [backend("vllm")])

    assert (finding.severity, finding.mistake.path) == (severity, path)
    assert words in finding.mistake.message
    assert finding.mistake.line is not None


def test_one_language_is_enough_where_the_others_have_no_more() -> None:
    text = (
        '[examples.faq]\ndirect = ["Is it late?", "迟到了吗？"]\n[examples.chat]\n'
        'direct = ["Good morning"]\n[scenarios.faq]\n'
        '[scenarios.code.match]\nexamples = ["Write a loop"]\n'
    )

    assert found_in(text) == []


def test_examples_of_another_file_are_told_with_its_name_and_line(tmp_path: Path) -> None:
    text = 'examples_files = ["more.toml"]\n[examples.faq]\ndirect = ["Is it late?"]\n'
    more = '[conversation]\nfollow_ups = ["Go on."]\n[examples.chat]\nthinking = [\n  "Hm?",\n'
    more += '  "is it late?",\n  "Go on.",\n]\n'
    (tmp_path / "more.toml").write_text(more, encoding="utf-8")

    parsed = policy.parse(HEAD + text + "[scenarios.faq]\n" + CHAT, folder=tmp_path)
    findings = policycheck.findings(parsed, [backend("vllm")], {"more.toml": more})

    shown = {finding.mistake.path: finding for finding in findings}
    assert set(shown) == {"examples.chat.thinking[1]", "conversation.follow_ups[0]"}
    late = shown["examples.chat.thinking[1]"]
    assert (late.severity, late.file, late.mistake.line) == ("fault", "more.toml", 6)
    assert "faq without thinking and of chat with thinking" in late.mistake.message
    assert str(late).startswith("fault: more.toml: line 6: examples.chat.thinking[1]: ")
    assert "of chat with thinking and of a follow-up" in str(shown["conversation.follow_ups[0]"])


# --- the tests of a policy -------------------------------------------------------------------

TESTED = (
    HEAD
    + """
[thinking]
keywords = ["why"]
[scenarios.faq.match]
keywords = ["refund"]
[scenarios.long.match]
turns = { min = 3 }
structure_weight = 3.0
[scenarios.long.preset]
thinking = "auto"
[scenarios.chat.preset]
thinking = { fill = false }
[[tests]]
"""
)


def live_of(text: str) -> Live:
    deployed = config.Config.model_validate({"backends": [{"name": "a", "url": "http://h:1"}]})
    return app.live_of(deployed, policy.parse(text, "p"), app.slots_of(deployed, Unconnected))


@pytest.mark.parametrize(
    "test",
    [
        'prompt = "A refund, please"\nscenario = "faq"\n',
        'prompt = "Hello"\nscenario = "chat"\nthinking = false\n',
        'prompt = "A refund!"\nbefore = ["Hi", "Ho"]\nscenario = "long"\n',
        'prompt = "A refund!"\nbefore = ["Hi"]\nscenario = "faq"\n',
        'prompt = "But why?"\nbefore = ["a refund", "b"]\nscenario = "long"\nthinking = true\n',
        'prompt = ""\nscenario = "chat"\n',
    ],
)
def test_a_test_that_holds_is_no_finding(test: str) -> None:
    assert policycheck.broken(live_of(TESTED + test)) == []


@pytest.mark.parametrize(
    ("test", "words"),
    [
        (
            'prompt = "A refund, please"\nscenario = "chat"\n',
            ['"A refund, please" wants chat, got faq', "keyword refund", "by keyword"],
        ),
        (
            'prompt = "Hello why"\nscenario = "chat"\nthinking = true\n',
            ["wants chat with thinking, got chat without thinking", "by fill", "thought pays"],
        ),
        (
            'prompt = "A refund"\nscenario = "faq"\nthinking = false\n',
            ["got faq with thinking left to the backend", "decided by nobody"],
        ),
        (
            f'prompt = "{"long " * 40}"\nscenario = "faq"\n',
            ["long long…", "nothing spoke for another scenario"],
        ),
    ],
)
def test_a_test_that_fails_says_what_was_wanted_what_came_and_why(
    test: str, words: list[str]
) -> None:
    text = TESTED + 'prompt = "Hm"\nscenario = "chat"\n[[tests]]\n' + test

    [finding] = policycheck.broken(live_of(text))

    assert (finding.severity, finding.mistake.path) == ("fault", "tests[1]")
    assert finding.mistake.line == len(text.splitlines()) - test.count("\n")
    assert [each for each in words if each not in finding.mistake.message] == []


# --- the command -----------------------------------------------------------------------------


def check(folder: Path, text: str, *flags: str) -> tuple[int, str]:
    (folder / "policy.toml").write_text(text, encoding="utf-8")
    deployed: dict[str, Any] = {
        "policy": {"file": "policy.toml"},
        "backends": [{"name": "one", "url": "http://127.0.0.1:9"}],
    }
    path = write_toml(folder / "config.toml", deployed)
    command = [sys.executable, "-m", "router", "check", "--config", str(path), *flags]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.stderr == ""
    return ran.returncode, ran.stdout


def test_check_fails_for_a_fault_and_not_for_a_note(tmp_path: Path) -> None:
    noted = HEAD + scenario('keywords = ["a1", "a1"]') + CHAT
    broken = TESTED + 'prompt = "Hello"\nscenario = "faq"\n'

    code, shown = check(tmp_path, noted)
    assert (code, shown.splitlines()[-1]) == (0, "sound")
    assert "note: line 4: scenarios.faq.match.keywords[1]: in this list already" in shown

    code, shown = check(tmp_path, broken)
    assert (code, "sound" in shown) == (1, False)
    line = TESTED.count("\n")
    assert f'fault: line {line}: tests[0]: "Hello" wants faq, got chat' in shown


def test_check_gives_everything_as_objects(tmp_path: Path) -> None:
    text = HEAD + scenario("keywords = ['a1', 'a1']\npatterns = ['.']") + CHAT

    code, shown = check(tmp_path, text, "--json")
    unread_code, unread = check(tmp_path, "schema = 2\n", "--json")

    answer = json.loads(shown)
    assert (code, answer["sound"], answer["policy"]) == (1, False, policy.parse(text).hash)
    assert [(f["severity"], f["line"], f["path"]) for f in answer["findings"]] == [
        ("fault", 5, "scenarios.faq.match.patterns[0]"),
        ("note", 4, "scenarios.faq.match.keywords[1]"),
    ]
    assert all(finding["message"] for finding in answer["findings"])
    assert unread_code == 1
    assert json.loads(unread)["policy"] is None
    assert {finding["path"] for finding in json.loads(unread)["findings"]} >= {"schema"}


# --- experiments ------------------------------------------------------------------------------

ARMS = """\
[experiments.try]
scenarios = ["faq"]
[experiments.try.arms.control]
[experiments.try.arms.b.preset]
max_new_tokens = { cap = 32 }
"""


def trying(more: str = "") -> str:
    preset = "[scenarios.faq.preset]\nmax_new_tokens = { cap = 64 }"
    return scenario('keywords = ["refund"]', more=preset) + ARMS + more


def test_a_sound_experiment_gets_no_finding() -> None:
    assert found_in(trying()) == []


@pytest.mark.parametrize(
    ("old", "new", "path", "words"),
    [
        ("cap = 32", "cap = 64", "try.arms.b", "the same as 'control'"),
        ("arms.control]", "arms.control]\n[experiments.try.arms.c]", "try.arms.c", "same"),
        ("arms.b.preset]", "arms.b]\nweight = 0\n[experiments.try.arms.b.preset]", "b.w", "nobody"),
        ("arms.b.preset]", "arms.b.preset]\nmin_p = 0.1", "arms.b.preset.min_p", "be told min_p"),
    ],
)  # fmt: skip
def test_an_arm_that_does_nothing_is_found(old: str, new: str, path: str, words: str) -> None:
    text = trying().replace(old, new, 1)

    found = [each.mistake for each in found_in(text, [backend("openai")])]

    assert [m for m in found if path in m.path and words in m.message], found
    assert all(mistake.line is not None and mistake.line > 6 for mistake in found)


def test_a_stopped_experiment_is_left_in_peace() -> None:
    text = trying().replace('["faq"]', '["faq"]\nstate = "stopped"').replace("cap = 32", "cap = 64")

    assert found_in(text) == []


@pytest.mark.parametrize(
    ("rules", "path", "words"),
    [
        (
            "thinking_budget = 9\nthinking = true\ntemperature = 0",
            "arms.b.preset.temperature",
            "in the arm try/b: with thinking",
        ),
        ("thinking = true\nmax_new_tokens = 50", "arms.b.preset.max_new_tokens", "is lifted"),
        ("thinking = true", "scenarios.faq.preset.max_new_tokens", "in the arm try/b: this limit"),
    ],
)
def test_what_an_arm_does_to_thinking_is_told_where_it_is_written(
    rules: str, path: str, words: str
) -> None:
    text = trying().replace("max_new_tokens = { cap = 32 }", rules)

    [finding] = found_in(text, [backend("vllm")])

    assert finding.mistake.path.endswith(path)
    assert words in finding.mistake.message


def test_what_a_scenario_has_already_is_not_told_of_each_arm_again() -> None:
    text = trying() + "[scenarios.faq.thinking]\ntop_k = 1\n"

    [finding] = found_in(text, [backend("vllm")])

    assert finding.mistake.path == "scenarios.faq.thinking.top_k"
