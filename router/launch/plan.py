"""Which engine to use: the chain of choices, given what was found on this machine.

Pure: findings in, an engine (or none) and the reasons out. It must not know how
anything was found, nor how an engine is started and watched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal

from router.config import EngineOptions
from router.launch import llamacpp, transformers, vllm
from router.launch.options import Refusal, said

ORDER = ("existing", "vllm", "transformers", "llamacpp", "demo")
"""Most faithful first: what the operator runs already, then real weights, then the demo."""

EXTRAS = frozenset({"bitsandbytes", "flash_attn", "kernels"})
"""Packages beside transformers that some options need."""

DEMO_LABEL = "SmolLM2-135M-Instruct (demo)"
DEMO_MODEL = "SmolLM2-135M-Instruct-demo"
"""Says demo because /v1/models shows it: nobody should take it for the real model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine that can serve a backend. Without a command it runs already."""

    name: str
    dialect: str
    served_model: str
    label: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    health_path: str
    is_demo: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One link of the chain: was it taken, and why or why not."""

    engine: str
    taken: bool
    because: str


@dataclass(frozen=True, slots=True)
class Address:
    """Where a launched engine is to listen."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Server:
    """An OpenAI-compatible server that answers already."""

    models: tuple[str, ...]
    dialect: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """An installed engine: the Python that runs it and the folder of its scripts."""

    python: str
    scripts: str
    is_cpu_build: bool = False
    extras: frozenset[str] = frozenset()
    """What is installed beside it, of the packages that some options need."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A model's weights: a `path` here, or a `repo` (and `file`) by the hub's names."""

    source: Literal["disk", "cache", "hub"]
    because: str
    path: str = ""
    repo: str = ""
    file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What the world looks like. A text in place of a thing says why the thing is missing."""

    server: Server | str
    address: Address | None
    vllm: Package | str
    transformers: Package | str
    llamacpp: str
    """Empty when llama.cpp can be run, else the reason."""
    tensors: Weights | str
    gguf: Weights | str
    demo: Weights | str
    is_qwen3: bool
    has_gpu: bool
    threads: int
    python: str
    environ: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    """Engines that were tried and did not come up, with the reason: they are passed over."""


Verdict = tuple[Engine | None, str]
NO_OPTIONS = EngineOptions()


def choose(
    *, model: str, engine: str, found: Findings, options: EngineOptions = NO_OPTIONS
) -> tuple[Engine | None, list[Step]]:
    """Walk the chain and take the first engine that can work; the steps tell the whole walk."""
    steps: list[Step] = []
    for name in links(engine):
        chosen, because = _verdict(name, model, found, options)
        steps.append(Step(name, chosen is not None, because))
        if chosen is not None:
            return chosen, steps
        if name == "existing" and found.address is None:
            # Whatever is installed here, it could not listen there.
            break
    return None, steps


def links(engine: str) -> tuple[str, ...]:
    """The links to try. A server that answers is used in any case: it holds the port."""
    if engine == "auto":
        return ORDER
    if engine not in ORDER:
        raise ValueError(f"unknown engine {engine!r}; use auto, {', '.join(ORDER)}")
    return ("existing",) if engine == "existing" else ("existing", engine)


def refusals(name: str, options: EngineOptions, found: Findings) -> Iterator[Refusal]:
    """What this engine cannot do of what is asked, on this machine.

    One that is not installed is taken for the build that would be.
    """
    match name:
        case "existing":
            reason = "a server that runs already is as it was started"
            yield from (Refusal(option, reason) for option in options.asked)
        case "vllm":
            package = found.vllm
            on_cpu = not found.has_gpu if isinstance(package, str) else package.is_cpu_build
            yield from vllm.refusals(options, on_cpu=on_cpu, has_gpu=found.has_gpu)
        case "transformers":
            there = found.transformers
            extras = EXTRAS if isinstance(there, str) else there.extras
            yield from transformers.refusals(options, has_gpu=found.has_gpu, extras=extras)
        case _:
            yield from llamacpp.refusals(options, has_gpu=found.has_gpu)


def _verdict(name: str, model: str, found: Findings, options: EngineOptions) -> Verdict:
    if name in found.failed:
        return None, f"it was tried and did not come up: {found.failed[name]}"
    chosen, because = _RULES[name](model, found, options)
    refused = [] if chosen is None else list(refusals(name, options, found))
    if not refused:
        return chosen, because
    if name == "existing":
        unheard = ", ".join(dict.fromkeys(refusal.option for refusal in refused))
        return chosen, f"{because}; it is as it was started, whatever launch says of {unheard}"
    return None, f"it cannot do what launch asks: {said(options, refused)}"


def _existing(model: str, found: Findings, options: EngineOptions) -> Verdict:
    if isinstance(found.server, str):
        return None, found.server
    served = _best_name(model, found.server.models)
    because = f"a server answers there already and serves {served}"
    if not found.server.models:
        because = f"a server answers there already and wants a key; taken to serve {model}"
    elif served != model:
        because += f" (asked for: {model})"
    engine = Engine(
        name="existing",
        dialect=found.server.dialect,
        served_model=served,
        label=DEMO_LABEL if served == DEMO_MODEL else f"{served} (already running)",
        command=(),
        env={},
        health_path="/v1/models",
        is_demo=served == DEMO_MODEL,
    )
    return engine, because


def _best_name(model: str, listed: tuple[str, ...]) -> str:
    """The served name meant by `model`: itself, the same without its owner, or the first."""
    if not listed or model in listed:
        return model
    wanted = PurePath(model).name.casefold()
    same = (name for name in listed if PurePath(name).name.casefold() == wanted)
    return next(same, listed[0])


def _vllm(model: str, found: Findings, options: EngineOptions) -> Verdict:
    package, weights = found.vllm, found.tensors
    if isinstance(package, str):
        return None, package
    if isinstance(weights, str):
        return None, f"vLLM is installed, but {weights}"
    served = _served_name(model, weights)
    assert found.address is not None
    command = vllm.command(
        options,
        python=package.python,
        model=weights.path or weights.repo,
        served_model=served,
        host=found.address.host,
        port=found.address.port,
        on_cpu=package.is_cpu_build,
        is_qwen3=found.is_qwen3,
    )
    settings = vllm.settings(options, on_cpu=package.is_cpu_build, threads=found.threads)
    engine = Engine(
        name="vllm",
        dialect="vllm",
        served_model=served,
        label=f"{PurePath(served).name} on vLLM",
        command=_leashed(found.python, command),
        env=_environment(settings, weights, found.environ, options, scripts=package.scripts),
        health_path="/health",
        is_demo=False,
    )
    return engine, _reasons("vLLM is installed", weights.because, package.note)


def _transformers(model: str, found: Findings, options: EngineOptions) -> Verdict:
    package, weights = found.transformers, found.tensors
    if isinstance(package, str):
        return None, package
    if isinstance(weights, str):
        return None, f"transformers serve is installed, but {weights}"
    served = _served_name(model, weights)
    assert found.address is not None
    folder, pinned = transformers.folder_and_name(weights.path or weights.repo)
    command = transformers.command(
        options,
        scripts=package.scripts,
        name=pinned,
        host=found.address.host,
        port=found.address.port,
        has_gpu=found.has_gpu,
    )
    settings = transformers.settings(options, threads=found.threads)
    engine = Engine(
        name="transformers",
        dialect="transformers",
        served_model=pinned,
        label=f"{PurePath(served).name} on transformers serve",
        command=_leashed(found.python, command, folder),
        env=_environment(settings, weights, found.environ, options, scripts=package.scripts),
        health_path="/health",
        is_demo=False,
    )
    return engine, _reasons("transformers serve is installed", weights.because, package.note)


def _llamacpp(model: str, found: Findings, options: EngineOptions) -> Verdict:
    if found.llamacpp:
        return None, found.llamacpp
    if isinstance(found.gguf, str):
        return None, f"llama.cpp is installed, but {found.gguf}"
    served = _served_name(model, found.gguf)
    return (
        _llamacpp_engine(
            "llamacpp", found.gguf, served, f"{PurePath(served).name} on llama.cpp", found, options
        ),
        _reasons("llama.cpp is installed", found.gguf.because),
    )


def _demo(model: str, found: Findings, options: EngineOptions) -> Verdict:
    if found.llamacpp:
        return None, found.llamacpp
    if isinstance(found.demo, str):
        return None, found.demo
    return (
        _llamacpp_engine("demo", found.demo, DEMO_MODEL, DEMO_LABEL, found, options),
        f"llama.cpp is installed; {found.demo.because}; it shows that the plumbing is real, "
        f"but it is a small model in place of {model}: weak on facts, poor in Chinese",
    )


def _llamacpp_engine(
    name: str,
    weights: Weights,
    served: str,
    label: str,
    found: Findings,
    options: EngineOptions,
) -> Engine:
    assert found.address is not None
    command = llamacpp.command(
        options,
        python=found.python,
        path=weights.path,
        repo=weights.repo,
        file=weights.file,
        alias=served,
        port=found.address.port,
        threads=found.threads,
    )
    return Engine(
        name=name,
        dialect="llamacpp",
        served_model=served,
        label=label,
        command=command,
        env=_environment({}, weights, found.environ, options),
        health_path="/health",
        is_demo=name == "demo",
    )


_RULES: Mapping[str, Callable[[str, Findings, EngineOptions], Verdict]] = {
    "existing": _existing,
    "vllm": _vllm,
    "transformers": _transformers,
    "llamacpp": _llamacpp,
    "demo": _demo,
}


def _leashed(python: str, command: tuple[str, ...], folder: str = "") -> tuple[str, ...]:
    """Somebody else's server does not notice that we are gone; the leash does, and ends it."""
    where = ("--cwd", folder) if folder else ()
    return (python, "-m", "router.launch.leash", *where, "--", *command)


def _served_name(model: str, weights: Weights) -> str:
    """A folder or file is served under its short name: clients should not have to type a path."""
    if weights.source != "disk":
        return model
    path = PurePath(model)
    return path.stem if path.suffix == ".gguf" else path.name


def _environment(
    settings: Mapping[str, str],
    weights: Weights,
    environ: Mapping[str, str],
    options: EngineOptions,
    scripts: str = "",
) -> dict[str, str]:
    """What the engine needs on top of our environment.

    What the operator has set there stays, unless the configuration asks for it by name.
    """
    wanted = dict(settings)
    if weights.source == "hub":
        # The hub's client hides its progress bars when nobody looks at a terminal;
        # ours are read from the engine's log and shown.
        wanted["TQDM_POSITION"] = "-1"
    else:
        # Everything is on this disk: an engine that asks the hub all the same can hang.
        wanted["HF_HUB_OFFLINE"] = "1"
    asked = set() if options.threads is None else {"OMP_NUM_THREADS"}
    env = {name: value for name, value in wanted.items() if name not in environ or name in asked}
    if scripts:
        env["PATH"] = ":".join(filter(None, (scripts, environ.get("PATH", ""))))
    return env


def _reasons(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
