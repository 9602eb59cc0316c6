"""How `transformers serve` is started.

Values in, a command and its environment out; nothing is looked up or run here. Flags as
`--help` of transformers 5.24 lists them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import PurePath

from router.config import EngineOptions
from router.launch.options import (
    NO_GPU,
    Refusal,
    missing_device,
    more_than_a_gpu,
    share_of,
    unasked,
)

_ATTENTION = {"sdpa": "sdpa", "eager": "eager", "flash": "flash_attention_2"}


def refusals(
    options: EngineOptions, *, has_gpu: bool, extras: Collection[str]
) -> Iterator[Refusal]:
    """What `transformers serve` has no flag for, and does not do by itself either.

    `extras`: what is installed beside it, of the packages that some options need.
    """
    yield from missing_device(options, has_gpu=has_gpu)
    batches = options.continuous_batching is True
    if options.quantization in ("awq", "gptq"):
        yield Refusal("quantization", "its --quantization takes bnb-4bit and bnb-8bit alone")
    elif options.quantization in ("bnb-4bit", "bnb-8bit") and "bitsandbytes" not in extras:
        yield Refusal("quantization", "bitsandbytes is not installed beside it")
    if options.attention == "flash" and not has_gpu:
        yield Refusal("attention", "flash_attention_2 runs on GPUs alone; sdpa is for processors")
    elif options.attention == "flash" and not {"flash_attn", "kernels"} & set(extras):
        yield Refusal("attention", "neither flash_attn nor kernels is installed beside it")
    if options.chunked_prefill is True and not batches:
        yield Refusal("chunked_prefill", "without continuous_batching it reads a prompt in one go")
    if options.chunked_prefill is False and batches:
        yield Refusal("chunked_prefill", "with continuous_batching it always cuts long prompts")
    without = "" if batches else "here it needs continuous_batching = true"
    if without:
        yield from unasked("max_batched_tokens", options.max_batched_tokens, without)
    yield from more_than_a_gpu(options)
    if reason := without if has_gpu else NO_GPU:
        yield from unasked("gpu_memory", options.gpu_memory, reason)
    if options.max_num_seqs is not None and (batches or options.max_num_seqs != 1):
        reason = "it has no flag for it; " + (
            "the batch is bounded by max_batched_tokens" if batches else "it serves one at a time"
        )
        yield Refusal("max_num_seqs", reason)
    yield from unasked(
        "max_model_len", options.max_model_len, "it has no limit to set and checks no length"
    )
    if options.prefix_caching is True or (options.prefix_caching is False and batches):
        yield Refusal("prefix_caching", "it has no flag for it")
    if options.prompt_token_details is True:
        yield Refusal("prompt_token_details", "its usage never tells cached_tokens")
    yield from unasked(
        "reasoning_parser",
        options.reasoning_parser,
        "it tells thought from answer by the chat template, always",
    )
    if options.kv_cache_dtype not in (None, "auto"):
        yield Refusal("kv_cache_dtype", "it has no flag for it: the cache is kept as dtype is")


def folder_and_name(model: str) -> tuple[str, str]:
    """Where to start it, and what to call the model there.

    A pinned model answers to the very text that it was started with and to no
    other. For a folder that would be its whole path, so it is started in the
    folder above and told the short name.
    """
    path = PurePath(model)
    return (str(path.parent), path.name) if path.is_absolute() else ("", model)


def command(
    options: EngineOptions, *, scripts: str, name: str, host: str, port: int, has_gpu: bool
) -> tuple[str, ...]:
    """The server with its model pinned, so that it is loaded before the health check says yes."""
    device = options.device or ("auto" if has_gpu else "cpu")
    flags = ["--host", host, "--port", str(port)]
    flags += ["--device", device, "--dtype", options.dtype or "bfloat16"]
    if options.quantization is not None and options.quantization != "none":
        flags += ["--quantization", options.quantization]
    if attention := _ATTENTION.get(options.attention or ""):
        flags += ["--attn-implementation", attention]
    if options.continuous_batching is not None:
        flags += [f"--{'' if options.continuous_batching else 'no-'}continuous-batching"]
    if options.max_batched_tokens is not None:
        flags += ["--cb-max-batch-tokens", str(options.max_batched_tokens)]
    if options.gpu_memory is not None:
        flags += ["--cb-max-memory-percent", str(options.gpu_memory)]
    return (str(PurePath(scripts) / "transformers"), "serve", name, *flags, *options.args)


def settings(options: EngineOptions, *, threads: int) -> dict[str, str]:
    """Environment variables that it needs."""
    return {
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "OMP_NUM_THREADS": str(share_of(threads, options)),
    }
