"""The page's libraries, copied from their npm packages: `python -m tests.dashboard.vendor`.

Needs npm. Versions are pinned here. The files are the packages' own, but for their imports, which
name each other's files (a page under a strict policy can have no import map), and their links to
source maps. `vendor/README.md` is written anew, with a checksum for each file.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tempfile
from pathlib import Path

import router

VENDOR = Path(router.__file__).parent / "dashboard" / "static" / "vendor"
HERE = Path(__file__).parent

VERSIONS = {
    "preact": "11.2.0",
    "@preact/signals-core": "1.14.5",
    "@preact/signals": "2.11.4",
    "htm": "3.1.1",
    "uplot": "1.6.32",
    "axe-core": "4.14.1",
}
#: file in its package → file of ours
FILES = {
    "preact/dist/preact.mjs": VENDOR / "preact.js",
    "preact/hooks/dist/hooks.mjs": VENDOR / "hooks.js",
    "preact/LICENSE": VENDOR / "LICENSE.preact.txt",
    "@preact/signals-core/dist/signals-core.mjs": VENDOR / "signals-core.js",
    "@preact/signals/dist/signals.mjs": VENDOR / "signals.js",
    "@preact/signals/LICENSE": VENDOR / "LICENSE.signals.txt",
    "htm/dist/htm.mjs": VENDOR / "htm.js",
    "htm/LICENSE": VENDOR / "LICENSE.htm.txt",
    "uplot/dist/uPlot.esm.js": VENDOR / "uplot.js",
    "uplot/dist/uPlot.min.css": VENDOR / "uplot.css",
    "uplot/LICENSE": VENDOR / "LICENSE.uplot.txt",
    "axe-core/axe.min.js": HERE / "vendor" / "axe.min.js",
    "axe-core/LICENSE": HERE / "vendor" / "LICENSE.axe-core.txt",
}
_IMPORTS = {
    "preact/hooks": "./hooks.js",
    "preact": "./preact.js",
    "@preact/signals-core": "./signals-core.js",
}
_README = """\
# Libraries of the page

Copied from their npm packages by `python -m tests.dashboard.vendor` (needs npm), which also says
which versions. Nothing else writes here. Changed in them: the names of imports, the links to source
maps. Each has its licence beside it.

| package | version | licence |
|---|---|---|
{packages}

| file | SHA-256 |
|---|---|
{files}
"""


def adapted(text: str) -> str:
    """A module that finds its neighbours by their file names, without a source map."""
    for name, file in _IMPORTS.items():
        text = re.sub(rf'(from|import) ?"{re.escape(name)}"', rf'\1"{file}"', text)
    return re.sub(r"\n?//# sourceMappingURL=\S+\n?", "\n", text)


def shipped() -> list[Path]:
    """The files that come with the page."""
    return sorted(target for target in FILES.values() if target.parent == VENDOR)


def checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def checksums_in(readme: str) -> dict[str, str]:
    """What the README says of each file."""
    return dict(re.findall(r"^\| (\S+) \| ([0-9a-f]{64}) \|$", readme, re.MULTILINE))


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        packages = Path(name)
        wanted = [f"{package}@{version}" for package, version in VERSIONS.items()]
        subprocess.run(
            ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", *wanted],
            cwd=packages,
            check=True,
        )
        modules = packages / "node_modules"
        for source, target in FILES.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            text = (modules / source).read_text(encoding="utf-8")
            target.write_text(adapted(text), encoding="utf-8")
        licences = {
            package: json.loads((modules / package / "package.json").read_bytes())["license"]
            for package in VERSIONS
        }
    rows = [f"| {p} | {VERSIONS[p]} | {licences[p]} |" for p in VERSIONS if p != "axe-core"]
    sums = [f"| {path.name} | {checksum(path)} |" for path in shipped()]
    text = _README.format(packages="\n".join(rows), files="\n".join(sums))
    (VENDOR / "README.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
