"""An engine and the router before it, as processes: started, waited for, stopped.

`cold` is an engine that nobody has asked anything, with `serve` before it; `warmed` is `up`,
which starts the very same command and warms it up.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from processes import free_port, running

from router import launch
from router.config import EngineOptions

from .models import REPOSITORY

POLICY = Path(__file__).with_name("policy.toml")
START_LIMIT_S = 300.0
STEP_S = 0.1
MAX_SEQS = 4
CONTEXT = 4096
BACKEND = "engine"


class DidNotStart(Exception):
    """A process ended or did not answer in time; the text is the end of its log."""


@dataclass(frozen=True, slots=True)
class Model:
    """Which weights an engine is to load, and how many threads it may use."""

    engine: str
    path: Path
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmth:
    """Time to the first token of the engine's first request and of one after, as `up` saw it."""

    cold_s: float
    warm_s: float


@contextmanager
def cold(model: Model, folder: Path) -> Iterator[int]:
    """The router's port; nothing but /health was asked of the engine so far."""
    engine_port = free_port()
    url = f"http://127.0.0.1:{engine_port}"
    options = EngineOptions(**_options(model))
    found = launch.choose(
        BACKEND, url, str(model.path), model.engine, options=options, progress=lambda _: None
    )
    engine, steps = asyncio.run(found)
    if engine is None:
        raise DidNotStart("; ".join(f"{step.engine}: {step.because}" for step in steps))
    log = folder / "engine.log"
    env = {**_environment(), **engine.env}
    with running(engine.command, cwd=REPOSITORY, log=log, env=env) as process:
        _wait_until(partial(_is_good, engine_port, "/health"), process, log)
        config = _config(folder, engine_port, model, served=engine.served_model)
        with _router("serve", config, folder, is_ready=_is_serving) as port:
            yield port


@contextmanager
def warmed(model: Model, folder: Path) -> Iterator[tuple[int, Warmth]]:
    """The router's port and what the warm-up did, once `up` has its engine ready."""
    config = _config(folder, free_port(), model)
    told: dict[str, float] = {}

    def is_warm(port: int) -> bool:
        # Not /ready alone: an engine may pass a health check while it is still warmed up.
        status, page = get(port, "/router/status")
        if status == 200:
            told.update(json.loads(page)["backends"][0]["warm_up"] or {})
        return bool(told) and _is_serving(port)

    with _router("up", config, folder, "--no-tour", is_ready=is_warm) as port:
        yield port, Warmth(cold_s=told["cold"] / 1e3, warm_s=told["warm"] / 1e3)


def get(port: int, path: str) -> tuple[int, str]:
    """Status and text of a page."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        return reply.status, reply.read().decode()
    finally:
        connection.close()


@contextmanager
def _router(
    verb: str, config: Path, folder: Path, *words: str, is_ready: Callable[[int], bool]
) -> Iterator[int]:
    port = free_port()
    command = [sys.executable, "-m", "router", verb, "--config", str(config)]
    command += ["--port", str(port), *words]
    log = folder / f"{verb}.log"
    with running(command, cwd=REPOSITORY, log=log, env=_environment()) as process:
        _wait_until(partial(is_ready, port), process, log)
        yield port


def _wait_until(is_ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while process.poll() is None and time.monotonic() < deadline:
        # Nobody listens at first.
        with suppress(OSError, http.client.HTTPException):
            if is_ready():
                return
        time.sleep(STEP_S)
    raise DidNotStart(log.read_text(errors="replace")[-3000:])


def _is_good(port: int, path: str) -> bool:
    return get(port, path)[0] == 200


def _is_serving(port: int) -> bool:
    return _is_good(port, "/ready")


def _options(model: Model) -> dict[str, Any]:
    return {"threads": model.threads, "max_num_seqs": MAX_SEQS, "max_model_len": CONTEXT}


def _config(folder: Path, engine_port: int, model: Model, *, served: str = "") -> Path:
    """`served` names the model of an engine that runs; without it, one is to be launched."""
    quoted = json.dumps  # a JSON string is a TOML string
    lines = [
        *("[server]", 'host = "127.0.0.1"'),
        *("[policy]", f"file = {quoted(str(POLICY))}", "watch = false"),
        *("[log]", f"dir = {quoted(str(folder / 'logs'))}"),
        *("[health]", "examine = false"),
        *("[[backends]]", f"name = {quoted(BACKEND)}", f"dialect = {quoted(model.engine)}"),
        f'url = "http://127.0.0.1:{engine_port}"',
    ]
    if served:
        lines.append(f"model = {quoted(served)}")
    else:
        lines += ["[backends.launch]", f"engine = {quoted(model.engine)}"]
        lines.append(f"model = {quoted(str(model.path))}")
        lines += [f"{name} = {value}" for name, value in _options(model).items()]
    config = folder / "config.toml"
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return config


def _environment() -> dict[str, str]:
    """Ours, without what would overrule the configuration written here."""
    return {k: v for k, v in os.environ.items() if not k.startswith("SCENARIO_ROUTER_")}
