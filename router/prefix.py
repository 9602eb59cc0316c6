"""Why a prompt was not found in a prefix cache. Pure.

In: two turns of one session, as little of each as tells them apart, and what the server said of
its cache. Out: the share of the prompt that was reused, and the cause where less was than could
have been. Engines reuse a prompt's beginning up to the first token that differs, so the first
difference is the cause.
"""

from __future__ import annotations

from zlib import crc32

import msgspec

#: kept of what stands first in a prompt, to tell where it changed
_SYSTEM_BYTES = 2048
#: of a message, its length and this much of either end tell it from another
_END_BYTES = 64
#: vLLM's blocks on a CPU are of 128 tokens, elsewhere of 16; less than two may never be found
_SHORT_TOKENS = 256
#: a reuse of less than this share of the last prompt is a miss
_FOUND = 0.5


class Turn(msgspec.Struct, frozen=True):
    """One turn's prompt, as far as it is remembered."""

    backend: str
    tokens: int
    thinking: bool | None
    tools: int
    system: bytes  # the beginning of the first message
    messages: tuple[int, ...]


class Miss(msgspec.Struct, frozen=True):
    """Why less was found than was there."""

    kind: str  # no-cache moved tools first-message history short thinking evicted
    text: str


class Finding(msgspec.Struct, frozen=True):
    share: float  # of this prompt, 0..1
    miss: Miss | None  # None: all is well, or there was nothing to find yet


class _Message(msgspec.Struct, gc=False):
    role: str = ""
    content: msgspec.Raw = msgspec.Raw(b"null")


_decode = msgspec.json.Decoder(list[_Message]).decode


def turn(
    backend: str, tokens: int, thinking: bool | None, tools: bytes, messages: msgspec.Raw | bytes
) -> Turn:
    """What is remembered of a prompt. `tools` and `messages` are JSON."""
    said = _decode(messages)
    first = bytes(said[0].content)[:_SYSTEM_BYTES] if said else b""
    return Turn(backend, tokens, thinking, crc32(tools), first, tuple(map(_mark, said)))


def _mark(message: _Message) -> int:
    content = memoryview(message.content)
    mark = crc32(message.role.encode(), len(content))
    return crc32(content[-_END_BYTES:], crc32(content[:_END_BYTES], mark))


def finding(before: Turn | None, now: Turn, cached: int, *, keeps_prefix: bool) -> Finding:
    """What became of the prompt that the session's last turn had left in the cache."""
    share = min(1.0, cached / now.tokens) if now.tokens > 0 else 0.0
    if before is None or cached >= _FOUND * before.tokens:
        return Finding(share, None)
    return Finding(share, _miss(before, now, keeps_prefix=keeps_prefix))


def _miss(before: Turn, now: Turn, *, keeps_prefix: bool) -> Miss:
    if not keeps_prefix:
        return Miss("no-cache", "this kind of server keeps no prefix: affinity brings nothing here")
    if now.backend != before.backend:
        return Miss("moved", f"moved from {before.backend} to {now.backend}")
    if now.tools != before.tools:
        return Miss("tools", "the tools, or their order, changed: they stand before the messages")
    if now.messages[:1] != before.messages[:1]:
        at = _differs_at(before.system, now.system)
        return Miss("first-message", f"the first message changed at byte {at}: is the time in it?")
    for index, (then, this) in enumerate(zip(before.messages, now.messages, strict=False)):
        if then != this:
            return Miss("history", f"message {index} of the history changed")
    if len(now.messages) < len(before.messages):
        return Miss("history", "the history was cut short")
    if before.tokens < _SHORT_TOKENS:
        return Miss("short", "shorter than the blocks that are kept")
    if now.thinking != before.thinking:
        return Miss("thinking", "thinking was switched")
    return Miss("evicted", "evicted, or not kept: is there memory enough for the KV cache?")


def _differs_at(before: bytes, now: bytes) -> int:
    for index, (then, this) in enumerate(zip(before, now, strict=False)):
        if then != this:
            return index
    return min(len(before), len(now))
