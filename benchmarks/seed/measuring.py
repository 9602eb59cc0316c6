"""What is asked of a running stack for each figure, and what of it is kept."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from processes import CPUS, cpu_s, machine_busy_s

from . import stacks
from .asking import Answer, ask, ask_together
from .figures import Sample, Tried

#: how long the client lets an answer be; with random weights, how long it is without a cap
WISHED_TOKENS = 256
SHORT_TOKENS = 32
AT_ONCE = 4
#: tokens that the tiny model has for thought and answer together
TIGHT_TOKENS = 64
#: more than its longest thought
ROOM_TOKENS = 512
# Random weights end by chance or not at all: lengths are what was asked for.
_FIXED: dict[str, Any] = {"ignore_eos": True}

QUESTIONS = (
    "What is the capital of France?",
    "What is the capital of Norway?",
    "What is 4 plus 5?",
    "Write a short story about a ship.",
    "My ship is red. What colour is my ship?",
    "Give the capital of Peru as JSON.",
)
_BACKGROUND = " ".join(f"My ship is red and my horse number {n} is blue." for n in range(60))
_SYSTEMS = (None, "You are a helpful assistant.", "Answer briefly.", "You are a careful tutor.")

Message = dict[str, str]
Done = TypeVar("Done")


def said(question: str, system: str | None = None) -> list[Message]:
    before = [] if system is None else [{"role": "system", "content": system}]
    return [*before, {"role": "user", "content": question}]


def first_request(port: int, arm: str, number: int) -> Sample:
    """The first that anybody sends to this router."""
    question = said(QUESTIONS[number % len(QUESTIONS)])
    return _timed("first", arm, number, lambda: ask(port, "direct-64", question, max_tokens=4))


def warmth(told: stacks.Warmth, number: int) -> list[Sample]:
    return [
        Sample(figure="engine", arm="first request", round=number, seconds=told.cold_s),
        Sample(figure="engine", arm="a later one", round=number, seconds=told.warm_s),
    ]


def one_round(port: int, number: int) -> list[Sample]:
    """All that a warm stack is asked; the order of the sides turns with the rounds."""
    return [*_lengths(port, number), *_second_turn(port, number), *_together(port, number)]


def _lengths(port: int, number: int) -> list[Sample]:
    """Thinking and the cap: the same question in three scenarios, by the same client."""
    question = said(QUESTIONS[number % len(QUESTIONS)])

    def answered(scenario: str) -> Answer:
        return ask(port, scenario, question, max_tokens=WISHED_TOKENS, **_FIXED)

    sides = [
        ("thinking", "thinking on", "thinking-64"),
        ("thinking", "thinking off", "direct-64"),
        ("cap", "no cap", "direct"),
    ]
    samples = [
        _timed(figure, arm, number, partial(answered, scenario), to_end=True)
        for figure, arm, scenario in _turned(sides, number)
    ]
    # The short answer is the same request in both comparisons.
    [short] = [each for each in samples if each.arm == "thinking off"]
    return [*samples, replace(short, figure="cap", arm="cap 64")]


def _second_turn(port: int, number: int) -> list[Sample]:
    """Two second turns with the same bytes but for a salt: the cache knows that of one."""
    first = said("What colour is my ship?", _BACKGROUND)
    second = [*first, {"role": "assistant", "content": "Your ship is red."}]
    second += said("What colour is my horse number 5?")
    known, new = (f"{kind}-{number}-{time.time_ns()}" for kind in ("known", "new"))

    def asked(messages: Sequence[Message], salt: str) -> Answer:
        return ask(port, "direct-64", messages, max_tokens=2, cache_salt=salt, **_FIXED)

    asked(first, known)
    sides = [("same prefix", known), ("new prefix", new)]
    return [
        _timed("prefix", arm, number, partial(asked, second, salt))
        for arm, salt in _turned(sides, number)
    ]


def _together(port: int, number: int) -> list[Sample]:
    questions = [said(question) for question in QUESTIONS[:AT_ONCE]]
    fields = {"max_tokens": SHORT_TOKENS, **_FIXED}

    def one_after_another() -> list[Answer]:
        return [ask(port, "direct-64", question, **fields) for question in questions]

    def at_once() -> list[Answer]:
        return ask_together(port, "direct-64", questions, **fields)

    samples = []
    for arm, act in _turned([("serial", one_after_another), ("concurrent", at_once)], number):
        answers, seconds, foreign = _watched(act)
        tokens = sum(answer.tokens for answer in answers)
        sample = Sample(figure="together", arm=arm, round=number, seconds=seconds, tokens=tokens)
        samples.append(replace(sample, foreign=foreign))
    return samples


def tried(port: int) -> list[Tried]:
    """The model that ends its thoughts: without a limit, and in too few tokens for most."""
    return [
        _tried(port, "no thought, room enough", "tiny-direct", ROOM_TOKENS),
        _tried(port, "thought, room enough", "tiny-guarded", ROOM_TOKENS),
        _tried(port, "64 tokens, guard off", "tiny-unguarded", TIGHT_TOKENS),
        _tried(port, "64 tokens, guard on", "tiny-guarded", TIGHT_TOKENS),
        _tried(port, "64 tokens, 48 of them for the thought", "tiny-budget", TIGHT_TOKENS),
    ]


def _tried(port: int, arm: str, scenario: str, limit: int) -> Tried:
    before = _rescued(port, scenario)
    began = time.perf_counter()
    answers = [
        (ask(port, scenario, said(f"Count to {last}.", system), max_tokens=limit), last)
        for last in range(10, 81, 10)
        for system in _SYSTEMS
    ]
    return Tried(
        arm=arm,
        asked=len(answers),
        empty=sum(not answer.text.strip() for answer, _ in answers),
        right=sum(answer.text.strip() == f"I counted to {last}." for answer, last in answers),
        rescued=_rescued(port, scenario) - before,
        tokens=sum(answer.tokens for answer, _ in answers),
        thought_chars=sum(len(answer.thought) for answer, _ in answers),
        seconds=time.perf_counter() - began,
    )


def _rescued(port: int, scenario: str) -> int:
    """How many answers of this scenario the router has asked for a second time."""
    _status, page = stacks.get(port, "/metrics")
    name = r"scenario_router_rescued_total"
    found = re.search(rf'^{name}{{scenario="{scenario}"}} (\d+)', page, re.MULTILINE)
    return int(found[1]) if found else 0


def _timed(
    figure: str, arm: str, number: int, act: Callable[[], Answer], *, to_end: bool = False
) -> Sample:
    """`to_end`: the time of the whole answer counts, else that to its first token."""
    answer, _, foreign = _watched(act)
    return Sample(
        figure=figure,
        arm=arm,
        round=number,
        seconds=answer.total_s if to_end else answer.ttft_s,
        tokens=answer.tokens,
        thought_tokens=answer.thought_tokens,
        prompt_tokens=answer.prompt_tokens,
        cached_tokens=answer.cached_tokens,
        token_ms=1e3 * answer.token_s,
        foreign=foreign,
    )


def _watched(act: Callable[[], Done]) -> tuple[Done, float, float]:
    """What it gives, its seconds, and the share of the machine that others used meanwhile."""
    ours, everybody, began = cpu_s(os.getpid()), machine_busy_s(), time.perf_counter()
    done = act()
    took = time.perf_counter() - began
    others = (machine_busy_s() - everybody) - (cpu_s(os.getpid()) - ours)
    return done, took, max(0.0, others) / (took * CPUS)


def _turned(sides: Sequence[Done], by: int) -> list[Done]:
    """Another one goes first each time, so that no side always follows the same neighbour."""
    start = by % len(sides)
    return [*sides[start:], *sides[:start]]
