"""`doctor` sees of each engine what its dialect's table says."""

from __future__ import annotations

import pytest

from router import capabilities, dialects, doctor
from router.doctor import Report
from tests.backends.engines import CONTEXT, NAMES, Engine, on, param

#: what an engine is told in places of its own, and does
SEEN = (
    "thinking",
    "max_new_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "seed",
    "stop",
    "stream_usage",
)
MORE = {
    "llamacpp": ("thinking_budget", "presence_penalty", "use_cache", "structured_output", "n"),
    "vllm": ("thinking_budget", "presence_penalty", "use_cache", "structured_output", "n"),
    "transformers": (),
}


@pytest.fixture(scope="session")
def report(engine: Engine) -> Report:
    with doctor.Asker(engine.url, timeout_s=100) as asker:
        return doctor.examine(asker)


@pytest.mark.parametrize("engine", [param(name) for name in NAMES], indirect=True, scope="session")
def test_what_the_dialect_says_lands(engine: Engine, report: Report) -> None:
    found = {knob.name: knob.verdict for knob in report.knobs}
    wanted = [*SEEN, *MORE[engine.name]]

    assert {name: found[name] for name in wanted} == dict.fromkeys(wanted, "honoured")
    assert (report.dialect, report.model) == (engine.name, engine.model)
    assert report.requests <= 30


@on("llamacpp", "vllm")
def test_the_length_of_a_conversation_is_told(engine: Engine, report: Report) -> None:
    assert report.context == CONTEXT


@on("llamacpp", "transformers")
def test_the_thought_has_a_member_of_its_own(engine: Engine, report: Report) -> None:
    assert (report.thought, report.opens_in_prompt) == ("reasoning_content", False)


@on("vllm")
def test_with_a_parser_the_budget_is_native(engine: Engine, report: Report) -> None:
    fitted = capabilities.fitted(dialects.of("vllm"), doctor.capabilities(report))

    assert report.thought == "reasoning"
    assert fitted.places["thinking_budget"].paths == ("thinking_token_budget",)


@pytest.mark.parametrize("engine", [param(name) for name in NAMES], indirect=True, scope="session")
def test_who_does_what_the_table_says_needs_no_fitting(engine: Engine, report: Report) -> None:
    dialect = dialects.of(engine.name)
    fitted = capabilities.fitted(dialect, doctor.capabilities(report))

    assert dialect.places.keys() <= fitted.places.keys()
