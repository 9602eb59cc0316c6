"""A key opens what it was given, until it expires, and nobody sees it at rest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.keyring import Allowance, Grant, Keyring, digest_of

SHOP = Grant("shop", ("faq", "chat"), frozenset({"default"}), Allowance(streams=2), None)
SOON = Grant("soon", expires=100.0)
RING = Keyring({digest_of(b"sr-shop"): SHOP, digest_of(b"sr-soon"): SOON})


def test_a_key_is_known_by_its_digest() -> None:
    assert RING.find(b"sr-shop", 0.0) is SHOP
    assert RING.find(b"sr-sho", 0.0) is None
    assert RING.find(digest_of(b"sr-shop"), 0.0) is None
    assert RING.find(b"", 0.0) is None


@given(key=st.binary(max_size=80))
def test_nothing_but_the_very_key_opens(key: bytes) -> None:
    assert RING.find(key, 0.0) is None or key in (b"sr-shop", b"sr-soon")


def test_a_key_opens_until_the_moment_it_expires_at() -> None:
    assert RING.find(b"sr-soon", 99.9) is SOON
    assert RING.find(b"sr-soon", 100.0) is None


def test_a_client_is_told_whether_its_key_is_old_or_unknown() -> None:
    assert "expired" in RING.refusal(b"sr-soon")
    assert "not known" in RING.refusal(b"sr-later")


def test_a_ring_without_keys_opens_nothing() -> None:
    assert Keyring({}).find(b"", 0.0) is None


def test_what_is_printed_of_a_ring_has_names_alone() -> None:
    assert repr(RING) == "Keyring(shop, soon)"
