"""`reload`: make a running router take its policy and configuration as they are now."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any

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
    config, keys = answer.get("config", {}), answer.get("keys", {})
    if not args.json:
        _tell(config)
        if keys.get("error"):
            print(f"the keys stay as they were: {keys['error']}", file=sys.stderr)
    is_taken = config.get("reloaded", True) and keys.get("reloaded", True)
    return 0 if code == 200 and is_taken else 1


def _tell(config: Mapping[str, Any]) -> None:
    """What became of the configuration beside the policy, where there is something to say."""
    if config.get("error"):
        print(f"the configuration stays as it was: {config['error']}", file=sys.stderr)
    if config.get("waiting"):
        print(f"these settings wait for a restart: {', '.join(config['waiting'])}")
