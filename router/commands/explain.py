"""`explain`: what a request would get and why, offline, with the code that serves."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from router import dialects, heads
from router import explain as explaining
from router.chat import Endpoint
from router.commands import offline
from router.errors import RouterError
from router.verdict import decide_for

_ENDPOINTS = {e.value: e for e in Endpoint if e is not Endpoint.OTHER}


def add(parser: argparse.ArgumentParser) -> None:
    offline.add(parser, "explain under this policy file")
    parser.add_argument(
        "--dialect",
        choices=sorted(dialects.DIALECTS),
        default="vllm",
        help='what to show where a backend says "auto", since nobody is asked (default: vllm)',
    )
    parser.add_argument(
        "--endpoint", choices=sorted(_ENDPOINTS), default="chat.completions", help="which shape"
    )
    parser.add_argument(
        "--header", action="append", default=[], metavar="NAME:VALUE", help="a request header"
    )
    parser.add_argument("--key", metavar="NAME", help="as the client with the key of this name")
    parser.add_argument("--text", help="a user's message, in place of a whole request")
    parser.add_argument(
        "request", nargs="?", type=Path, help="file with a request body (default: standard input)"
    )


def run(args: argparse.Namespace) -> int:
    live = offline.live(args, dialect=args.dialect)
    if live is None:
        return 1
    grant = None
    if args.key is not None:
        grant = offline.grant(args)
        if grant is None:
            return 1
    pairs = (header.partition(":") for header in args.header)
    headers = {name.strip().lower().encode(): value.strip().encode() for name, _, value in pairs}
    request_id = heads.given_id(headers) or ""
    try:
        verdict = decide_for(
            _ENDPOINTS[args.endpoint],
            _body(args),
            headers,
            live,
            request_id=request_id,
            grant=grant,
        )
    except RouterError as fault:
        print(fault.body().decode(), file=sys.stderr)
        return 1
    told = explaining.told(verdict, live, live.pools.get(verdict.decision.pool, ()), grant)
    print(json.dumps(told, indent=2, ensure_ascii=False) if args.json else _readable(told))
    return 0


def _body(args: argparse.Namespace) -> bytes:
    if args.text is not None:
        message = {"role": "user", "content": args.text}
        return json.dumps({"model": "auto", "messages": [message]}, ensure_ascii=False).encode()
    if args.request is not None:
        return Path(args.request).read_bytes()
    return sys.stdin.buffer.read()


def _readable(told: dict[str, Any]) -> str:
    thinking = {True: "on", False: "off", None: "the backend's default"}[told["thinking"]]
    lines = [
        f"scenario    {told['scenario']}  ({told['source']}, confidence {told['confidence']:.2f})",
        *(f"because     {reason}" for reason in told["because"]),
        f"thinking    {thinking}",
        f"pool        {told['pool']}: {', '.join(told['backends']) or 'no backend'}",
    ]
    if (key := told["key"]) is not None:
        open_to = [f"{what} {', '.join(key[what])}" for what in ("scenarios", "pools") if key[what]]
        lines.append(f"key         {key['name']}  ({'; '.join(open_to) or 'opens all'})")
    if (experiment := told["experiment"]) is not None:
        arm = experiment["name"] + (f"/{experiment['arm']}" if experiment["arm"] else "")
        lines.append(f"experiment  {arm}  ({experiment['because']})")
    for name, param in told["params"].items():
        client = json.dumps(param["client"], ensure_ascii=False)
        sent = json.dumps(param["sent"], ensure_ascii=False)
        lines.append(f"parameter   {name}: {client} -> {sent}  ({param['origin']})")
    lines += [f"warning     {warning}" for warning in told["warnings"]]
    if "body" in told:
        lines.append(f"sent to {told['backend']} ({told['dialect']}):\n{told['body']}")
    return "\n".join(lines)
