"""The two sides of `ab`: what each is called, and where and how it asks.

A side is decided here, by the code that serves, or by a running router that it names.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from router import capabilities, dialects, probe, trained
from router.commands import asked, offline
from router.config import Backend
from router.measure.asking import Arm, Asker, NoServer, Sending, base, body_of
from router.measure.deciding import Decided, Untouched
from router.measure.prompts import Prompt
from router.verdict import Live

UNTOUCHED = ("off", "default")


async def arms(
    args: argparse.Namespace, names: Sequence[str], asker: Asker, first: Prompt
) -> tuple[list[Arm], str, Mapping[str, str | None]]:
    """Both arms, the backend in words, and the policy's hash of each that is decided here.

    Raises Usage, NoServer, and RouterError where the `first` prompt would be refused.
    """
    target = _Target(args, asker)
    found = []
    policies: dict[str, str | None] = {}
    for name, side in zip(names, (args.a, args.b), strict=True):
        scenario, where = parts(side)
        if where is not None and where.startswith("http"):
            found.append(_routed(args, name, base(where), scenario))
            continue
        live = _live(args, where)
        url, encode = await target.encoder(live, scenario)
        encode(first)  # a scenario that is not there is told now
        found.append(Arm(name, url, encode))
        policies[name] = None if scenario in UNTOUCHED else live.policy.hash
    return found, target.told or "running routers", policies


def parts(side: str) -> tuple[str | None, str | None]:
    """(scenario, file or address) of a side."""
    scenario, found, where = side.partition("@")
    if found:
        return scenario or None, where
    is_where = side.startswith("http") or side.endswith(".toml")
    return (None, side) if is_where else (side, None)


def _live(args: argparse.Namespace, policy: str | None) -> Live:
    if policy is not None and not Path(policy).is_file():
        raise asked.Usage(f"{policy}: no such policy file")
    own = argparse.Namespace(**{**vars(args), "policy": policy or args.policy})
    live = offline.live(own)
    if live is None:
        raise asked.Usage("no policy to compare")
    return live


def _routed(args: argparse.Namespace, name: str, url: str, scenario: str | None) -> Arm:
    headers = asked.headers(args)
    if scenario in UNTOUCHED:
        headers["x-router-policy"] = "off"
    elif scenario is not None:
        headers["x-router-scenario"] = scenario
    extra, model = asked.extra(args), args.model or "auto"

    def encode(prompt: Prompt) -> Sending:
        return Sending(body_of(prompt, model, stream=True, extra=extra), headers)

    return Arm(name, url, encode)


class _Target:
    """The backend that is asked: its address, and how it wants to be spoken to."""

    def __init__(self, args: argparse.Namespace, asker: Asker) -> None:
        self._args = args
        self._asker = asker
        self._known: tuple[str, dialects.Dialect, str] | None = None
        self._headers = asked.headers(args)
        self.told = ""

    async def encoder(
        self, live: Live, scenario: str | None
    ) -> tuple[str, Callable[[Prompt], Sending]]:
        """Where prompts are sent under this policy, and what."""
        url, dialect, model = self._known or await self._look(live)
        headers, extra = self._headers, asked.extra(self._args)
        if scenario in UNTOUCHED:
            return url, Untouched(live, model, headers=headers, extra=extra)
        return url, Decided(live, dialect, model, scenario=scenario, headers=headers, extra=extra)

    async def _look(self, live: Live) -> tuple[str, dialects.Dialect, str]:
        args = self._args
        backend = None if args.url else _configured(live, args.backend)
        url = base(backend.url if backend else args.url)
        if backend and backend.api_key_env and not args.key_env:
            self._headers["authorization"] = f"Bearer {os.environ[backend.api_key_env]}"
        wanted = name = args.dialect or (backend.dialect if backend else "auto")
        model = args.model or (backend.model if backend else None)
        if name == "auto" or model is None:
            document = await self._asker.models_at(url, self._headers)
            name = probe.dialect_name(document) if name == "auto" else name
            model = model or probe.served_model(document)
        if model is None:
            raise NoServer(f"{url} names no model: say --model")
        dialect = dialects.of(name)
        if wanted == "auto":
            dialect = capabilities.as_examined(dialect, url, model, trained.folder())
        self.told = f"{model} at {url} ({name}{', as examined' if dialect.variant else ''})"
        self._known = url, dialect, model
        return self._known


def _configured(live: Live, name: str | None) -> Backend:
    backends = [slot.upstream.backend for slot in live.slots]
    for backend in backends:
        if name in (None, backend.name):
            return backend
    names = ", ".join(backend.name for backend in backends)
    raise asked.Usage(f"no backend {name!r} is configured; there are: {names}")
