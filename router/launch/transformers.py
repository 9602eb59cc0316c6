"""How `transformers serve` is started.

Values in, a command and its environment out; nothing is looked up or run here.
"""

from __future__ import annotations

from pathlib import PurePath


def folder_and_name(model: str) -> tuple[str, str]:
    """Where to start it, and what to call the model there.

    A pinned model answers to the very text that it was started with and to no
    other. For a folder that would be its whole path, so it is started in the
    folder above and told the short name.
    """
    path = PurePath(model)
    return (str(path.parent), path.name) if path.is_absolute() else ("", model)


def command(*, scripts: str, name: str, host: str, port: int, has_gpu: bool) -> tuple[str, ...]:
    """The server with its model pinned, so that it is loaded before the health check says yes."""
    device = "auto" if has_gpu else "cpu"
    flags = ("--host", host, "--port", str(port), "--device", device, "--dtype", "bfloat16")
    return (str(PurePath(scripts) / "transformers"), "serve", name, *flags)


def settings(*, threads: int) -> dict[str, str]:
    """Environment variables that it needs."""
    return {"HF_HUB_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": str(threads)}
