"""A chat answer as far as judging needs it: texts, counts, and whether it was refused."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
import orjson

from router.doctor.asking import Answer, condensed
from router.thought import CLOSE, OPEN

#: what a server says of the asker or of its own state, never of a knob
_NOT_ABOUT_IT = frozenset({401, 403, 404, 405, 408, 429, 502, 503, 504})
_FIELDS = ("reasoning", "reasoning_content")
_REFUSING = frozenset({400, 413, 415, 422, 501})


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    is_ok: bool
    is_refused: bool = False  # the body was looked at and turned down
    is_rejected: bool = False  # likewise, or the server stumbled over it
    is_silence: bool = False  # none came
    told: str = ""  # what it said, where it is not ok
    whole: str = ""  # the same at length
    content: str = ""
    reasoning: str = ""
    field: str = ""  # the member that the thought is in
    prompt_text: str = ""  # as the template made it, from a server that tells
    finish: str = ""
    prompt: int | None = None
    completion: int | None = None
    cached: int | None = None
    choices: int = 0
    has_logprobs: bool = False
    has_tool_calls: bool = False

    @property
    def said(self) -> tuple[str, str]:
        """All that was generated."""
        return self.reasoning, self.content

    @property
    def thinks(self) -> bool:
        """Whether a thought shows; an empty think block is none."""
        inline = self.content.lstrip()
        has_block = inline.startswith(OPEN)
        inner = inline.removeprefix(OPEN).partition(CLOSE)[0]
        return bool(self.reasoning.strip()) or (has_block and bool(inner.strip()))

    def line_with(self, words: Collection[str]) -> str:
        """Of a long refusal the line that names one of these; else how it begins."""
        for line in self.whole.splitlines():
            if any(is_word(word, line) for word in words):
                return condensed(line)
        return self.told


def is_word(word: str, text: str) -> bool:
    """Whether a text has this very word, in whatever case."""
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) is not None


def read(answer: Answer) -> Reply:
    document = answer.json()
    choices = document.get("choices") if isinstance(document, dict) else None
    if answer.status != 200 or not isinstance(choices, list) or not choices:
        has_error = isinstance(document, dict) and "error" in document
        is_refused = answer.status in _REFUSING or (answer.status == 200 and has_error)
        is_rejected = is_refused or (answer.status >= 400 and answer.status not in _NOT_ABOUT_IT)
        return Reply(
            is_ok=False,
            is_refused=is_refused,
            is_rejected=is_rejected,
            told=answer.told(),
            whole=answer.said(),
        )
    first = _mapping(choices[0])
    message, usage = _mapping(first.get("message")), _mapping(document.get("usage"))
    field = next((name for name in _FIELDS if _text(message.get(name))), "")
    return Reply(
        is_ok=True,
        content=_text(message.get("content")),
        reasoning=_text(message.get(field)),
        field=field,
        prompt_text=_text(document.get("prompt_text")),
        finish=_text(first.get("finish_reason")),
        prompt=_count(usage.get("prompt_tokens")),
        completion=_count(usage.get("completion_tokens")),
        cached=_count(_mapping(usage.get("prompt_tokens_details")).get("cached_tokens")),
        choices=len(choices),
        has_logprobs=bool(first.get("logprobs")),
        has_tool_calls=bool(message.get("tool_calls")),
    )


def events(answer: Answer) -> list[Any]:
    """The documents of a stream, and "[DONE]" where it came."""
    found: list[Any] = []
    for line in answer.body.splitlines():
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            found.append("[DONE]")
            continue
        try:
            found.append(orjson.loads(data))
        except orjson.JSONDecodeError:
            continue
    return found


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
