"""`dashboard`: what request logs say, on a page; no router is needed."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import webbrowser
from pathlib import Path

from router import config as configs
from router.commands import options

_THREADS = 8


def add(parser: argparse.ArgumentParser) -> None:
    options.add_config(parser)
    parser.add_argument(
        "--log-dir",
        action="append",
        type=Path,
        metavar="DIR",
        help="folder with a request log, and folders in it (repeatable; default: the "
        "configuration's)",
    )
    parser.add_argument("--policy", type=Path, help="explain again under this policy file")
    parser.add_argument("--port", type=int, default=0, help="port (default: any free one)")
    parser.add_argument("--no-open", action="store_true", help="do not open a browser")


def run(args: argparse.Namespace) -> int:
    folders = args.log_dir
    if not folders:
        config = options.load(args)
        if config is None:
            return 1
        folders = [configs.beside(args.config, config.log.dir)]
    for folder in folders:
        if not folder.is_dir():
            print(f"there is no folder {folder}", file=sys.stderr)
            return 1
    try:
        from router.dashboard import serving
    except ImportError as error:
        print(f"the dashboard cannot start: {error}; `pip install duckdb`", file=sys.stderr)
        return 1
    from router import programlog, trained

    programlog.set_up()
    settings = serving.Settings(
        folders=serving.folders_of(folders),
        cache=trained.folder() / "dashboard",
        threads=min(os.cpu_count() or 1, _THREADS),
        config=args.config if args.config.exists() else None,
        policy=args.policy,
        port=args.port,
    )

    def announce(url: str) -> None:
        print(json.dumps({"dashboard": url}) if args.json else f"dashboard at {url}", flush=True)
        if not args.no_open:
            webbrowser.open(url)

    async def main() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await serving.serve(settings, stop, on_ready=announce)

    try:
        asyncio.run(main())
    except OSError as error:
        print(f"the dashboard cannot listen on port {args.port}: {error.strerror}", file=sys.stderr)
        return 1
    return 0
