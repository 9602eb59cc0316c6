"""Where a thought stands in an answer, as the policy or the client wants it.

In: an answer's documents in any server's way of telling a thought (a field `reasoning` or
`reasoning_content`, or tags in the content). Out: the same documents with the thought in
`reasoning_content` (field), in tags (inline), left out (drop) or untouched (keep). White
space around a thought goes, and a thought of nothing else with it.

It also watches whether there is an answer at all, and puts one right that a server sent as
thought although it was told not to think.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from router import tally, thought
from router.thought import Splitter

MODES = ("field", "inline", "drop", "keep")
#: what other servers and clients call it; the first is what we write
_FIELDS = ("reasoning_content", "reasoning")
_OPENING, _CLOSING = f"{thought.OPEN}\n", f"\n{thought.CLOSE}\n\n"
#: of an answer that came as thought, this much is kept to be put right
_KEPT_CHARS = 1 << 20


class _Voice:
    """One choice of an answer."""

    def __init__(self, mode: str, *, starts_inside: bool, is_told_not_to_think: bool) -> None:
        self.mode = mode
        self.splitter = Splitter(starts_inside=starts_inside)
        self.has_answer = False  # text or a tool call has come
        self.is_again = False  # this is the second try: no thought is wanted any more
        self.is_open = False  # the client has an opening tag and still wants the closing one
        self.thought_chars = 0
        self._sent: list[str] | None = [] if is_told_not_to_think else None

    @property
    def is_settled(self) -> bool:
        """Whether all that follows goes on as it comes."""
        if self.mode == "keep":
            return self.has_answer and not self.is_open
        return self.splitter.is_answering and not self.is_open

    def hear(self, part: dict[str, Any], finish: Any) -> tuple[str, str]:
        """What a delta or a message says: thought, answer."""
        parts = []
        for name in _FIELDS:
            given = part.get(name)
            if isinstance(given, str) and given:
                parts += self.splitter.thought(given)
                break
        content = part.get("content")
        if isinstance(content, str) and content:
            parts += self.splitter.feed(content)
        # Content in parts, which we do not read, is an answer too.
        calls = _has_calls(part) or (bool(content) and not isinstance(content, str))
        if calls or finish is not None:
            parts += self.splitter.end()
        thoughts = "".join([p.text for p in parts if p.is_thought])
        answer = "".join([p.text for p in parts if not p.is_thought])
        if calls or answer.strip():
            self.has_answer = True
        return thoughts, answer

    def put_right(self, thoughts: str, answer: str, finish: Any) -> tuple[str, str]:
        """Told not to think, a whole answer that came as thought is the answer."""
        if self._sent is None or self.has_answer or self.mode == "keep":
            return thoughts, answer
        if sum(map(len, self._sent)) < _KEPT_CHARS:
            self._sent.append(thoughts)
        if finish == "stop" and (said := "".join(self._sent)):
            self.has_answer = True
            return "", said
        return thoughts, answer

    def say(self, part: dict[str, Any], thoughts: str, answer: str, *, is_end: bool) -> bool:
        """Write them into the part; whether that changed it."""
        if self.mode == "keep" and not self.is_open:
            return False
        if self.is_again:
            thoughts = ""
        before = {name: part[name] for name in ("content", *_FIELDS) if name in part}
        content = answer
        if self.mode == "inline" or self.is_open:
            content = self._in_tags(thoughts, answer, is_end)
        after = {n: v for n, v in before.items() if not (v and isinstance(v, str))}
        if content and not after.get("content"):
            after["content"] = content
        if self.mode == "field" and thoughts:
            after[_FIELDS[0]] = thoughts
        if after == before:
            return False
        for name in before:
            del part[name]
        part.update(after)
        return True

    def _in_tags(self, thoughts: str, answer: str, is_end: bool) -> str:
        text = ""
        if thoughts:
            text = thoughts if self.is_open else _OPENING + thoughts
            self.is_open = True
        if self.is_open and (answer or is_end):
            text += _CLOSING
            self.is_open = False
        return text + answer

    def begin_again(self) -> None:
        self.is_again = True
        if self.mode == "keep":
            self.is_open = self.splitter.is_thinking
            if not self.is_open:  # no thought is wanted, so what comes of one is a server's leak
                self.mode = "field"
        self.splitter.begin_again()
        self._sent = []


class Bridge:
    """One answer on its way to the client."""

    def __init__(
        self,
        mode: str,
        *,
        thinking: bool | None,
        opens_in_prompt: bool = False,
        is_single: bool = True,
        budget: int | None = None,
    ) -> None:
        """`thinking` as the server was told (None: its own default); `is_single`: one choice.

        `budget`: pieces of thought, which are tokens where a server sends them one by one, after
        which it is over (`is_over`).
        """
        self.mode = mode
        self.thought = ""  # all of it, where there is a budget
        self.pieces = 0
        self._budget = budget
        self.is_settled = False  # nothing that follows can need us; ask `sees` all the same
        self.was_read = False  # the last event held a document
        self.thought_chars = 0  # in the last document
        self.answer_chars = 0
        self._is_told_not_to_think = thinking is False
        self._starts_inside = opens_in_prompt and thinking is not False
        self._is_single = is_single
        self._voices: dict[int, _Voice] = {}

    @property
    def budget(self) -> int:
        return self._budget or 0

    @property
    def is_over(self) -> bool:
        """Whether the thought has used its budget up and goes on."""
        return self._budget is not None and self.pieces > self._budget and not self.has_answer

    @property
    def has_answer(self) -> bool:
        return any(voice.has_answer for voice in self._voices.values())

    def event(self, data: bytes) -> bytes | None:
        """A stream's document as the client gets it: None, as it came; empty, not at all."""
        document = document_in(data)
        self.was_read = document is not None
        if document is None:
            return None
        is_changed = self.turn(document)
        if not is_changed:
            return None
        return orjson.dumps(document) if says_something(document) else b""

    def turn(self, document: dict[str, Any]) -> bool:
        """Turn one document of an answer, a whole or a stream's; whether that changed it."""
        self.thought_chars = self.answer_chars = 0
        is_changed = False
        for choice in choices_in(document):
            is_whole = "message" in choice
            part = choice.get("message" if is_whole else "delta")
            if not isinstance(part, dict):
                continue
            index = choice.get("index")
            voice = self._voice(index if isinstance(index, int) else 0)
            finish = choice.get("finish_reason")
            if is_whole and finish is None:
                finish = "stop"
            thoughts, answer = voice.put_right(*voice.hear(part, finish), finish)
            self.thought_chars += len(thoughts)
            self.answer_chars += len(answer)
            if self._budget is not None and (thoughts or voice.splitter.is_thinking):
                self.pieces += 1
                self.thought += thoughts
            is_end = finish is not None or _has_calls(part)
            if voice.say(part, thoughts, answer, is_end=is_end):
                is_changed = True
                if is_whole:  # a message always has this member
                    part.setdefault("content", None if _has_calls(part) else "")
        self.is_settled = self._is_single and all(
            voice.is_settled for voice in self._voices.values()
        )
        return is_changed

    def begin_again(self) -> None:
        """Another try at the answer follows, with thinking off, in the same reply."""
        self._is_told_not_to_think, self._starts_inside, self._budget = True, False, None
        for voice in self._voices.values():
            voice.begin_again()

    def _voice(self, index: int) -> _Voice:
        voice = self._voices.get(index)
        if voice is None:
            voice = self._voices[index] = _Voice(
                self.mode,
                starts_inside=self._starts_inside,
                is_told_not_to_think=self._is_told_not_to_think,
            )
        return voice


