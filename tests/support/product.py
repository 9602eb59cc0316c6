"""The router as a user runs it: a process of its own, driven over its socket.

Readiness is an event, not a delay: `serve` prints one line when it accepts
connections, and `start` reads the child's output up to that line.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

READY = "scenario-router listening on "
ROOT = Path(__file__).resolve().parents[2]


def write_toml(path: Path, value: Mapping[str, Any]) -> Path:
    path.write_text(tomli_w.dumps(value), encoding="utf-8")
    return path


class Product:
    """One running router. Use `start`, then `stop` (or a `with` block)."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process = process
        self.folder = folder
        self.log_dir = folder / "logs"
        self.config_path = folder / "config.toml"
        self.policy_path = folder / "policy.toml"
        self.url = ""
        self.output: list[str] = []
        self.trust: ssl.SSLContext | None = None  # of a router that speaks TLS
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read_output, daemon=True)
        self._reader.start()

    @classmethod
    def start(
        cls,
        folder: Path,
        config: Mapping[str, Any],
        *,
        policy: Mapping[str, Any] | str | None = None,
        env: Mapping[str, str] | None = None,
        args: Sequence[str] = (),
        within: Sequence[str] = (),
        timeout_s: float = 30.0,
    ) -> Product:
        """Start `serve` with this config in `folder`.

        `policy` is a policy as a mapping or TOML text; None takes the shipped
        one. `server.port`, `log.dir` and `policy.file` are filled in when the
        config leaves them out. `within` is a command that runs the router's.
        """
        folder.mkdir(parents=True, exist_ok=True)
        whole: dict[str, Any] = dict(config)
        whole["server"] = {"port": 0, **whole.get("server", {})}
        whole["health"] = {"examine": False, **whole.get("health", {})}
        whole["log"] = {"dir": str(folder / "logs"), **whole.get("log", {})}
        policy_path = folder / "policy.toml"
        if isinstance(policy, str):
            policy_path.write_text(policy, encoding="utf-8")
        elif policy is not None:
            write_toml(policy_path, policy)
        else:
            shutil.copy(ROOT / "policies" / "default.toml", policy_path)
            shutil.copytree(ROOT / "policies" / "examples", folder / "examples", dirs_exist_ok=True)
        whole["policy"] = {"file": str(policy_path), **whole.get("policy", {})}
        config_path = write_toml(folder / "config.toml", whole)
        process = subprocess.Popen(
            [*within, sys.executable, "-m", "router", "serve", "--config", str(config_path), *args],
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return cls.serving(process, folder, timeout_s=timeout_s)

    @classmethod
    def serving(
        cls, process: subprocess.Popen[str], folder: Path, *, timeout_s: float = 30.0
    ) -> Product:
        """A router that was started otherwise, once it accepts connections."""
        product = cls(process, folder)
        if not product._ready.wait(timeout_s) or not product.url:
            product.kill()
            raise AssertionError("the router did not start:\n" + "".join(product.output))
        return product

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.output.append(line)
                if READY in line:
                    self.url = line.split(READY, 1)[1].split()[0].rstrip("/")
                    self._ready.set()
        self._ready.set()

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=10, context=self.trust) as reply:
            return json.load(reply)

    def records(self) -> list[dict[str, Any]]:
        """Every whole line of the request log, in the order of the files."""
        found: list[dict[str, Any]] = []
        for path in sorted(self.log_dir.glob("requests-*.jsonl")):
            *lines, _ = path.read_bytes().split(b"\n")  # the last one may be under way
            found.extend(json.loads(line) for line in lines if line)
        return found

    def wait_records(self, count: int, timeout_s: float = 5.0) -> list[dict[str, Any]]:
        """The records once there are at least `count`; the log is written in batches."""
        deadline = time.monotonic() + timeout_s
        poll = threading.Event()
        while len(found := self.records()) < count:
            if time.monotonic() > deadline:
                raise AssertionError(f"{len(found)} of {count} records: {found}")
            poll.wait(0.02)
        return found

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def stop(self, timeout_s: float = 40.0) -> int:
        """SIGTERM, then the exit code."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout_s)
        finally:
            self.kill()
        return code

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(5)

    def __enter__(self) -> Product:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
