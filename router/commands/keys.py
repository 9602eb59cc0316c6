"""`keys`: who may ask. A key is shown once, when it is made; the file holds its hash."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from router import config as configs
from router import keyfile
from router.commands import options
from router.keyfile import Key, NoSuchKey
from router.tomlfile import FileFault

_UNITS = {"h": 3600, "d": 86400, "w": 604800}
_LIMITS = ("requests_per_minute", "tokens_per_minute", "tokens_per_day", "streams")
_RELOAD = "a running router takes it within a second where [policy] watch is on, else on `reload`"


def add(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    made = actions.add_parser("add", help="make a key and print it, once")
    made.add_argument("name", help="what the log's `key` field shows")
    made.add_argument(
        "--scenario",
        action="append",
        metavar="NAME",
        help="it may get this one (repeatable; default: all)",
    )
    made.add_argument(
        "--pool",
        action="append",
        metavar="NAME",
        help="it may reach this one's backends (repeatable; default: all)",
    )
    for limit in _LIMITS:
        made.add_argument(f"--{limit.replace('_', '-')}", type=int, metavar="N")
    made.add_argument(
        "--expires", metavar="WHEN", help="30d, 12h, 2w, or a date as 2027-01-31 (default: never)"
    )
    listed = actions.add_parser("list", help="the keys by name, and what each may get")
    gone = actions.add_parser("revoke", help="take a key out; it is refused from then on")
    gone.add_argument("name", help="of the key")
    anew = actions.add_parser("rotate", help="give a name another key, and print that, once")
    anew.add_argument("name", help="of the key; the old one is refused from then on")
    for action in (made, listed, gone, anew):
        options.add_config(action)
        action.add_argument(
            "--file", type=Path, help="file of keys (default: the configuration's [auth] keys_file)"
        )
        action.add_argument(
            "--json", action="store_true", default=argparse.SUPPRESS, help="answer in JSON"
        )


def run(args: argparse.Namespace) -> int:
    try:
        path = args.file or configs.keys_file(args.config)
        if path is None:
            print(
                f'{args.config} names no file of keys: set keys_file = "keys.toml" in its [auth], '
                "or say --file",
                file=sys.stderr,
            )
            return 2
        return _ACTIONS[args.action](args, path)
    except (FileFault, NoSuchKey) as fault:
        print(fault, file=sys.stderr)
    except OSError as error:
        print(f"{error.filename or path}: {error.strerror}", file=sys.stderr)
    return 1


def _add(args: argparse.Namespace, path: Path) -> int:
    now = datetime.now(UTC)
    said: dict[str, Any] = {}
    if args.expires is not None:
        expires = _moment(args.expires, now)
        if expires is None or expires <= now:
            print(
                f"--expires {args.expires!r} is no time to come: 30d, 12h, 2w or 2027-01-31",
                file=sys.stderr,
            )
            return 2
        said["expires"] = expires
    lists = {"scenarios": args.scenario, "pools": args.pool}
    limits = {limit: getattr(args, limit) for limit in _LIMITS}
    said |= {name: value for name, value in {**lists, **limits}.items() if value is not None}
    key = keyfile.new_key()
    keyfile.change(path, lambda text: keyfile.added(text, str(path), args.name, key, now, said))
    return _show(args, path, key)


def _rotate(args: argparse.Namespace, path: Path) -> int:
    key, now = keyfile.new_key(), datetime.now(UTC)
    keyfile.change(path, lambda text: keyfile.rotated(text, str(path), args.name, key, now))
    return _show(args, path, key)


def _show(args: argparse.Namespace, path: Path, key: str) -> int:
    if args.json:
        print(json.dumps({"name": args.name, "key": key, "file": str(path)}))
        return 0
    print(key)
    print(
        f"This is the only time that the key of {args.name} is shown; {_RELOAD}.", file=sys.stderr
    )
    return 0


def _revoke(args: argparse.Namespace, path: Path) -> int:
    keyfile.change(path, lambda text: keyfile.revoked(text, str(path), args.name))
    if args.json:
        print(json.dumps({"name": args.name, "revoked": True, "file": str(path)}))
    else:
        print(f"{args.name} is revoked; {_RELOAD}")
    return 0


def _list(args: argparse.Namespace, path: Path) -> int:
    keys, now = keyfile.load(path).keys, datetime.now(UTC)
    if args.json:
        told = [{"name": name, **_told(key, now)} for name, key in keys.items()]
        print(json.dumps({"file": str(path), "keys": told}, indent=2, ensure_ascii=False))
        return 0
    rows: list[tuple[str, ...]] = [("NAME", "CREATED", "EXPIRES", "SCENARIOS", "POOLS", "LIMITS")]
    rows += [_row(name, key, now) for name, key in keys.items()]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
    return 0


def _told(key: Key, now: datetime) -> Mapping[str, Any]:
    """All but the hash."""
    is_expired = key.expires is not None and key.expires <= now
    return {**msgspec.to_builtins(key.model_dump(exclude={"hash"})), "expired": is_expired}


def _row(name: str, key: Key, now: datetime) -> tuple[str, ...]:
    expires = "never" if key.expires is None else f"{key.expires:%Y-%m-%d %H:%M %Z}"
    if key.expires is not None and key.expires <= now:
        expires += " (over)"
    limits = [f"{limit}={value}" for limit in _LIMITS if (value := getattr(key, limit)) is not None]
    return (
        name,
        "" if key.created is None else f"{key.created:%Y-%m-%d}",
        expires,
        ", ".join(key.scenarios or ("all",)),
        ", ".join(key.pools or ("all",)),
        " ".join(limits) or "-",
    )


def _moment(text: str, now: datetime) -> datetime | None:
    """A time to come, to the second: so long from now, or a date (its beginning, UTC)."""
    if span := re.fullmatch(r"(\d{1,6})([hdw])", text):
        return (now + timedelta(seconds=int(span[1]) * _UNITS[span[2]])).replace(microsecond=0)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


_ACTIONS: Mapping[str, Callable[[argparse.Namespace, Path], int]] = {
    "add": _add,
    "list": _list,
    "revoke": _revoke,
    "rotate": _rotate,
}
