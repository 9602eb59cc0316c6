"""The engines that the router speaks to, each as a process with the tiny model on this CPU.

llama.cpp comes with the tests. vLLM and transformers live in environments of their own,
whose Python is named by an environment variable; their tests run when they are asked for.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest

from tests.backends.tiny import gguf
from tests.support.product import ROOT
from tests.support.redisstand import free_port

MODEL = "tiny-qwen3"
FOLDER = ROOT / "tests" / "backends" / "tiny" / "qwen3"
PYTHON_OF = {"vllm": "TEST_VLLM_PYTHON", "transformers": "TEST_TRANSFORMERS_PYTHON"}
#: tokens a conversation may have, thought and answer included
CONTEXT = 2048
START_LIMIT_S = 300.0
_MARKS = {"vllm": pytest.mark.engine_vllm, "transformers": pytest.mark.engine_transformers}
NAMES = ("llamacpp", *_MARKS)


def on(*names: str) -> pytest.MarkDecorator:
    """Run a test on these engines."""
    return pytest.mark.parametrize(
        "engine", [param(name) for name in names], indirect=True, scope="session"
    )


def on_each(name: str, values: Mapping[str, Sequence[str]]) -> pytest.MarkDecorator:
    """Run a test on each engine of `values` with each of that engine's values."""
    rows = [
        pytest.param(engine, value, marks=_marks(engine), id=f"{engine}-{value}")
        for engine, own in values.items()
        for value in own
    ]
    return pytest.mark.parametrize(("engine", name), rows, indirect=["engine"], scope="session")


def param(name: str) -> Any:
    return pytest.param(name, marks=_marks(name))


def _marks(name: str) -> list[pytest.MarkDecorator]:
    return [_MARKS[name]] if name in _MARKS else []


@dataclass(frozen=True, slots=True)
class Command:
    """How an engine is started: its words, what it needs around it, and where."""

    words: tuple[str, ...]
    env: Mapping[str, str]
    folder: Path


class Engine:
    """One running engine. `with Engine(name, scratch) as engine: …`"""

    model = MODEL

    def __init__(self, name: str, scratch: Path, *, port: int | None = None) -> None:
        """`port` to be where another one was; left out: a free one."""
        self.name = name
        self.url = f"http://127.0.0.1:{port or free_port()}"
        self._log = scratch / f"{name}.log"
        command = _COMMANDS[name](self.url.rpartition(":")[2], scratch)
        # The leash ends the engine and its workers when our end of the pipe closes,
        # which it does however we end.
        leash = (sys.executable, "-m", "router.launch.leash", "--cwd", str(command.folder), "--")
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [*leash, *command.words],
                cwd=ROOT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **command.env},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=10) as reply:
            return str(reply.read(), "utf-8")

    def is_idle(self) -> bool:
        """Whether it computes for nobody."""
        return self._metric(_RUNNING) == 0

    def tokens_made(self) -> int:
        """How many it has generated since it was started, for whomever."""
        return int(self._metric(_MADE))

    def _metric(self, names: Mapping[str, str]) -> float:
        name = names[self.name]
        [value] = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", self.get("/metrics"), re.M)
        return float(value)

    def __enter__(self) -> Self:
        deadline = time.monotonic() + START_LIMIT_S
        pause = threading.Event()
        while not self._is_healthy():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                last = self._log.read_text(errors="replace")[-4000:]
                raise AssertionError(f"{self.name} did not start:\n{last}")
            pause.wait(0.05)
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _is_healthy(self) -> bool:
        try:
            self.get("/health")
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
        return True


# What /metrics calls it, where there is such a page.
_RUNNING = {"llamacpp": "llamacpp:requests_processing", "vllm": "vllm:num_requests_running"}
_MADE = {"llamacpp": "llamacpp:tokens_predicted_total", "vllm": "vllm:generation_tokens_total"}
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # Engines wait for their slowest thread by spinning: a second one is slower on busy cores.
    "OMP_NUM_THREADS": "1",
}


def _llamacpp(port: str, scratch: Path) -> Command:
    weights = gguf.write(FOLDER, scratch / "tiny-qwen3.gguf")
    options = {"--model-path": weights, "--alias": MODEL, "--port": port, "--threads": 1}
    options |= {"--ctx": 2 * CONTEXT, "--slots": 2}
    words = [str(word) for option in options.items() for word in option]
    return Command((sys.executable, "-m", "router.launch.llamacpp_server", *words), {}, ROOT)


def _vllm(port: str, scratch: Path) -> Command:
    # The module and not the script: the CPU wheel's distribution has another name than the
    # script looks for. The same name is how the CPU is recognised, so that is told as well.
    python = _python("vllm")
    options = {"--model": FOLDER, "--served-model-name": MODEL, "--port": port}
    options |= {"--host": "127.0.0.1", "--dtype": "bfloat16", "--max-model-len": CONTEXT}
    options |= {"--max-num-seqs": 4, "--reasoning-parser": "qwen3", "--tool-call-parser": "hermes"}
    words = [str(word) for option in options.items() for word in option]
    words += ["--enforce-eager", "--enable-prompt-tokens-details", "--enable-auto-tool-choice"]
    env = {
        **_OFFLINE,
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "PATH": f"{Path(python).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    return Command((python, "-m", "vllm.entrypoints.openai.api_server", *words), env, scratch)


def _transformers(port: str, scratch: Path) -> Command:
    # A pinned model answers to the very text that it was started with: a short one, so the
    # server starts where that is the folder's name.
    (scratch / MODEL).symlink_to(FOLDER)
    script = Path(_python("transformers")).with_name("transformers")
    words = [str(script), "serve", MODEL, "--host", "127.0.0.1", "--port", port]
    return Command((*words, "--device", "cpu", "--dtype", "bfloat16"), _OFFLINE, scratch)


_COMMANDS = {"llamacpp": _llamacpp, "vllm": _vllm, "transformers": _transformers}


def _python(name: str) -> str:
    variable = PYTHON_OF[name]
    assert variable in os.environ, f"{variable} names no Python with {name} (see docs/testing.md)"
    return str(Path(os.environ[variable]).absolute())
