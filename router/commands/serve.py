"""`serve`: the router alone."""

from __future__ import annotations

import argparse
import sys

from router.commands import options
from router.config import Config


def add(parser: argparse.ArgumentParser) -> None:
    options.add_config(parser)
    options.add_address(parser)


def run(args: argparse.Namespace) -> int:
    config = options.load(args)
    if config is None:
        return 1
    from router.workers import Workers  # asyncio and aiohttp, which `check` does without

    return Workers(config, args.config, announce=announce).run()


def announce(address: str, config: Config) -> None:
    """The line that says we accept connections; scripts wait for it."""
    print(f"scenario-router listening on {address}", flush=True)
    if config.auth.keys_env is None:
        print("no client keys are configured: everybody who reaches it may ask", file=sys.stderr)
