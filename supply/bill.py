"""The bill of materials, completed: `python -m supply.bill GENERATED BILL`, done by `make sbom`.

In: what cyclonedx-py says of an environment made of requirements.lock. Out: the same with what no
installer knows: the libraries of the dashboard's page, the part of mypyc that a compiled wheel
holds, and licences that a package tells in its own words or only by its text.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "supply" / "scenario-router.cdx.json"
_VENDOR = ROOT / "router" / "dashboard" / "static" / "vendor" / "README.md"

#: by name: what their licence files say, since their metadata says it in no agreed words
_READ_BY_US = {
    "ahocorasick-rs": "Apache-2.0",
    "aiosignal": "Apache-2.0",
    "google-re2": "BSD-3-Clause",
    "protobuf": "BSD-3-Clause",
}
_OURS = re.compile(r'^__version__ = "(.+)"$', re.M)
_MYPY = re.compile(r"^mypy==(\S+)", re.M)
_ROW = re.compile(r"^\| ([@\w/.-]+) \| (\d[\w.]*) \| ([\w.-]+) \|$", re.M)


def completed(bill: dict[str, Any]) -> dict[str, Any]:
    """The bill with all that is known; the same for the same input."""
    bill["metadata"]["component"]["version"] = _found(ROOT / "router" / "__init__.py", _OURS)
    components = [_with_licence(each) for each in bill["components"]]
    components += [*_page(), _mypyc()]
    bill["components"] = sorted(components, key=lambda each: str(each["purl"]).lower())
    return bill


def normal(name: str) -> str:
    """A distribution's name as indexes compare them."""
    return re.sub(r"[-_.]+", "-", name).lower()


def licences(component: dict[str, Any]) -> list[str]:
    """What a component's licences are called, each as SPDX has it."""
    return [
        each.get("expression") or each["license"].get("id") or each["license"].get("name")
        for each in component.get("licenses", ())
    ]


def _with_licence(component: dict[str, Any]) -> dict[str, Any]:
    told = [
        each
        for each in component.get("licenses", ())
        if "expression" in each or "id" in each["license"]
    ]
    ours = _READ_BY_US.get(normal(component["name"]))
    if not told and ours is not None:
        told = [{"license": {"id": ours, "acknowledgement": "concluded"}}]
    return {**component, "licenses": told or component.get("licenses", [])}


def _page() -> Iterator[dict[str, Any]]:
    for name, version, licence in _ROW.findall(_VENDOR.read_text(encoding="utf-8")):
        yield _library(name, version, licence, "npm", "Copied into the dashboard's page.")


def _mypyc() -> dict[str, Any]:
    version = _found(ROOT / "requirements-build.lock", _MYPY)
    what = "The runtime of mypyc, in a wheel that was compiled; not installed as a package."
    licences = [{"expression": "MIT AND PSF-2.0", "acknowledgement": "declared"}]
    return _library("mypy", version, "MIT", "pypi", what) | {
        "licenses": licences,
        "scope": "optional",
    }


def _found(path: Path, what: re.Pattern[str]) -> str:
    found = what.search(path.read_text(encoding="utf-8"))
    if found is None:
        raise ValueError(f"{path} has no {what.pattern}")
    return found[1]


def _library(name: str, version: str, licence: str, kind: str, what: str) -> dict[str, Any]:
    return {
        "bom-ref": f"{kind}:{name}@{version}",
        "description": what,
        "licenses": [{"license": {"id": licence, "acknowledgement": "declared"}}],
        "name": name,
        "purl": f"pkg:{kind}/{name.replace('@', '%40')}@{version}",
        "type": "library",
        "version": version,
    }


if __name__ == "__main__":
    generated, bill = map(Path, sys.argv[1:])
    text = json.dumps(completed(json.loads(generated.read_text(encoding="utf-8"))), indent=1)
    bill.write_text(text + "\n", encoding="utf-8")
