"""Where a Redis is and how to get in, read from one URL. Pure; what is wrong is said without it.

    redis://[user:password@]host[:port][/db]
    redis+sentinel://[user:password@]host[:port],host[:port],…/service[/db]
    redis+cluster://[user:password@]host[:port],host[:port],…

`rediss` in place of `redis` is TLS. What stands in a URL is percent-encoded.
"""

from __future__ import annotations

from typing import Literal
from urllib.parse import parse_qsl, unquote

import msgspec

Kind = Literal["single", "sentinel", "cluster"]
Host = tuple[str, int]

_KINDS: dict[str, Kind] = {"": "single", "sentinel": "sentinel", "cluster": "cluster"}
_TLS_OPTIONS = frozenset({"ca", "cert", "key"})
_SENTINEL_OPTIONS = frozenset({"sentinel_user", "sentinel_password"})
_PORT = 6379
_SENTINEL_PORT = 26379


class RedisAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A Redis, its guards or its nodes."""

    kind: Kind
    hosts: tuple[Host, ...]
    user: str | None = None
    password: str | None = None
    db: int = 0
    service: str = ""  # what the sentinels call it
    sentinel_user: str | None = None
    sentinel_password: str | None = None
    is_tls: bool = False
    ca: str | None = None  # files, for TLS: whom to trust, and who we are
    cert: str | None = None
    key: str | None = None

    def __repr__(self) -> str:
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        return f"RedisAddress({self.kind} {hosts})"  # for logs: no secret


def parse(url: str) -> RedisAddress:
    """Raises ValueError with a text that holds nothing of the URL's secrets."""
    scheme, mark, rest = url.partition("://")
    base, _, kind_name = scheme.lower().partition("+")
    kind = _KINDS.get(kind_name)
    if not mark or base not in ("redis", "rediss") or kind is None:
        raise ValueError(
            "must begin with redis://, redis+sentinel:// or redis+cluster:// (rediss for TLS)"
        )
    rest, _, query = rest.partition("?")
    place, _, path = rest.partition("/")
    credentials, at, hosts_text = place.rpartition("@")
    user, colon, password = credentials.partition(":")
    if at and not colon:
        raise ValueError("wants user:password@ or :password@ before the host")
    hosts = tuple(
        _host(part, _SENTINEL_PORT if kind == "sentinel" else _PORT)
        for part in hosts_text.split(",")
    )
    if kind == "single" and len(hosts) > 1:
        raise ValueError("names several hosts: is it redis+sentinel:// or redis+cluster://?")
    service, db = _path(kind, path)
    return RedisAddress(
        kind=kind,
        hosts=hosts,
        user=unquote(user) or None,
        password=unquote(password) or None,
        service=service,
        db=db,
        is_tls=base == "rediss",
        **_options(kind, query, is_tls=base == "rediss"),
    )


def _host(text: str, usual_port: int) -> Host:
    name, port = text, ""
    if text.startswith("["):  # an IPv6 address
        name, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError("has a bad IPv6 address: it goes [::1] or [::1]:6379")
        port = rest[1:]
    elif ":" in text:
        name, _, port = text.partition(":")
    if not name:
        raise ValueError("has no host, or an empty one")
    if not port:
        return name, usual_port
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError("has a bad port; are special characters of the password percent-encoded?")
    return name, int(port)


def _path(kind: Kind, path: str) -> tuple[str, int]:
    """The sentinels' service and the number of the database."""
    parts = [unquote(part) for part in path.rstrip("/").split("/")] if path.rstrip("/") else []
    service = ""
    if kind == "sentinel":
        if not parts:
            raise ValueError("wants the service behind the hosts: redis+sentinel://host/mymaster")
        service = parts.pop(0)
    if len(parts) > 1 or not all(part.isascii() and part.isdigit() for part in parts):
        raise ValueError("has a bad path: only the number of a database goes there")
    db = int(parts[0]) if parts else 0
    if kind == "cluster" and db:
        raise ValueError("names a database, and a cluster has only number 0")
    return service, db


def _options(kind: Kind, query: str, *, is_tls: bool) -> dict[str, str]:
    known = frozenset[str]()
    if is_tls:
        known |= _TLS_OPTIONS
    if kind == "sentinel":
        known |= _SENTINEL_OPTIONS
    try:
        options = dict(parse_qsl(query, strict_parsing=True)) if query else {}
    except ValueError:
        raise ValueError("has a bad query: it goes ?name=value&name=value") from None
    unknown = [name for name in options if name not in known]
    if unknown:
        there = ", ".join(sorted(known)) or "none"
        raise ValueError(f"has options that mean nothing here; there are: {there}")
    if ("cert" in options) != ("key" in options):
        raise ValueError("wants cert and key together")
    return options
