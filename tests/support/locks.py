"""What requirements*.lock say, each line held to what a lock must be."""

from __future__ import annotations

import re

from packaging.markers import Marker
from packaging.requirements import Requirement

from tests.support.product import ROOT


def locked(name: str) -> dict[str, list[tuple[str, Marker | None]]]:
    """Of each distribution, the versions that are locked, and when."""
    text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
    found: dict[str, list[tuple[str, Marker | None]]] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        pinned, *hashes = line.split(" --hash=")
        requirement = Requirement(pinned.strip())
        (one,) = requirement.specifier
        assert one.operator == "==", line
        assert hashes, line
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}\s*", each) for each in hashes), line
        found.setdefault(normal(requirement.name), []).append((one.version, requirement.marker))
    return found


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
