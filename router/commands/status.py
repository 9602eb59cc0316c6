"""`status`: how a running router is."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from router.commands import remote


def add(parser: argparse.ArgumentParser) -> None:
    remote.add(parser)


def run(args: argparse.Namespace) -> int:
    from router.report_text import plain  # what backends say of themselves is shown

    asked = remote.ask(args, "GET", "/router/status")
    if asked is None:
        return 1
    code, status = asked
    if args.json or code != 200:
        print(json.dumps(status, indent=2, ensure_ascii=False))
        return 0 if code == 200 and status["ready"] else 1
    print(f"scenario-router {status['version']}, up {status['uptime_s']:.0f} s")
    if len(status["workers"]) > 1:
        shares = ", ".join(f"{one['pid']} has {one['inflight']}" for one in status["workers"])
        print(f"{len(status['workers'])} workers, {status['inflight']} requests: {shares}")
    print(f"{'ready' if status['ready'] else 'not ready: ' + status['reason']}")
    print(f"policy {status['policy']['hash']} ({status['policy']['file']})")
    learned = status["policy"]["learned"]
    if learned is None:
        print("  nothing learned: requests are told apart by words and shapes alone")
    else:
        print(
            f"  learned from examples; of {learned['examples']:.0f} left out, "
            f"{learned['accuracy']:.0%} are told right"
        )
    if status["policy"]["last_error"]:
        print(f"  last change refused: {status['policy']['last_error']}")
    _tell_config(status["config"])
    if (keys := status.get("keys")) is not None:
        print(f"keys: {keys['count']} clients have one")
        if keys["last_error"]:
            print(f"  last change refused: {keys['last_error']}")
    for key, told in status["rates"]["keys"].items():
        if (spent := _at_its_limit(told)) is not None:
            print(f"  {key} has used up its {spent}")
    if status["rates"]["last_fault"] and not status["rates"]["is_ok"]:
        print(f"limits of keys are not shared: {status['rates']['last_fault']}")
    if status.get("tls"):  # a router of before knows nothing of it
        _tell_tls(status["tls"])
    for backend in status["backends"]:
        state = "up" if backend["up"] else f"down ({plain(backend['reason'])})"
        if backend["draining"]:
            state += ", drained"
        print(
            f"{backend['name']}: {state}, {plain(str(backend['label'] or backend['model']))}, "
            f"{backend['dialect']}, {backend['inflight']} of {backend['max_inflight']} in flight"
        )
        if backend["warm_up"]:
            cold, warm = backend["warm_up"]["cold"], backend["warm_up"]["warm"]
            print(f"  warmed up: first token after {cold:.0f} ms cold, {warm:.0f} ms warm")
    for experiment in status["experiments"]:
        gone = [arm["arm"] for arm in experiment["arms"] if arm["state"] == "stopped"]
        told = f", stopped: {', '.join(gone)}" if gone else ""
        print(f"experiment {experiment['experiment']}: {experiment['state']}{told}")
    log = status["log"]
    print(
        f"log: {log['written']} written, {log['dropped']} lost"
        + (f" ({log['fault']})" if log["fault"] else "")
    )
    if bodies := log["bodies"]:
        print(
            f"bodies: {bodies['written']} written, {bodies['dropped']} lost"
            + (f" ({bodies['fault']})" if bodies["fault"] else "")
        )
    if log["kept"] and log["kept"]["fault"]:
        print(f"log folder: cannot be tidied ({log['kept']['fault']})")
    return 0 if status["ready"] else 1


def _at_its_limit(told: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The limit that a key is at just now."""
    for name, one in told.items():
        if one["limit"] is not None and (
            one.get("left") == 0 or one.get("used", 0) >= one["limit"]
        ):
            return name
    return None


def _tell_tls(told: Mapping[str, Any]) -> None:
    edge = told["edge"]
    if edge is not None and edge["fault"]:
        print(f"certificate: {edge['fault']}")
    elif edge is not None:
        ends = datetime.fromtimestamp(edge["ends_at"], UTC)
        asks = ", clients must show one" if edge["asks_clients"] else ""
        print(f"certificate: for {', '.join(edge['names'])} until {ends:%Y-%m-%d}{asks}")
    if told["last_error"]:
        print(f"certificates: last change refused: {told['last_error']}")


def _tell_config(config: Mapping[str, Any]) -> None:
    """Only where the file is not what is in force."""
    if config["last_error"]:
        print(f"configuration: last change refused: {config['last_error']}")
    if config["waiting"]:
        print(f"configuration: these wait for a restart: {', '.join(config['waiting'])}")
