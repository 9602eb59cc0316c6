"""What an engine cannot do of what was asked, in the words of the configuration.

Rules that hold for more than one engine stand here; each engine's own stand in its module.
Pure: what this machine and the installed engine are like is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from router.config import EngineOptions


class Refusal(NamedTuple):
    """An option that an engine cannot honour as it is set, and why."""

    option: str
    reason: str


def unasked(option: str, value: Any, reason: str) -> Iterator[Refusal]:
    """A refusal where the option is set at all."""
    if value is not None:
        yield Refusal(option, reason)


NO_GPU = "no GPU is visible on this machine"


def missing_device(options: EngineOptions, *, has_gpu: bool) -> Iterator[Refusal]:
    """A device that this machine has not."""
    if wants_gpu(options) and not has_gpu:
        yield Refusal("device", NO_GPU)


def wants_gpu(options: EngineOptions) -> bool:
    return options.device is not None and options.device.startswith("cuda")


def more_than_a_gpu(options: EngineOptions) -> Iterator[Refusal]:
    """Shares of one GPU's memory that come to more than all of it."""
    if options.gpu_memory is not None and options.gpu_memory * options.replicas > 1:
        yield Refusal("gpu_memory", f"{options.replicas} replicas want more than all of the GPU")


def said(options: EngineOptions, refusals: Sequence[Refusal]) -> str:
    """The refusals as one line: the option as it is written, and the reason."""
    asked = options.asked
    return "; ".join(
        f"{option} = {written(asked.get(option))} is refused: {reason}"
        for option, reason in refusals
    )


def written(value: Any) -> str:
    """A value as TOML has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(written, value)) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def share_of(threads: int, options: EngineOptions) -> int:
    """The threads of one process: what is set, or its share of what there is."""
    return options.threads or max(1, threads // options.replicas)
