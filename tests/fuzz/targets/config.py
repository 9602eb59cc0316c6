"""Configuration files: all mistakes are told before a port is opened, or it can be served."""

from __future__ import annotations

from router import config
from router.config import Config
from router.dialects import DIALECTS
from router.tomlfile import FileFault
from tests.fuzz import folders, source

FOLDER = folders.new("config")
NAMED = {"KEY": "secret", "REDIS_URL": "redis://127.0.0.1:6379"}


def check(data: bytes) -> None:
    """The file; behind a NUL, lines NAME=value of the environment."""
    given = source.of(data)
    text, _, variables = given.raw.partition(b"\0")
    environ = dict(NAMED)
    for line in variables.decode("utf-8", "replace").split("\n"):
        name, _, value = line.partition("=")
        environ[f"SCENARIO_ROUTER_{name}"] = value
    path = FOLDER / "config.toml"
    path.write_bytes(text)
    try:
        found = config.load(path, environ=environ)
    except FileFault as fault:
        assert fault.mistakes
        assert "secret" not in str(fault)
        return
    check_sound(found)
    config.policy_path(path, found)
    config.log_folder(path, environ=environ)


def check_sound(found: Config) -> None:
    expanded = config.expanded(found, lambda count: range(9000, 9000 + count))
    names = [backend.name for backend in expanded.backends]
    assert len(set(names)) == len(names)
    for backend in expanded.backends:
        assert backend.host
        assert 0 < backend.port < 65536
        assert backend.dialect in {*DIALECTS, "auto"}
        backend.host.encode("ascii")
        backend.name.encode("ascii")
