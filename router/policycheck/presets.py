"""Rules that no backend hears, that cut what must stay whole, or that undo each other.

In: a policy and the backends it is for. Out: findings. What a preset comes to is asked
of `decide.preset`, which serves; only what dialects can say is looked up in their tables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from router import decide, dialects, parse, tomlfile, trials
from router.chat import Classification, Decision, Endpoint, ParamDecision
from router.config import Backend
from router.dialects import Dialect
from router.dialects.spoken import UNSAYABLE
from router.experiment import TABLES, Arm
from router.policy import Policy, Rule, missing_pools, rules
from router.policycheck.finding import Finding, fault, note
from router.tomlfile import Key

_AUTO = "auto"
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
#: by guard: what a request holds that it protects, and what a limit would cut
_PROTECTED: dict[str, tuple[dict[str, Any], str]] = {
    "structured_output": ({"response_format": {"type": "json_object"}}, "JSON"),
    "tools": ({"tools": [_TOOL]}, "a tool call"),
}
_CARD = 'the model card of Qwen3 says "DO NOT use greedy decoding" for it, as it loops'


def findings(policy: Policy, backends: Sequence[Backend]) -> Iterator[Finding]:
    yield from without_backend(policy, {backend.pool for backend in backends})
    yield from _unheard(policy, backends)
    seen: set[tuple[Key, str]] = set()  # an arm has most of what its scenario has
    for side in _sides(policy):
        for check in (_cutting, _greedy, _lifted):
            for key, message in check(side):
                if (key, check.__name__) not in seen:
                    seen.add((key, check.__name__))
                    yield note(policy, key, side.prefix + message)
    yield from _never_thinking(policy)


# --- backends -------------------------------------------------------------------------------


def without_backend(policy: Policy, there: Collection[str]) -> Iterator[Finding]:
    """Scenarios whose pool is none of those that are there."""
    for name, text in missing_pools(policy, there).items():
        message = f"{text}; there are {', '.join(sorted(there))}"
        yield fault(policy, ("scenarios", name, "pool"), message)


class _Written(NamedTuple):
    """A rule where it is written, and the pools that it is meant for."""

    key: Key
    name: str
    rule: Rule
    pools: tuple[str, ...]


def _written(policy: Policy) -> Iterator[_Written]:
    defaults = policy.file.defaults
    everywhere = tuple(dict.fromkeys(entry.pool for entry in policy.scenarios.values()))
    for mode, table in (("direct", defaults.direct), ("thinking", defaults.thinking)):
        for name, rule in rules(table, bare="fill").items():
            yield _Written(("defaults", mode, *name.split(".", 1)), name, rule, everywhere)
    for scenario_id, scenario in policy.scenarios.items():
        for mode in ("preset", "direct", "thinking"):
            for name, rule in rules(getattr(scenario, mode)).items():
                key = ("scenarios", scenario_id, mode, *name.split(".", 1))
                yield _Written(key, name, rule, (scenario.pool,))
    for experiment_id, experiment in policy.file.experiments.items():
        pools = tuple(dict.fromkeys(policy.scenarios[id_].pool for id_ in experiment.scenarios))
        for arm_id, arm in experiment.arms.items():
            for mode in TABLES:
                for name, rule in rules(getattr(arm, mode)).items():
                    key = ("experiments", experiment_id, "arms", arm_id, mode, *name.split(".", 1))
                    yield _Written(key, name, rule, pools)


def _unheard(policy: Policy, backends: Sequence[Backend]) -> Iterator[Finding]:
    """Parameters that a backend of their pool ignores or refuses, with the rules for them.

    A backend that is still to be asked what it is may hear anything.
    """
    places: dict[str, list[Key]] = defaultdict(list)
    for key, name, rule, pools in _written(policy):
        if rule.strip:
            continue
        for pool in pools:
            if message := _deaf(name, rule, pool, [b for b in backends if b.pool == pool]):
                places[message].append(key)
    for message, keys in places.items():
        (_, key), *more = sorted((tomlfile.line_of(policy.text, key) or 0, key) for key in keys)
        lines = ", ".join(str(line) for line, _ in more)
        also = f" (likewise line{'s'[: len(more) - 1]} {lines})" if more else ""
        yield note(policy, key, message + also)


def _deaf(name: str, rule: Rule, pool: str, members: Sequence[Backend]) -> str | None:
    deaf = [backend for backend in members if not _hears(backend, name, rule)]
    if not deaf:
        return None
    told = ", ".join(f"{b.name} ({dialects.of(b.dialect).title})" for b in deaf)
    if len(deaf) == len(members):
        return (
            f"no backend of the pool {pool!r} can be told {name}, so this rule does nothing: {told}"
        )
    return (
        f"{told} cannot be told {name} and others of the pool {pool!r} may: what a request gets "
        "depends on the backend it meets"
    )


def _hears(backend: Backend, name: str, rule: Rule) -> bool:
    if backend.dialect == "auto" or name in dialects.OURS:
        return True
    dialect = dialects.of(backend.dialect)
    if name.startswith("extra."):
        return dialect.allowed is None or name.removeprefix("extra.") in dialect.allowed
    return name in dialect.quiet or _can_say(dialect, name, rule)


def _can_say(dialect: Dialect, name: str, rule: Rule) -> bool:
    place = dialect.places.get(name)
    if place is None:
        return False
    values = [value for value in (rule.force, rule.fill) if value is not None and value != _AUTO]
    return not values or any(place.say(value) is not UNSAYABLE for value in values)


# --- what a preset comes to ------------------------------------------------------------------


class _Side(NamedTuple):
    """A policy as some requests get it: as it stands, or in one arm of an experiment."""

    policy: Policy
    scenarios: tuple[str, ...]
    prefix: str = ""
    arm: Arm = Arm()
    at: Key = ()  # of the arm


def _sides(policy: Policy) -> Iterator[_Side]:
    yield _Side(policy, tuple(policy.scenarios))
    for name, written in policy.file.experiments.items():
        for arm, told in written.arms.items():
            if written.is_running and not told.is_plain:
                variant = trials.variant(policy, written, arm)
                at: Key = ("experiments", name, "arms", arm)
                yield _Side(variant, written.scenarios, f"in the arm {name}/{arm}: ", told, at)


def _decision(policy: Policy, scenario: str, **members: Any) -> Decision:
    """What a request for this scenario would get, one for which thinking pays."""
    body = {"messages": [{"role": "user", "content": "?"}], **members}
    request = parse.chat_request(Endpoint.CHAT, msgspec.json.encode(body), {})
    found = Classification(scenario, "header", 1.0, (), "other", 1, wants_thought=True)
    return decide.preset(request, found, policy)


def _param(decision: Decision, name: str) -> ParamDecision | None:
    return next((param for param in decision.params if param.name == name), None)


def _key_of(side: _Side, scenario: str, param: str, origin: str) -> Key:
    """Where the rule is written that a parameter's value came from, of a request that thinks."""
    own = side.policy.scenarios[scenario]
    if origin != "defaults":
        for at, tables in ((side.at, side.arm), (("scenarios", scenario), own)):
            for table in ("thinking", "preset"):
                if param in getattr(tables, table):
                    return *at, table, param
    return "defaults", "thinking", param


