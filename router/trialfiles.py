"""What the workers of a host share about experiments: who is out, what each has seen.

A folder for each configuration file, beside the drained backends':

    out/<experiment>.<arm>.<digest>       an arm that was stopped: since when, and why
    begun/<experiment>.<digest>           when what is counted began, where that was put back
    sums/<pid>-<host>-<start>.json        what one worker has counted; it alone writes it

Files are written whole, so there is no lock. The folder outlives the router, and a worker that
starts takes over what one that is gone has counted. Routers of two versions may share it while
one takes the other's place: sums of another schema are left alone, for their own to read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from router.files import write_whole

#: of a file of sums; another number wherever `evidence.ArmSums` tells otherwise
SCHEMA = 1
Out = tuple[str, str, str]  # experiment, arm, the experiment's digest
#: seconds since 1970 that are a time; beyond, and for what is no number, a file is not ours
_LATEST = 1e11


class TrialFiles:
    """The folder of one configuration file."""

    def __init__(self, kept_in: Path, config_path: Path) -> None:
        key = hashlib.sha256(str(config_path.absolute()).encode()).hexdigest()[:16]
        self.folder = kept_in / f"experiments-{key}"
        self._lost: dict[Out, dict[str, Any]] = {}  # not written down: known to this worker alone
        # Containers may share the folder, and each has a worker of the same number.
        self._host = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
        self._own = f"{os.getpid()}-{self._host}-{time.time_ns()}.json"

    # ------------------------------------------------------------------ arms that are out

    def out(self) -> dict[Out, dict[str, Any]]:
        """The arms that were stopped, with `since` and `because`."""
        found = dict(self._lost)
        for path in _files(self.folder / "out"):
            parts = path.name.split(".")
            if len(parts) == 3:
                found[parts[0], parts[1], parts[2]] = _read(path) or {}
        return found

    def stop(self, out: Out, because: str) -> str | None:
        """From now on; the reason where other workers cannot be told."""
        told = {"since": time.time(), "because": because}
        fault = self._write(self.folder / "out" / ".".join(out), told)
        if fault is not None:
            self._lost[out] = told
        return fault

    def start(self, out: Out) -> str | None:
        """No longer; the reason where other workers cannot be told."""
        self._lost.pop(out, None)
        try:
            (self.folder / "out" / ".".join(out)).unlink(missing_ok=True)
        except OSError as error:
            return f"{self.folder}: {error.strerror or error}"
        return None

    # ------------------------------------------------------------------ where counting began

    def begun(self, experiment: str, digest: str) -> float:
        """When what is counted now began; 0: from the start."""
        told = _read(self.folder / "begun" / f"{experiment}.{digest}") or {}
        at = told.get("at")
        return float(at) if isinstance(at, (int, float)) and abs(at) < _LATEST else 0.0

    def begin_anew(self, experiment: str, digest: str) -> str | None:
        """Forget what was counted; the reason where that cannot be."""
        return self._write(self.folder / "begun" / f"{experiment}.{digest}", {"at": time.time()})

    # ------------------------------------------------------------------ what was counted

    def keep(self, sums: Mapping[str, Any]) -> str | None:
        """Write down what this worker has counted; the reason where that cannot be."""
        return self._write(self.folder / "sums" / self._own, {"schema": SCHEMA, "sums": dict(sums)})

    def others(self) -> list[dict[str, Any]]:
        """What the other workers have counted."""
        paths = [path for path in _files(self.folder / "sums") if path.name != self._own]
        return [told for path in paths if (told := _sums(path)) is not None]

    def inherit(self) -> list[dict[str, Any]]:
        """Take over what workers that are gone have counted. Nobody else gets it then."""
        found = []
        for path in _files(self.folder / "sums"):
            if path.name.count("-") != 2:
                continue
            pid, host = path.name.split("-")[:2]
            if path.name == self._own or host != self._host or _is_alive(pid):
                continue
            if _sums(path) is None:
                continue
            mine = path.with_name(f".{path.name}.{os.getpid()}")
            with contextlib.suppress(OSError):  # another one was quicker
                path.rename(mine)
                told = _sums(mine)
                mine.unlink()
                if told is not None:
                    found.append(told)
        return found

    def _write(self, path: Path, told: Mapping[str, Any]) -> str | None:
        try:
            write_whole(path, json.dumps(told).encode())
        except OSError as error:
            return f"{self.folder}: {error.strerror or error}"
        return None


def _files(folder: Path) -> Iterator[Path]:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    yield from (folder / name for name in names if not name.startswith("."))


def _read(path: Path) -> dict[str, Any] | None:
    """What a file says; None where it is gone or not ours."""
    try:
        told = orjson.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) else None


def _sums(path: Path) -> dict[str, Any] | None:
    """What a worker has counted; None where the file is gone or of another schema."""
    told = _read(path) or {}
    sums = told.get("sums")
    return sums if told.get("schema") == SCHEMA and isinstance(sums, dict) else None


def _is_alive(pid: str) -> bool:
    """Whether a process other than this one has the number, which may be another's by now."""
    if pid == str(os.getpid()):
        return False
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError):
        return False
    except OSError:
        return True
    return True
