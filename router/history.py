"""Thoughts that clients send back in their history, taken out again. Pure.

A client that was shown a thought inside the text keeps it there. The templates of thinking
models leave thoughts of earlier turns out of the prompt, some only where they find them in the
right place; a prompt that is the same each turn is what the prefix cache lives on.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from router import thought

_BLANKS = (" ", "\\n", "\\r", "\\t")
#: how careful encoders write what HTML would take for a tag
_ESCAPED = {"\\u003c": "<", "\\u003C": "<", "\\u003e": ">", "\\u003E": ">"}
_LOOKED_AT = 48
_decode = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_text = msgspec.json.Decoder(str).decode
_encode = msgspec.json.Encoder().encode


def begins_with_thought(content: msgspec.Raw) -> bool:
    """Whether a message's undecoded content is a text that opens with a thought."""
    start = memoryview(content)[:_LOOKED_AT].tobytes()
    if start[:1] != b'"':
        return False
    text = start[1:].decode("ascii", "replace")
    if "\\u003" in text:
        for written, meant in _ESCAPED.items():
            text = text.replace(written, meant)
    while text.startswith(_BLANKS):
        text = text.removeprefix(next(blank for blank in _BLANKS if text.startswith(blank)))
    return text.startswith(thought.OPEN)


def without_thoughts(messages: msgspec.Raw, at: Sequence[int]) -> bytes:
    """The messages as JSON, those at these places without the thought that they open with."""
    decoded = _decode(messages)
    for index in at:
        splitter = thought.Splitter()
        parts = splitter.feed(_text(decoded[index]["content"])) + splitter.end()
        answer = "".join(part.text for part in parts if not part.is_thought)
        decoded[index]["content"] = msgspec.Raw(_encode(answer))
    return _encode(decoded)
