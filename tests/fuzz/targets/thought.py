"""Think tags: the same thought and the same answer however the text comes, and no word lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from router.bridge import MODES, Bridge
from router.thought import CLOSE, OPEN, Splitter
from tests.fuzz import source


def check(data: bytes) -> None:
    given = source.of(data)
    text = given.text()
    starts_inside = given.has(0)
    whole = told_apart([text], starts_inside=starts_inside)
    cut = [[part.decode() for part in pieces] for pieces in _cut(given, text)]
    for pieces in cut:
        assert told_apart(pieces, starts_inside=starts_inside) == whole
    thought, answer = whole
    assert OPEN not in thought or text.count(OPEN) > 1 or starts_inside
    assert CLOSE not in thought
    assert len(thought) + len(answer) <= len(text)
    assert _letters_of(thought + answer) in {
        _letters_of(without)
        for once in (text, text.replace(OPEN, "", 1))
        for without in (once, once.replace(CLOSE, "", 1))
    }, "a word was lost or made up"
    mode = MODES[given.pick(4, 1)]
    thinking = (None, False, True)[given.pick(3, 3)]
    as_whole = message(mode, text, thinking=thinking)
    streamed = stream(mode, [text], thinking=thinking)
    for pieces in cut:
        assert stream(mode, pieces, thinking=thinking) == streamed
    if thinking is not False or mode == "keep":  # told not to, a stream cannot be put right
        assert as_whole == streamed


def _letters_of(text: str) -> str:
    return "".join(text.split())


def _cut(given: source.Source, text: str) -> list[list[bytes]]:
    """Pieces that are text: cut between letters."""
    letters = [letter.encode() for letter in text]
    by_seed = [given.seed % 7 + 1, given.seed // 7 % 5 + 1]
    pieces: list[bytes] = []
    at = 0
    while at < len(letters):
        size = by_seed[len(pieces) % 2]
        pieces.append(b"".join(letters[at : at + size]))
        at += size
    return [letters, pieces]


def told_apart(pieces: Sequence[str], *, starts_inside: bool) -> tuple[str, str]:
    splitter = Splitter(starts_inside=starts_inside)
    parts = [part for piece in pieces for part in splitter.feed(piece)] + splitter.end()
    return (
        "".join(part.text for part in parts if part.is_thought),
        "".join(part.text for part in parts if not part.is_thought),
    )


def message(mode: str, text: str, *, thinking: bool | None) -> tuple[str, str]:
    """Content and thought of a whole answer, as the client gets them."""
    document: dict[str, Any] = {
        "choices": [{"index": 0, "message": {"content": text}, "finish_reason": "stop"}]
    }
    Bridge(mode, thinking=thinking).turn(document)
    told = document["choices"][0]["message"]
    return told.get("content") or "", told.get("reasoning_content", "")


def stream(mode: str, pieces: Sequence[str], *, thinking: bool | None) -> tuple[str, str]:
    """The same of a stream."""
    bridge = Bridge(mode, thinking=thinking)
    content = thought = ""
    for piece in [*pieces, ""]:
        choice = {"index": 0, "delta": {"content": piece}, "finish_reason": None}
        if not piece:
            choice["finish_reason"] = "stop"
        document: dict[str, Any] = {"choices": [choice]}
        bridge.turn(document)
        told = document["choices"][0]["delta"]
        content += told.get("content") or ""
        thought += told.get("reasoning_content", "")
    return content, thought
