"""What the router is made of: the bill is that of the locks, licences are known, faults found."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import Marker

from router import __version__
from supply import advisories, bill
from tests.dashboard.vendor import VERSIONS
from tests.support.locks import locked, normal
from tests.support.product import ROOT

#: under these we may pass on, changed or not, in an image or a wheel, whatever its own licence
ALLOWED = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "MIT", "MPL-2.0"),
    *("PSF-2.0", "Python-2.0", "Zlib"),
}
BILL = json.loads(bill.FILE.read_text(encoding="utf-8"))
COMPONENTS: list[dict[str, Any]] = BILL["components"]
LOCKS = ("requirements.lock", "requirements-build.lock")
NOW = datetime(2026, 11, 30, tzinfo=UTC)


# ---------------------------------------------------------------- the bill


def is_always(markers: Iterable[Marker | None]) -> bool:
    """Whether a distribution is installed wherever we serve: on Linux, by each Python."""
    where = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "extra": ""}
    where |= {"implementation_name": "cpython", "platform_python_implementation": "CPython"}
    pythons = [{"python_version": f"3.{n}", "python_full_version": f"3.{n}.4"} for n in (11, 13)]
    return all(
        any(marker is None or marker.evaluate({**where, **python}) for marker in markers)
        for python in pythons
    )


def test_the_bill_lists_what_is_locked_and_nothing_else() -> None:
    """`make sbom` after `make lock`."""
    pins = locked("requirements.lock")
    installed = [
        each
        for each in COMPONENTS
        if each["purl"].startswith("pkg:pypi/") and each.get("scope") != "optional"
    ]

    for each in installed:
        versions = {version for version, _ in pins[normal(each["name"])]}
        assert each["version"] in versions, each["name"]
    names = {normal(each["name"]) for each in installed}
    always = {name for name, entries in pins.items() if is_always(m for _, m in entries)}
    assert always - names == set()
    assert BILL["metadata"]["component"]["version"] == __version__


def test_the_bill_lists_what_no_installer_knows() -> None:
    told = {(each["name"], each["version"]) for each in COMPONENTS}
    page = {(name, version) for name, version in VERSIONS.items() if name != "axe-core"}
    (mypy,) = locked("requirements-build.lock")["mypy"]

    assert page <= told
    assert ("mypy", mypy[0]) in told


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda each: str(each["name"]))
def test_we_may_pass_on_what_we_are_made_of(component: Mapping[str, Any]) -> None:
    told = bill.licences(dict(component))

    assert told, "read its licence, and say it in supply/bill.py"
    for expression in told:
        names = set(re.findall(r"[\w.-]+", expression)) - {"AND", "OR", "WITH"}
        # A choice must be one of them, what is joined all: none of ours has both in a way that
        # would let a licence through that is not here.
        assert names <= ALLOWED or (" OR " in expression and names & ALLOWED), expression


# ---------------------------------------------------------------- known faults


def advisory(name: str = "H11", **fields: Any) -> dict[str, Any]:
    whole = {
        "id": "PYSEC-1",
        "modified": "2026-11-29T00:00:00Z",
        "aliases": ["CVE-1"],
        "summary": "it breaks",
        "affected": [{"package": {"ecosystem": "PyPI", "name": name}, "versions": ["0.16.0"]}],
    }
    return whole | fields


def within(*events: Mapping[str, str]) -> dict[str, Any]:
    package = {"ecosystem": "PyPI", "name": "h11"}
    ranges = [{"type": "ECOSYSTEM", "events": list(events)}]
    return advisory(affected=[{"package": package, "ranges": ranges}])


@pytest.mark.parametrize(
    ("known", "is_affected"),
    [
        (advisory(), True),
        (advisory("another"), False),
        (advisory(withdrawn="2026-11-29T00:00:00Z"), False),
        (within({"introduced": "0"}), True),
        (within({"introduced": "0"}, {"fixed": "0.16.0"}), False),
        (within({"introduced": "0"}, {"fixed": "0.16.1"}), True),
        (within({"introduced": "0.17"}), False),
        (within({"introduced": "0"}, {"last_affected": "0.16.0"}), True),
        (within({"introduced": "0"}, {"last_affected": "0.15"}), False),
        (within({"fixed": "0.9"}, {"introduced": "0.10"}, {"introduced": "0"}), True),
    ],
)
def test_an_advisory_names_the_versions_that_it_is_about(
    known: dict[str, Any], is_affected: bool
) -> None:
    found, newest = advisories.hits([known], {"h11": {"0.16.0"}})

    assert bool(found) == is_affected
    assert newest == "2026-11-29T00:00:00Z"


def snapshot(folder: Path, *known: dict[str, Any]) -> Path:
    path = folder / "all.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number, each in enumerate(known):
            archive.writestr(f"{number}.json", json.dumps(each))
    return path


def test_every_lock_is_searched_and_what_is_affected_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    locks = [str(ROOT / name) for name in LOCKS]
    pins = {name: pin for lock in LOCKS for name, pin in locked(lock).items()}
    hurt = [
        advisory(name, id=f"X-{name}", affected=[{
            "package": {"ecosystem": "PyPI", "name": name},
            "ranges": [{"type": "ECOSYSTEM", "events": [
                {"introduced": pins[name][0][0]}, {"fixed": "9999"}]}],
        }])
        for name in ("h11", "hatchling")
    ]  # fmt: skip

    assert advisories.main([str(snapshot(tmp_path, *hurt)), *locks], NOW) == 1
    told = capsys.readouterr().out
    assert "X-h11 (CVE-1): it breaks; fixed in 9999" in told
    assert "X-hatchling" in told
    assert "2 affected; the newest advisory is of 2026-11-29" in told

    other = advisory("another", modified="2026-11-01T00:00:00Z")
    assert advisories.main([str(snapshot(tmp_path, other)), *locks], NOW) == 0
    assert "older than two weeks" in capsys.readouterr().out


def test_nothing_is_not_taken_for_nothing_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = str(ROOT / LOCKS[0])
    npm = advisory(affected=[{"package": {"ecosystem": "npm", "name": "h11"}}])
    (tmp_path / "broken.zip").write_bytes(b"PK")
    (tmp_path / "empty").mkdir()

    for path in (snapshot(tmp_path), snapshot(tmp_path, npm), tmp_path / "broken.zip",
                 tmp_path / "empty", tmp_path / "absent.zip"):  # fmt: skip
        assert advisories.main([str(path), lock], NOW) == 2
        assert "no snapshot of advisories" in capsys.readouterr().err
    assert advisories.main([lock], NOW) == 2
