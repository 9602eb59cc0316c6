"""What an answer held, for its record: tokens, characters, how it ended.

In: the JSON documents of an answer, a whole one or a stream's. Nothing is built of them but
the few members that are counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from router import refusals
from router.frames import Frame, Usage, frame_in

if TYPE_CHECKING:
    from router.said import Said

#: what some servers call the ends that OpenAI's clients know
ENDS: Mapping[str, str] = {
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "max_length": "length",
    "tool_use": "tool_calls",
}


class Tally:
    """What an answer held, for its record."""

    answer_chars = 0
    reasoning_chars = 0
    finish_reason: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    has_token = False  # text, thought or a tool call has come
    has_odd_end = False  # the last end that was read has another name than clients know
    has_done = False
    error: str | None = None  # an error inside a 200 answer
    said: Said | None = None  # where the texts are kept, if they are

    def read(self, data: bytes) -> Frame | None:
        """Count one JSON document; None where it is none of ours."""
        try:
            frame = frame_in(data)
        except (msgspec.DecodeError, RecursionError):
            return None
        for choice in frame.choices or ():
            part = choice.delta or choice.message
            if choice.finish_reason is not None:
                self.finish_reason = ENDS.get(choice.finish_reason, choice.finish_reason)
                self.has_odd_end = self.finish_reason != choice.finish_reason
            if choice.text:
                self._count(answer=choice.text)
            if part is not None:
                thought = part.reasoning if part.reasoning is not None else part.reasoning_content
                if thought or part.content:
                    self._count(part.content, thought)
                if part.tool_calls:
                    self.has_token = True
        if frame.type is not None:
            self._read_responses_event(frame)
        if frame.usage is not None:
            self._read_usage(frame.usage)
        if (error := bytes(frame.error)) != b"null":
            self.error = refusals.error_text(error)
        if self.said is not None:
            self.said.frame(data)
        return frame

    def read_whole(self, document: bytes) -> None:
        """Count an answer that came in one."""
        self.keep_whole(document)
        self.read(document)

    def keep_whole(self, document: bytes) -> None:
        """Keep what a whole answer says, if that is kept; no later reading adds to it."""
        if self.said is not None:
            self.said.whole(document)
            self.said = None

    def count_texts(self, texts: Sequence[bytes], *, is_thought: bool) -> None:
        """Count what was said in frames that held nothing else, as UTF-8."""
        chars = len(b"".join(texts).decode("utf-8", "replace"))
        if is_thought:
            self.reasoning_chars += chars
        else:
            self.answer_chars += chars

    def _count(self, answer: Any = None, thought: Any = None) -> None:
        self.has_token = True
        if isinstance(answer, str):
            self.answer_chars += len(answer)
        if isinstance(thought, str):
            self.reasoning_chars += len(thought)

    def _read_responses_event(self, frame: Frame) -> None:
        if frame.type == "response.output_text.delta":
            self._count(frame.delta)
        elif frame.type in ("response.reasoning_text.delta", "response.reasoning.delta"):
            self._count(thought=frame.delta)
        if frame.response is not None and frame.response.usage is not None:
            self._read_usage(frame.response.usage)
            self.finish_reason = frame.response.status

    def _read_usage(self, usage: Usage) -> None:
        sent, made = usage.prompt_tokens, usage.completion_tokens
        self.input_tokens = usage.input_tokens if sent is None else sent
        self.output_tokens = usage.output_tokens if made is None else made
        if details := usage.prompt_tokens_details or usage.input_tokens_details:
            self.cached_tokens = details.cached_tokens
        if details := usage.completion_tokens_details or usage.output_tokens_details:
            self.reasoning_tokens = details.reasoning_tokens
