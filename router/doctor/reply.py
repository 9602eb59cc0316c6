"""A chat answer as far as judging needs it: texts, counts, and whether it was refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import orjson

from router.doctor.asking import Answer

#: what a server says of the asker or of its own state, never of a knob
_NOT_ABOUT_IT = frozenset({401, 403, 404, 405, 408, 429, 502, 503, 504})
_REFUSING = frozenset({400, 413, 415, 422, 501})


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    is_ok: bool
    is_refused: bool = False  # the body was looked at and turned down
    is_rejected: bool = False  # likewise, or the server stumbled over it
    is_silence: bool = False  # none came
    told: str = ""  # what it said, where it is not ok
    content: str = ""
    reasoning: str = ""
    finish: str = ""
    prompt: int | None = None
    completion: int | None = None
    cached: int | None = None
    choices: int = 0
    has_logprobs: bool = False

    @property
    def said(self) -> tuple[str, str]:
        """All that was generated."""
        return self.reasoning, self.content

    @property
    def thinks(self) -> bool:
        """Whether a thought shows; an empty think block is none."""
        inline = self.content.lstrip()
        has_block = inline.startswith("<think>")
        inner = inline.removeprefix("<think>").partition("</think>")[0]
        return bool(self.reasoning.strip()) or (has_block and bool(inner.strip()))


def read(answer: Answer) -> Reply:
    document = answer.json()
    choices = document.get("choices") if isinstance(document, dict) else None
    if answer.status != 200 or not isinstance(choices, list) or not choices:
        has_error = isinstance(document, dict) and "error" in document
        is_refused = answer.status in _REFUSING or (answer.status == 200 and has_error)
        is_rejected = is_refused or (answer.status >= 400 and answer.status not in _NOT_ABOUT_IT)
        return Reply(
            is_ok=False, is_refused=is_refused, is_rejected=is_rejected, told=answer.told()
        )
    first = _mapping(choices[0])
    message, usage = _mapping(first.get("message")), _mapping(document.get("usage"))
    return Reply(
        is_ok=True,
        content=_text(message.get("content")),
        reasoning=_text(message.get("reasoning")) or _text(message.get("reasoning_content")),
        finish=_text(first.get("finish_reason")),
        prompt=_count(usage.get("prompt_tokens")),
        completion=_count(usage.get("completion_tokens")),
        cached=_count(_mapping(usage.get("prompt_tokens_details")).get("cached_tokens")),
        choices=len(choices),
        has_logprobs=bool(first.get("logprobs")),
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
