"""`experiment`: presets tried side by side: how they stand, stopped, started, and the winner kept.

Asks a running router where there is one to be told by; `--offline` reads the policy's file and
what routers of this machine have left beside it.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from router import config as configs
from router import evidence, policycheck, promotion, referee, tomlfile, trained, trials
from router import policy as policies
from router.commands import options, remote
from router.config import Config
from router.files import rewrite
from router.policy import Policy
from router.tomlfile import FileFault
from router.trialfiles import TrialFiles

_ACTIONS = {
    "list": "every experiment and its arms",
    "show": "one of them",
    "stop": "its arm's sessions get control (all arms' where none is named), at once",
    "start": "the arm, or all of them, again; what was counted is forgotten",
    "promote": "write the arm's preset into the policy, and end the experiment",
}


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        choices=list(_ACTIONS),
        help="; ".join(f"{name}: {text}" for name, text in _ACTIONS.items()),
    )
    parser.add_argument("name", nargs="?", help="the experiment")
    parser.add_argument(
        "arm", nargs="?", help="its arm (promote, left out: the one that is better)"
    )
    parser.add_argument(
        "--offline",
        action="store_true",
        help="no router is asked: stop and start change the policy's file",
    )
    parser.add_argument("--yes", action="store_true", help="write without asking")
    remote.add(parser)
    options.add_config(parser)
    parser.add_argument("--policy", help="this policy file in place of the configured one")


def run(args: argparse.Namespace) -> int:
    if args.action != "list" and args.name is None:
        print(f"experiment {args.action} wants the name of one", file=sys.stderr)
        return 2
    if args.action == "promote":
        return _promote(args)
    if args.offline and args.action in ("stop", "start"):
        if args.arm is not None:
            print(
                "a single arm is stopped and started by a running router; "
                "in the file, give it weight = 0",
                file=sys.stderr,
            )
            return 2
        return _set_state(args, "stopped" if args.action == "stop" else "running")
    told = _told(args)
    if told is None:
        return 1
    if args.name is not None and args.action in ("list", "show"):
        there = [row["experiment"] for row in told["experiments"]]
        told["experiments"] = [r for r in told["experiments"] if r["experiment"] == args.name]
        if not told["experiments"]:
            print(f"no experiment {args.name!r}; there are: {', '.join(there)}", file=sys.stderr)
            return 1
    print(json.dumps(told, indent=2, ensure_ascii=False) if args.json else _readable(told))
    if told["warning"]:
        print(told["warning"], file=sys.stderr)
    return 0


def _told(args: argparse.Namespace) -> dict[str, Any] | None:
    """What there is to tell; None after saying why there is nothing."""
    if args.offline:
        return _read(args)
    method, path = "GET", "/router/experiments"
    if args.action in ("stop", "start"):
        method, path = "POST", f"{path}/{quote(args.name, safe='')}/{args.action}"
        path += f"?arm={quote(args.arm, safe='')}" if args.arm is not None else ""
    asked = remote.ask(args, method, path)
    if asked is None:
        print("--offline reads the files of this machine", file=sys.stderr)
        return None
    code, answer = asked
    if code != 200:
        print(answer["error"]["message"], file=sys.stderr)
        return None
    found: dict[str, Any] = answer
    return found


# --- without a router -------------------------------------------------------------------------


def _load(args: argparse.Namespace) -> tuple[Config, Path, Policy] | None:
    try:
        config = options.read(args)
        path = configs.policy_path(args.config, config)
        return config, path, policies.load(path)
    except FileFault as fault:
        print(fault, file=sys.stderr)
        return None


def _read(args: argparse.Namespace) -> dict[str, Any] | None:
    loaded = _load(args)
    if loaded is None:
        return None
    _, path, policy = loaded
    files = TrialFiles(trained.folder(), args.config)
    parts, out = files.others(), files.out()
    rows = []
    for name, written in policy.file.experiments.items():
        digest = trials.basis(written, policy)
        key = referee.key_of(name, digest, files.begun(name, digest))
        arms = evidence.merged([part[key] for part in parts if key in part], list(written.arms))
        rows.append(referee.describe(name, written, arms, out))
    return {"experiments": rows, "policy": policy.hash, "file": str(path), "warning": None}


# --- changes of the file ----------------------------------------------------------------------


def _set_state(args: argparse.Namespace, state: str) -> int:
    return _change(
        args, lambda policy, folder: promotion.with_state(policy, args.name, state, folder)
    )


def _promote(args: argparse.Namespace) -> int:
    arm = args.arm if args.arm is not None else _winner(args)
    if arm is None:
        return 1

    def change(policy: Policy, folder: Path) -> str:
        arms = policy.file.experiments[args.name].arms
        if arm not in arms:
            raise promotion.NotPromoted(f"no arm {arm!r}; there are: {', '.join(arms)}")
        return promotion.promoted(policy, args.name, arm, folder)

    return _change(args, change)


def _winner(args: argparse.Namespace) -> str | None:
    """The one arm that is better than control, by what was counted."""
    told = _told(args)
    if told is None:
        return None
    rows = [row for row in told["experiments"] if row["experiment"] == args.name]
    arms = rows[0]["arms"] if rows else []
    better = [arm for arm in arms if arm["verdict"] == "better" and arm["state"] == "running"]
    if len(better) == 1:
        return str(better[0]["arm"])
    known = ", ".join(f"{arm['arm']}: {arm['verdict']}" for arm in arms if not arm["control"])
    print(
        f"name the arm: no single one is better ({known or 'no such experiment'})", file=sys.stderr
    )
    return None


def _change(args: argparse.Namespace, change: Callable[[Policy, Path], str]) -> int:
    """Show what would become of the policy, ask, write it whole, and check it."""
    loaded = _load(args)
    if loaded is None:
        return 1
    config, path, policy = loaded
    if args.name not in policy.file.experiments:
        exist = ", ".join(policy.file.experiments) or "none"
        print(f"{path} has no experiment {args.name!r}; there are: {exist}", file=sys.stderr)
        return 1
    try:
        text = change(policy, path.parent)
    except (promotion.NotPromoted, FileFault) as fault:
        print(fault, file=sys.stderr)
        return 1
    diff = list(
        difflib.unified_diff(
            policy.text.splitlines(), text.splitlines(), str(path), f"{path} (new)", lineterm=""
        )
    )
    if not args.json:
        print("\n".join(diff) or "nothing to change")
    if not diff:
        return 0
    if not args.yes and not _agreed():
        return 1
    rewrite(path, text)
    after = policies.load(path)
    beside = {str(one): tomlfile.read(one) for one in after.beside}
    found = policycheck.findings(after, config.backends, beside)
    if args.json:
        findings = [finding.told() for finding in found]
        print(json.dumps({"file": str(path), "diff": diff, "findings": findings}, indent=2))
    else:
        print(*found, f"{path}: policy {after.hash}", sep="\n")
    return 0 if all(finding.severity == "note" for finding in found) else 1


def _agreed() -> bool:
    if not sys.stdin.isatty():
        print("not written: nobody is there to ask, --yes writes without", file=sys.stderr)
        return False
    return input("write it? [y/N] ").strip().lower() in ("y", "yes")


# --- for people -------------------------------------------------------------------------------


def _readable(told: Mapping[str, Any]) -> str:
    lines = []
    for row in told["experiments"]:
        title = f"  {row['title']}" if row["title"] else ""
        share = "" if row["share"] == 1 else f", {row['share']:.0%} of the sessions"
        lines.append(f"{row['experiment']}: {row['state']}{title}")
        lines.append(f"  {', '.join(row['scenarios'])}{share}; goal: less {row['goal']}")
        lines += ["  " + _arm(arm) for arm in row["arms"]]
    return "\n".join(lines) or f"no experiments in {told['file']}"


def _arm(arm: Mapping[str, Any]) -> str:
    seen = [
        f"{arm['requests']} requests",
        f"{arm['sessions']:g} sessions",
        *(
            f"{arm[f'{share}_rate']:.1%} {share}"
            for share in ("error", "empty", "truncated")
            if arm[f"{share}_rate"] is not None
        ),
    ]
    if arm["total_ms"] is not None:
        seen.append(f"{arm['total_ms']:.0f} ms")
    if arm["output_tokens"] is not None:
        seen.append(f"{arm['output_tokens']:.1f} tokens")
    line = f"{arm['arm']}: {', '.join(seen)}"
    if arm["control"]:
        return line + "; control"
    found = arm["effect"]
    if found["low"] is None or found["high"] is None or found["ratio"] is None:
        line += f"; {arm['verdict']}"
    else:
        line += (
            f"; {arm['verdict']}: {found['goal']} {_percent(found['ratio'])} "
            f"({_percent(found['low'])} to {_percent(found['high'])})"
        )
    if (shadow := arm["shadow"]) is not None:
        line += f"; {shadow['pairs']} repeated: {shadow['goal']} {_percent(shadow['ratio'])}"
    if arm["stopped"] is not None:
        line += f"; STOPPED: {arm['stopped'].get('because', 'reason unknown')}"
    return line


def _percent(ratio: float) -> str:
    return f"{ratio - 1:+.1%}"
