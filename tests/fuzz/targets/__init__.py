"""The targets. Each module has `check(data)`, which raises for an input that breaks a promise.

An expected refusal (a client's error, a file's mistakes) is no finding and is not raised.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast


class Target(NamedTuple):
    reads: str
    dictionary: str | None = None  # words that its inputs are made of
    longest: int = 2048  # bytes of an input


#: in the order of a request's journey
TARGETS: Mapping[str, Target] = {
    "edge": Target("bytes of a client's connection", "http", 1024),
    "headers": Target("headers and paths of a client's choice"),
    "coding": Target("compressed request bodies"),
    "splice": Target("one JSON object, and edits of it", "json", 512),
    "request": Target("request bodies, up to what is sent on", "json"),
    "answer": Target("bytes of a backend's connection", "http", 1024),
    "stream": Target("events of a streamed answer", "sse", 1024),
    "thought": Target("think tags in an answer's text", "tags", 256),
    "bodies": Target("prompts and answers that are written down", "json"),
    "told": Target("what backends and name servers tell of themselves", "json"),
    "policy": Target("policy files", "toml"),
    "config": Target("configuration files and the environment", "toml"),
    "keys": Target("files of clients' keys", "toml"),
    "redis": Target("addresses of a Redis, and what stands in it", None, 256),
    "shared": Target("files that workers share", "json"),
    "records": Target("files of the request log", "json"),
}
#: whose branches lead the fuzzer on
INSTRUMENTED = ("router", "tomllib")


def check_of(name: str) -> Callable[[bytes], None]:
    """A target's check; loads what it reads with."""
    module = importlib.import_module(f"{__name__}.{name}")
    return cast("Callable[[bytes], None]", module.check)
