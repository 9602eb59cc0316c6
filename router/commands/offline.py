"""What requests would be served by, as a command's flags say, for `explain` and `eval`."""

from __future__ import annotations

import argparse
import sys

from router import app as apps
from router import offline
from router.commands import options
from router.keyring import Grant
from router.tomlfile import FileFault
from router.verdict import Live


def add(parser: argparse.ArgumentParser, policy_help: str) -> None:
    options.add_config(parser)
    parser.add_argument("--policy", help=policy_help)


def live(args: argparse.Namespace, *, dialect: str | None = None) -> Live | None:
    """What would serve under these flags; None after telling what is wrong.

    `dialect` is what a backend that says "auto" is taken for, since nobody is asked.
    """
    config = options.load(args)
    if config is None:
        return None
    try:
        return offline.live(config, args.config, dialect=dialect)
    except FileFault as fault:
        print(fault, file=sys.stderr)
        return None


def grant(args: argparse.Namespace) -> Grant | None:
    """What the key called `args.key` opens; None after telling that there is none."""
    config = options.load(args)
    if config is None:
        return None
    try:
        keyring = apps.keyring_of(config, args.config)
    except FileFault as fault:
        print(fault, file=sys.stderr)
        return None
    grants = {grant.name: grant for grant in (keyring.grants if keyring is not None else ())}
    if args.key not in grants:
        there = ", ".join(grants) or "none"
        print(f"there is no key {args.key!r}; there are: {there}", file=sys.stderr)
    return grants.get(args.key)
