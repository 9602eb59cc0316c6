"""`check`: is this configuration, is its policy, sound, and which of its rules do nothing?

Faults make it fail; notes are worth a look.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from router import app as apps
from router import config as configs
from router import migration, policycheck, recordfiles, tomlfile
from router import policy as policies
from router.commands import offline, options
from router.config import Config
from router.migration import Kind
from router.offline import Unconnected
from router.policy import Policy
from router.policycheck import Finding
from router.tomlfile import FileFault


def add(parser: argparse.ArgumentParser) -> None:
    offline.add(parser, "check this policy file in place of the configured one")


def run(args: argparse.Namespace) -> int:
    config = options.load(args)
    if config is None:
        return 1
    path = configs.policy_path(args.config, config)
    policy = None
    found = [*_outdated("config", args.config), *_removals(config, args.config)]
    try:
        policy = policies.load(path)
        found += [
            *_outdated("policy", path),
            *_findings(policy, config),
            *_launches(policy, config, args.config),
        ]
    except FileFault as fault:
        file = None if fault.name == str(path) else fault.name
        found += [Finding("fault", mistake, file) for mistake in fault.mistakes]
    found.sort(key=lambda finding: finding.severity != "fault")
    is_sound = all(finding.severity == "note" for finding in found)
    if args.json:
        told = {
            "sound": is_sound,
            "policy": policy and policy.hash,
            "tests": len(policy.file.tests) if policy else 0,
            "findings": [finding.told() for finding in found],
        }
        print(json.dumps(told, indent=2, ensure_ascii=False))
        return 0 if is_sound else 1
    print(f"{args.config}: {len(config.backends)} backends")
    if policy is None:
        print(f"{path}: no policy")
    else:
        tests = f", {len(policy.file.tests)} tests" if policy.file.tests else ""
        print(f"{path}: policy {policy.hash}, scenarios {', '.join(policy.scenarios)}{tests}")
    for finding in found:
        print(finding)
    if is_sound:
        print("sound")
    return 0 if is_sound else 1


def _findings(policy: Policy, config: Config) -> list[Finding]:
    """All there is to say of the policy."""
    live = apps.live_of(config, policy, apps.slots_of(config, Unconnected))
    beside = {str(path): tomlfile.read(path) for path in policy.beside}
    return [*policycheck.broken(live), *policycheck.findings(policy, config.backends, beside)]


def _outdated(kind: Kind, path: Path) -> list[Finding]:
    """Whether a file is read as another schema than the one that it was written for."""
    text = tomlfile.read(path)
    told = migration.outdated(text, kind, str(path))
    if told is None:
        return []
    mistake = tomlfile.mistake(text, (migration.KEY,), told)
    return [Finding("note", mistake, str(path) if kind == "config" else None)]


def _removals(config: Config, path: Path) -> list[Finding]:
    """Records that a start would remove although nobody asked for it: 0.2 kept all for ever."""
    log = config.log
    if not log.enabled or not log.keep_days or "keep_days" in log.model_fields_set:
        return []
    before = time.time() - log.keep_days * 86_400
    try:
        kept = recordfiles.segments(configs.beside(path, log.dir))
    except OSError:  # not ours to read: nothing is known of it
        return []
    old = [found for found in kept if found.begins + recordfiles.HOUR_S < before]
    if not old:
        return []
    message = (
        f"left out, so {log.keep_days:g} days: {len(old)} files of the log in {log.dir} are older "
        "and are removed when the router runs; keep_days = 0 keeps all"
    )
    text = tomlfile.read(path)
    return [Finding("note", tomlfile.mistake(text, ("log", "keep_days"), message), str(path))]


def _launches(policy: Policy, config: Config, path: Path) -> list[Finding]:
    """What is to be said of the engines that `up` would start, on this machine."""
    models = {backend.launch.model for backend in config.backends if backend.launch is not None}
    if not models:
        return []
    from router.launch import find
    from router.policycheck import launches

    machine = {model: find.survey(model) for model in models}
    return launches.findings(config, policy, machine, tomlfile.read(path), str(path))
