"""What requests would be served by, built without a network, for `explain` and `eval`.

The configuration and the policy come from a command's flags; nothing is connected to.
"""

from __future__ import annotations

import argparse
import sys

from router import app as apps
from router import config as configs
from router import policy as policies
from router.commands import options
from router.config import Backend
from router.ports import AnswerListener, Attempt
from router.tomlfile import FileFault
from router.verdict import Live


class Unconnected:
    """A backend that is only talked about."""

    inflight = 0

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def send(
        self,
        head: bytes,
        body: bytes,
        method: bytes,
        listener: AnswerListener,
        *,
        fresh: bool = False,
        timeout_s: float | None = None,
    ) -> Attempt:
        raise RuntimeError("nothing is sent offline")


def add(parser: argparse.ArgumentParser, policy_help: str) -> None:
    options.add_config(parser)
    parser.add_argument("--policy", help=policy_help)


def live(args: argparse.Namespace, *, dialect: str | None = None) -> Live | None:
    """What would serve under these flags; None after telling what is wrong.

    `dialect` is what a backend that says "auto" is taken for, since nobody is asked.
    """
    config = options.load(args)
    if config is None:
        return None
    if dialect is not None:
        backends = tuple(
            backend.model_copy(update={"dialect": dialect})
            if backend.dialect == "auto"
            else backend
            for backend in config.backends
        )
        config = config.model_copy(update={"backends": backends})
    try:
        policy = policies.load(configs.policy_path(args.config, config), lightly=True)
        return apps.live_of(config, policy, apps.slots_of(config, Unconnected))
    except FileFault as fault:
        print(fault, file=sys.stderr)
        return None
