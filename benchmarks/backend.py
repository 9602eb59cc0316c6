"""The mock model server that all peers share, and plain HTTP to 127.0.0.1."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


def fetch(
    port: int,
    method: str,
    path: str,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 10.0,
) -> Answer:
    """One request on a connection of its own; proxies named in the environment play no part."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request(method, path, body, dict(headers or {}))
        response = connection.getresponse()
        names = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, names, response.read())
    finally:
        connection.close()


@dataclass(frozen=True, slots=True)
class Backend:
    """The running mock, seen through its control pages."""

    port: int
    pid: int

    def wait_ready(self, patience_s: float = 5.0) -> None:
        deadline = time.monotonic() + patience_s
        while True:
            try:
                fetch(self.port, "GET", "/health", timeout_s=1.0)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                return

    def shape_streams(self, *, chunks: int, delay_us: int) -> None:
        fetch(self.port, "GET", f"/_mock/config?chunks={chunks}&delay_us={delay_us}")

    def stats(self) -> dict[str, int]:
        counters: dict[str, int] = json.loads(fetch(self.port, "GET", "/_mock/stats").body)
        return counters

    def last_body(self) -> bytes:
        return fetch(self.port, "GET", "/_mock/last").body


def difference(sent: bytes, received: bytes) -> str:
    """What happened to a JSON body on its way, in words."""
    if sent == received:
        return "same bytes"
    before: dict[str, Any] = json.loads(sent)
    after: dict[str, Any] = json.loads(received)
    changes = {
        "added": sorted(after.keys() - before.keys()),
        "dropped": sorted(before.keys() - after.keys()),
        "changed": sorted(k for k in before.keys() & after.keys() if before[k] != after[k]),
    }
    told = [f"{what} {', '.join(names)}" for what, names in changes.items() if names]
    return "; ".join(told) or "same JSON, other bytes"
