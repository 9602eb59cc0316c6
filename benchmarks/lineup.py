"""Who is measured: how each peer is started in front of the mock, and how it is addressed."""

from __future__ import annotations

import json
import os
import string
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import bodies
import tools
from load import Target
from processes import free_port

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
POLICY = REPOSITORY / "policies" / "default.toml"
BACKEND_MODEL = "mock-model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One way from the client to the mock. `command` is empty when there is nothing between."""

    name: str
    about: str
    port: int
    folder: Path
    command: Sequence[str] = ()
    cwd: Path = REPOSITORY
    headers: Mapping[str, str] = field(default_factory=dict)
    client_model: str = BACKEND_MODEL

    def target(self) -> Target:
        short = bodies.short_requests(model=self.client_model, stream=False)
        stream = bodies.short_requests(model=self.client_model, stream=True)
        return Target(
            port=self.port,
            headers=self.headers,
            short=self._files("short", short),
            long=self._files("long", bodies.long_requests(model=self.client_model)),
            short_stream=self._files("stream", stream)[0],
        )

    def environment(self) -> dict[str, str]:
        """Ours, without what would overrule the configuration written here."""
        return {k: v for k, v in os.environ.items() if not k.startswith("SCENARIO_ROUTER_")}

    def _files(self, kind: str, contents: Sequence[bytes]) -> list[Path]:
        paths = [self.folder / f"{kind}-{number}.json" for number in range(len(contents))]
        for path, content in zip(paths, contents, strict=True):
            path.write_bytes(content)
        return paths


@dataclass(frozen=True, slots=True)
class Build:
    """Where a router's code comes from."""

    python: Sequence[str]

    def compiled(self) -> int:
        """How many of its modules are compiled."""
        asked = "from router import compiled; print(len(compiled.modules()))"
        told = subprocess.run(
            (*self.python, "-c", asked), cwd=REPOSITORY, capture_output=True, check=True
        )
        return int(told.stdout)


#: -P: what is installed, although we stand beside the sources
INSTALLED = Build((sys.executable, "-P"))
SOURCES = Build((sys.executable,))


def direct(mock_port: int, folder: Path) -> Peer:
    return Peer(name="direct", about="straight to the mock", port=mock_port, folder=folder)


def nginx(mock_port: int, folder: Path) -> Peer:
    port = free_port()
    template = string.Template((HERE / "peers" / "nginx.conf.in").read_text())
    config = folder / "nginx.conf"
    names = {"PORT": port, "MOCK_PORT": mock_port, "FOLDER": folder}
    config.write_text(template.safe_substitute(names))  # nginx has $variables of its own
    return Peer(
        name="nginx",
        about="a worker for each core, upstream keep-alive, no buffering, no log",
        port=port,
        folder=folder,
        command=(tools.find("nginx") or "nginx", "-e", "stderr", "-c", str(config)),
    )


def naive_aiohttp(mock_port: int, folder: Path) -> Peer:
    port = free_port()
    script = str(HERE / "peers" / "naive_aiohttp.py")
    return Peer(
        name="naive_aiohttp",
        about="aiohttp server and client, uvloop, one process, no log",
        port=port,
        folder=folder,
        command=(sys.executable, script, str(port), f"http://127.0.0.1:{mock_port}"),
    )


def router(mock_port: int, folder: Path) -> Peer:
    return _shipped("router", INSTALLED, mock_port, folder)


def router_words(mock_port: int, folder: Path) -> Peer:
    return _words("router_words", INSTALLED, mock_port, folder)


def router_off(mock_port: int, folder: Path) -> Peer:
    return _off("router_off", INSTALLED, mock_port, folder)


def router_pure(mock_port: int, folder: Path) -> Peer:
    return _shipped("router_pure", SOURCES, mock_port, folder)


def router_words_pure(mock_port: int, folder: Path) -> Peer:
    return _words("router_words_pure", SOURCES, mock_port, folder)


def router_off_pure(mock_port: int, folder: Path) -> Peer:
    return _off("router_off_pure", SOURCES, mock_port, folder)


def _shipped(name: str, build: Build, mock_port: int, folder: Path) -> Peer:
    about = "one worker: classification, rewriting and log"
    return _router(name, build, about, mock_port, folder, headers={})


def _off(name: str, build: Build, mock_port: int, folder: Path) -> Peer:
    about = "one worker, requests say x-router-policy: off"
    headers = {"x-router-policy": "off"}
    return _router(name, build, about, mock_port, folder, headers=headers)


def _words(name: str, build: Build, mock_port: int, folder: Path) -> Peer:
    """The shipped policy without its examples: told apart by words and shapes alone."""
    policy = folder / "words.toml"
    lines = POLICY.read_text(encoding="utf-8").splitlines(keepends=True)
    # The promises are about the whole policy, so they go as well.
    kept = takewhile(lambda line: line != "[[tests]]\n", lines)
    policy.write_text(
        "".join(line for line in kept if not line.startswith("examples_files")), encoding="utf-8"
    )
    about = "one worker, words and shapes alone: a policy without examples"
    return _router(name, build, about, mock_port, folder, headers={}, policy=policy)


def _router(
    name: str,
    build: Build,
    about: str,
    mock_port: int,
    folder: Path,
    *,
    headers: Mapping[str, str],
    policy: Path = POLICY,
) -> Peer:
    port = free_port()
    config = folder / "config.toml"
    written = router_config(
        port=port, mock_port=mock_port, log_folder=folder / "logs", policy=policy
    )
    config.write_text(written)
    return Peer(
        name=name,
        about=f"{about}; {'compiled' if build.compiled() else 'pure Python'}",
        port=port,
        folder=folder,
        command=(*build.python, "-m", "router", "serve", "--config", str(config)),
        headers=headers,
        client_model="auto",
    )


def router_config(*, port: int, mock_port: int, log_folder: Path, policy: Path = POLICY) -> str:
    """A deployment like any other: only addresses and folders are named, the rest is default."""
    quoted = json.dumps  # a JSON string is a TOML string
    return f"""\
[server]
host = "127.0.0.1"
port = {port}

[policy]
file = {quoted(str(policy))}

[[backends]]
name = "mock"
url = "http://127.0.0.1:{mock_port}"
dialect = "vllm"
model = {quoted(BACKEND_MODEL)}

[log]
dir = {quoted(str(log_folder))}
"""


LINEUP: dict[str, Callable[[int, Path], Peer]] = {
    build.__name__: build
    for build in (
        *(direct, nginx, naive_aiohttp),
        *(router, router_words, router_off),
        *(router_pure, router_words_pure, router_off_pure),
    )
}
PURE = ("router_pure", "router_words_pure", "router_off_pure")
YARDSTICKS = ("direct", "nginx")  # in every run: latencies and CPU are compared with them
