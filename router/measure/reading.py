"""An answer as it arrives: what was said, when, and how many tokens it took. Sans-io.

Lines of an event stream, or one whole document, go in with the time; an Answer comes out.
"""

from __future__ import annotations

from typing import Any

import msgspec
import orjson


class Answer(msgspec.Struct):
    """What came back on one request. Times are those that were passed in."""

    text: str = ""
    thought: str = ""
    finish: str | None = None
    first_at: float | None = None  # of the first text or thought; None: nothing came, or no stream
    output_tokens: int | None = None
    input_tokens: int | None = None
    frames: int = 0  # that carried text: what stands in for tokens where no usage is told
    is_done: bool = False
    error: str | None = None

    def line(self, line: str, now: float) -> None:
        """One line of an event stream."""
        if not line.startswith("data:"):
            return
        data = line[5:].strip()
        if data == "[DONE]":
            self.is_done = True
            return
        document = _document(data)
        if document is None:
            self.error = self.error or "a frame that is no JSON"
            return
        self._usage(document)
        if document.get("error"):
            self.error = "an error in the stream: " + told(document)
        for choice in document.get("choices") or ():
            self._said(choice, choice.get("delta") or {}, now)

    def whole(self, body: bytes) -> None:
        """A reply that is no stream."""
        document = _document(body)
        if document is None or not document.get("choices"):
            self.error = "a reply that is no answer"
            return
        self._usage(document)
        choice = document["choices"][0]
        self._said(choice, choice.get("message") or {}, None)
        self.is_done = True

    @property
    def is_whole(self) -> bool:
        """Not every server says [DONE]; one that has told why it stopped has said all."""
        return self.is_done or self.finish is not None

    def _said(self, choice: dict[str, Any], delta: dict[str, Any], now: float | None) -> None:
        self.finish = choice.get("finish_reason") or self.finish
        said = delta.get("content") or ""
        thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
        if said or thought or delta.get("tool_calls"):
            self.frames += 1
            self.first_at = now if self.first_at is None else self.first_at
        self.text += said
        self.thought += thought

    def _usage(self, document: dict[str, Any]) -> None:
        usage = document.get("usage")
        if isinstance(usage, dict):
            self.output_tokens = usage.get("completion_tokens", self.output_tokens)
            self.input_tokens = usage.get("prompt_tokens", self.input_tokens)


def told(document: dict[str, Any]) -> str:
    """What an error says, in whatever shape it comes."""
    error = document.get("error") or document.get("detail") or document
    said = error.get("message") if isinstance(error, dict) else error
    return " ".join(str(said or error).split())[:160]


def _document(data: bytes | str) -> dict[str, Any] | None:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
