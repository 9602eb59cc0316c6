"""`serve`: the router alone."""

from __future__ import annotations

import argparse
import functools

from router.commands import options


def add(parser: argparse.ArgumentParser) -> None:
    options.add_config(parser)
    options.add_address(parser)


def run(args: argparse.Namespace) -> int:
    config = options.load(args)
    if config is None:
        return 1
    from router.workers import Workers  # asyncio and aiohttp, which `check` does without

    announce = functools.partial(options.announce, as_json=args.json)
    read = functools.partial(options.read, args)
    return Workers(config, args.config, announce=announce, read=read).run()
