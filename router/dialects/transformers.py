"""`transformers serve`. Observed on 5.24 and read in its source.

It answers 422 to every member outside its list, so only an allow-list is sent.
top_k, min_p and repetition_penalty are read from `generation_config`, a JSON *text*
that replaces the model's own: with it the sampling switch must be sent too, and the
output limit that the server would otherwise have raised to 1,024.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import msgspec

from router import splice
from router.chat import ChatRequest
from router.dialects.spoken import Dialect, Place, above, as_it_is, bounded, tokens
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
            # It turns a whole number down where a fraction is meant.
            is_whole = name != "top_k" and isinstance(said[name], int)
            settings[name] = float(said[name]) if is_whole else said[name]
        edits.pop(name, None)
        if name in request.spans:
            edits[name] = None
    if not settings:
        return
    is_stripped = edits.get("generation_config", b"") is None
    text, own = (None, ()) if is_stripped else _client_config(request)
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
        "temperature": Place(("temperature",), as_it_is, bounded(0, math.inf)),
        "top_p": Place(("top_p",)),
        "top_k": Place(("top_k",)),
        "min_p": Place(("min_p",)),
        "max_new_tokens": Place(("max_tokens", "max_completion_tokens"), as_it_is, tokens),
        "repetition_penalty": Place(("repetition_penalty",), as_it_is, above(0)),
        # It is 1 + this that the server takes as its repetition penalty, which must be above 0.
        "frequency_penalty": Place(("frequency_penalty",), as_it_is, above(-1)),
        "seed": Place(("seed",)),
        "stop": Place(("stop",)),
    },
    quiet=frozenset({"session_id", "thinking_budget", "use_cache"}),  # generate() has a cache
    does={"skip_special_tokens": True},
    unheard={
        "response_format": "json_schema",
        "n": "n",
        "logprobs": "logprobs",
        "tool_choice": "forced_tool",
    },
    allowed=_ALLOWED,
    finish=_into_generation_config,
    takes_stream_options=False,  # usage always rides on the last chunk
    aborts_only_streams=True,
    keeps_prefix=False,
    leaks_empty_thought=True,
    is_one_at_a_time=True,
)
