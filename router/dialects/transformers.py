"""`transformers serve`. Observed on 5.24 and read in its source.

It answers 422 to every member outside its list, so only an allow-list is sent.
top_k, min_p and repetition_penalty are read from `generation_config`, a JSON *text*
that replaces the model's own: with it the sampling switch must be sent too, and the
output limit that the server would otherwise have raised to 1,024.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from router import splice
from router.chat import ChatRequest
from router.dialects.spoken import Dialect, Place
from router.errors import InvalidJson

_IN_GENERATION_CONFIG = ("top_k", "min_p", "repetition_penalty")
_SERVER_LIMIT = 1024

_ALLOWED = frozenset(
    {
        "messages", "model", "max_tokens", "max_completion_tokens", "temperature", "top_p",
        "seed", "stop", "stream", "tools", "frequency_penalty", "logit_bias",
        "generation_config", "chat_template_kwargs", "prompt", "suffix", "input",
        "instructions", "max_output_tokens",
        # accepted and unused by the server; taking them out would only hide that
        "audio", "function_call", "functions", "logprobs", "metadata", "modalities", "n",
        "parallel_tool_calls", "prediction", "presence_penalty", "reasoning_effort",
        "response_format", "service_tier", "store", "stream_options", "tool_choice",
        "top_logprobs", "user", "web_search_options",
    }
)  # fmt: skip


def _into_generation_config(
    request: ChatRequest, said: dict[str, Any], edits: dict[str, bytes | None]
) -> None:
    """Collect what is said as pseudo members of `generation_config` into its JSON text."""
    settings: dict[str, Any] = {}
    for name in _IN_GENERATION_CONFIG:
        if said.get(name) is not None:
            settings[name] = said[name]
        edits.pop(name, None)
        if name in request.spans:
            edits[name] = None
    if not settings:
        return
    text, own = _client_config(request)
    if "do_sample" not in own:
        settings["do_sample"] = said.get("temperature") != 0
    if "max_new_tokens" not in own and said.get("max_new_tokens") is None:
        settings["max_new_tokens"] = _SERVER_LIMIT
    merged = splice.merge(
        text, {name: msgspec.json.encode(value) for name, value in settings.items()}
    )
    edits["generation_config"] = msgspec.json.encode((merged or b"{}").decode())


def _client_config(request: ChatRequest) -> tuple[bytes | None, Collection[str]]:
    """The client's own text and the settings in it; what is none gives way."""
    given = request.values.get("generation_config")
    text = msgspec.json.decode(given) if given is not None else None
    if not isinstance(text, str):
        return None, ()
    try:
        settings, _ = splice.members(text.encode(), "generation_config")
    except InvalidJson:
        return None, ()
    return text.encode(), settings


DIALECT = Dialect(
    name="transformers",
    title="transformers serve",
    proven="observed on transformers 5.24",
    places={
        "thinking": Place(("chat_template_kwargs.enable_thinking",)),
        "temperature": Place(("temperature",)),
        "top_p": Place(("top_p",)),
        "top_k": Place(("top_k",)),
        "min_p": Place(("min_p",)),
        "max_new_tokens": Place(("max_tokens", "max_completion_tokens")),
        "repetition_penalty": Place(("repetition_penalty",)),
        "frequency_penalty": Place(("frequency_penalty",)),
        "seed": Place(("seed",)),
        "stop": Place(("stop",)),
    },
    # generate() caches within a request by itself, and special tokens are always skipped
    quiet=frozenset({"session_id", "thinking_budget", "use_cache", "skip_special_tokens"}),
    allowed=_ALLOWED,
    finish=_into_generation_config,
    takes_stream_options=False,  # usage always rides on the last chunk
    ends_with_done=False,
)
