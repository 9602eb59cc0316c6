"""Browsers that were led here: pages of other sites, and names that a stranger made lead here.

Where a key is asked for, no page of a stranger's has one. Where none is, an address that only
this machine can reach is reached by every page that a browser on it shows. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import ip_address

from router.errors import Forbidden

#: whose names nobody can buy (RFC 6761, RFC 6762, and ICANN's word on .internal)
_PRIVATE = frozenset({"localhost", "local", "internal", "test", "invalid"})
_OURS = frozenset({"none", "same-origin"})


class WrongHost(Forbidden):
    """Asked for by a name that leads here, and is not known to be ours."""

    code = "wrong_host"


class CrossOrigin(Forbidden):
    """Asked for by a page of another site."""

    code = "cross_origin"


class Guard:
    """Judges a request by what its browser says of it; other programs say nothing of the kind."""

    def __init__(self, hosts: Iterable[str] = ()) -> None:
        """`hosts`: names that this address is rightly called by."""
        self._hosts = frozenset(host.lower() for host in hosts)

    def check(self, fields: Mapping[bytes, bytes], *, may_cross: bool) -> None:
        """Raises WrongHost or CrossOrigin for what a stranger's page has asked for.

        `may_cross`: the page is one that [server] cors_origins allows.
        """
        self.check_host(fields.get(b"host", b"").decode("latin-1"))
        if fields.get(b"sec-fetch-site") == b"cross-site" and not may_cross:
            raise CrossOrigin("Another site's page may not ask here: no key is needed to ask.")

    def check_host(self, host: str) -> None:
        """Raises WrongHost for a name that a stranger could have made lead here."""
        name = host_name(host)
        if name not in self._hosts and can_be_strangers(name):
            raise WrongHost(
                f"This address asks for no key, and is not known as {name[:100]!r}: [server] hosts."
            )


def check_writes(site: str, origin: str | None, host: str) -> None:
    """Raises CrossOrigin for a page of another site that has a browser change something.

    `site` and `origin` are what the browser says: Sec-Fetch-Site, and Origin where it is too old
    for that. Behind a web server `host` need not be the name that the page has.
    """
    is_named_ours = origin is None or origin.partition("://")[2] == host
    if not (site.lower() in _OURS if site else is_named_ours):
        raise CrossOrigin("Another site may not write here.")


def host_name(host: str) -> str:
    """The name in a Host header, without the port."""
    host = host.rpartition("@")[2]
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().removesuffix(".")


def can_be_strangers(name: str) -> bool:
    """Whether somebody may own this name: one with a dot, of a public domain, no address."""
    try:
        ip_address(name)
    except ValueError:
        return "." in name and name.rpartition(".")[2] not in _PRIVATE
    return False
