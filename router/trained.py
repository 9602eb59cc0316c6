"""The weights of a policy's learned stage: from the cache, or fitted now.

In: a policy. Out: its weights. Fitting takes a second or two of processor time and numpy,
so it happens in a process of its own, and what it finds is kept in a file named after all
that it depends on: the next start, and every other worker, reads that.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from router import lesson
from router.classify.weights import FORMAT, Weights
from router.files import own_environment, write_whole
from router.lesson import Answer
from router.policy import Policy
from router.tomlfile import FileFault, Mistake

_TIMEOUT_S = 120.0
_KEPT_FILES = 40

_kept = msgspec.msgpack.Decoder(Weights | None).decode
_answer = msgspec.msgpack.Decoder(Answer).decode


class FitFailed(Exception):
    """The examples could not be learned from; why, in words."""


def weights(policy: Policy, kept_in: Path | None = None) -> Weights | None:
    """The weights for a policy; None where it has too few examples.

    `kept_in` takes the place of the cache, for weights that are only tried.
    Raises FitFailed, and FileFault for a file with examples that is wrong.
    """
    if not lesson.has_examples(policy):
        return None
    place = (kept_in or folder()) / _name(lesson.digest(policy))
    with suppress(OSError, msgspec.DecodeError):  # not there, or cut short: made again
        found = _kept(place.read_bytes())
        if found is None or found.format == FORMAT:
            return found
    answer = _fitted(lesson.task(policy))
    if answer.mistakes:
        raise FileFault(answer.faulty, [Mistake(*mistake) for mistake in answer.mistakes])
    made = msgspec.msgpack.encode(answer.weights)
    _keep(place.parent, {place.name, _name(answer.known_as)}, made)
    return answer.weights


def is_prepared(policy: Policy) -> bool:
    """Whether the weights can be had at once, or there are none to have."""
    return not lesson.has_examples(policy) or (folder() / _name(lesson.digest(policy))).exists()


def prepare(policy: Policy) -> None:
    """Have the weights in the cache, so that whoever asks next need not wait. Raises FileFault."""
    with suppress(FitFailed):  # who needs the weights will say so
        weights(policy)


def folder() -> Path:
    """Where weights are kept: `SCENARIO_ROUTER_CACHE`, else the user's cache."""
    given = os.environ.get("SCENARIO_ROUTER_CACHE")
    if given:
        return Path(given)
    user = os.environ.get("XDG_CACHE_HOME")
    return (Path(user) if user else Path.home() / ".cache") / "scenario-router"


def _name(digest: str) -> str:
    return f"{digest}.weights"


def _fitted(task: bytes) -> Answer:
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "router.fit"],
            env=own_environment(),
            input=task,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        if done.returncode == 0:
            return _answer(done.stdout)
    except (OSError, subprocess.SubprocessError, msgspec.DecodeError) as error:
        raise FitFailed(f"learning from the examples failed: {error}") from None
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    raise FitFailed(f"learning from the examples failed: {lines[-1] if lines else 'killed'}")


def _keep(kept_in: Path, names: set[str], made: bytes) -> None:
    """Put the weights in the cache, whole or not at all; without one, the next start fits again."""
    with suppress(OSError):
        for name in names:
            write_whole(kept_in / name, made)
        old = sorted(kept_in.glob("*.weights"), key=lambda found: found.stat().st_mtime)
        for outdated in old[:-_KEPT_FILES]:
            outdated.unlink()
