"""A name with several addresses as several backends, one for each address.

In: a backend of the configuration and what its name resolved to. Out: backends with
addresses and names of their own. Pure, but for `system_resolver` at the end.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from router.config import Backend

#: host name → addresses; raises OSError where there is none to be had
Resolver = Callable[[str], Awaitable[Sequence[str]]]

#: what must be missing from so many answers in a row is gone; servers of names that have
#: many addresses tell only some of them at a time
_MISSES = 2


class Sightings:
    """The addresses of one name over time."""

    def __init__(self) -> None:
        self._misses: dict[str, int] = {}

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(sorted(self._misses, key=_order))

    def saw(self, answer: Sequence[str]) -> None:
        """Take in one answer. An empty one says nothing: checks tell who is really gone."""
        now = usable(answer)
        if not now:
            return
        misses = {address: count + 1 for address, count in self._misses.items()}
        misses.update(dict.fromkeys(now, 0))
        self._misses = {address: count for address, count in misses.items() if count < _MISSES}


def _order(address: str) -> tuple[int, int]:
    found = ip_address(address)
    return found.version, int(found)


def usable(answer: Sequence[str]) -> set[str]:
    """The addresses of one family: a server in a network with both has one of each.

    IPv4 if there is any, since that is what servers listen on where nobody told them.
    """
    found = {address.partition("%")[0] for address in answer}
    return {address for address in found if ":" not in address} or found


def expanded(
    backends: Sequence[Backend], addresses: Mapping[str, Sequence[str]]
) -> dict[str, tuple[Backend, str]]:
    """All backends by name, each with the name that the configuration has for it.

    `addresses` are by host name. One that is found takes no name that was given.
    """
    known = {backend.name: (backend, backend.name) for backend in backends if not backend.discover}
    for backend in backends:
        if backend.discover:
            for address in addresses.get(backend.host, ()):
                found = at(backend, address)
                known.setdefault(found.name, (found, backend.name))
    return known


def at(backend: Backend, address: str) -> Backend:
    """The backend at one address of its name."""
    host = f"[{address}]" if ":" in address else address
    url = urlsplit(backend.url)._replace(netloc=f"{host}:{backend.port}").geturl()
    name = f"{backend.name}-{address.replace(':', '_')}"
    # An address is on no certificate: the name that led there is what it must be for.
    tls_name = backend.tls_name if backend.is_tls else None
    update = {"name": name, "url": url, "discover": False, "tls_server_name": tls_name}
    return backend.model_copy(update=update)


def system_resolver(loop: asyncio.AbstractEventLoop) -> Resolver:
    """Ask as every program of this machine does, in a thread."""

    async def resolve(host: str) -> Sequence[str]:
        found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return [str(entry[4][0]) for entry in found]

    return resolve
