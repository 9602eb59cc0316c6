"""`reload`: make a running router take its policy file as it is now."""

from __future__ import annotations

import argparse
import json
import sys

from router.commands import remote


def add(parser: argparse.ArgumentParser) -> None:
    remote.add(parser)


def run(args: argparse.Namespace) -> int:
    asked = remote.ask(args, "POST", "/router/policy/reload")
    if asked is None:
        return 1
    code, answer = asked
    if args.json:
        print(json.dumps(answer, indent=2))
    elif code == 200:
        print(f"policy {answer['hash']} is in force")
    else:
        print(answer.get("error", answer), file=sys.stderr)
    return 0 if code == 200 else 1
