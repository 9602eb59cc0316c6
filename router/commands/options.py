"""Options that several commands share."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from router import config as configs
from router import reading
from router.config import Config
from router.reading import Deployment
from router.tomlfile import FileFault


def add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        type=Path,
        default=Path(configs.DEFAULT_FILE),
        help="configuration file (default: config.toml)",
    )


def add_address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", help="address to listen on")
    parser.add_argument("--port", type=int, help="port to listen on")
    parser.add_argument("--policy", help="policy file")
    parser.add_argument("--workers", help='processes that share the port, or "auto"')
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="start also where others can reach what asks for no key",
    )


def load(args: argparse.Namespace) -> Config | None:
    """The configuration with this command's flags; None after telling what is wrong."""
    try:
        return read(args)
    except FileFault as fault:
        print(fault, file=sys.stderr)
        return None


def read(args: argparse.Namespace) -> Config:
    """The configuration as the file has it now, with this command's flags. Raises FileFault."""
    return configs.load(args.config, flags=given(args))


def begin(args: argparse.Namespace) -> Callable[[], Deployment | None]:
    """Begin to read what this command is to serve; None after telling what is wrong."""
    begun = reading.begin(reading.deployment, args.config, flags=given(args))

    def deployed() -> Deployment | None:
        try:
            return begun()
        except FileFault as fault:
            print(fault, file=sys.stderr)
            return None

    return deployed


def reread(args: argparse.Namespace) -> Config:
    """`read` for a process that serves."""
    return reading.elsewhere(configs.load, args.config, flags=given(args))


def given(args: argparse.Namespace) -> dict[tuple[str, ...], Any]:
    """What this command's flags say in place of the configuration file."""
    flags: dict[tuple[str, ...], Any] = {}
    for key in (("server", "host"), ("server", "port"), ("server", "workers")):
        value = getattr(args, key[1], None)
        if value is not None:
            flags[key] = int(value) if str(value).isdigit() else value
    if getattr(args, "insecure", False):
        flags["server", "insecure"] = True
    if getattr(args, "policy", None) is not None:
        flags["policy", "file"] = str(Path(args.policy).absolute())
    return flags


def announce(address: str, admin: str | None, config: Config, *, as_json: bool = False) -> None:
    """The line that says we accept connections; scripts wait for it.

    `admin`: where the operators' pages are, if not there.
    """
    if as_json:
        text = json.dumps({"listening": address, "admin": admin or address})
    else:
        text = f"scenario-router listening on {address}"
        if admin is not None:
            text = f"operators' pages on {admin}\n{text}"
    # In one piece: other workers write to the same place.
    print(text + "\n", end="", flush=True)
    for exposed in configs.exposed(config):  # or it would not have started without --insecure
        print(f"insecure: {exposed.message.partition(': ')[0]}", file=sys.stderr)
    if not config.auth.has_keys:
        print("no client keys are configured: everybody who reaches it may ask", file=sys.stderr)
