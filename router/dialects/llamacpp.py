"""llama.cpp's llama-server. Observed on builds 11434 and 11549.

It calls the repetition penalty repeat_penalty and ignores the common name.
"""

from router.dialects.spoken import Dialect, Place, above, as_it_is

DIALECT = Dialect(
    name="llamacpp",
    title="llama.cpp",
    proven="observed on llama-server 11434",
    places={
        "thinking": Place(("chat_template_kwargs.enable_thinking",)),
        "thinking_budget": Place(("thinking_budget_tokens",)),
        "temperature": Place(("temperature",)),
        "top_p": Place(("top_p",)),
        "top_k": Place(("top_k",)),
        "min_p": Place(("min_p",)),
        "max_new_tokens": Place(("max_tokens", "max_completion_tokens", "n_predict")),
        "repetition_penalty": Place(("repeat_penalty",), as_it_is, above(0)),
        "presence_penalty": Place(("presence_penalty",)),
        "frequency_penalty": Place(("frequency_penalty",)),
        "seed": Place(("seed",)),
        "stop": Place(("stop",)),
        "use_cache": Place(("cache_prompt",)),
    },
    quiet=frozenset({"session_id"}),
)
