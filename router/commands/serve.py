"""`serve`: the router alone."""

from __future__ import annotations

import argparse
import functools
import signal
import sys
from types import FrameType

from router.commands import options


def add(parser: argparse.ArgumentParser) -> None:
    options.add_config(parser)
    options.add_address(parser)


def run(args: argparse.Namespace) -> int:
    # The first process of a container has no default for SIGTERM: until the router handles it
    # itself, some seconds on where a policy is learned, it would be lost and the stop wait for
    # SIGKILL.
    signal.signal(signal.SIGTERM, _leave)
    begun = options.begin(args)
    from router.workers import Workers  # takes as long as reading the files

    deployed = begun()
    if deployed is None:
        return 1
    announce = functools.partial(options.announce, as_json=args.json)
    read = functools.partial(options.reread, args)
    return Workers(deployed, args.config, announce=announce, read=read).run()


def _leave(number: int, frame: FrameType | None) -> None:
    """Told to stop before anything was served, so there is nothing to finish."""
    sys.exit(0)
