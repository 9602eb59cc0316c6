"""Certificates of our own making, as files: an authority, what it issues, and what goes wrong.

with ... as folder:
    ours = Authority(folder, "ours")
    server = ours.issue("server", "127.0.0.1", "localhost")
    config = {"tls_cert": str(server.cert), "tls_key": str(server.key)}
"""

from __future__ import annotations

import datetime
import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """A certificate with those between it and its issuer, and its key."""

    cert: Path
    key: Path

    def replace_by(self, other: Pair) -> None:
        """As a program that renews does it: one file after the other, each whole."""
        for mine, its in ((self.cert, other.cert), (self.key, other.key)):
            draft = mine.with_name(f".{mine.name}")
            draft.write_bytes(its.read_bytes())
            draft.rename(mine)

    def context(self, *, asks: Path | None = None) -> ssl.SSLContext:
        """For a server of the tests; it wants certificates of `asks`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key)
        if asks is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(asks)
        return context


class Authority:
    """Issues certificates; `file` is what those who trust it are given."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._ca = trustme.CA(organization_name=name)
        self.file = folder / f"{name}.pem"
        self._ca.cert_pem.write_to_path(self.file)

    def issue(self, name: str, *identities: str, days: float = 90) -> Pair:
        """For these names and addresses; `days` from now it ends, or has ended."""
        now = datetime.datetime.now(datetime.UTC)
        issued = self._ca.issue_cert(
            *identities,
            not_before=now - 400 * DAY,
            not_after=now + days * DAY,
        )
        pair = Pair(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        pair.cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(pair.key)
        return pair

    def trust(self, shown: Pair | None = None) -> ssl.SSLContext:
        """For a client that trusts this authority alone, and shows a certificate if asked."""
        context = ssl.create_default_context(cafile=self.file)
        if shown is not None:
            context.load_cert_chain(shown.cert, shown.key)
        return context
