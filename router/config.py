"""config.toml: where this router listens, its backends, its log. What the file says, typed.

Precedence: flag > environment > file > default. An environment variable is
`SCENARIO_ROUTER_` and the key in capitals, parts joined by two underscores
(`SCENARIO_ROUTER_SERVER__PORT=9000`). Secrets stand here only by the name of an
environment variable.
"""

from __future__ import annotations

import contextlib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from router import tomlfile
from router.tomlfile import FileFault, Mistake

ENV_PREFIX = "SCENARIO_ROUTER_"
DEFAULT_FILE = "config.toml"
DialectName = Literal["vllm", "transformers", "llamacpp", "sglang", "ollama", "flat", "openai"]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Server(_Table):
    """The edge."""

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8088, ge=0, le=65535, description="Port; 0 takes any free one.")
    workers: int | Literal["auto"] = Field(
        default=1, description='Processes that share the port; "auto" is one a core.'
    )
    body_limit_mb: float = Field(
        default=32, gt=0, le=1024, description="Largest request body after decompression, MiB."
    )
    header_limit_kb: int = Field(
        default=64, ge=8, le=1024, description="Largest request head, KiB."
    )
    body_timeout_s: float = Field(
        default=30, gt=0, description="Longest wait for the rest of a request, seconds."
    )
    idle_timeout_s: float = Field(
        default=75, gt=0, description="A kept-alive client connection without a request, seconds."
    )
    grace_s: float = Field(
        default=30, ge=0, description="How long running streams may go on after SIGTERM, seconds."
    )
    allow_policy_off: bool = Field(
        default=True, description="Clients may send `x-router-policy: off`."
    )
    admin_key_env: str | None = Field(
        default=None,
        description="Environment variable with the key that /router/* and /dashboard then ask for.",
    )

    @field_validator("workers")
    @classmethod
    def _positive(cls, value: int | str) -> int | str:
        if isinstance(value, int) and value < 1:
            raise ValueError("at least one worker")
        return value


class PolicySource(_Table):
    """Which policy is in force and which model names lead to it."""

    file: str = Field(default="policies/default.toml", description="The policy.")
    watch: bool = Field(default=True, description="Take changes of the file without a restart.")
    settle_ms: int = Field(
        default=200, ge=0, description="A change is read once the file was still this long, ms."
    )
    real_model_bypass: bool = Field(
        default=False,
        description="A real served name skips the policy instead of being classified.",
    )
    aliases: tuple[str, ...] = Field(
        default=(), description="More model names that mean `auto`, for apps that hard-code one."
    )


class Launch(_Table):
    """A model server that we start ourselves (`scenario-router up`)."""

    engine: Literal["auto", "existing", "vllm", "transformers", "llamacpp", "demo"] = Field(
        default="auto", description="Which engine; auto takes the best that is there."
    )
    model: str = Field(
        default="Qwen/Qwen3-0.6B", description="A hub name, a folder, or a .gguf file."
    )


