"""config.toml: where this router listens, its backends, its log. What the file says, typed.

Precedence: flag > environment > file > default. An environment variable is
`SCENARIO_ROUTER_` and the key in capitals, parts joined by two underscores
(`SCENARIO_ROUTER_SERVER__PORT=9000`). Secrets stand here only by the name of an
environment variable.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from router import collector, cors, migration, redisurl, tomlfile
from router.tables import Field, Table, field_validator, model_validator
from router.tomlfile import FileFault, Mistake

ENV_PREFIX = "SCENARIO_ROUTER_"
DEFAULT_FILE = "config.toml"
#: requests at once for a server that is started so that it batches
BATCHING_INFLIGHT = 1024
DialectName = Literal["vllm", "transformers", "llamacpp", "sglang", "ollama", "flat", "openai"]
#: what a cache of keys and values can be kept in, as vLLM and as llama.cpp calls it
KvCacheFloat = Literal["auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2"]
KvCacheBlock = Literal["q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]


class Unsaid(str):
    """A default that matters for nobody having said it."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return handler(str)


class Server(Table):
    """The edge."""

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8088, ge=0, le=65535, description="Port; 0 takes any free one.")
    workers: int | Literal["auto"] = Field(
        default=1, description='Processes that share the port; "auto" is one a core.'
    )
    body_limit_mb: float = Field(
        default=32, gt=0, le=1024, description="Largest request body after decompression, MiB."
    )
    inflate_ratio: int = Field(
        default=100, ge=1, description="A compressed body may grow so many times, beyond 1 MiB."
    )
    json_depth: int = Field(
        default=0,
        ge=0,
        le=400,
        description="Deepest nesting of a body, for all that are passed on; 0: no check of its "
        "own, what is read is refused at some hundred levels.",
    )
    messages: int = Field(
        default=8192, ge=1, description="Longest conversation of one request, in messages."
    )
    header_limit_kb: int = Field(
        default=64, ge=8, le=1024, description="Largest request head, KiB."
    )
    header_count: int = Field(default=100, ge=8, description="Header lines of a request.")
    header_line_kb: int = Field(
        default=64, ge=1, le=1024, description="Longest header line of a request, KiB."
    )
    target_limit_kb: int = Field(
        default=8, ge=1, le=1024, description="Longest path and query of a request, KiB."
    )
    head_timeout_s: float = Field(
        default=20,
        gt=0,
        description="For a whole request head, from its first byte, or from the connection's "
        "first moment, seconds.",
    )
    body_timeout_s: float = Field(
        default=30, gt=0, description="Longest pause inside a request body, seconds."
    )
    request_timeout_s: float = Field(
        default=300, gt=0, description="For a whole request, from its first byte, seconds."
    )
    idle_timeout_s: float = Field(
        default=75, gt=0, description="A kept-alive client connection without a request, seconds."
    )
    write_timeout_s: float = Field(
        default=60,
        gt=0,
        description="A client that takes nothing of its answer for so long is cut off, seconds.",
    )
    pipelined: int = Field(
        default=32,
        ge=1,
        description="Requests of a connection that are read ahead of the one that is served.",
    )
    connections: int = Field(
        default=4096, ge=1, description="Client connections at once, of each worker."
    )
    connections_per_address: int = Field(
        default=0,
        ge=0,
        description="... from one IPv4 address or IPv6 network (/64), of each worker; 0: no "
        "limit of its own.",
    )
    grace_s: float = Field(
        default=30, ge=0, description="How long running streams may go on after SIGTERM, seconds."
    )
    keepalive_s: float = Field(
        default=15,
        ge=0,
        description="A silent stream is given an empty frame after so many seconds; 0: never.",
    )
    allow_policy_off: bool = Field(
        default=True, description="Clients may send `x-router-policy: off`."
    )
    hosts: tuple[str, ...] = Field(
        default=(),
        description="Names that clients call this address by, as a web server in front passes on. "
        "Asked about where no key is needed and `host` is this machine alone, or names are given: "
        "else a page that a browser shows could have its own name lead here.",
    )
    admin_key_env: str | None = Field(
        default=None,
        min_length=1,
        description="Environment variable with the key that /router/* and the dashboard's data "
        "then ask for.",
    )
    admin_address: str | None = Field(
        default=None,
        description="host:port where /router/*, the dashboard and /metrics are then served, and "
        "nowhere else.",
    )
    insecure: bool = Field(
        default=False,
        description="Start also where others can reach what asks for no key.",
    )
    cors_origins: tuple[str, ...] = Field(
        default=(),
        description='Web pages that may ask from a browser: origins, as https://app.example; "*" '
        "is any.",
    )
    tls_cert: str | None = Field(
        default=None,
        description="Certificate of this server, PEM, with those between it and its issuer; then "
        "it speaks HTTPS alone.",
    )
    tls_key: str | None = Field(
        default=None, description="Its private key, PEM; left out: in the same file."
    )
    tls_client_ca: str | None = Field(
        default=None,
        description="Whose certificates clients must show, PEM; left out: they need none.",
    )

    @model_validator(mode="after")
    def _has_certificate(self) -> Self:
        for key in ("tls_key", "tls_client_ca"):
            if getattr(self, key) is not None and self.tls_cert is None:
                raise ValueError(f"{key} is of no use without tls_cert")
        return self

    @field_validator("workers")
    @classmethod
    def _positive(cls, value: int | str) -> int | str:
        if isinstance(value, int) and value < 1:
            raise ValueError("at least one worker")
        return value

    @field_validator("admin_address")
    @classmethod
    def _host_and_port(cls, value: str | None) -> str | None:
        if value is not None:
            split_address(value)
        return value

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:
            if origin != cors.ANY and not cors.IS_ORIGIN(origin):
                raise ValueError(
                    f"{origin!r} is no origin: scheme://host or scheme://host:port in small "
                    "letters, without a path"
                )
        return value

    @property
    def admin(self) -> tuple[str, int] | None:
        """Host and port of the operators' own address, if they have one."""
        return split_address(self.admin_address) if self.admin_address is not None else None


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`, an IPv6 host in brackets. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if host[:1] == "[" and host[-1:] == "]":
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError("is no host:port, as 127.0.0.1:8089 or [::1]:8089")
    return host, int(port)


class PolicySource(Table):
    """Which policy is in force and which model names lead to it."""

    file: str = Field(default=Unsaid("policies/default.toml"), description="The policy.")
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


class EngineOptions(Table):
    """How a launched engine is to run, in words that are no engine's own.

    What is left out is the engine's own business, or ours where the small models that we
    launch gain from it. An engine that cannot do what is asked is not started without it.
    """

    dtype: Literal["auto", "bfloat16", "float16", "float32"] | None = Field(
        default=None, description="Of weights and activations; auto takes the weights' own."
    )
    device: str | None = Field(
        default=None,
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="Where it computes: auto, cpu, cuda, or one GPU, as in cuda:1.",
    )
    quantization: Literal["none", "bnb-4bit", "bnb-8bit", "awq", "gptq"] | None = Field(
        default=None, description="bnb-*: shrink the weights on loading. awq, gptq: they are that."
    )
    attention: Literal["auto", "sdpa", "flash", "eager"] | None = Field(
        default=None, description="The implementation of attention."
    )
    continuous_batching: bool | None = Field(
        default=None, description="Requests join and leave the running batch at any token."
    )
    chunked_prefill: bool | None = Field(
        default=None, description="A long prompt is read in pieces between others' tokens."
    )
    max_batched_tokens: int | None = Field(
        default=None, ge=1, description="Tokens computed in one step, over all requests."
    )
    max_num_seqs: int | None = Field(
        default=None, ge=1, description="Requests computed at once; llama.cpp calls them slots."
    )
    max_model_len: int | None = Field(
        default=None, ge=1, description="Tokens of one conversation, prompt and answer."
    )
    prefix_caching: bool | None = Field(
        default=None, description="The beginning that a prompt shares with another is not reread."
    )
    prompt_token_details: bool | None = Field(
        default=None, description="usage tells cached_tokens."
    )
    reasoning_parser: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_.-]+$",
        description="Tells thought from answer; none leaves the tags in the text.",
    )
    kv_cache_dtype: KvCacheFloat | KvCacheBlock | None = Field(
        default=None, description="What the cache of keys and values is kept in."
    )
    gpu_memory: float | None = Field(
        default=None, gt=0, le=1, description="Share of a GPU's memory for this one process."
    )
    threads: int | None = Field(
        default=None, ge=1, description="Processor threads; left out: our processors less one."
    )
    args: tuple[str, ...] = Field(
        default=(), description="The engine's own flags, put last so that they win."
    )
    replicas: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Processes, each with a port and a name of its own in the same pool.",
    )

    @property
    def asked(self) -> dict[str, Any]:
        """The options that are set, by name, of those that an engine itself has to honour."""
        fields = [name for name in EngineOptions.names() if name != "replicas"]
        return {name: value for name in fields if (value := getattr(self, name)) not in (None, ())}


class Launch(EngineOptions):
    """A model server that we start ourselves (`scenario-router up`)."""

    engine: Literal["auto", "existing", "vllm", "transformers", "llamacpp", "demo"] = Field(
        default="auto", description="Which engine; auto takes the best that is there."
    )
    model: str = Field(
        default="Qwen/Qwen3-0.6B", description="A hub name, a folder, or a .gguf file."
    )

    @model_validator(mode="after")
    def _fits_an_engine(self) -> Self:
        if self.args and self.engine in ("auto", "existing"):
            raise ValueError("args are one engine's own flags: name the engine beside them")
        if self.replicas > 1 and self.engine == "existing":
            raise ValueError("an existing server is one: replicas are processes that we start")
        return self


class Backend(Table):
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
    max_inflight: int | None = Field(
        default=None,
        ge=1,
        description="Requests at once, more wait in line; left out: 1024, or 1 where the server "
        "takes one at a time.",
    )
    context: int | None = Field(
        default=None,
        ge=1,
        description="Tokens of one conversation; left out: asked of the server, with the rest.",
    )
    api_key_env: str | None = Field(
        default=None, description="Environment variable with the key that this backend wants."
    )
    ca_file: str | None = Field(
        default=None,
        description="Who may have issued the certificate of an https server, PEM, and nobody "
        "else; left out: whom this system trusts.",
    )
    tls_server_name: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._:-]+$",
        description="The name that its certificate must be for; left out: that of the url.",
    )
    client_cert: str | None = Field(
        default=None, description="Certificate that we show this server, PEM."
    )
    client_key: str | None = Field(
        default=None, description="Its private key, PEM; left out: in the same file."
    )
    connect_timeout_s: float = Field(default=2, gt=0, description="To open a connection, seconds.")
    timeout_s: float = Field(
        default=300, gt=0, description="To the first byte of the answer, seconds."
    )
    stall_timeout_s: float = Field(
        default=120, gt=0, description="Between two pieces of an answer, seconds."
    )
    answer_limit_mb: float = Field(
        default=256, gt=0, description="Largest answer, as it comes over the wire, MiB."
    )
    keepalive_s: float = Field(
        default=4,
        ge=0,
        description="Longest idle time of a connection; below the server's own (uvicorn: 5).",
    )
    discover: bool = Field(
        default=False,
        description="The host name has several addresses, each with a server of its own: look it "
        "up again and again, and use all of them.",
    )
    discover_s: float = Field(
        default=10, gt=0, description="Between two look-ups of the host name, seconds."
    )
    launch: Launch | None = Field(default=None, description="Start this server for me.")

    @property
    def replica_names(self) -> list[str]:
        """What its processes are called; the name alone where there is one."""
        count = self.launch.replicas if self.launch is not None else 1
        return [f"{self.name}-{n}" for n in range(1, count + 1)] if count > 1 else [self.name]

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

    @model_validator(mode="after")
    def _can_discover(self) -> Self:
        if self.discover and self.launch is not None:
            raise ValueError("discover finds servers that are run elsewhere; launch starts one")
        return self

    @model_validator(mode="after")
    def _has_use_for_certificates(self) -> Self:
        for key in ("ca_file", "tls_server_name", "client_cert", "client_key"):
            if getattr(self, key) is not None and not self.is_tls:
                raise ValueError(f"{key} is for a url with https://")
        if self.client_key is not None and self.client_cert is None:
            raise ValueError("client_key is of no use without client_cert")
        return self

    @property
    def host(self) -> str:
        return str(urlsplit(self.url).hostname)

    @property
    def is_tls(self) -> bool:
        return urlsplit(self.url).scheme == "https"

    @property
    def tls_name(self) -> str:
        """Whom its certificate must be for."""
        return self.tls_server_name or self.host

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or (443 if self.is_tls else 80)


class Health(Table):
    """Active checks, GET /health of each backend, and what becomes of its requests."""

    interval_s: float = Field(default=2, gt=0, description="Between two checks, seconds.")
    timeout_s: float = Field(default=2, gt=0, description="For one check, seconds.")
    examine: bool = Field(
        default=True,
        description='Ask a backend with dialect = "auto" what it honours, when it is new or was '
        "started anew.",
    )
    warm_up: bool = Field(
        default=True,
        description="Have a backend that comes back answer one short request before users' go "
        "to it.",
    )
    failures: int = Field(
        default=3, ge=1, description="Requests failed in a row that take a backend out."
    )
    open_s: float = Field(
        default=5,
        gt=0,
        le=60,
        description="How long it is out the first time, seconds; doubles up to 60 while it fails.",
    )
    slow_start_s: float = Field(
        default=10, ge=0, description="From a tenth of its load to all of it, once it is back."
    )
    max_ejected: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Share of a pool that failed requests may take out; never the last backend.",
    )


class Retry(Table):
    """Asking another backend, as long as the client has had no byte."""

    attempts: int = Field(default=2, ge=0, le=10, description="Further ones; 0: never.")
    share: float = Field(
        default=0.2, ge=0, le=1, description="Retries for each request of the last 10 seconds."
    )
    least: float = Field(default=3, ge=0, description="Retries a second beside that share.")


class Limits(Table):
    """Requests that wait for a busy pool, and what each client key may use."""

    queue: int = Field(default=256, ge=0, description="Requests that may wait; more get 429.")
    queue_timeout_s: float = Field(default=30, gt=0, description="Longest wait, seconds; then 429.")
    requests_per_minute: int | None = Field(
        default=None, ge=1, description="Of each client key that says nothing; left out: no limit."
    )
    tokens_per_minute: int | None = Field(
        default=None, ge=1, description="Likewise, prompt and answer."
    )
    tokens_per_day: int | None = Field(
        default=None, ge=1, description="Likewise, from midnight to midnight UTC."
    )
    streams: int | None = Field(default=None, ge=1, description="Likewise, requests at once.")
    store: Literal["auto", "memory", "redis"] = Field(
        default="auto",
        description="What keys have used, memory: this machine's own; redis: all routers together, "
        "at the address in [affinity]; auto: as sessions are kept.",
    )

    @property
    def of_keys(self) -> list[str]:
        """The names of those that are limits of each key."""
        names = ("requests_per_minute", "tokens_per_minute", "tokens_per_day", "streams")
        return [name for name in names if getattr(self, name) is not None]


class Affinity(Table):
    """Where sessions that are not at their home are remembered."""

    store: Literal["memory", "redis"] = Field(
        default="memory",
        description="memory: each process for itself; redis: all workers and routers together.",
    )
    url_env: str = Field(
        default="REDIS_URL",
        description="Environment variable with the address: redis://, redis+sentinel:// or "
        "redis+cluster://; rediss for TLS.",
    )
    ttl_s: int = Field(
        default=3600, ge=1, description="A session is forgotten after so many silent seconds."
    )
    timeout_ms: float = Field(
        default=20, gt=0, description="Longest that a request waits for Redis; then it goes home."
    )
    prefix: str = Field(
        default="scenario-router",
        pattern=r"^[A-Za-z0-9_.:-]{1,64}$",
        description="What every key in Redis begins with.",
    )
    max_sessions: int = Field(
        default=100_000,
        ge=1,
        description="Sessions that one process remembers; the longest silent goes first.",
    )


class Auth(Table):
    """Who may ask. Nothing set: everybody, and the start says so."""

    keys_env: str | None = Field(
        default=None,
        min_length=1,
        description='Environment variable holding "name=key,name2=key2".',
    )
    keys_file: str | None = Field(
        default=None,
        min_length=1,
        description="File of keys, as hashes, with what each may get; `scenario-router keys` "
        "keeps it.",
    )

    @property
    def has_keys(self) -> bool:
        """Whether clients are asked for a key."""
        return self.keys_env is not None or self.keys_file is not None


class Log(Table):
    """One JSON line a request, in hourly files that all workers append to."""

    dir: str = Field(default="logs", description="Folder; made when missing.")
    enabled: bool = Field(default=True, description="Write the request log.")
    flush_ms: int = Field(default=200, ge=1, description="Lines are written in batches, ms.")
    queue: int = Field(
        default=20_000, ge=100, description="Records that may wait for the disk; more are counted."
    )
    compress: bool = Field(
        default=True, description="Pack the file of an hour that is over (gzip)."
    )
    keep_days: float = Field(
        default=30, ge=0, description="Older records are removed; 0: no limit."
    )
    keep_mb: float = Field(
        default=10_240,
        ge=0,
        description="Beyond so many MiB of all files, bodies first, the oldest are removed; 0: no "
        "limit.",
    )
    bodies: Literal["off", "sampled", "on"] = Field(
        default="off",
        description="Write prompts and answers too, without what redaction finds, in files of "
        "their own.",
    )
    body_share: float = Field(
        default=0.01, ge=0, le=1, description="Of the requests, chosen by their id, if sampled."
    )
    body_limit_kb: int = Field(
        default=64, ge=1, le=4096, description="Of a prompt, and of an answer; the rest is cut."
    )
    body_keep_days: float = Field(
        default=7, ge=0, description="Older bodies are removed; 0: no limit."
    )


class Telemetry(Table):
    """Traces and metrics to an OpenTelemetry collector; needs the extra `otlp`."""

    otlp_endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://[^/]",
        description="Base URL of a collector, OTLP over HTTP; left out: OTEL_EXPORTER_OTLP_ENDPOINT"
        ", or none.",
    )
    sample: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="Share of the requests that are traced where the client has not decided.",
    )
    queue: int = Field(
        default=2048,
        ge=1,
        description="Requests that may wait for the collector; more are counted.",
    )
    metrics_s: float = Field(
        default=15, ge=1, description="Between two pushes of metrics, seconds."
    )


class Config(Table):
    """A whole deployment."""

    schema_: int = Field(
        default=1,
        ge=1,
        alias="schema",
        description="Version of this format; an older one is read as what it is now.",
    )
    server: Server = Server()
    policy: PolicySource = PolicySource()
    backends: tuple[Backend, ...] = Field(min_length=1, description="At least one upstream.")
    health: Health = Health()
    retry: Retry = Retry()
    limits: Limits = Limits()
    affinity: Affinity = Affinity()
    auth: Auth = Auth()
    log: Log = Log()
    telemetry: Telemetry = Telemetry()

    @property
    def rates_in_redis(self) -> bool:
        """Whether what keys have used is counted together by several routers."""
        store = self.limits.store
        return store == "redis" or (store == "auto" and self.affinity.store == "redis")

    @property
    def needs_redis(self) -> bool:
        return self.affinity.store == "redis" or self.limits.store == "redis"

    @model_validator(mode="after")
    def _limits_are_for_somebody(self) -> Self:
        if self.limits.of_keys and not self.auth.has_keys:
            raise ValueError(
                f"[limits] {self.limits.of_keys[0]} is a limit of each client's key, and [auth] "
                "names no keys: it would hold for nobody"
            )
        return self

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [backend.name for backend in self.backends]
        names += [
            name
            for backend in self.backends
            for name in backend.replica_names
            if name != backend.name
        ]
        double = next((name for name in names if names.count(name) > 1), None)
        if double:
            raise ValueError(f"two backends are called {double!r}")
        return self

    @property
    def has_tls(self) -> bool:
        """Whether any connection is to be TLS."""
        return self.server.tls_cert is not None or any(each.is_tls for each in self.backends)


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
    migration.upgrade(value, "config", text, str(path))
    for key, given in {**_from_environment(environ), **(flags or {})}.items():
        _put(value, key, given)
    config = tomlfile.model(Config, value, text, str(path))
    missing = [
        Mistake(where, None, f"the environment variable {name} is not set")
        for where, name in _secrets(config)
        if not environ.get(name)
    ]
    if config.telemetry.otlp_endpoint and not collector.is_installed():
        missing.append(Mistake("telemetry.otlp_endpoint", None, collector.MISSING))
    if missing:
        raise FileFault(str(path), missing)
    if config.needs_redis:
        name = config.affinity.url_env
        try:
            redisurl.parse(environ[name])
        except ValueError as fault:
            where = "affinity.url_env"
            raise FileFault(str(path), [Mistake(where, None, f"{name} {fault}")]) from None
    return config


def expanded(config: Config, free_ports: Callable[[int], Sequence[int]]) -> Config:
    """Each backend with replicas as that many backends of its pool, the first at its own url.

    For `up`, which starts them; once, since each still says of how many it is one.
    `free_ports` gives that many ports that nobody listens on.
    """
    backends: list[Backend] = []
    for backend in config.backends:
        names = backend.replica_names
        others = [f"http://127.0.0.1:{port}" for port in free_ports(len(names) - 1)]
        update: dict[str, Any] = {}
        if backend.max_inflight is None and backend.launch and backend.launch.continuous_batching:
            # Said of it here, since the kind of server alone may speak for one at a time.
            update["max_inflight"] = BATCHING_INFLIGHT
        for name, url in zip(names, [backend.url, *others], strict=True):
            backends.append(backend.model_copy(update={**update, "name": name, "url": url}))
    return config.model_copy(update={"backends": tuple(backends)})


def policy_path(path: Path, config: Config) -> Path:
    """Where the policy is; the one that was installed with us where none is named or there."""
    found = beside(path, config.policy.file)
    ours = Path(__file__).with_name("default_policy.toml")
    is_left_open = isinstance(config.policy.file, Unsaid)
    return ours if is_left_open and not found.exists() and ours.exists() else found


def keys_path(path: Path, config: Config) -> Path | None:
    """Where the file of keys is, if there is to be one."""
    name = config.auth.keys_file
    return beside(path, name) if name is not None else None


def exposed(config: Config) -> list[Mistake]:
    """What others can reach that asks for no key: what it is, a colon, and what to do.

    An address is others' unless it is surely this machine's alone.
    """
    server = config.server
    found = []
    if not config.auth.has_keys and not is_loopback(server.host):
        found.append(
            Mistake(
                "server.host",
                None,
                f"others can reach {server.host}, and everybody may ask: give clients keys "
                "([auth]), listen on 127.0.0.1, or say --insecure if that is meant",
            )
        )
    where, host = "server.host", server.host
    if server.admin is not None:
        where, host = "server.admin_address", server.admin[0]
    if server.admin_key_env is None and not is_loopback(host):
        found.append(
            Mistake(
                where,
                None,
                f"others can reach {host}, and /router/* and the dashboard ask for no key: set "
                "[server] admin_key_env, or admin_address to one like 127.0.0.1:8089, or say "
                "--insecure if that is meant",
            )
        )
    return found


def is_loopback(host: str) -> bool:
    """Whether what listens there is surely reached from this machine alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def log_folder(path: Path, *, environ: Mapping[str, str] = os.environ) -> Path:
    """Where the log is, for those who only read it: they need no secret, nor the rest to be right.

    Beside a file that is not there, the default. Raises FileFault for one that is no TOML.
    """
    return beside(path, _text_at(path, ("log", "dir"), environ) or Log().dir)


def keys_file(path: Path, *, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Where the file of keys is, if there is to be one, for those who only write it; likewise."""
    name = _text_at(path, ("auth", "keys_file"), environ)
    return beside(path, name) if name is not None else None


def _text_at(path: Path, wanted: tuple[str, str], environ: Mapping[str, str]) -> str | None:
    """One setting, by itself."""
    value = tomlfile.table(tomlfile.read(path), str(path)) if path.exists() else {}
    for key, given in _from_environment(environ).items():
        if key == wanted:
            _put(value, key, given)
    told = value.get(wanted[0])
    found = told.get(wanted[1]) if isinstance(told, dict) else None
    return found if isinstance(found, str) else None


def is_said(path: Path, key: tuple[str, ...], environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the file or the environment says this setting. Raises FileFault."""
    told: Any = tomlfile.table(tomlfile.read(path), str(path))
    for part in key:
        told = told.get(part) if isinstance(told, dict) else None
    return told is not None or key in _from_environment(environ)


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
    if config.needs_redis:
        named.append(("affinity.url_env", config.affinity.url_env))
    return [(where, name) for where, name in named if name]
