"""The file of keys: what it says is what opens; a mistake has its place; edits keep the rest."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from router import keyfile
from router.keyring import Allowance, Keyring, digest_of
from router.tomlfile import FileFault

NOW = datetime(2026, 11, 30, 12, 0, 0, 123456, UTC)
SHOP = keyfile._hashed("sr-shop")
FILE = f"""\
# keys of our apps
schema = 1

[keys.shop] # the web shop
hash = "{SHOP}"
created = 2026-11-30T12:00:00Z
expires = 2027-01-01T00:00:00+08:00
scenarios = ["faq", "chat"]
pools = ["default"]
tokens_per_day = 1000000 # asked for by sales
streams = 8
"""


def mistakes_of(text: str) -> list[str]:
    with pytest.raises(FileFault) as caught:
        keyfile.parse(text, "keys.toml")
    return [str(mistake) for mistake in caught.value.mistakes]


def ring_of(tmp_path: Path, text: str | None, variable: str | None = None) -> Keyring:
    path = None
    if text is not None:
        path = tmp_path / "keys.toml"
        path.write_text(text, encoding="utf-8")
    environ = {"KEYS": variable} if variable is not None else {}
    return keyfile.keyring(path, "KEYS" if variable is not None else None, environ)


# --- reading ----------------------------------------------------------------------------


def test_what_a_key_is_given_is_what_the_file_says(tmp_path: Path) -> None:
    ring = ring_of(tmp_path, FILE)

    grant = ring.find(b"sr-shop", NOW.timestamp())
    assert grant is not None
    assert grant.name == "shop"
    assert grant.scenarios == ("faq", "chat")
    assert grant.pools == frozenset({"default"})
    assert grant.allowance == Allowance(tokens_per_day=1000000, streams=8)
    assert grant.expires == datetime(2026, 12, 31, 16, tzinfo=UTC).timestamp()


def test_both_sources_hold_together(tmp_path: Path) -> None:
    ring = ring_of(tmp_path, FILE, "alice=key-of-alice, bob = key-of-bob,")

    assert [grant.name for grant in ring.grants] == ["alice", "bob", "shop"]
    bob = ring.find(b"key-of-bob", NOW.timestamp())
    assert bob is not None
    assert (bob.scenarios, bob.pools, bob.allowance, bob.expires) == (None, None, None, None)


def test_a_file_without_keys_opens_nothing(tmp_path: Path) -> None:
    assert ring_of(tmp_path, "schema = 1\n").grants == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("schema = 2\n[keys]", ["line 1: schema: this file has schema 2, and version"]),
        (FILE.replace("streams", "stream"), ["line 11: keys.shop.stream: unknown key 'stream'"]),
        (FILE.replace("sha256:", "md5:"), ["line 5: keys.shop.hash: "]),
        (FILE.replace("streams = 8", "streams = 0"), ["line 11: keys.shop.streams: "]),
        (FILE.replace('["faq", "chat"]', "[]"), ["line 8: keys.shop.scenarios: "]),
        (FILE.replace("+08:00", ""), ["line 7: keys.shop.expires: "]),
        (FILE.replace("[keys.shop]", '[keys."a b"]'), ["line 4: keys.a b: is no name for a key"]),
        (FILE + f'[keys.b]\nhash = "{SHOP}"', ["'shop' and 'b' have the same key"]),
        ("schema = 1\n[keys]\na =", ["not valid TOML: "]),
        ("[keys]", ["schema: Field required"]),
    ],
)
def test_a_mistake_has_its_line_and_words(text: str, told: list[str]) -> None:
    found = mistakes_of(text)

    assert len(found) == len(told)
    for line, start in zip(found, told, strict=True):
        assert start in line


@pytest.mark.parametrize(
    ("variable", "told"),
    [
        ("shop=other-key", "keys.shop: KEYS has this name, too"),
        ("other=sr-shop", "keys.shop: KEYS has this key, too"),
        ("a=one,secret-without-name", "KEYS: entry 2 is no name=key"),
        ("=secret", "KEYS: entry 1 is no name=key"),
        ("a=secret,a=secret2", "KEYS: entry 2 has the name of one before it"),
        ("a=secret,b=secret", "KEYS: entry 2 has the key of one before it"),
    ],
)
def test_a_name_and_a_key_are_somebodys_alone(tmp_path: Path, variable: str, told: str) -> None:
    with pytest.raises(FileFault) as caught:
        ring_of(tmp_path, FILE, variable)

    assert told in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_file_that_is_not_there_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(FileFault, match="cannot be read"):
        keyfile.keyring(tmp_path / "keys.toml", None, {})


# --- changing ----------------------------------------------------------------------------


def test_a_key_is_256_random_bits_in_letters_that_need_no_quotes() -> None:
    keys = {keyfile.new_key() for _ in range(100)}

    assert len(keys) == 100
    assert all(key.startswith("sr-") and len(key) == 3 + 43 for key in keys)
    assert all(char.isalnum() or char in "-_" for key in keys for char in key)


def test_a_new_key_stands_beside_what_a_person_wrote() -> None:
    said: Mapping[str, Any] = {"expires": NOW + timedelta(days=30), "scenarios": ["faq"]}

    text = keyfile.added(FILE, "keys.toml", "desk", "sr-desk", NOW, said)

    assert text.startswith(FILE.rstrip())
    assert "sr-desk" not in text
    key = keyfile.parse(text, "keys.toml").keys["desk"]
    assert key.hash == "sha256:" + digest_of(b"sr-desk").hex()
    assert key.created == NOW.replace(microsecond=0)
    assert key.scenarios == ("faq",)


def test_the_first_key_of_a_file_can_be_added() -> None:
    text = keyfile.added("schema = 1\n", "keys.toml", "a", "sr-a", NOW, {})

    assert list(keyfile.parse(text, "keys.toml").keys) == ["a"]


def test_a_name_is_given_once() -> None:
    with pytest.raises(FileFault, match=r"line 4: keys\.shop: is there already"):
        keyfile.added(FILE, "keys.toml", "shop", "sr-x", NOW, {})


def test_what_the_file_could_not_say_is_refused_before_it_is_written() -> None:
    with pytest.raises(FileFault, match="is no name for a key"):
        keyfile.added(FILE, "keys.toml", "a b", "sr-x", NOW, {})
    with pytest.raises(FileFault, match="streams"):
        keyfile.added(FILE, "keys.toml", "a", "sr-x", NOW, {"streams": 0})


def test_a_revoked_key_is_gone_and_the_rest_stays() -> None:
    both = keyfile.added(FILE, "keys.toml", "desk", "sr-desk", NOW, {})

    text = keyfile.revoked(both, "keys.toml", "shop")

    assert list(keyfile.parse(text, "keys.toml").keys) == ["desk"]
    assert "# keys of our apps" in text
    assert list(keyfile.parse(keyfile.revoked(text, "keys.toml", "desk"), "k").keys) == []
    with pytest.raises(keyfile.NoSuchKey, match="there is no key 'shop'; there are: desk"):
        keyfile.revoked(text, "keys.toml", "shop")


def test_a_renewed_key_keeps_all_that_its_name_was_given() -> None:
    text = keyfile.rotated(FILE, "keys.toml", "shop", "sr-new", NOW)

    before, after = (keyfile.parse(one, "k").keys["shop"] for one in (FILE, text))
    assert after.hash == "sha256:" + digest_of(b"sr-new").hex()
    assert after.model_copy(update={"hash": before.hash, "created": before.created}) == before
    assert "# asked for by sales" in text


def test_a_new_file_is_for_its_owner_alone_and_an_old_one_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "keys.toml"

    keyfile.change(path, lambda text: keyfile.added(text, "k", "a", "sr-a", NOW, {}))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600

    path.chmod(0o640)
    keyfile.change(path, lambda text: keyfile.added(text, "k", "b", "sr-b", NOW, {}))
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(keyfile.load(path).keys) == ["a", "b"]
    assert os.listdir(path.parent) == ["keys.toml"]


def test_a_link_is_followed_and_stays_one(tmp_path: Path) -> None:
    real, link = tmp_path / "real.toml", tmp_path / "keys.toml"
    real.write_text(FILE, encoding="utf-8")
    link.symlink_to(real)

    keyfile.change(link, lambda text: keyfile.revoked(text, "k", "shop"))

    assert link.is_symlink()
    assert list(keyfile.load(real).keys) == []


def test_a_refused_change_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text("schema = 1\n[keys", encoding="utf-8")

    with pytest.raises(FileFault):
        keyfile.change(path, lambda text: keyfile.added(text, "k", "a", "sr-a", NOW, {}))

    assert path.read_text(encoding="utf-8") == "schema = 1\n[keys"


def test_changes_at_once_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    names = [f"k{number}" for number in range(12)]

    def add(name: str) -> None:
        keyfile.change(path, lambda text: keyfile.added(text, "k", name, f"sr-{name}", NOW, {}))

    threads = [threading.Thread(target=add, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(keyfile.load(path).keys) == sorted(names)
