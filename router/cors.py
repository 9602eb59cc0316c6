"""Which web pages may ask from a browser, and the header lines that tell the browser so. Pure.

In: a request's headers. Out: lines for its answer. A key in a header is all that lets anybody in
here, never a cookie, so no answer ever allows credentials, and any page may be allowed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from router.errors import Forbidden

ANY = "*"
#: an origin as a browser says it: no path, no end of a line
IS_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@,*]+").fullmatch
_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,2048}").fullmatch
_PREFLIGHT_S = 600


class Cors:
    """The origins that are allowed."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._any = ANY in origins
        self._origins = frozenset(origin.encode() for origin in origins)

    def lines(self, fields: Mapping[bytes, bytes]) -> list[bytes]:
        """What every answer for clients says."""
        if self._any:
            return [b"access-control-allow-origin: *", b"access-control-expose-headers: *"]
        origin = fields.get(b"origin")
        if origin not in self._origins:
            return [b"vary: origin"]
        return [
            b"vary: origin",
            b"access-control-allow-origin: " + origin,
            b"access-control-expose-headers: *",
        ]

    def allows(self, fields: Mapping[bytes, bytes]) -> bool:
        """Whether the page that asks is one of them."""
        return self._any or fields.get(b"origin") in self._origins

    def preflight(self, fields: Mapping[bytes, bytes]) -> list[bytes]:
        """The answer to a browser that asks before it sends. Raises Forbidden."""
        if not self.allows(fields):
            raise Forbidden("[server] cors_origins does not have this origin.", param="origin")
        lines = self.lines(fields)
        lines.append(b"access-control-allow-methods: GET, POST")
        wanted = fields.get(b"access-control-request-headers", b"")
        if _NAMES(wanted):
            lines.append(b"access-control-allow-headers: " + wanted)
        lines.append(b"access-control-max-age: %d" % _PREFLIGHT_S)
        return lines


def is_preflight(method: bytes, fields: Mapping[bytes, bytes]) -> bool:
    return method == b"OPTIONS" and b"access-control-request-method" in fields
