"""Ollama's OpenAI route. From its documentation and issues, not observed by this project.

chat_template_kwargs is ignored there; reasoning_effort is what switches thinking.
Only what the route documents is said: the native options (top_k, repeat_penalty) have
no place on it.
"""

from __future__ import annotations

from typing import Any

from router.chat import ChatRequest
from router.dialects.spoken import Dialect, Place, as_it_is, onoff, tokens


def _without_a_louder_word(
    request: ChatRequest, said: dict[str, Any], edits: dict[str, bytes | None]
) -> None:
    """`reasoning.effort` beats `reasoning_effort` there, so where thinking is off it goes."""
    if said.get("thinking") is False and "reasoning" in request.spans:
        edits["reasoning"] = None


DIALECT = Dialect(
    name="ollama",
    title="Ollama",
    proven="from documentation",
    places={
        "thinking": Place(("reasoning_effort",), onoff("medium", "none")),
        "temperature": Place(("temperature",)),
        "top_p": Place(("top_p",)),
        "max_new_tokens": Place(("max_tokens",), as_it_is, tokens),  # 0 is no limit there
        "presence_penalty": Place(("presence_penalty",)),
        "frequency_penalty": Place(("frequency_penalty",)),
        "seed": Place(("seed",)),
        "stop": Place(("stop",)),
    },
    quiet=frozenset({"session_id", "thinking_budget", "use_cache"}),
    finish=_without_a_louder_word,
)
