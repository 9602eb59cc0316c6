"""What requests would be served by, built without a network: nothing is connected to.

For `explain`, `eval` and the dashboard, which all decide by the code that serves.
"""

from __future__ import annotations

from pathlib import Path

from router import app as apps
from router import config as configs
from router import policy as policies
from router.config import Backend, Config
from router.ports import AnswerListener, Attempt
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


def live(config: Config, config_path: Path, *, dialect: str | None = None) -> Live:
    """What would serve under this configuration and the policy that it names.

    `dialect` is what a backend that says "auto" is taken for, since nobody is asked. Raises
    FileFault.
    """
    if dialect is not None:
        backends = tuple(
            backend.model_copy(update={"dialect": dialect})
            if backend.dialect == "auto"
            else backend
            for backend in config.backends
        )
        config = config.model_copy(update={"backends": backends})
    policy = policies.load(configs.policy_path(config_path, config), lightly=True)
    return apps.live_of(config, policy, apps.slots_of(config, Unconnected))
