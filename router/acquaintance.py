"""Getting to know a backend: what it serves, what kind of server it is, what it honours.

In: a slot whose backend is up. Out: the same slot with a model name, and with a dialect that is
fitted to what this very server was seen to do. Where nobody has looked yet, `doctor` is sent, in
a process of its own and while the backend has nothing else to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import structlog

from router import capabilities, dialects, probe, trained
from router.config import Health
from router.errors import BackendError
from router.files import Signature, own_environment, signature_of
from router.ports import Upstream
from router.verdict import Slot

log = structlog.get_logger(__name__)

#: a backend that just came up has users waiting; they come first
_FIRST_S = 3.0
_IDLE_POLL_S = 0.5
#: an examination ends itself before that; its mark is older only if its process died
_EXAMINATION_S = 180.0
_TOLD_CHARS = 300
_NO_FILE: Signature = ((),)


class Acquaintances:
    """What one worker knows of its backends."""

    def __init__(
        self,
        settings: Callable[[], Health],
        config_path: Path,
        probe_of: Callable[[Slot], Upstream],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        """`probe_of` gives the way for questions; `spawn` runs a coroutine beside the rest."""
        self._settings = settings
        self._config_path = config_path
        self._probe_of = probe_of
        self._spawn = spawn
        # By the id of a slot, since of two that have one name the older may still be leaving.
        self._seen: dict[int, Signature] = {}  # the file that it was fitted by
        self._examining: dict[int, asyncio.Task[None]] = {}

    async def learn(self, slot: Slot) -> None:
        """Ask a backend that came up; one of which the configuration says all is left in peace."""
        backend = slot.upstream.backend
        if slot.is_named and backend.dialect != "auto":
            return
        try:
            models = await self._models(slot)
            document = models.json()
            if not slot.is_named:
                slot.model = probe.served_model(document)
            name = probe.dialect_name(document) if backend.dialect == "auto" else backend.dialect
            told = await probe.told(
                self._probe_of(slot),
                name,
                slot.model,
                models=models,
                timeout_s=self._settings().timeout_s,
                key=slot.authorization,
            )
        except (TimeoutError, BackendError):
            return
        base = msgspec.structs.replace(dialects.of(name), context=backend.context or told.context)
        slot.dialect = base
        if backend.dialect == "auto":
            is_known = self._fit(slot, base, told)
            if not is_known and self._settings().examine and id(slot) not in self._examining:
                self._examining[id(slot)] = self._spawn(self._examine(slot))
        log.info(
            "backend told",
            backend=slot.name,
            model=slot.model,
            dialect=slot.dialect.name,
            fitted=bool(slot.dialect.variant),
            context=slot.dialect.context,
        )

    def forget(self, slot: Slot) -> None:
        """It is no longer in use."""
        self._seen.pop(id(slot), None)
        if (examination := self._examining.pop(id(slot), None)) is not None:
            examination.cancel()

    def has_news(self, slot: Slot) -> bool:
        """Whether somebody has examined this backend since we last looked."""
        if slot.upstream.backend.dialect != "auto":
            return False
        return signature_of([self._path(slot)]) != self._seen.get(id(slot), _NO_FILE)

    def _fit(self, slot: Slot, base: dialects.Dialect, told: probe.Told) -> bool:
        """Speak as the file of this server says; whether it has one that is still true."""
        path = self._path(slot)
        self._seen[id(slot)] = signature_of([path])
        found = capabilities.read(path)
        if found is None or not capabilities.is_for(
            found,
            dialect=base.name,
            version=told.version,
            model=slot.model,
            started=told.started,
        ):
            return False
        fitted = capabilities.fitted(base, found)
        if slot.upstream.backend.context is not None:
            fitted = msgspec.structs.replace(fitted, context=slot.upstream.backend.context)
        slot.dialect = fitted
        return True

    def _path(self, slot: Slot) -> Path:
        return capabilities.path_for(slot.upstream.backend.url, trained.folder())

    async def _models(self, slot: Slot) -> probe.Answer:
        return await probe.get(
            self._probe_of(slot),
            "/v1/models",
            timeout_s=self._settings().timeout_s,
            key=slot.authorization,
        )

    async def _examine(self, slot: Slot) -> None:
        """Send the doctor, once it disturbs nobody; one of all workers does."""
        mark = self._path(slot).with_suffix(".examining")
        try:
            await asyncio.sleep(_FIRST_S)
            while slot.upstream.inflight:  # noqa: ASYNC110  # nothing tells of the last one's end
                await asyncio.sleep(_IDLE_POLL_S)
            if await asyncio.to_thread(_taken, mark):
                return
            try:
                await self._send_doctor(slot)
            finally:
                mark.unlink(missing_ok=True)
        except OSError as error:
            log.warning("backend not examined", backend=slot.name, error=str(error))
        finally:
            self._examining.pop(id(slot), None)

    async def _send_doctor(self, slot: Slot) -> None:
        backend = slot.upstream.backend
        command = [sys.executable, "-P", "-m", "router", "doctor", backend.url, "--json"]
        command += ["--config", str(self._config_path)]
        if slot.model:
            command += ["--model", slot.model]
        if backend.api_key_env:
            command += ["--key-env", backend.api_key_env]
        log.info("backend is examined", backend=slot.name)
        process = await asyncio.create_subprocess_exec(
            *command,
            env=own_environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            _, said = await process.communicate()
        except asyncio.CancelledError:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()
            raise
        # 1 is a finding: something of the policy is lost here, and the file is there.
        if process.returncode not in (0, 1):
            text = said.decode(errors="replace").strip()[-_TOLD_CHARS:]
            log.warning("backend not examined", backend=slot.name, error=text)


def _taken(mark: Path) -> bool:
    """Whether another process is at it; if not, from now on we are."""
    mark.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        if time.time() - mark.stat().st_mtime > _EXAMINATION_S:
            mark.unlink()
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return True
    return False
