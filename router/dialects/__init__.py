"""How each kind of server wants a request said.

In: a ChatRequest, the Changes decided for it, a Dialect and the backend's model
name. Out: the bytes to send, what they say, and what could not be said. Pure.

A parameter that a backend cannot honour is left out and named in the warnings; it
is never sent in hope. `spoken.py` holds the encoder; each other module is one
server's table.
"""

from __future__ import annotations

from collections.abc import Mapping

from router.dialects import flat, llamacpp, ollama, openai, sglang, transformers, vllm
from router.dialects.spoken import OURS, Dialect, Place, Said, encode, say

__all__ = ["DIALECTS", "OURS", "Dialect", "Place", "Said", "encode", "of", "say"]

DIALECTS: Mapping[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        vllm.DIALECT,
        transformers.DIALECT,
        llamacpp.DIALECT,
        sglang.DIALECT,
        ollama.DIALECT,
        flat.DIALECT,
        openai.DIALECT,
    )
}


def of(name: str) -> Dialect:
    """The dialect of that name."""
    return DIALECTS[name]
