"""Files of clients' keys: mistakes are told, or each key opens what its own table says."""

from __future__ import annotations

from router import keyfile
from router.keyfile import KeyFile
from router.keyring import Keyring
from router.tomlfile import FileFault
from tests.fuzz import source

FILE = "keys.toml"


def check(data: bytes) -> None:
    text = source.of(data).text()
    try:
        written = keyfile.parse(text, FILE)
    except FileFault as fault:
        assert fault.mistakes
        return
    check_grants(written)
    for name in written.keys:
        check_revoked(text, written, name)


def check_grants(written: KeyFile) -> None:
    grants = {
        bytes.fromhex(key.hash.removeprefix("sha256:")): key.grant(name)
        for name, key in written.keys.items()
    }
    assert len(grants) == len(written.keys)
    assert {grant.name for grant in Keyring(grants).grants} == set(written.keys)
    assert Keyring(grants).find(b"of nobody", 0.0) is None


def check_revoked(text: str, written: KeyFile, name: str) -> None:
    """All others stay as they were; where the edit cannot be made, it is refused in words."""
    try:
        without = keyfile.parse(keyfile.revoked(text, FILE, name), FILE)
    except FileFault as fault:
        assert fault.mistakes
        return
    assert dict(without.keys) == {
        other: key for other, key in written.keys.items() if other != name
    }