class Backend(_Table):
    """One upstream server."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$", description="For logs.")
    url: str = Field(description="Base URL, http://host:port; a trailing /v1 is understood.")
    dialect: DialectName | Literal["auto"] = Field(
        default="vllm", description="How this server wants parameters said."
    )
    model: str | None = Field(
        default=None, description="The name it serves; left out: asked of /v1/models."
    )
    pool: str = Field(default="default", description="Interchangeable backends share a pool.")
    weight: float = Field(default=1, gt=0, description="Share of the load, relative to others.")
    max_inflight: int = Field(
        default=1024, ge=1, description="Requests at once; above it clients get 429."
    )
    api_key_env: str | None = Field(
        default=None, description="Environment variable with the key that this backend wants."
    )
    connect_timeout_s: float = Field(default=2, gt=0, description="To open a connection, seconds.")
    timeout_s: float = Field(
        default=300, gt=0, description="To the first byte of the answer, seconds."
    )
    stall_timeout_s: float = Field(
        default=120, gt=0, description="Between two pieces of an answer, seconds."
    )
    keepalive_s: float = Field(
        default=4,
        ge=0,
        description="Longest idle time of a connection; below the server's own (uvicorn: 5).",
    )
    launch: Launch | None = Field(default=None, description="Start this server for me.")

    @field_validator("url")
    @classmethod
    def _plain_http(cls, value: str) -> str:
        parts = urlsplit(value)
        try:
            parts.port  # noqa: B018  # looking is what finds a port that is none
        except ValueError as error:
            raise ValueError(f"has a bad port: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be http://host:port or https://host:port")
        if parts.path.rstrip("/") not in ("", "/v1") or parts.query or parts.username:
            raise ValueError("is a base URL: no path but /v1, no query, no user")
        return value

    @property
    def host(self) -> str:
        return str(urlsplit(self.url).hostname)

    @property
    def is_tls(self) -> bool:
        return urlsplit(self.url).scheme == "https"

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or (443 if self.is_tls else 80)


class Health(_Table):
    """Active checks: GET /health of each backend."""

    interval_s: float = Field(default=2, gt=0, description="Between two checks, seconds.")
    timeout_s: float = Field(default=2, gt=0, description="For one check, seconds.")


class Auth(_Table):
    """Who may ask. Nothing set: everybody, and the start says so."""

    keys_env: str | None = Field(
        default=None, description='Environment variable holding "name=key,name2=key2".'
    )


class Log(_Table):
    """One JSON line a request, in hourly files that all workers append to."""

    dir: str = Field(default="logs", description="Folder; made when missing.")
    enabled: bool = Field(default=True, description="Write the request log.")
    flush_ms: int = Field(default=200, ge=1, description="Lines are written in batches, ms.")
    queue: int = Field(
        default=20_000, ge=100, description="Records that may wait for the disk; more are counted."
    )


class Config(_Table):
    """A whole deployment."""

    server: Server = Server()
    policy: PolicySource = PolicySource()
    backends: tuple[Backend, ...] = Field(min_length=1, description="At least one upstream.")
    health: Health = Health()
    auth: Auth = Auth()
    log: Log = Log()

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [backend.name for backend in self.backends]
        double = next((name for name in names if names.count(name) > 1), None)
        if double:
            raise ValueError(f"two backends are called {double!r}")
        return self


def load(
    path: Path,
    *,
    environ: Mapping[str, str] = os.environ,
    flags: Mapping[tuple[str, ...], Any] | None = None,
) -> Config:
    """The configuration in force; raises FileFault with all that is wrong.

    Relative paths in it are relative to the file. `flags` are by key, for example
    `{("server", "port"): 9000}`.
    """
    text = tomlfile.read(path)
    value = tomlfile.table(text, str(path))
    for key, given in {**_from_environment(environ), **(flags or {})}.items():
        _put(value, key, given)
    config = tomlfile.model(Config, value, text, str(path))
    missing = [
        Mistake(where, None, f"the environment variable {name} is not set")
        for where, name in _secrets(config)
        if not environ.get(name)
    ]
    if missing:
        raise FileFault(str(path), missing)
    return config


def policy_path(path: Path, config: Config) -> Path:
    """Where the policy is; the one that was installed with us where none is named or there."""
    found = beside(path, config.policy.file)
    ours = Path(__file__).with_name("default_policy.toml")
    is_left_open = "file" not in config.policy.model_fields_set
    return ours if is_left_open and not found.exists() and ours.exists() else found


def beside(path: Path, name: str) -> Path:
    """A path from the file, relative to the file's folder."""
    return path.parent.absolute() / name


def _from_environment(environ: Mapping[str, str]) -> dict[tuple[str, ...], Any]:
    """Settings by key. A text is turned into what the setting is; lists are TOML."""
    found: dict[tuple[str, ...], Any] = {}
    for name, text in environ.items():
        if name.startswith(ENV_PREFIX) and "__" in name:
            key = tuple(part.lower() for part in name.removeprefix(ENV_PREFIX).split("__"))
            found[key] = text
            if text[:1] in "[{\"'":
                with contextlib.suppress(tomllib.TOMLDecodeError):
                    found[key] = tomllib.loads(f"v = {text}")["v"]
    return found


def _put(value: Any, key: tuple[str, ...], given: Any) -> None:
    for part in key[:-1]:
        value = value.setdefault(part, {}) if isinstance(value, dict) else None
    if not isinstance(value, dict):
        name = ENV_PREFIX + "__".join(key).upper()
        raise FileFault("environment", [Mistake(name, None, "fits no table of single settings")])
    value[key[-1]] = given


def _secrets(config: Config) -> list[tuple[str, str]]:
    named = [(f"backends.{b.name}.api_key_env", b.api_key_env) for b in config.backends]
    named.append(("auth.keys_env", config.auth.keys_env))
    named.append(("server.admin_key_env", config.server.admin_key_env))
    return [(where, name) for where, name in named if name]
