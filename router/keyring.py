"""Who may ask, and for what: the keys of clients, as the edge looks them up. Pure.

In: digests of keys and what each was given; then a client's key and the time. Out: its
grant. A key itself is never kept, so that nothing that prints or dumps can show one.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple

import msgspec


class Allowance(NamedTuple):
    """How much a key may have. None: the default of [limits]."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    streams: int | None = None  # requests under way at once


class Grant(msgspec.Struct, frozen=True):
    """What a key opens."""

    name: str  # what the log's `key` shows
    scenarios: tuple[str, ...] | None = None  # as listed, the first is the fallback; None: all
    pools: frozenset[str] | None = None  # None: all
    allowance: Allowance | None = None  # None: nothing of its own
    expires: float | None = None  # seconds since the epoch; None: never

    @property
    def is_limited(self) -> bool:
        """Whether it opens less than all."""
        return self.scenarios is not None or self.pools is not None

    def has_expired(self, now: float) -> bool:
        return self.expires is not None and now >= self.expires


def digest_of(key: bytes) -> bytes:
    """What is known of a key, 32 bytes.

    A plain digest, with no salt and no stretching: keys are 256 random bits, which nobody finds
    by trying, and a slow hash would be paid for by every request.
    """
    return sha256(key).digest()


class Keyring:
    """All keys that are in force; built when they are loaded. Without a key it opens nothing."""

    def __init__(self, grants: Mapping[bytes, Grant]) -> None:
        """`grants` by the digest of their key."""
        self._grants = {digest: (digest, grant) for digest, grant in grants.items()}

    def __repr__(self) -> str:
        return f"Keyring({', '.join(grant.name for _, grant in self._grants.values())})"

    @property
    def grants(self) -> list[Grant]:
        return [grant for _, grant in self._grants.values()]

    def with_default(self, default: Allowance) -> Keyring:
        """The same keys; a limit that a key says nothing of is the default's."""
        return Keyring(
            {
                digest: msgspec.structs.replace(grant, allowance=_filled(grant.allowance, default))
                for digest, grant in self._grants.values()
            }
        )

    def find(self, key: bytes, now: float) -> Grant | None:
        """The grant of a key; None for one that is unknown or has expired.

        How long it takes tells nothing of the keys there are: a table is searched by a hash that
        is keyed anew in each process, and what it finds is compared in constant time.
        """
        digest = digest_of(key)
        found = self._grants.get(digest)
        if found is None or not hmac.compare_digest(found[0], digest):
            return None
        grant = found[1]
        return None if grant.has_expired(now) else grant

    def knows(self, key: bytes) -> bool:
        """Whether the key is one of them, expired or not."""
        return digest_of(key) in self._grants

    def refusal(self, key: bytes) -> str:
        """What to tell a client whose key was not found."""
        if self.knows(key):
            return "This API key has expired; ask whoever gave it to you for a new one."
        return "The API key is not known here."


def _filled(allowance: Allowance | None, default: Allowance) -> Allowance | None:
    """None where nothing has a limit, so that nothing is asked for such a key."""
    if allowance is None:
        filled = default
    else:
        limits = zip(allowance, default, strict=True)
        filled = Allowance(*(other if own is None else own for own, other in limits))
    return None if filled == Allowance() else filled
