"""Known faults of what is locked, from a snapshot of advisories: no network needed.

    python -m supply.advisories PyPI-all.zip requirements.lock requirements-build.lock

The snapshot is a folder or an archive of advisories in the OSV format, one JSON file each, as
https://osv.dev offers for download by ecosystem. Exit code 1: something that is locked is affected;
2: what was given is no snapshot, since "nothing found" in nothing says nothing.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from packaging.version import InvalidVersion, Version

from supply.bill import normal

#: an older snapshot is told of: what is new since then is not in it
_FRESH = timedelta(days=14)
_PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)==([^\s;\\]+)", re.M)


class Hit(NamedTuple):
    """A locked version that an advisory names."""

    name: str
    version: str
    advisory: str
    aliases: tuple[str, ...]
    summary: str
    fixed: tuple[str, ...]

    def __str__(self) -> str:
        also = f" ({', '.join(self.aliases)})" if self.aliases else ""
        cure = f"; fixed in {', '.join(self.fixed)}" if self.fixed else "; no version is fixed yet"
        return f"{self.name} {self.version}: {self.advisory}{also}: {self.summary}{cure}"


class NoSnapshot(Exception):
    """What was given holds no advisory for Python packages; says so."""


def pinned(lock: str) -> dict[str, set[str]]:
    """Name → versions that a lock names."""
    found: dict[str, set[str]] = {}
    for name, version in _PIN.findall(lock):
        found.setdefault(normal(name), set()).add(version)
    return found


def advisories(path: Path) -> Iterator[dict[str, Any]]:
    """Each advisory of a folder or a zip archive."""
    if path.is_dir():
        yield from (json.loads(each.read_bytes()) for each in sorted(path.rglob("*.json")))
        return
    with zipfile.ZipFile(path) as archive:
        for name in sorted(archive.namelist()):
            if name.endswith(".json"):
                yield json.loads(archive.read(name))


def hits(
    known: Iterable[Mapping[str, Any]], locked: Mapping[str, set[str]]
) -> tuple[list[Hit], str]:
    """What is affected, and when the newest advisory was changed. Raises NoSnapshot."""
    found: list[Hit] = []
    newest = ""
    for advisory in known:
        ours = [each for each in advisory.get("affected", ()) if _is_python(each)]
        if not ours:
            continue
        newest = max(newest, str(advisory.get("modified", "")))
        if "withdrawn" in advisory:
            continue
        for affected in ours:
            name = normal(affected["package"]["name"])
            found += [
                _hit(advisory, affected, name, version)
                for version in sorted(locked.get(name, ()))
                if _is_affected(affected, version)
            ]
    if not newest:
        raise NoSnapshot("no advisory for Python packages in it")
    return list(dict.fromkeys(found)), newest


def _is_python(affected: Mapping[str, Any]) -> bool:
    package: Mapping[str, Any] = affected.get("package", {})
    return package.get("ecosystem") == "PyPI" and "name" in package


def _is_affected(affected: Mapping[str, Any], version: str) -> bool:
    if version in affected.get("versions", ()):
        return True
    asked = Version(version)
    return any(
        _is_within(each.get("events", ()), asked)
        for each in affected.get("ranges", ())
        if each.get("type") == "ECOSYSTEM"
    )


def _is_within(events: Iterable[Mapping[str, str]], asked: Version) -> bool:
    """Whether the last thing that happened up to this version is that the fault came in."""
    inside = False
    for event in sorted(events, key=_when):
        for word, text in event.items():
            at = _version(text)
            if word == "introduced" and at <= asked:
                inside = True
            elif (word == "fixed" and at <= asked) or (word == "last_affected" and at < asked):
                inside = False
    return inside


def _when(event: Mapping[str, str]) -> Version:
    return _version(next(iter(event.values()), "0"))


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:  # "0" is all of them; what cannot be compared counts as that
        return Version("0")


def _hit(advisory: Mapping[str, Any], affected: Mapping[str, Any], name: str, version: str) -> Hit:
    text = advisory.get("summary") or str(advisory.get("details", "")).strip().partition("\n")[0]
    fixed = {
        event["fixed"]
        for each in affected.get("ranges", ())
        if each.get("type") == "ECOSYSTEM"
        for event in each.get("events", ())
        if "fixed" in event
    }
    aliases = tuple(sorted(advisory.get("aliases", ())))
    return Hit(name, version, str(advisory["id"]), aliases, text, tuple(sorted(fixed)))


def main(arguments: list[str], now: datetime) -> int:
    if len(arguments) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    snapshot, *locks = map(Path, arguments)
    locked: dict[str, set[str]] = {}
    for lock in locks:
        for name, versions in pinned(lock.read_text(encoding="utf-8")).items():
            locked.setdefault(name, set()).update(versions)
    try:
        found, newest = hits(advisories(snapshot), locked)
    except (NoSnapshot, zipfile.BadZipFile, OSError, ValueError) as fault:
        print(f"{snapshot}: no snapshot of advisories: {fault}", file=sys.stderr)
        return 2
    print(*found, sep="\n", end="\n" if found else "")
    count = sum(map(len, locked.values()))
    print(f"{count} locked versions, {len(found)} affected; the newest advisory is of {newest}")
    if datetime.fromisoformat(newest) < now - _FRESH:
        print("the snapshot is older than two weeks: what came since is not in it")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], datetime.now(UTC)))