_Told = Iterator[tuple[Key, str]]


def _cutting(side: _Side) -> _Told:
    """Limits on requests that a switched-off guard would have lifted."""
    for name in side.scenarios:
        scenario = side.policy.scenarios[name]
        for guard, (members, what) in _PROTECTED.items():
            if getattr(scenario.guard, guard):
                continue
            limit = _param(_decision(side.policy, name, **members), "max_new_tokens")
            if limit is not None:
                yield (
                    ("scenarios", name, "guard", guard),
                    f"with this guard off, {what} longer than max_new_tokens = {limit.value} "
                    f"arrives cut ({limit.origin}): switch it on, or raise the limit",
                )


def _greedy(side: _Side) -> _Told:
    """Thinking that would always take the likeliest token."""
    for name in side.scenarios:
        decision = _decision(side.policy, name, enable_thinking=True)
        if not decision.thinking:
            continue
        for param, greedy in (("temperature", 0), ("top_k", 1)):
            decided = _param(decision, param)
            if decided is None or decided.value != greedy:
                continue
            message = (
                f"with thinking on {param} comes to {greedy}: {_CARD}; give [defaults.thinking] or "
                f"[scenarios.{name}.thinking] another value or a floor"
            )
            yield _key_of(side, name, param, decided.origin), message


def _lifted(side: _Side) -> _Told:
    """Caps of scenarios that think by themselves, with no budget for the thought."""
    for name in side.scenarios:
        decision = _decision(side.policy, name)
        if not decision.thinking or _param(decision, "max_new_tokens") is not None:
            continue
        presets = side.policy.presets[name, True]
        limited = (entry for entry in presets if entry.name == "max_new_tokens")
        for entry in limited:
            rule, origin = (entry.rule, "") if entry.rule else (entry.default, "defaults")
            if rule is None or rule.strip or rule == Rule():
                continue
            message = (
                f"this limit is lifted whenever {name} thinks, or the thought would eat the "
                "answer: give it a thinking_budget, which is added to the limit"
            )
            yield _key_of(side, name, "max_new_tokens", origin), message


def _never_thinking(policy: Policy) -> Iterator[Finding]:
    """`thinking = "auto"` where nothing says what thinking is good for."""
    words = policy.file.thinking
    is_marked = any(examples.thinking for examples in policy.file.examples.values())
    if words.keywords or words.patterns or is_marked:
        return
    for name in policy.scenarios:
        rule = policy.thinking_rule(name)
        if rule is not None and _AUTO in (rule.force, rule.fill):
            message = (
                '"auto" comes to no thinking ever: give [thinking] keywords or patterns, or mark '
                f"examples in [examples.{name}] thinking"
            )
            yield note(policy, ("scenarios", name, "preset", "thinking"), message)
