"""One way to Redis, of whatever kind: commands in, answers out, every fault ours.

The only module that knows the redis package, which is loaded when the first client is made. A
client that has failed is closed and never used again: so no answer is ever left on a connection
for somebody else, and a new one finds the new master.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from router.redisurl import RedisAddress

Command = tuple[str | int, ...]


class RedisFault(Exception):
    """What went wrong.

    One of slow, unreachable, denied, full, readonly, wrong_type, no_script, refused.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}"[:200])
        self.kind = kind


Answer = bytes | int | str | None | RedisFault


class Client(Protocol):
    """What the store needs of it."""

    async def run(self, commands: Sequence[Command], *, within_s: float) -> list[Answer]: ...

    async def close(self) -> None: ...


class RedisClient:
    """At most `connections` to each server."""

    def __init__(self, address: RedisAddress, *, connections: int, connect_s: float) -> None:
        self._guard: Any = None
        options: dict[str, Any] = {
            "socket_timeout": connect_s,
            "socket_connect_timeout": connect_s,
            "max_connections": connections,
            "username": address.user,
            "password": address.password,
            "protocol": 2,  # old servers do not know another
        }
        if address.is_tls:
            options |= {
                "ssl": True,
                "ssl_ca_certs": address.ca,
                "ssl_certfile": address.cert,
                "ssl_keyfile": address.key,
            }
        self._redis = self._made(address, options)

    def _made(self, address: RedisAddress, options: dict[str, Any]) -> Any:
        from redis import asyncio as redis
        from redis.asyncio.cluster import ClusterNode
        from redis.asyncio.retry import Retry
        from redis.asyncio.sentinel import Sentinel
        from redis.backoff import NoBackoff

        match address.kind:
            case "single":
                host, port = address.hosts[0]
                options |= {"retry": Retry(NoBackoff(), 0), "db": address.db}
                return redis.Redis(host=host, port=port, **options)
            case "cluster":
                nodes = [ClusterNode(host, port) for host, port in address.hosts]
                # One more try: a moved slot is found by being told of it.
                return redis.RedisCluster(
                    startup_nodes=nodes, retry=Retry(NoBackoff(), 1), **options
                )
            case "sentinel":
                options |= {"retry": Retry(NoBackoff(), 0), "db": address.db}
                guards = {
                    **{name: options[name] for name in options if name.startswith("ssl")},
                    "socket_timeout": options["socket_timeout"],
                    "socket_connect_timeout": options["socket_connect_timeout"],
                    "username": address.sentinel_user,
                    "password": address.sentinel_password,
                    "retry": Retry(NoBackoff(), 0),
                }
                self._guard = Sentinel(  # type: ignore[no-untyped-call]  # it says nothing of types
                    list(address.hosts), sentinel_kwargs=guards, **options
                )
                return self._guard.master_for(address.service)

    async def run(self, commands: Sequence[Command], *, within_s: float) -> list[Answer]:
        """All in one round trip. Raises RedisFault where there is no answer to all of them."""
        if not commands:
            return []
        try:
            async with asyncio.timeout(within_s):
                pipeline = self._redis.pipeline(transaction=False)
                for command in commands:
                    pipeline.execute_command(*command)
                answers = await pipeline.execute(raise_on_error=False)
        except Exception as fault:
            raise _ours(fault) from None
        return [_ours(answer) if isinstance(answer, Exception) else answer for answer in answers]

    async def close(self) -> None:
        """Never raises, and does not wait for a server that is silent."""
        guards = self._guard.sentinels if self._guard is not None else ()
        for client in (self._redis, *guards):
            try:
                async with asyncio.timeout(1):
                    await client.aclose()
            except Exception:
                continue  # it is gone already


def _ours(fault: Exception) -> RedisFault:
    """A fault of the library's, or what Redis said, in our words."""
    from redis import exceptions as theirs

    text = " ".join(str(fault).split())
    match fault:
        case TimeoutError() | theirs.TimeoutError():
            return RedisFault("slow", text or "no answer in time")
        case theirs.AuthenticationError() | theirs.AuthorizationError():
            return RedisFault("denied", text)
        case theirs.BusyLoadingError():
            return RedisFault("refused", text)
        case theirs.ConnectionError() | OSError():
            return RedisFault("unreachable", text or type(fault).__name__)
        case theirs.ReadOnlyError():
            return RedisFault("readonly", text)
        case theirs.NoScriptError():
            return RedisFault("no_script", text)
        case theirs.NoPermissionError():
            return RedisFault("denied", text)
    for mark, kind in (
        ("WRONGTYPE", "wrong_type"),
        ("OOM", "full"),
        ("command not allowed when used memory", "full"),
        ("NOAUTH", "denied"),
        ("WRONGPASS", "denied"),
    ):
        if mark in text:
            return RedisFault(kind, text)
    return RedisFault("refused", text or type(fault).__name__)
