"""Options that `bench` and `ab` share: what is asked, how often, and of whom."""

from __future__ import annotations

import argparse
import json
import os
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from router import tls
from router.measure import prompts
from router.measure.prompts import BadPrompts, Prompt
from router.tomlfile import FileFault


class Usage(Exception):
    """What is wrong with the flags, or with what they name."""


def add(parser: argparse.ArgumentParser, *, count: int) -> None:
    parser.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help='JSON Lines with "prompt" or "messages" each (default: the built-in ones)',
    )
    parser.add_argument(
        "--scenario", action="append", default=[], metavar="ID", help="prompts of this scenario"
    )
    parser.add_argument("--lang", choices=("zh", "en"), help="prompts in this language")
    parser.add_argument(
        "-n",
        "--count",
        type=_whole,
        default=count,
        metavar="N",
        help=f"requests of each side at most (default: {count})",
    )
    parser.add_argument("--warmup", type=_none, default=2, metavar="N", help="not counted first")
    parser.add_argument("--concurrency", type=_whole, default=1, metavar="N", help="clients")
    parser.add_argument(
        "--timeout", type=_seconds, default=300.0, metavar="S", help="for a whole answer"
    )
    parser.add_argument("--seed", type=int, default=1, help="of orders and draws (default: 1)")
    parser.add_argument("--max-tokens", type=_whole, metavar="N", help="what the client asks for")
    parser.add_argument(
        "--param",
        action="append",
        default=[],
        type=_param,
        metavar="NAME=JSON",
        help="another member of each request (repeatable)",
    )
    parser.add_argument(
        "--key-env", metavar="NAME", help="environment variable with the key to ask with"
    )
    parser.add_argument(
        "--ca-file",
        dest="trust",
        type=_trust,
        metavar="FILE",
        help="who issued the certificates of https servers, PEM (default: whom this system trusts)",
    )
    parser.add_argument(
        "--note",
        action="append",
        default=[],
        metavar="TEXT",
        help="what the report should remember: the machine, who else was at work (repeatable)",
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page to look at, too")


def extra(args: argparse.Namespace) -> dict[str, Any]:
    """Members of each request besides model and messages."""
    given = dict(args.param)
    return given if args.max_tokens is None else {"max_tokens": args.max_tokens, **given}


def headers(args: argparse.Namespace) -> dict[str, str]:
    plain = {"content-type": "application/json"}
    if args.key_env:
        plain["authorization"] = f"Bearer {os.environ.get(args.key_env, '')}"
    return plain


def read(args: argparse.Namespace, *, scenarios: list[str]) -> list[Prompt] | None:
    """The prompts; None after telling what is wrong.

    `scenarios` is what is asked where no option says, of the built-in ones.
    """
    wanted = args.scenario or ([] if args.prompts else scenarios)
    try:
        return prompts.read(args.prompts or prompts.BUILT_IN, scenarios=wanted, lang=args.lang)
    except BadPrompts as bad:
        print(bad, file=sys.stderr)
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
    return None


def _param(text: str) -> tuple[str, Any]:
    name, found, value = text.partition("=")
    if not (name and found):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=JSON")
    try:
        return name, json.loads(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{value!r} is not JSON") from None


def _trust(text: str) -> ssl.SSLContext:
    try:
        return tls.asking(Path(text))
    except FileFault as fault:
        raise argparse.ArgumentTypeError(str(fault)) from None


def at_least(low: float, kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """An argument that is a number from `low` on."""

    def number(text: str) -> Any:
        value = kind(text)
        if not value >= low:
            raise argparse.ArgumentTypeError(f"{text} is less than {low:g}")
        return value

    return number


_whole, _none, _seconds = at_least(1, int), at_least(0, int), at_least(0.001, float)
