"""What a client's key may get of a policy and of the pools. Pure.

In: a grant, and what is asked for. Out: the scenarios to decide among, or a refusal that says
what is allowed. Who has no grant, or one without limits, never comes here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from router.chat import Endpoint
from router.errors import PoolNotAllowed, RouterError, ScenarioNotAllowed
from router.keyring import Grant
from router.policy import Policy


def scenarios(grant: Grant, policy: Policy) -> tuple[str, ...]:
    """Those that the key may get, in its own order, which may end in its fallback.

    A scenario whose pool is closed to the key is closed, too. Raises ScenarioNotAllowed or
    PoolNotAllowed where none is left.
    """
    named = grant.scenarios if grant.scenarios is not None else tuple(policy.scenarios)
    there = [name for name in named if name in policy.scenarios]
    if not there:
        raise ScenarioNotAllowed(
            f"This key is for {_list(named)}, and the router has none of these scenarios now."
        )
    reached = [name for name in there if may_reach(grant, policy.scenarios[name].pool)]
    if not reached:
        raise PoolNotAllowed(
            f"This key is for the pools {_list(sorted(grant.pools or ()))}, and none of its "
            "scenarios is served by them."
        )
    return tuple(reached)


def refusal(grant: Grant, asked: str, policy: Policy, allowed: Iterable[str]) -> RouterError:
    """Why a scenario that was asked for by name is not given."""
    scenario = policy.scenarios[asked]
    if grant.scenarios is not None and asked not in grant.scenarios:
        return ScenarioNotAllowed(
            f"This key may not use the scenario {asked!r}. It may use: {_list(allowed)}.",
            param="model",
        )
    return PoolNotAllowed(
        f"The scenario {asked!r} is served by the pool {scenario.pool!r}, which this key may not "
        f"use. Scenarios that it may use: {_list(allowed)}.",
        param="model",
    )


def check_unclassified(grant: Grant, endpoint: Endpoint, path: bytes) -> None:
    """Raise ScenarioNotAllowed for what goes on untouched, if the key is for scenarios alone."""
    if grant.scenarios is None:
        return
    what = "x-router-policy: off"
    if endpoint is Endpoint.OTHER:
        what = path.partition(b"?")[0].decode("latin-1")
    raise ScenarioNotAllowed(
        f"This key is for the scenarios {_list(grant.scenarios)}; {what} is none of them."
    )


def may_reach(grant: Grant | None, pool: str) -> bool:
    return grant is None or grant.pools is None or pool in grant.pools


def default_pool(grant: Grant | None, pools: Mapping[str, object]) -> str:
    """The pool for what no scenario is decided for. Raises PoolNotAllowed."""
    usual = "default"
    if usual not in pools and pools:
        usual = next(iter(pools))
    if grant is None or grant.pools is None or usual in grant.pools:
        return usual
    for pool in pools:
        if pool in grant.pools:
            return pool
    raise PoolNotAllowed(
        f"This key is for the pools {_list(sorted(grant.pools))}, and none of them has a backend."
    )


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
