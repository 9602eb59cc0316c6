"""SGLang's OpenAI server. From its documentation, not observed by this project."""

from router.dialects.spoken import Dialect, Place

DIALECT = Dialect(
    name="sglang",
    title="SGLang",
    proven="from documentation",
    places={
        "thinking": Place(("chat_template_kwargs.enable_thinking",)),
        "temperature": Place(("temperature",)),
        "top_p": Place(("top_p",)),
        "top_k": Place(("top_k",)),
        "min_p": Place(("min_p",)),
        "max_new_tokens": Place(("max_tokens", "max_completion_tokens")),
        "repetition_penalty": Place(("repetition_penalty",)),
        "presence_penalty": Place(("presence_penalty",)),
        "frequency_penalty": Place(("frequency_penalty",)),
        "seed": Place(("seed",)),
        "stop": Place(("stop",)),
        "skip_special_tokens": Place(("skip_special_tokens",)),
        "priority": Place(("priority",)),
    },
    quiet=frozenset({"session_id", "thinking_budget", "use_cache"}),
)
