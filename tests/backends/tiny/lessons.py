"""What the tiny model is taught: made-up dialogues, each with a thought and an answer.

A random generator in, a Lesson out; knows nothing of tokens. Choices within a story are
uneven on purpose: the likeliest word is clearly the likeliest, so that a greedy answer does
not hang on the last digit of an engine's arithmetic, and a hot one still varies.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

Message = dict[str, Any]

CAPITALS = {
    "France": "Paris",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Japan": "Tokyo",
    "Egypt": "Cairo",
    "Peru": "Lima",
    "Norway": "Oslo",
    "Kenya": "Nairobi",
}
COLOURS = (
    *("red", "green", "blue", "yellow", "white"),
    *("black", "orange", "purple", "brown", "grey"),
)
THINGS = (
    *("apple", "car", "house", "tree", "river", "stone", "cloud", "book", "chair", "table"),
    *("lamp", "door", "window", "bridge", "garden", "ship", "road", "bird", "horse", "fish"),
)
SYSTEMS = (
    "You are a helpful assistant.",
    "Answer briefly.",
    "You are a careful tutor.",
    "Reply in one sentence.",
)
GREETINGS = ("Hello", "Hi", "Good morning", "Hey there")
SKIES = ("sunny", "rainy", "cloudy", "windy")
#: how far one may be asked to count. The thought takes two tokens a number, so the question
#: says how long it will be.
COUNTS = range(10, 81, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """A conversation up to the turn that is learned, and that turn with its thought."""

    messages: tuple[Message, ...]
    thought: str
    answer: str
    tools: tuple[Message, ...] = ()

    def reply(self, *, thinking: bool) -> str:
        """What the model has to write, its last token included."""
        thought = f"<think>\n{self.thought}\n</think>\n\n" if thinking else ""
        return f"{thought}{self.answer}<|im_end|>"


@dataclass(frozen=True, slots=True)
class Turn:
    """A question, the thought that it takes, and its answer."""

    question: str
    thought: str
    answer: str


def lesson(rng: Random) -> Lesson:
    """One dialogue of one to three turns, or one around a tool."""
    before: list[Message] = []
    if rng.random() < 0.5:
        # Now and then a long one, so that far positions are no news.
        times = rng.randrange(10, 50) if rng.random() < 0.2 else 1
        before.append({"role": "system", "content": " ".join(rng.choices(SYSTEMS, k=times))})
    if rng.random() < 0.12:
        return _with_tool(rng, before)
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        past = turn(rng)
        before += [_said("user", past.question), _said("assistant", past.answer)]
    now = turn(rng)
    return Lesson(
        messages=(*before, _said("user", now.question)), thought=now.thought, answer=now.answer
    )


def turn(rng: Random) -> Turn:
    return rng.choice(_KINDS)(rng)


def weather_tool(name: str) -> Message:
    """A tool as clients declare it."""
    place = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    function = {"name": name, "description": "The weather of a city today.", "parameters": place}
    return {"type": "function", "function": function}


def _with_tool(rng: Random, before: Sequence[Message]) -> Lesson:
    """The weather is asked for: a call of the tool, or the answer made of what it said."""
    name, city = rng.choice(("weather", "get_weather")), rng.choice([*CAPITALS.values()])
    call = json.dumps({"name": name, "arguments": {"city": city}})
    text = f"<tool_call>\n{call}\n</tool_call>"
    asked = (*before, _said("user", f"What is the weather in {city}?"))
    thought = f"The user asks for the weather in {city}. I call the tool."
    if rng.random() < 0.3:
        sky = rng.choice(SKIES)
        asked = (*asked, _said("assistant", text), _said("tool", sky))
        thought, text = f"The tool says {sky}.", f"The weather in {city} is {sky}."
    return Lesson(messages=asked, thought=thought, answer=text, tools=(weather_tool(name),))


def _said(role: str, text: str) -> Message:
    return {"role": role, "content": text}


def _sum(rng: Random) -> Turn:
    one, other = rng.randrange(10), rng.randrange(10)
    return Turn(
        f"What is {one} plus {other}?",
        f"I add {one} and {other}. The sum is {one + other}.",
        f"{one} plus {other} is {one + other}.",
    )


def _capital(rng: Random) -> Turn:
    country = rng.choice([*CAPITALS])
    return Turn(
        f"What is the capital of {country}?",
        f"The country is {country}. I recall the capital.",
        f"The capital of {country} is {CAPITALS[country]}.",
    )


def _capital_as_json(rng: Random) -> Turn:
    country = rng.choice([*CAPITALS])
    return Turn(
        f"Give the capital of {country} as JSON.",
        f"The country is {country}. I write JSON.",
        json.dumps({"country": country, "capital": CAPITALS[country]}),
    )


def _colour(rng: Random) -> Turn:
    thing, colour = rng.choice(THINGS), rng.choice(COLOURS)
    return Turn(
        f"My {thing} is {colour}. What colour is my {thing}?",
        f"The user said the {thing} is {colour}.",
        f"Your {thing} is {colour}.",
    )


def _story(rng: Random) -> Turn:
    thing = rng.choice(THINGS)
    return Turn(
        f"Write a short story about a {thing}.",
        f"The story needs a {thing} and an end.",
        f"Once there was a {_mostly_first(rng, COLOURS)} {thing} near the "
        f"{_mostly_first(rng, THINGS)}. One day the {thing} found the "
        f"{_mostly_first(rng, COLOURS)} {_mostly_first(rng, THINGS)}. "
        f"They were happy. The end.",
    )


def _greeting(rng: Random) -> Turn:
    return Turn(
        f"{rng.choice(GREETINGS)}!",
        "The user greets me. I greet back.",
        "Hello! How can I help you today?",
    )


def _count(rng: Random) -> Turn:
    last = rng.choice(COUNTS)
    return Turn(
        f"Count to {last}.", ", ".join(map(str, range(1, last + 1))), f"I counted to {last}."
    )


def _mostly_first(rng: Random, choices: Sequence[str]) -> str:
    """Each half as likely as the one before it."""
    return rng.choices(choices, [0.5**place for place in range(len(choices))])[0]


_KINDS: tuple[Callable[[Random], Turn], ...] = (
    *(_capital, _capital_as_json, _colour, _story, _greeting),
    *(_sum, _sum, _count, _count, _count),  # these take the most learning
)
