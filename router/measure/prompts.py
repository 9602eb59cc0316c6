"""What is asked: prompts from a file, or the built-in ones of each scenario in two languages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec

BUILT_IN = Path(__file__).with_name("prompts.jsonl")


class BadPrompts(Exception):
    """The file cannot be used; the text says where and why."""


class Prompt(msgspec.Struct, frozen=True):
    """One question, as messages. `id` tells it apart from the others of its set."""

    id: int
    messages: tuple[dict[str, Any], ...]
    scenario: str | None = None

    @property
    def text(self) -> str:
        """What the user said last."""
        content = self.messages[-1].get("content")
        return content if isinstance(content, str) else str(content)


class _Row(msgspec.Struct):
    prompt: str | None = None
    text: str | None = None  # as in rows for `eval`
    messages: list[dict[str, Any]] | None = None
    scenario: str | None = None
    lang: str | None = None


def read(
    path: Path = BUILT_IN, *, scenarios: Sequence[str] = (), lang: str | None = None
) -> list[Prompt]:
    """The prompts of a JSON Lines file, of these scenarios and this language if so wished.

    A row has "prompt" (or "text") or "messages", and may have "scenario" and "lang".
    Raises BadPrompts, OSError.
    """
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line, type=_Row)
        except msgspec.DecodeError as fault:
            raise BadPrompts(f"{path.name}, line {number}: {fault}") from None
        if (lang and row.lang != lang) or (scenarios and row.scenario not in scenarios):
            continue
        text = row.text if row.prompt is None else row.prompt
        messages = row.messages or ([{"role": "user", "content": text}] if text else None)
        if messages is None:
            raise BadPrompts(f'{path.name}, line {number}: neither "prompt" nor "messages"')
        found.append(Prompt(number, tuple(messages), row.scenario))
    if not found:
        raise BadPrompts(f"{path.name} has no prompts{_of(scenarios, lang)}")
    return found


def _of(scenarios: Sequence[str], lang: str | None) -> str:
    named = f" of {', '.join(scenarios)}" if scenarios else ""
    return named + (f" in {lang}" if lang else "")


def passes(prompts: Sequence[Prompt], random: Random) -> Iterator[Prompt]:
    """All prompts in random order, again and again: each comes as often as the others."""
    while True:
        yield from random.sample(prompts, k=len(prompts))
