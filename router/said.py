"""What an answer said, kept while it is passed on, for the log of bodies.

In: the frames of an answer, or a whole one's bytes. Nothing is joined here, nor is a whole read:
whoever writes it down does that, away from the streams. Bounded.
"""

from __future__ import annotations

from typing import Any

import msgspec

#: kept beyond the limit, so that a secret at the end can be seen as one before it is cut off
SLACK = 4096
_THOUGHTS = ("response.reasoning_text.delta", "response.reasoning.delta")


class _Part(msgspec.Struct, gc=False):
    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: Any = None


class _Choice(msgspec.Struct, gc=False):
    index: Any = None
    delta: _Part | None = None
    text: Any = None


class _Frame(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    type: Any = None
    delta: Any = None  # /v1/responses: the text itself
    item: Any = None  # likewise: what an event has completed
    output_index: Any = None


_frame = msgspec.json.Decoder(_Frame).decode


class Said:
    """Pieces of an answer, by its choices."""

    __slots__ = ("_limit", "_room", "answers", "calls", "is_cut", "thoughts", "wholes")

    def __init__(self, limit: int) -> None:
        """`limit`: characters of text that are kept."""
        self._limit = self._room = limit + SLACK
        self.is_cut = False
        self.answers: dict[int, list[str]] = {}
        self.thoughts: list[str] = []
        self.calls: list[Any] = []  # pieces of tool calls, undecoded further
        self.wholes: list[bytes] = []  # documents of answers that were not streamed

    def frame(self, data: bytes) -> None:
        """What one frame of a stream says, if it is one."""
        try:
            frame = _frame(data)
        except (msgspec.DecodeError, RecursionError):
            return
        for choice in frame.choices or ():
            part = choice.delta
            if choice.text:
                self._answer(choice.index, choice.text)
            if part is not None:
                if part.content:
                    self._answer(choice.index, part.content)
                thought = part.reasoning if part.reasoning is not None else part.reasoning_content
                if thought:
                    self._thought(thought)
                if part.tool_calls:
                    self._call(part.tool_calls)
        if frame.type is not None:
            if frame.type == "response.output_text.delta":
                self._answer(frame.output_index, frame.delta)
            elif frame.type in _THOUGHTS:
                self._thought(frame.delta)
            elif frame.type == "response.output_item.done" and frame.item is not None:
                self._call([frame.item])

    def whole(self, document: bytes) -> None:
        """An answer that came in one, as its server told it."""
        self.wholes.append(document)

    @property
    def size(self) -> int:
        """Bytes that it holds, about."""
        return sum(map(len, self.wholes)) + 2 * (self._limit - self._room)

    def _answer(self, index: Any, text: Any) -> None:
        if isinstance(text, str) and self._has_room(len(text)):
            self.answers.setdefault(index if isinstance(index, int) else 0, []).append(text)

    def _thought(self, text: Any) -> None:
        if isinstance(text, str) and self._has_room(len(text)):
            self.thoughts.append(text)

    def _call(self, pieces: Any) -> None:
        for piece in pieces if isinstance(pieces, list) else ():
            if isinstance(piece, dict) and self._has_room(64 + len(str(piece))):
                self.calls.append(piece)

    def _has_room(self, size: int) -> bool:
        if self._room <= 0:
            self.is_cut = True
            return False
        self._room -= size
        return True
