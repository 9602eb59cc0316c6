"""Watches the arms of experiments, and stops one that is worse than its rails by evidence.

In: records, off the path. Out: an arm whose sessions get control from then on, in this worker
at once and in the others of this host by a file (trialfiles.py). Nothing is undone by
itself: by command only, or when the experiment is another one.

The disk and the arithmetic are left to a thread; the loop counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import structlog

from router import evidence, trials
from router.evidence import ArmSums
from router.experiment import Experiment
from router.pipeline import Pipeline
from router.policy import Policy
from router.record import Record
from router.telemetry import Metrics
from router.trialfiles import Out, TrialFiles

log = structlog.get_logger(__name__)

LOOK_S = 0.5
#: what operators do by hand, where a rail's finding would stand
BY_HAND = "stopped by command"


class _Seen(NamedTuple):
    """What one look at the disk and the sums came to."""

    out: dict[Out, dict[str, Any]]
    begun: dict[str, float]
    merged: dict[str, dict[str, ArmSums]]  # by experiment, then by arm
    stopped: list[tuple[str, str, str]]  # experiment, arm, rail: by this look
    fault: str | None


class _Known(NamedTuple):
    """An experiment of the policy in force, whether or not it runs."""

    written: Experiment
    digest: str  # of what it compares


class Referee:
    """One worker's. `observe` is called for every finished request that is in an arm."""

    def __init__(self, pipeline: Pipeline, metrics: Metrics, files: TrialFiles) -> None:
        self._pipeline = pipeline
        self._metrics = metrics
        self._files = files
        self._policy: Policy | None = None
        self._known: dict[str, _Known] = {}
        self._own: dict[str, dict[str, ArmSums]] = {}  # by key, then by arm
        self._keys: dict[str, str] = {}  # experiment → key of what is counted now
        self._inherited: list[dict[str, Any]] | None = None
        self._begun: dict[str, float] = {}
        self._merged: dict[str, dict[str, ArmSums]] = {}
        self._out: dict[Out, dict[str, Any]] = {}
        self._in_force: frozenset[tuple[str, str]] | None = None  # None: not looked at yet
        self._is_dirty = False
        self._turn = asyncio.Lock()
        self.fault: str | None = None  # why the other workers cannot be told

    def observe(self, record: Record) -> None:
        """Count a request; its experiment may be another one by now."""
        labels = record.experiment or "", record.arm or "", record.outcome
        self._metrics.count("experiment_requests_total", *labels)
        if self._policy is None or record.policy != self._policy.hash:
            return
        arms = self._own.get(self._keys.get(record.experiment or "", ""))
        if arms is not None and record.arm in arms:
            arms[record.arm].add(record)
            self._is_dirty = True

    def pair(self, experiment: str, arm: str, ratio: float, session: str | None) -> None:
        """A request was asked in both: the tokens of this arm's answer through control's."""
        arms = self._own.get(self._keys.get(experiment, ""))
        if arms is not None and arm in arms:
            arms[arm].pair(ratio, session)
            self._is_dirty = True

    async def run(self) -> None:
        """Look around, twice a second, as long as there are experiments."""
        while True:
            if self._pipeline.live.policy.file.experiments or self._known:
                try:
                    await self.look()
                except Exception:  # requests go on without it
                    log.exception("experiments not looked at")
            await asyncio.sleep(LOOK_S)

    async def close(self) -> None:
        """Tell what was counted last."""
        if self._known:
            await self.look()

    async def look(self) -> None:
        """Tell what was counted, hear what others have, and stop what has to be stopped."""
        async with self._turn:
            self._follow()
            own = {key: _told(arms) for key, arms in self._own.items()}
            known, is_dirty = dict(self._known), self._is_dirty
            self._is_dirty = False
            seen = await asyncio.to_thread(self._look, known, own, is_dirty=is_dirty)
            self._take(seen)

    def _follow(self) -> None:
        """Count for the experiments of the policy in force; what is no longer in it is let go."""
        live = self._pipeline.live
        if live.policy is self._policy:
            return
        self._policy = policy = live.policy
        self._known = {
            name: _Known(written, trials.basis(written, policy))
            for name, written in policy.file.experiments.items()
        }
        self._keys = {
            name: key_of(name, known.digest, self._begun.get(name, 0.0))
            for name, known in self._known.items()
        }
        self._own = {
            key: self._own.get(key) or {arm: ArmSums() for arm in self._known[name].written.arms}
            for name, key in self._keys.items()
        }
        self._in_force = None

    # ------------------------------------------------------------------ in a thread

    def _look(
        self, known: Mapping[str, _Known], own: dict[str, dict[str, Any]], *, is_dirty: bool
    ) -> _Seen:
        files, fault = self._files, None
        begun = {name: files.begun(name, told.digest) for name, told in known.items()}
        keys = {name: key_of(name, told.digest, begun[name]) for name, told in known.items()}
        if self._inherited is None:
            self._inherited = [_sound(part, keys) for part in files.inherit()]
            is_dirty = is_dirty or bool(self._inherited)
        mine = _joined([own, *self._inherited])
        if is_dirty:
            fault = files.keep(mine)
        out = files.out()
        parts = [mine, *(_sound(part, keys) for part in files.others())]
        merged, stopped = {}, list[tuple[str, str, str]]()
        for name, (written, _) in known.items():
            told = [part[keys[name]] for part in parts if keys[name] in part]
            merged[name] = arms = evidence.merged(told, list(written.arms))
            if written.is_running:
                self._judge(name, written, arms, out, stopped)
        return _Seen(out, begun, merged, stopped, fault)

    def _judge(
        self,
        name: str,
        written: Experiment,
        arms: Mapping[str, ArmSums],
        out: dict[Out, dict[str, Any]],
        stopped: list[tuple[str, str, str]],
    ) -> None:
        """Put out the arms that are over a rail, and add them to `out` and `stopped`."""
        for arm in written.arms:
            key = (name, arm, written.digest)
            if arm == written.control or key in out:
                continue
            breach = evidence.breach(
                written.guard, arms[written.control], arms[arm], others=len(written.arms) - 1
            )
            if breach is None:
                continue
            fault = self._files.stop(key, str(breach))
            out[key] = self._files.out().get(key, {})
            stopped.append((name, arm, breach.rail))
            log.warning(
                "an arm is worse than its rail: its sessions get control",
                experiment=name,
                arm=arm,
                because=str(breach),
                told_to_others=fault is None,
            )

    # ------------------------------------------------------------------ on the loop

    def _take(self, seen: _Seen) -> None:
        for labels in seen.stopped:
            self._metrics.count("experiment_stops_total", *labels)
        if seen.fault is not None and seen.fault != self.fault:
            log.error("what experiments have seen cannot be kept", reason=seen.fault)
        self.fault = seen.fault
        self._out, self._merged = seen.out, seen.merged
        if seen.begun != self._begun:
            self._begun = seen.begun
            self._policy = None  # counted anew
            self._follow()
        live = self._pipeline.live
        if live.trials is None or self._policy is not live.policy:
            return  # another policy came meanwhile; it has its own look
        out = out_of(live.policy, seen.out)
        if out != self._in_force:
            self._in_force = out
            self._pipeline.live = msgspec.structs.replace(
                live, trials=trials.changed(live.trials, out)
            )

    # ------------------------------------------------------------------ for operators

    def stopped(self) -> frozenset[tuple[str, str]]:
        """(experiment, arm) of those that are out just now."""
        return self._in_force or frozenset()

    async def status(self) -> list[dict[str, Any]]:
        """Every experiment of the policy in force, as it stands."""
        if not self._pipeline.live.policy.file.experiments:
            return []
        self._pipeline.settle()
        await self.look()
        found = []
        for name, written in self._pipeline.live.policy.file.experiments.items():
            arms = self._merged.get(name) or {arm: ArmSums() for arm in written.arms}
            found.append(describe(name, written, arms, self._out))
        return found

    async def stop(self, experiment: str, arm: str | None) -> str | None:
        """Put an arm out, or all but control; the reason where others cannot be told.

        Raises KeyError where there is no such experiment, arm, or arm but control.
        """
        faults = [
            self._files.stop(out, BY_HAND)
            for out in self._named(experiment, arm)
            if out not in self._out
        ]
        await self.look()
        return next(filter(None, faults), None)

    async def start(self, experiment: str, arm: str | None) -> str | None:
        """Take an arm, or all, in again, and count anew from now on. Likewise."""
        self._pipeline.settle()
        faults = [self._files.start(out) for out in self._named(experiment, arm)]
        if (known := self._known.get(experiment)) is not None:
            faults.append(self._files.begin_anew(experiment, known.digest))
        await self.look()
        return next(filter(None, faults), None)

    def _named(self, experiment: str, arm: str | None) -> list[Out]:
        written = self._pipeline.live.policy.file.experiments[experiment]
        names = [name for name in written.arms if name != written.control and arm in (None, name)]
        if not names:
            raise KeyError(arm)
        return [(experiment, name, written.digest) for name in names]


