"""One request to a running router, for the commands that ask it something."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

import httpx

DEFAULT_URL = "http://127.0.0.1:8088"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default=DEFAULT_URL, help=f"the router (default: {DEFAULT_URL})")
    parser.add_argument(
        "--admin-key-env", metavar="NAME", help="environment variable with its admin key"
    )


def ask(args: argparse.Namespace, method: str, path: str) -> tuple[int, Any] | None:
    """(status, document), or None after telling that it cannot be reached."""
    headers = {}
    if args.admin_key_env:
        headers["Authorization"] = f"Bearer {os.environ.get(args.admin_key_env, '')}"
    try:
        reply = httpx.request(method, args.url.rstrip("/") + path, headers=headers, timeout=30)
        return reply.status_code, reply.json()
    except (httpx.HTTPError, ValueError) as error:
        print(f"no router answers at {args.url}: {error}", file=sys.stderr)
        return None
