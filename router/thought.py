"""Thought and answer told apart in a text that comes in pieces.

In: an answer's text, cut anywhere. Out: (is_thought, text) parts, the tags left out. The
same parts joined, wherever the text was cut: what may be the beginning of a tag is held
until the next piece shows whether it is one.
"""

from __future__ import annotations

from typing import NamedTuple

OPEN, CLOSE = "<think>", "</think>"

_START, _THOUGHT, _ANSWER = range(3)


class Part(NamedTuple):
    is_thought: bool
    text: str


class Splitter:
    """One answer. A thought stands at its beginning or nowhere.

    White space before the opening tag, around a thought and before the answer that follows
    one is left out; so a block that holds nothing else leaves no trace.
    """

    __slots__ = ("_had_thought", "_held", "_is_inside", "_space", "_starts_inside", "_state")

    def __init__(self, *, starts_inside: bool = False) -> None:
        """`starts_inside`: the opening tag stood in the prompt."""
        self._state = _START
        self._starts_inside = starts_inside
        self._held = ""
        self._space = ""  # of a thought that the server tells apart itself
        self._is_inside = False  # text of the thought has come
        self._had_thought = False

    @property
    def is_answering(self) -> bool:
        """Whether all that follows is answer, as it comes."""
        return self._state == _ANSWER and not self._had_thought

    @property
    def is_thinking(self) -> bool:
        return self._state == _THOUGHT

    def feed(self, text: str) -> list[Part]:
        if self._state == _ANSWER and not self._had_thought:
            return [Part(False, text)] if text else []
        text, self._held = self._held + text, ""
        parts: list[Part] = []
        if self._state == _START:
            text = self._begun(text)
        if self._state == _THOUGHT:
            text = self._thought(text, parts)
        if self._state == _ANSWER and text:
            self._answer(text, parts)
        return parts

    def _begun(self, text: str) -> str:
        """Leave the beginning once it is clear what it is the beginning of."""
        bare = text.lstrip()
        if bare.startswith(OPEN):
            self._state, self._had_thought = _THOUGHT, True
            return bare[len(OPEN) :]
        if OPEN.startswith(bare):  # so does nothing at all
            self._held = text
            return ""
        self._state = _THOUGHT if self._starts_inside else _ANSWER
        self._had_thought |= self._starts_inside
        return text

    def _thought(self, text: str, parts: list[Part]) -> str:
        """Take the thought's text; what is behind its end is given back."""
        if not self._is_inside:
            text = text.lstrip()
        inner, tag, rest = text.partition(CLOSE)
        if tag:
            self._state = _ANSWER
            kept = inner.rstrip()
        else:
            kept = inner[: len(inner) - _tag_begun(inner)].rstrip()
            self._held = inner[len(kept) :]
        if kept:
            self._is_inside = True
            parts.append(Part(True, kept))
        return rest

    def _answer(self, text: str, parts: list[Part]) -> None:
        if self._had_thought:
            text = text.lstrip()
            if not text:
                return
            self._had_thought = False
        parts.append(Part(False, text))

    def thought(self, text: str) -> list[Part]:
        """A piece that the server itself calls thought; what it calls answer goes to `feed`."""
        if not self.is_answering:  # what already is an answer keeps its blanks
            self._state, self._had_thought = _ANSWER, True
        text = self._space + text if self._is_inside else text.lstrip()
        kept = text.rstrip()
        self._space = text[len(kept) :]
        if not kept:
            return []
        self._is_inside = True
        return [Part(True, kept)]

    def begin_again(self) -> None:
        """What follows is another try at the answer, behind the thought that there was."""
        self.__init__()  # type: ignore[misc]
        self._had_thought = True

    def end(self) -> list[Part]:
        """The text is over: what was held is what it looks like."""
        held, self._held = self._held, ""
        if self._state == _THOUGHT or (self._state == _START and self._starts_inside):
            kept = held.rstrip() if self._is_inside else held.strip()
            return [Part(True, kept)] if kept else []
        return [Part(False, held)] if self._state == _START and held else []


def _tag_begun(text: str) -> int:
    """How many characters at the end of a text may be the beginning of the closing tag."""
    for size in range(min(len(CLOSE) - 1, len(text)), 0, -1):
        if CLOSE.startswith(text[-size:]):
            return size
    return 0