def key_of(experiment: str, digest: str, begun: float) -> str:
    """What is counted is kept under it: another comparison is counted apart."""
    return f"{experiment}.{digest}.{begun}"


def describe(
    name: str,
    written: Experiment,
    arms: Mapping[str, ArmSums],
    out: Mapping[Out, Mapping[str, Any]],
) -> dict[str, Any]:
    """An experiment as operators are told of it."""
    gone = {
        arm: told
        for (experiment, arm, digest), told in out.items()
        if (experiment, digest) == (name, written.digest)
    }
    return {
        "experiment": name,
        "title": written.title,
        "state": written.state,
        "scenarios": list(written.scenarios),
        "share": written.share,
        "goal": written.goal,
        "arms": evidence.told(written, arms, gone),
    }


def out_of(policy: Policy, out: Mapping[Out, Any]) -> frozenset[tuple[str, str]]:
    """(experiment, arm) of those that are out under this policy."""
    digests = {name: written.digest for name, written in policy.file.experiments.items()}
    return frozenset((name, arm) for name, arm, digest in out if digests.get(name) == digest)


def _told(arms: Mapping[str, ArmSums]) -> dict[str, Any]:
    return {name: sums.told() for name, sums in arms.items()}


def _sound(part: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """What of a worker's sums is asked about and can be read."""
    return {key: part[key] for key in keys.values() if key in part and evidence.is_sound(part[key])}


def _joined(parts: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """What several workers have counted, as one of them would tell it."""
    found: dict[str, dict[str, Any]] = {}
    for key in dict.fromkeys(key for part in parts for key in part):
        names = list(dict.fromkeys(arm for part in parts for arm in part.get(key, ())))
        merged = evidence.merged([part[key] for part in parts if key in part], names)
        found[key] = _told(merged)
    return found
