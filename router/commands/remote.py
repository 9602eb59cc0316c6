"""One request to a running router, for the commands that ask it something."""

from __future__ import annotations

import argparse
import os
import ssl
import sys
from pathlib import Path
from typing import Any

import httpx

from router import tls
from router.tomlfile import FileFault

DEFAULT_URL = "http://127.0.0.1:8088"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default=DEFAULT_URL, help=f"the router (default: {DEFAULT_URL})")
    parser.add_argument(
        "--admin-key-env", metavar="NAME", help="environment variable with its admin key"
    )
    add_trust(parser)


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Options of all commands that ask a router which may speak TLS; see `trust`."""
    parser.add_argument(
        "--ca-file",
        type=Path,
        metavar="FILE",
        help="who issued its certificate, PEM (default: whom this system trusts)",
    )
    parser.add_argument(
        "--client-cert", type=Path, metavar="FILE", help="certificate to show it, PEM, with its key"
    )


def trust(args: argparse.Namespace) -> ssl.SSLContext:
    """How TLS is spoken. Raises FileFault."""
    return tls.asking(args.ca_file, args.client_cert)


def ask(args: argparse.Namespace, method: str, path: str) -> tuple[int, Any] | None:
    """(status, document), or None after telling that it cannot be reached."""
    headers = {}
    if args.admin_key_env:
        headers["Authorization"] = f"Bearer {os.environ.get(args.admin_key_env, '')}"
    try:
        verify: Any = trust(args) if args.url.startswith("https:") else True
        reply = httpx.request(
            method, args.url.rstrip("/") + path, headers=headers, timeout=30, verify=verify
        )
        return reply.status_code, reply.json()
    except FileFault as fault:
        print(fault, file=sys.stderr)
        return None
    except (httpx.HTTPError, ValueError) as error:
        print(f"no router answers at {args.url}: {error}", file=sys.stderr)
        return None
