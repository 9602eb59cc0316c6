"""`drain`: give a backend of a running router no new requests; what it has it finishes."""

from __future__ import annotations

import argparse
import json
import sys
from urllib.parse import quote

from router.commands import remote


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="the backend, as `status` calls it or as it is configured")
    parser.add_argument("--undo", action="store_true", help="give it requests again")
    remote.add(parser)


def run(args: argparse.Namespace) -> int:
    verb = "undrain" if args.undo else "drain"
    asked = remote.ask(args, "POST", f"/router/backends/{quote(args.name, safe='')}/{verb}")
    if asked is None:
        return 1
    code, answer = asked
    if args.json:
        print(json.dumps(answer, indent=2))
    elif code != 200:
        print(answer["error"]["message"], file=sys.stderr)
    else:
        for backend in answer["backends"]:
            state = "takes nothing new" if backend["draining"] else "takes requests"
            print(f"{backend['name']}: {state}, {backend['inflight']} in flight")
        if answer["warning"]:
            print(answer["warning"], file=sys.stderr)
    return 0 if code == 200 else 1
