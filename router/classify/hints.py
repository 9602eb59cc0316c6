"""A scenario that the client names itself: by header, or in the model's name."""

from __future__ import annotations

from collections.abc import Collection

from router.errors import InvalidValue, ModelNotFound
from router.policy import Policy

PREFIX = "auto:"


def named(
    model: str, header: str, policy: Policy, told: Collection[str]
) -> tuple[str, str, str] | None:
    """(scenario, source, signal), or None where the client named none.

    `told`: the scenarios that a client who names none of ours is told of.
    """
    if header:
        if header not in policy.scenarios:
            raise InvalidValue(
                f"x-router-scenario names {header!r}; this router knows {', '.join(told)}.",
                param="x-router-scenario",
            )
        return header, "header", f"header x-router-scenario: {header}"
    if model.startswith(PREFIX):
        scenario = model.removeprefix(PREFIX)
        if scenario not in policy.scenarios:
            names = ", ".join(PREFIX + name for name in told)
            raise ModelNotFound(
                f"The model {model!r} does not exist; there are auto, {names}.", param="model"
            )
        return scenario, "alias", f"model name {model}"
    return None
