"""`migrate`: write older configuration and policy files as this version would.

Without --write nothing is changed: it tells what would be. A file that is written is kept
beside it as it was.
"""

from __future__ import annotations

import argparse
import difflib
import json
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from router import config as configs
from router import migrated, migration, tomlfile
from router.commands import options
from router.files import rewrite
from router.migrated import Migrated
from router.tomlfile import FileFault


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="configurations and policies (left out: the configuration, and the policy it names)",
    )
    parser.add_argument("--write", action="store_true", help="change the files")
    parser.add_argument("--diff", action="store_true", help="show the change line by line")
    options.add_config(parser)


def run(args: argparse.Namespace) -> int:
    told = []
    try:
        files = args.files or _configured(args.config)
    except FileFault as fault:
        print(fault, file=sys.stderr)
        return 1
    for path in files:
        try:
            told.append(_migrate(path, args))
        except FileFault as fault:
            told.append({"file": str(path), "fault": str(fault)})
        except OSError as error:
            fault_text = f"{path}: cannot be written: {error.strerror or error}"
            told.append({"file": str(path), "fault": fault_text})
    if args.json:
        print(json.dumps({"files": told}, indent=2, ensure_ascii=False))
    else:
        for one in told:
            print(*_lines(one), sep="\n", file=sys.stderr if "fault" in one else sys.stdout)
    is_done = all("fault" not in one and one["outdated"] <= one["written"] for one in told)
    return 0 if is_done else 1


def _configured(config: Path) -> list[Path]:
    """The configuration, and its policy where there is one beside what was installed."""
    text = tomlfile.read(config)
    table = tomlfile.table(text, str(config))
    migration.upgrade(table, "config", text, str(config))
    source = table.get("policy")
    named = source.get("file") if isinstance(source, dict) else None
    policy = configs.beside(config, named or configs.PolicySource().file)
    return [config, policy] if named or policy.exists() else [config]


def _migrate(path: Path, args: argparse.Namespace) -> dict[str, Any]:
    text = tomlfile.read(path)
    found = migrated.migrated(text, str(path), path.parent)
    kept = _kept(path) if args.write and found.text != text else None
    if kept is not None:
        rewrite(path, found.text)
    return {**_told(path, text, found, args), "written": kept is not None, "kept": kept}


def _told(path: Path, text: str, found: Migrated, args: argparse.Namespace) -> dict[str, Any]:
    newest = migration.current(found.kind)
    return {
        "file": str(path),
        "kind": found.kind,
        "schema": found.schema,
        "stated": found.is_stated,
        "newest": newest,
        "outdated": found.schema != newest,
        "changes": list(found.changes),
        "diff": _diff(path, text, found.text) if args.diff else None,
    }


def _kept(path: Path) -> str:
    """The file's copy beside it; an earlier copy is never overwritten."""
    real = path.resolve()
    copy = real.with_name(f"{real.name}.{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}.bak")
    if not copy.exists():
        shutil.copy2(real, copy)
    return str(copy)


def _diff(path: Path, old: str, new: str) -> list[str]:
    lines = old.splitlines(), new.splitlines()
    return list(difflib.unified_diff(*lines, str(path), f"{path} (new)", lineterm=""))


def _lines(one: Mapping[str, Any]) -> list[str]:
    if "fault" in one:
        return [one["fault"]]
    written = "written" if one["written"] else "would be written, with --write"
    if one["outdated"]:
        verdict = f"schema {one['schema']}, {written} as {one['newest']}"
    elif one["stated"]:
        verdict = f"schema {one['schema']}, which is the present one"
    else:
        verdict = f"no schema, which is {one['schema']}: the line `schema = {one['schema']}` "
        verdict += "added" if one["written"] else "would be added, with --write"
    lines = [f"{one['file']}: {one['kind']}, {verdict}"]
    lines += [f"  {change}" for change in one["changes"]]
    if one["kept"]:
        lines.append(f"  as it was: {one['kept']}")
    return lines + (one["diff"] or [])