def with_known_end(data: bytes) -> bytes:
    """A document of an answer whose ends have the names that clients know."""
    document = document_in(data)
    if document is None:
        return data
    for choice in choices_in(document):
        reason = choice.get("finish_reason")
        if isinstance(reason, str):
            choice["finish_reason"] = tally.ENDS.get(reason, reason)
    return orjson.dumps(document)


def with_known_end_behind(raw: bytes, sent: int) -> bytes:
    """An event likewise, every other byte as it came; this many of them have gone out already."""

    def known(found: re.Match[bytes]) -> bytes:
        is_gone = found.start(2) < sent
        return found[0] if is_gone else found[1] + tally.ENDS[found[2].decode()].encode() + b'"'

    return _ODD_END.sub(known, raw)


_ODD_END = re.compile(rb'("finish_reason": ?")(%b)"' % "|".join(tally.ENDS).encode())
_NO_CHOICE = re.compile(rb'"choices": ?(?:\[\]|null)')


def ends_oddly(body: bytes) -> bool:
    """Whether a whole answer gives its end a name that clients do not know."""
    return _ODD_END.search(body) is not None


def is_hollow(body: bytes) -> bool:
    """Whether a whole answer holds no choice at all, which clients fall over."""
    return _NO_CHOICE.search(body) is not None


def sees(payload: bytes) -> bool:
    """Whether there may be a thought in these bytes, however their JSON is escaped."""
    return b"think" in payload or b'"reasoning' in payload


def document_in(data: bytes) -> dict[str, Any] | None:
    """The object that these bytes are; None where they are none."""
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return document if isinstance(document, dict) else None


def _has_calls(part: dict[str, Any]) -> bool:
    return bool(part.get("tool_calls") or part.get("function_call"))


def choices_in(document: dict[str, Any]) -> list[dict[str, Any]]:
    choices = document.get("choices")
    if not isinstance(choices, list):
        return []
    return [choice for choice in choices if isinstance(choice, dict)]


def says_something(document: dict[str, Any]) -> bool:
    """Whether a client would miss a stream's document."""
    return bool(document.get("usage")) or any(
        choice.get("delta") or choice.get("finish_reason") is not None
        for choice in choices_in(document)
    )
