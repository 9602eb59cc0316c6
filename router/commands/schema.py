"""`schema`: JSON Schema of what is written by people and read by programs."""

from __future__ import annotations

import argparse
import json
from typing import Any

KINDS = ("config", "policy", "keys", "record", "body")


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=KINDS, help="which schema")


def run(args: argparse.Namespace) -> int:
    print(json.dumps(schema_of(args.what), indent=2, ensure_ascii=False))
    return 0


def schema_of(what: str) -> dict[str, Any]:
    """The JSON Schema as a dict."""
    if what == "record":
        from router import record

        return record.json_schema()
    if what == "body":
        from router import body

        return body.json_schema()
    if what == "policy":
        from router.policy import PolicyFile

        return PolicyFile.model_json_schema()
    if what == "keys":
        from router.keyfile import KeyFile

        return KeyFile.model_json_schema()
    from router.config import Config

    return Config.model_json_schema()
