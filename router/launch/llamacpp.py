"""How our own llama.cpp server is started (see `llamacpp_server`).

Values in, a command out; nothing is looked up or run here.
"""

from __future__ import annotations

from collections.abc import Iterator

from router.config import EngineOptions
from router.launch.options import Refusal, missing_device, share_of, unasked

CONTEXT = 4096
"""Tokens of one conversation: the server's context is shared out among its slots."""
SLOTS = 2

_CACHE_TYPES = {"float16": "f16", "bfloat16": "bf16"}
_FLASH = {"flash": "on", "eager": "off"}


def refusals(options: EngineOptions, *, has_gpu: bool) -> Iterator[Refusal]:
    """What llama.cpp cannot do."""
    yield from missing_device(options, has_gpu=has_gpu)
    in_the_file = "the .gguf file says what its weights are: name another as the model"
    if options.dtype not in (None, "auto"):
        yield Refusal("dtype", in_the_file)
    if options.quantization not in (None, "none"):
        yield Refusal("quantization", in_the_file)
    if options.attention == "sdpa":
        yield Refusal("attention", "llama.cpp has flash and eager")
    if options.chunked_prefill is False:
        yield Refusal("chunked_prefill", "llama.cpp always reads a prompt in pieces")
    if options.prompt_token_details is False:
        yield Refusal("prompt_token_details", "its usage always tells cached_tokens")
    if options.reasoning_parser not in (None, "none"):
        yield Refusal(
            "reasoning_parser",
            'it takes no parser but tells thought from answer by the chat template ("none": not)',
        )
    cache = options.kv_cache_dtype or "auto"
    if cache.startswith("fp8"):
        yield Refusal("kv_cache_dtype", "a type of vLLM; llama.cpp has q8_0")
    if cache.startswith("q") and options.attention == "eager":
        yield Refusal("kv_cache_dtype", "a quantised cache of values needs flash attention")
    yield from unasked("gpu_memory", options.gpu_memory, "llama.cpp has no share of memory to set")


def command(
    options: EngineOptions,
    *,
    python: str,
    path: str,
    repo: str,
    file: str,
    alias: str,
    port: int,
    threads: int,
) -> tuple[str, ...]:
    """The server in a process of its own, with a file or a place on the hub to fetch it from."""
    weights = ("--model-path", path) if path else ("--hub-repo", repo, "--hub-file", file)
    threads = share_of(threads, options)
    flags = ["--alias", alias, "--port", str(port), "--threads", str(threads)]
    slots = options.max_num_seqs or SLOTS
    context = (options.max_model_len or CONTEXT) * slots
    flags += ["--ctx", str(context), "--slots", str(slots)]
    if options.device is not None and options.device != "auto":
        flags += ["--device", options.device]
    if flash := _FLASH.get(options.attention or ""):
        flags += ["--flash-attn", flash]
    if options.continuous_batching is False:
        flags += ["--no-cont-batching"]
    if options.max_batched_tokens is not None:
        flags += ["--batch", str(options.max_batched_tokens)]
    if options.prefix_caching is False:
        flags += ["--no-cache-prompt"]
    if options.reasoning_parser == "none":
        flags += ["--reasoning-format", "none"]
    kind = options.kv_cache_dtype or "auto"
    if kind != "auto":
        flags += ["--cache-type", _CACHE_TYPES.get(kind, kind)]
    server = (python, "-m", "router.launch.llamacpp_server")
    return (*server, *weights, *flags, *options.args)
