"""An OpenAI-compatible server of unknown kind: only what the OpenAI API itself has.

What the client wrote is passed on, since it may know this server; what the policy
wants beyond the common ground is left out and named.
"""

from router.dialects.spoken import Dialect, Place

DIALECT = Dialect(
    name="openai",
    title="a plain OpenAI server",
    proven="the OpenAI API reference",
    places={
        "temperature": Place(("temperature",)),
        "top_p": Place(("top_p",)),
        "max_new_tokens": Place(("max_tokens", "max_completion_tokens")),
        "presence_penalty": Place(("presence_penalty",)),
        "frequency_penalty": Place(("frequency_penalty",)),
        "seed": Place(("seed",)),
        "stop": Place(("stop",)),
    },
    quiet=frozenset({"session_id", "use_cache"}),
    passes_unsayable=True,
)
