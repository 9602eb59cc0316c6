"""Answers that think, as servers tell them: texts with tags, streams, whole documents.

A stream can be cut anywhere and told in any server's way; `joined` is what a client makes of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

OPEN, CLOSE = "<think>", "</think>"
#: what tags, their beginnings and the blanks around them are made of
_BITS = (
    OPEN,
    CLOSE,
    "<",
    "</",
    "<thi",
    "think>",
    "</thin",
    "\n",
    " ",
    "\t",
    "　",
    "a",
    "答え",
    "😀",
)

tagged_texts = st.one_of(
    st.lists(st.sampled_from(_BITS), max_size=9).map("".join),
    st.text("<>/think \n答a", max_size=24),
)
#: texts without anything that could be taken for a tag
plain_texts = st.text("ab答😀 \n\t", max_size=14)
#: texts with something in them that can be read
said_texts = plain_texts.filter(str.strip)
cut_points = st.lists(st.integers(min_value=0, max_value=1 << 12), max_size=8)


def cut_text(text: str, points: Sequence[int]) -> list[str]:
    """The text in pieces, none of them empty; each point is taken modulo its length."""
    edges = [0, *sorted(point % (len(text) + 1) for point in points), len(text)]
    return [text[start:end] for start, end in pairwise(edges) if end > start]


def chunk(delta: dict[str, Any], finish: str | None = None, **members: Any) -> dict[str, Any]:
    """A document of a stream with one choice."""
    choice = {"index": members.pop("index", 0), "delta": delta, "finish_reason": finish}
    if "logprobs" in members:
        choice["logprobs"] = members.pop("logprobs")
    base = {"id": "c-1", "object": "chat.completion.chunk", "created": 7, "model": "m"}
    return {**base, "choices": [choice], **members}


def whole(message: dict[str, Any], finish: str = "stop", **members: Any) -> dict[str, Any]:
    """A whole answer with one choice."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", **message},
        "finish_reason": finish,
    }
    base = {"id": "c-1", "object": "chat.completion", "created": 7, "model": "m"}
    return {**base, "choices": [choice], **members}


def encoded(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def joined(documents: Iterable[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """What a client makes of a stream: by choice, the texts and the end. Nothing is nothing."""
    found: dict[int, dict[str, Any]] = {}
    for document in documents:
        for choice in document["choices"]:
            said = found.setdefault(choice["index"], {})
            for name, value in choice["delta"].items():
                if isinstance(value, str):
                    said[name] = said.get(name, "") + value
                elif isinstance(value, list):
                    said[name] = said.get(name, []) + value
            if choice["finish_reason"] is not None:
                assert "finish" not in said, "a choice ends once"
                said["finish"] = choice["finish_reason"]
    return {index: without_nothing(said) for index, said in found.items()}


def said_whole(document: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """The same of a whole answer."""
    found = {}
    for choice in document["choices"]:
        said = {**choice["message"], "finish": choice["finish_reason"]}
        found[choice["index"]] = without_nothing(said)
    return found


def without_nothing(said: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in said.items() if value not in (None, "", [])}
