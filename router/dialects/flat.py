"""A hand-written server around `generate()`: every parameter at the top level by its own name.

For services in the manner of "FastAPI around transformers", whose request model is
the keyword list of `generate()`, and for hosted Qwen endpoints that take
`enable_thinking` beside the OpenAI parameters.
"""

from router.dialects.spoken import Dialect, Place
from router.params import PARAMS

_OWN_NAMES = {
    name: Place((name,))
    for name in PARAMS
    if name not in ("thinking", "reasoning_output", "stream")
}

DIALECT = Dialect(
    name="flat",
    title="a flat server",
    proven="by definition",
    places={
        **_OWN_NAMES,
        "thinking": Place(("enable_thinking",)),
        "max_new_tokens": Place(("max_new_tokens",)),
    },
    takes_stream_options=False,
)
