"""`check`: is this configuration, is its policy, sound, and which of its rules do nothing?

Faults make it fail; notes are worth a look.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
from pathlib import Path

from router import app as apps
from router import config as configs
from router import keyfile, policycheck, tls, tomlfile
from router import policy as policies
from router.commands import left, offline, options
from router.config import Config
from router.offline import Unconnected
from router.policy import Policy
from router.policycheck import Finding
from router.tomlfile import FileFault, Mistake


def add(parser: argparse.ArgumentParser) -> None:
    offline.add(parser, "check this policy file in place of the configured one")


def run(args: argparse.Namespace) -> int:
    config = options.load(args)
    if config is None:
        return 1
    path = configs.policy_path(args.config, config)
    policy = None
    found = left.findings(config, args.config)
    try:
        policy = policies.load(path)
        found += [
            *left.outdated("policy", path),
            *_findings(policy, config),
            *_launches(policy, config, args.config),
            *_keys(policy, config, args.config),
            *_certificates(config, args.config),
        ]
    except FileFault as fault:
        file = None if fault.name == str(path) else fault.name
        found += [Finding("fault", mistake, file) for mistake in fault.mistakes]
    if not config.server.insecure:
        exposed = configs.exposed(config)
        found += [Finding("fault", mistake, str(args.config)) for mistake in exposed]
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


def _keys(policy: Policy, config: Config, path: Path) -> list[Finding]:
    """What is to be said of the clients' keys. Raises FileFault."""
    keyring = apps.keyring_of(config, path)
    file = configs.keys_path(path, config)
    found = []
    if file is not None:
        text = tomlfile.read(file)
        pools = {backend.pool for backend in config.backends}
        mistakes = keyfile.findings(
            keyfile.parse(text, str(file)), text, policy.scenarios, sorted(pools)
        )
        found += [Finding("fault", mistake, str(file)) for mistake in mistakes]
    admin = config.server.admin_key_env
    if keyring is not None and admin is not None and keyring.knows(os.environ[admin].encode()):
        text = "the same key opens both: whoever asks a model may also change the router"
        found.append(Finding("fault", Mistake("server.admin_key_env", None, text), str(path)))
    return found


def _certificates(config: Config, path: Path) -> list[Finding]:
    """Certificates that cannot be used, or not for long."""
    contexts = tls.Contexts(path)
    found = []
    wanted = [functools.partial(contexts.for_edge, config.server)]
    for load in (*wanted, *(functools.partial(contexts.for_backend, b) for b in config.backends)):
        try:
            load()
        except FileFault as fault:
            found += [Finding("fault", mistake, fault.name) for mistake in fault.mistakes]
    if not found and (remark := tls.remark(config.server, path)) is not None:
        is_fault, text = remark
        mistake = Mistake("server.tls_cert", None, text)
        found.append(Finding("fault" if is_fault else "note", mistake, str(path)))
    return found


def _launches(policy: Policy, config: Config, path: Path) -> list[Finding]:
    """What is to be said of the engines that `up` would start, on this machine."""
    models = {backend.launch.model for backend in config.backends if backend.launch is not None}
    if not models:
        return []
    from router.launch import find
    from router.policycheck import launches

    machine = {model: find.survey(model) for model in models}
    return launches.findings(config, policy, machine, tomlfile.read(path), str(path))
