"""Where a model's weights are: a path, the hub's local cache, or the hub itself.

Reads the cache's folder layout instead of asking the hub's client, which takes
longer to import than the whole search and may not be installed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from router.launch.plan import Weights

HUB_LIMIT_S = 3.0
_TRUE = {"1", "ON", "YES", "TRUE"}


def cache_folder(environ: Mapping[str, str], home: Path) -> Path:
    """The hub's cache, by the environment variables of its client."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if named := environ.get(name):
            return Path(named).expanduser()
    if base := environ.get("HF_HOME"):
        return Path(base).expanduser() / "hub"
    shared = environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else home / ".cache") / "huggingface" / "hub"


def is_offline(environ: Mapping[str, str]) -> bool:
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return any(environ.get(name, "").upper() in _TRUE for name in names)


def gguf_place(model: str) -> tuple[str, str]:
    """The repository and file of a model's own GGUF, by the naming of its makers."""
    repo = model if model.endswith("-GGUF") else f"{model}-GGUF"
    name = repo.rsplit("/", 1)[-1].removesuffix("-GGUF")
    return repo, f"{name}-Q8_0.gguf"


def on_disk(model: str) -> Path | None:
    """The folder or file that `model` names, if it names one."""
    path = Path(model).expanduser()
    return path.resolve() if path.exists() else None


def local_tensors(model: str, cache: Path) -> Weights | str:
    """Weights for vLLM and transformers on this machine: a folder, or a whole cached snapshot."""
    if path := on_disk(model):
        if path.is_file():
            return f"{path.name} is a file for llama.cpp"
        if (path / "config.json").is_file() and _has_whole_tensors(path):
            return Weights(source="disk", path=str(path), because=f"weights in {path}")
        return f"{path} has no config.json with safetensors beside it"
    if _is_path(model):
        return f"there is no {model}"
    snapshot = _snapshot(model, cache)
    if snapshot and (snapshot / "config.json").is_file() and _has_whole_tensors(snapshot):
        return Weights(source="cache", repo=model, because="weights are in the local cache")
    return f"{model} is not in the local cache"


def local_gguf(model: str, cache: Path) -> Weights | str:
    """Weights for llama.cpp on this machine: a .gguf, a folder with one, or the cache."""
    if path := on_disk(model):
        files = [path] if path.suffix == ".gguf" else sorted(path.glob("*.gguf"))
        if not files:
            return f"{path} holds no .gguf file"
        return Weights(source="disk", path=str(files[0]), because=f"weights in {files[0]}")
    if _is_path(model):
        return f"there is no {model}"
    repo, file = gguf_place(model)
    snapshot = _snapshot(repo, cache)
    if snapshot and (snapshot / file).is_file():
        found = f"{file} is in the local cache"
        return Weights(source="cache", path=str(snapshot / file), because=found)
    return f"{file} is not in the local cache"


def is_qwen3(model: str, cache: Path) -> bool:
    """Qwen3 by its name, or by what its own config.json says."""
    if "qwen3" in model.lower():
        return True
    folder = on_disk(model) or _snapshot(model, cache)
    if folder is None:
        return False
    return str(_json(folder / "config.json").get("model_type", "")).startswith("qwen3")


def is_hub_id(model: str) -> bool:
    return on_disk(model) is None and not _is_path(model)


def ask_hub(repo: str, file: str, environ: Mapping[str, str]) -> Weights | str:
    """Ask the hub whether it has these weights. Blocks for some seconds: not for the event loop."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        # The endpoint is read at call time; the client itself reads it once, when imported.
        hub = HfApi(endpoint=environ.get("HF_ENDPOINT") or None)
        info = hub.model_info(repo, timeout=HUB_LIMIT_S, files_metadata=True)
    except RepositoryNotFoundError:
        return f"the hub has no {repo}"
    except Exception as error:
        # Whatever the client raises, it means the same here: no weights from there now.
        reason = str(error).strip().splitlines() or [type(error).__name__]
        return f"the hub does not answer ({reason[0][:200]})"
    files = {sibling.rfilename: sibling.size or 0 for sibling in info.siblings or ()}
    wanted = [name for name in files if name == file or (not file and _is_tensor_file(name))]
    if not wanted:
        return f"the hub's {repo} has no {file or 'safetensors'}"
    size_mb = sum(files[name] for name in wanted) / 1e6
    size = f" ({size_mb:,.0f} MB)" if size_mb else ""
    because = f"not in the local cache, to be downloaded from the hub{size}"
    return Weights(source="hub", repo=repo, file=file, because=because)


def _is_tensor_file(name: str) -> bool:
    return name.endswith(".safetensors") and "/" not in name


def _is_path(model: str) -> bool:
    return model.startswith((".", "/", "~")) or model.endswith(".gguf")


def _snapshot(repo: str, cache: Path) -> Path | None:
    """The cached files of a repository's main branch."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    try:
        revision = (folder / "refs" / "main").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    snapshot = folder / "snapshots" / revision
    return snapshot if snapshot.is_dir() else None


def _has_whole_tensors(folder: Path) -> bool:
    """Either the one file, or every shard of the index: a broken download is no weights."""
    shards = set(_json(folder / "model.safetensors.index.json").get("weight_map", {}).values())
    if shards:
        return all((folder / name).is_file() for name in shards)
    return any(path.is_file() for path in folder.glob("*.safetensors"))


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
