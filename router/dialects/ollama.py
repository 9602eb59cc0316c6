"""Ollama's OpenAI route. From its documentation and issues, not observed by this project.

chat_template_kwargs is ignored there; reasoning_effort is what switches thinking.
Only what the route documents is said: the native options (top_k, repeat_penalty) have
no place on it.
"""

from router.dialects.spoken import Dialect, Place, onoff

DIALECT = Dialect(
    name="ollama",
    title="Ollama",
    proven="from documentation",
    places={
        "thinking": Place(("reasoning_effort",), onoff("medium", "none")),
        "temperature": Place(("temperature",)),
        "top_p": Place(("top_p",)),
        "max_new_tokens": Place(("max_tokens",)),
        "presence_penalty": Place(("presence_penalty",)),
        "frequency_penalty": Place(("frequency_penalty",)),
        "seed": Place(("seed",)),
        "stop": Place(("stop",)),
    },
    quiet=frozenset({"session_id", "thinking_budget", "use_cache"}),
)
