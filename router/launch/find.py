"""What is there: a server that answers already, installed engines, weights here or on the hub.

Everything that blocks runs in a thread with a time limit. What follows from the
findings is `plan`'s business.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from router.config import EngineOptions
from router.launch import installed, plan, weights
from router.launch.plan import Address, Findings, Package, Server, Weights
from router.launch.warm import root_of

Result = TypeVar("Result")

PROBE_LIMIT_S = 2.0
DISK_LIMIT_S = 20.0
LOOPBACK = {"127.0.0.1", "localhost"}

_DIALECT_BY_OWNER = {
    "vllm": "vllm",
    "llamacpp": "llamacpp",
    "sglang": "sglang",
    "library": "ollama",
}


async def look(
    *,
    url: str,
    model: str,
    links: Collection[str],
    options: EngineOptions,
    failed: Mapping[str, str],
    progress: Callable[[str], None],
) -> Findings:
    """Look around. The hub is asked only where the answer can decide which link is taken."""
    server, address = await probe(url)
    environ = dict(os.environ)
    disk = await in_thread(lambda: _look_at_disk(model, environ), DISK_LIMIT_S)
    found = _findings(disk, environ)
    tensors, gguf = disk.tensors, disk.gguf
    if address is not None:
        able = {link for link in links if not any(plan.refusals(link, options, found))}
        open_links = able - failed.keys()
        tensors, gguf = await _complete(disk, open_links, model, environ, progress)
    return replace(
        found,
        server=server,
        address=address,
        tensors=tensors,
        gguf=gguf,
        failed=failed,
    )


def survey(model: str) -> Findings:
    """What of it this machine tells, with nobody asked: no address, no hub. Blocks on the disk."""
    environ = dict(os.environ)
    return _findings(_look_at_disk(model, environ), environ)


def _findings(disk: _Disk, environ: Mapping[str, str]) -> Findings:
    return Findings(
        server="nobody was asked",
        address=None,
        vllm=disk.vllm,
        transformers=disk.transformers,
        llamacpp=disk.llamacpp,
        tensors=disk.tensors,
        gguf=disk.gguf,
        demo=disk.demo,
        is_qwen3=disk.is_qwen3,
        has_gpu=installed.has_gpu(),
        threads=installed.threads(),
        python=sys.executable,
        environ=environ,
    )


async def probe(url: str, *, limit_s: float = PROBE_LIMIT_S) -> tuple[Server | str, Address | None]:
    """A server at `url`, or why there is none, and where an engine could listen instead."""
    import httpx

    parts = urlsplit(root_of(url))
    is_here = parts.scheme == "http" and parts.hostname in LOOPBACK and parts.port
    place = Address("127.0.0.1", parts.port) if is_here and parts.port else None
    try:
        async with (
            asyncio.timeout(limit_s),
            httpx.AsyncClient(timeout=limit_s, trust_env=False) as client,
        ):
            reply = await client.get(f"{root_of(url)}/v1/models")
    except httpx.ConnectError:
        if place is None:
            return f"nothing answers at {url}, and engines are only started on {_ours()}", None
        return f"nothing answers at {url}", place
    except (httpx.HTTPError, TimeoutError) as error:
        how = type(error).__name__
        return f"what is at {url} gives no proper answer in {limit_s:g} s ({how})", None
    if reply.status_code in (401, 403):
        return Server(models=(), dialect="auto"), None
    served = _server(reply.content) if reply.status_code == 200 else None
    if served is None:
        said = f"status {reply.status_code} to /v1/models"
        return f"what is at {url} is no OpenAI-compatible server ({said})", None
    return served, None


def _ours() -> str:
    return "http://127.0.0.1:PORT or http://localhost:PORT"


def _server(body: bytes) -> Server | None:
    """The list of models that an OpenAI-compatible server gives, or None for anything else."""
    try:
        value: Any = json.loads(body)
    except ValueError:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("data"), list):
        return None
    rows = [row for row in value["data"] if isinstance(row, dict) and row.get("id")]
    owners = {str(row.get("owned_by")) for row in rows}
    known = {_DIALECT_BY_OWNER[owner] for owner in owners if owner in _DIALECT_BY_OWNER}
    dialect = known.pop() if len(known) == 1 else "auto"
    return Server(models=tuple(str(row["id"]) for row in rows), dialect=dialect)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Disk:
    vllm: Package | str
    transformers: Package | str
    llamacpp: str
    tensors: Weights | str
    gguf: Weights | str
    demo: Weights | str
    is_qwen3: bool


def _look_at_disk(model: str, environ: Mapping[str, str]) -> _Disk:
    cache = weights.cache_folder(environ, Path.home())
    return _Disk(
        vllm=installed.vllm(),
        transformers=installed.transformers(),
        llamacpp=installed.llamacpp(),
        tensors=weights.local_tensors(model, cache),
        gguf=weights.local_gguf(model, cache),
        demo=installed.demo_weights(),
        is_qwen3=weights.is_qwen3(model, cache),
    )


async def _complete(
    disk: _Disk,
    links: Collection[str],
    model: str,
    environ: Mapping[str, str],
    progress: Callable[[str], None],
) -> tuple[Weights | str, Weights | str]:
    """Ask the hub for what is missing here, for the engines that are installed."""
    engines = {"vllm": disk.vllm, "transformers": disk.transformers}
    wants_tensors = any(link in links and isinstance(engines[link], Package) for link in engines)
    is_settled = wants_tensors and isinstance(disk.tensors, Weights)
    wants_gguf = "llamacpp" in links and not disk.llamacpp and not is_settled
    gguf_repo, gguf_file = weights.gguf_place(model)

    async def complete(
        local: Weights | str, is_wanted: bool, repo: str, file: str
    ) -> Weights | str:
        if not isinstance(local, str) or not is_wanted or not weights.is_hub_id(model):
            return local
        return await _ask_hub(local, repo, file, environ, progress)

    return await asyncio.gather(
        complete(disk.tensors, wants_tensors, model, ""),
        complete(disk.gguf, wants_gguf, gguf_repo, gguf_file),
    )


async def _ask_hub(
    local: str, repo: str, file: str, environ: Mapping[str, str], progress: Callable[[str], None]
) -> Weights | str:
    if weights.is_offline(environ):
        return f"{local}, and HF_HUB_OFFLINE is set"
    if find_spec("huggingface_hub") is None:
        return f"{local}, and huggingface_hub is not installed to download it"
    progress(f"asking the hub for {repo}")
    limit_s = weights.HUB_LIMIT_S + 1.0
    try:
        answer = await in_thread(lambda: weights.ask_hub(repo, file, environ), limit_s)
    except TimeoutError:
        # The client's own limit does not cover looking the name up.
        answer = f"the hub does not answer within {limit_s:.0f} s"
    return f"{local}, and {answer}" if isinstance(answer, str) else answer


async def in_thread(work: Callable[[], Result], limit_s: float) -> Result:
    """Run blocking work beside the loop; after `limit_s` it is left behind.

    Not asyncio's own pool: the program waits for that pool's threads when it
    ends, and one that hangs in a name lookup would hold it.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # work's own result

    def run() -> None:
        result: Result | None = None
        trouble: BaseException | None = None
        try:
            result = work()
        except Exception as error:
            trouble = error
        # The loop may be closed by now: then nobody waits for this any more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result, trouble)

    threading.Thread(target=run, name="launch-look", daemon=True).start()
    async with asyncio.timeout(limit_s):
        return await future
