"""Which arm of an experiment a session is in: drawn without memory, the same everywhere.

In: a policy; then a session. Out: an arm, or none. Pure: the draw is a hash of the
experiment's name, its salt and the session, so all workers and routers agree on it.

A session falls into one of 2¹⁴ places by that hash. Who owns a place is settled when the
policy is loaded, by weighted rendezvous hashing: an arm that is added takes places from
the others in proportion and moves nobody between them. Whether a session takes part at
all comes from other bits of the same hash: a greater share keeps who was in, in their arm.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from functools import lru_cache
from hashlib import blake2b
from math import inf, log
from typing import Any

import msgspec

from router.experiment import Experiment
from router.policy import Policy, PresetRule, is_personal, preset_rules

PLACES = 1 << 14
_PER_HASH = 8  # places whose number comes out of one digest
_numbers = struct.Struct("<8Q").unpack
_two = struct.Struct("<II").unpack


class ArmInForce(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One arm as it serves: the policy with its preset in it."""

    experiment: str
    name: str
    policy: Policy
    header: bytes  # the line that a reply carries
    plans: dict[Any, Any]  # remembered decisions, as those of the policy itself are


class Trial(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """An experiment as it serves."""

    name: str
    digest: str  # of the experiment and of what its scenarios get without it
    written: Experiment
    arms: Mapping[str, ArmInForce]
    control: str
    key: bytes  # of the hash
    limit: int  # numbers below it, of 2³², take part
    owners: tuple[str, ...]  # the arm that drew each place
    places: tuple[ArmInForce, ...]  # the arm that serves it

    def arm(self, unit: str) -> ArmInForce | None:
        """The arm of a session (by its hash) or, without one, of a request (by its id)."""
        digest = blake2b(unit.encode(), digest_size=8, key=self.key).digest()
        lot, place = _two(digest)
        return self.places[place % PLACES] if lot < self.limit else None

    def drawn(self, unit: str) -> str:
        """The arm that it drew, in force or out."""
        digest = blake2b(unit.encode(), digest_size=8, key=self.key).digest()
        place: int = _two(digest)[1] % PLACES
        return self.owners[place]


#: by scenario
Trials = Mapping[str, Trial]


def of(policy: Policy, out: Collection[tuple[str, str]] = ()) -> Trials | None:
    """The experiments that run, by scenario; None where there are none.

    `out`: (experiment, arm) of those that were stopped: their sessions get control.
    """
    found = {}
    for name, written in policy.file.experiments.items():
        if written.is_running:
            trial = _trial(name, written, policy)
            found.update(dict.fromkeys(written.scenarios, without(trial, out)))
    return found or None


def without(trial: Trial, out: Collection[tuple[str, str]]) -> Trial:
    """The same with these arms' sessions in control."""
    gone = {arm for experiment, arm in out if experiment == trial.name}
    serving = {
        name: trial.arms[trial.control] if name in gone else arm for name, arm in trial.arms.items()
    }
    return msgspec.structs.replace(trial, places=tuple(serving[owner] for owner in trial.owners))


def changed(trials: Trials, out: Collection[tuple[str, str]]) -> Trials:
    """The same experiments, with these arms out."""
    anew = {trial.name: without(trial, out) for trial in trials.values()}
    return {scenario: anew[trial.name] for scenario, trial in trials.items()}


def variant(policy: Policy, written: Experiment, arm: str) -> Policy:
    """The policy as an arm has it: its rules in place of the scenarios' own."""
    told = written.arms[arm]
    if told.is_plain:
        return policy
    presets = dict(policy.presets)
    for scenario in written.scenarios:
        presets |= preset_rules(policy.file, scenario, told)
    personal = (policy.personal - set(written.scenarios)) | {
        scenario
        for scenario in written.scenarios
        if any(
            is_personal(entry) for mode in (None, False, True) for entry in presets[scenario, mode]
        )
    }
    return msgspec.structs.replace(policy, presets=presets, personal=frozenset(personal))


def _trial(name: str, written: Experiment, policy: Policy) -> Trial:
    arms = {
        arm: ArmInForce(
            experiment=name,
            name=arm,
            policy=variant(policy, written, arm),
            header=f"x-router-experiment: {name}/{arm}".encode(),
            plans={},
        )
        for arm in written.arms
    }
    return Trial(
        name=name,
        digest=basis(written, policy),
        written=written,
        arms=arms,
        control=written.control,
        key=_key(name, written.salt),
        limit=round(written.share * 2**32),
        owners=_owners(
            name,
            written.salt,
            tuple((arm, told.weight) for arm, told in written.arms.items() if told.weight),
        ),
        places=(),
    )


def _key(name: str, salt: str) -> bytes:
    return blake2b(f"{name}\0{salt}".encode(), digest_size=32).digest()


def basis(written: Experiment, policy: Policy) -> str:
    """What is compared, as 12 hex digits: the arms, and what they depart from."""
    presets: list[tuple[PresetRule, ...]] = [
        policy.presets[scenario, mode]
        for scenario in written.scenarios
        for mode in (None, False, True)
    ]
    told = written.digest.encode() + msgspec.json.encode(presets)
    return blake2b(told, digest_size=6).hexdigest()


@lru_cache(maxsize=16)  # tens of milliseconds, and most reloads change something else
def _owners(name: str, salt: str, weights: tuple[tuple[str, float], ...]) -> tuple[str, ...]:
    """The arm that has each place: the one whose lot, at its weight, is the best."""
    best = [inf] * PLACES
    owners = [""] * PLACES
    for arm, weight in weights:
        key = _key(f"{name}\0{arm}", salt)
        for block in range(PLACES // _PER_HASH):
            digest = blake2b(block.to_bytes(4, "little"), key=key).digest()
            for at, number in enumerate(_numbers(digest), start=block * _PER_HASH):
                # Exponential lots: the smallest is each arm's as often as its weight says.
                lot = -log((number + 1) / 2**64) / weight
                if lot < best[at]:
                    best[at], owners[at] = lot, arm
    return tuple(owners)
