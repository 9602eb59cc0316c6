"""Files read and checked in a process of their own, so that the one that serves stays small.

In: what reads them, and where. Out: what it gives, its FileFault included. Checking loads
pydantic, which never gives back what it took; here it ends with its process. Where no process can
be had, the file is read in this one: a bigger router is better than none.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import structlog

from router import config as configs
from router import keyfile
from router import policy as policies
from router.config import Config
from router.files import Signature, own_environment, signature_of
from router.policy import Policy
from router.tomlfile import FileFault

log = structlog.get_logger(__name__)

_TIMEOUT_S = 60.0

_Given = ParamSpec("_Given")
_Read = TypeVar("_Read")


class Deployment(NamedTuple):
    """A configuration, and the policy that it names or why there is no serving with it."""

    config: Config
    taken: Signature  # of the configuration's file, just before it was read
    policy: Policy | FileFault


def deployment(path: Path, flags: Mapping[tuple[str, ...], Any] | None = None) -> Deployment:
    """What a router starts with. Raises FileFault for the configuration."""
    taken = signature_of([path])
    config = configs.load(path, flags=flags)
    policy: Policy | FileFault
    try:
        if config.auth.has_keys:  # sound, or no worker would start
            keyfile.keyring(configs.keys_path(path, config), config.auth.keys_env, os.environ)
        policy = policies.load(configs.policy_path(path, config), lightly=True)
    except FileFault as fault:
        policy = fault
    return Deployment(config, taken, policy)


def elsewhere(read: Callable[_Given, _Read], *args: _Given.args, **kwargs: _Given.kwargs) -> _Read:
    """What `read` gives, a function of a module; it takes a while. Raises what it raises."""
    return begin(read, *args, **kwargs)()


def begin(
    read: Callable[_Given, _Read], *args: _Given.args, **kwargs: _Given.kwargs
) -> Callable[[], _Read]:
    """Have it read meanwhile; what is given here waits for it, and is to be called once."""
    try:
        reader = subprocess.Popen(
            [sys.executable, "-P", "-m", "router.reading"],
            env=own_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        log.warning("files are read by the router itself", reason=str(error))
        return lambda: read(*args, **kwargs)
    # By their names, so that the other process takes them from modules of its own.
    task = pickle.dumps((read, args, kwargs))

    def result() -> _Read:
        with reader:
            try:
                told, errors = reader.communicate(task, timeout=_TIMEOUT_S)
                if reader.returncode == 0:
                    answer = pickle.loads(told)
                    if isinstance(answer, FileFault):
                        raise answer
                    found: _Read = answer
                    return found
                lines = errors.decode("utf-8", "replace").strip().splitlines()
                reason = lines[-1] if lines else f"exit status {reader.returncode}"
            except (OSError, subprocess.SubprocessError) as error:
                reader.kill()
                reason = str(error)
        log.warning("files are read by the router itself", reason=reason)
        return read(*args, **kwargs)

    return result


def _answer() -> None:
    read, args, kwargs = pickle.load(sys.stdin.buffer)
    try:
        answer = read(*args, **kwargs)
    except FileFault as fault:
        answer = fault
    sys.stdout.buffer.write(pickle.dumps(answer))


if __name__ == "__main__":
    _answer()
