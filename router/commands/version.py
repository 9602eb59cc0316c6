"""`version`: ours, how it was built, and those of the libraries that carry the request path."""

from __future__ import annotations

import argparse
import json
import platform
from importlib import metadata

from router import __version__, compiled

_LIBRARIES = ("aiohttp", "httptools", "msgspec", "orjson", "pydantic", "uvloop")


def add(parser: argparse.ArgumentParser) -> None:
    """No options of its own."""


def _built(modules: int) -> str:
    return f"yes ({modules} modules)" if modules else "no"


def run(args: argparse.Namespace) -> int:
    found = {
        "scenario-router": __version__,
        "compiled": _built(len(compiled.modules())),
        "python": platform.python_version(),
    }
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        print("\n".join(f"{name} {version}" for name, version in found.items()))
    return 0
