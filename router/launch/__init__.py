"""Engines as child processes: choose one, start it, watch it, warm it up, end it.

`choose` says which engine fits this machine and why; `Child` runs it. Of the router's
configuration only the engine options are known here, and nothing heavy is imported until used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from router.config import EngineOptions
from router.launch import find, plan
from router.launch.child import Child
from router.launch.errors import EngineDied, LaunchError, WarmUpFailed
from router.launch.plan import Engine, Step
from router.launch.warm import Shape, Warmth, warm_up

__all__ = [
    "Child",
    "Engine",
    "EngineDied",
    "LaunchError",
    "Shape",
    "Step",
    "WarmUpFailed",
    "Warmth",
    "choose",
    "warm_up",
]


async def choose(
    backend_name: str,
    url: str,
    model: str,
    engine: str = "auto",
    *,
    options: EngineOptions = plan.NO_OPTIONS,
    progress: Callable[[str], None],
    failed: Mapping[str, str] | None = None,
) -> tuple[Engine | None, list[Step]]:
    """Which engine is to serve `model` at `url`, with every step that led there.

    `progress` hears only of what may take seconds. An engine that was chosen and
    then did not come up goes into `failed` (name to reason), and the next one is chosen.
    """
    links = plan.links(engine)
    found = await find.look(
        url=url,
        model=model,
        links=links,
        options=options,
        failed=failed or {},
        progress=lambda text: progress(f"{backend_name}: {text}"),
    )
    return plan.choose(model=model, engine=engine, found=found, options=options)
