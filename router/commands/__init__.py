"""The command line: one small file a verb, imported when it is called.

Exit codes: 0 good, 1 a finding, 2 usage.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType

#: verb → one line about it. Each has a module here with `add(parser)` and `run(args)`.
VERBS = {
    "serve": "start the router",
    "up": "start the router and a local model server with it",
    "check": "is this configuration, are these policies, sound?",
    "explain": "what would this request get, and why? (no network needed)",
    "eval": "how well are labelled prompts told apart? (no network needed)",
    "suggest": "which keywords and examples would cure these mistakes? (no network needed)",
    "dashboard": "look at request logs on a page (no router needed)",
    "doctor": "what does this backend honour, and what of the policy is lost on it?",
    "logs": "look at the request log: filter, follow, sum up",
    "experiment": "how do presets tried side by side stand? stop, start, keep the winner",
    "replay": "what would another policy have made of the last requests? (no network needed)",
    "migrate": "write older files as this version would (no network needed)",
    "schema": "print the JSON Schema of config, policy, keys, record or body",
    "status": "ask a running router how it is",
    "reload": "make a running router take its policy and its configuration anew",
    "bench": "how fast does a server answer, and what does a preset save?",
    "ab": "what does one preset or policy change against another, on a live model?",
    "keys": "who may ask: add, list, revoke and rotate the keys of clients",
    "drain": "give a backend no new requests, or new ones again",
    "version": "print versions",
}
#: the modules that are not called like their verb: `eval` is Python's own word
_MODULES = {"eval": "evaluate"}


def parser(wanted: str = "") -> argparse.ArgumentParser:
    """The parser; only the wanted verb's module is imported, as some are heavy."""
    top = argparse.ArgumentParser(
        prog="scenario-router",
        description="The right preset, thinking and replica for each chat request.",
    )
    verbs = top.add_subparsers(dest="verb", metavar="COMMAND", required=True)
    for verb, text in VERBS.items():
        sub = verbs.add_parser(verb, help=text, description=text[0].upper() + text[1:] + ".")
        sub.add_argument("--json", action="store_true", help="answer in JSON")
        if verb == wanted:
            _module(verb).add(sub)
    return top


def _module(verb: str) -> ModuleType:
    return importlib.import_module(f"router.commands.{_MODULES.get(verb, verb)}")


def run(arguments: Sequence[str]) -> int:
    wanted = next((word for word in arguments if word in VERBS), "")
    args = parser(wanted).parse_args(arguments)
    try:
        code = int(_module(args.verb).run(args))
        sys.stdout.flush()  # here, where a reader that has left can still be caught
    except BrokenPipeError:
        # What is left to write goes nowhere, else it would fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code
