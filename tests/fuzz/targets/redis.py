"""Redis: an address is read or refused without its secrets, and any value is a name or none."""

from __future__ import annotations

from router import redisurl
from router.affinity_redis import _backend
from tests.fuzz import source


def check(data: bytes) -> None:
    given = source.of(data)
    name = _backend(given.raw)
    assert name is None or len(name.encode()) <= 64
    text = given.text()
    try:
        address = redisurl.parse(text)
    except ValueError:
        pass
    else:
        assert address.hosts
        assert all(host and 0 < port < 65536 for host, port in address.hosts)
        assert address.kind == "single" or address.db == 0 or address.kind == "sentinel"
        assert "@" not in repr(address)
    secret = "Pa55-of-nobody"
    for url in (
        f"redis://u:{secret}@{text}",
        f"{text}://:{secret}@h",
        f"redis://:{secret}@h/{text}",
    ):
        assert secret not in said_of(url)


def said_of(url: str) -> str:
    """What logs are told of an address."""
    try:
        return repr(redisurl.parse(url))
    except ValueError as fault:
        return str(fault)
