"""`check`: is this configuration, is its policy, sound, and what would get lost on the way?"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from router import config as configs
from router import dialects
from router import policy as policies
from router.commands import options
from router.config import Config
from router.dialects import Dialect
from router.policy import Policy
from router.tomlfile import FileFault


def add(parser: argparse.ArgumentParser) -> None:
    options.add_config(parser)
    parser.add_argument("--policy", help="check this policy file in place of the configured one")


def run(args: argparse.Namespace) -> int:
    config = options.load(args)
    if config is None:
        return 1
    path = configs.beside(args.config, config.policy.file)
    try:
        policy = policies.load(path)
    except FileFault as fault:
        print(fault, file=sys.stderr)
        return 1
    faults = policies.missing_pools(policy, {backend.pool for backend in config.backends})
    losses = list(unsayable(policy, config))
    if args.json:
        print(json.dumps({"faults": faults, "losses": losses, "policy": policy.hash}, indent=2))
    else:
        _tell(args.config, path, policy, config, faults, losses)
    return 1 if faults else 0


def _tell(
    config_path: Path,
    path: Path,
    policy: Policy,
    config: Config,
    faults: list[str],
    losses: list[str],
) -> None:
    print(f"{config_path}: {len(config.backends)} backends")
    print(f"{path}: policy {policy.hash}, scenarios {', '.join(policy.scenarios)}")
    for text in faults:
        print(f"fault: {text}")
    for text in losses:
        print(f"note: {text}")
    if not faults:
        print("sound")


def unsayable(policy: Policy, config: Config) -> Iterator[str]:
    """Preset fields that a backend of their pool would ignore or refuse."""
    for backend in config.backends:
        if backend.dialect == "auto":
            continue
        dialect = dialects.of(backend.dialect)
        for name, scenario in policy.scenarios.items():
            if scenario.pool != backend.pool:
                continue
            lost = [param for param in _params(policy, name) if not _says(dialect, param)]
            if lost:
                yield f"{backend.name} ({dialect.title}) cannot be told {', '.join(lost)} of {name}"


def _params(policy: Policy, scenario: str) -> list[str]:
    names = [
        entry.name
        for mode in (None, False, True)
        for entry in policy.presets[scenario, mode]
        if not (entry.rule and entry.rule.strip)
    ]
    return list(dict.fromkeys(names))


def _says(dialect: Dialect, param: str) -> bool:
    if param.startswith("extra."):
        return dialect.allowed is None or param.removeprefix("extra.") in dialect.allowed
    return param in dialect.places or param in dialect.quiet
