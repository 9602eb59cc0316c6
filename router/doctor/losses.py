"""What a policy wants and a backend does not do. Pure: a report and a policy in, losses out.

What a preset comes to is asked of the code that serves, and so is how it would be said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import msgspec

from router import decide, dialects, parse, rewrite
from router.capabilities import CARRIED
from router.chat import Classification, Endpoint
from router.doctor.knobs import Knob
from router.policy import Policy

_BODY = msgspec.json.encode({"messages": [{"role": "user", "content": "?"}]})


class Loss(msgspec.Struct, frozen=True):
    """One parameter that does not land, and what each scenario wants of it."""

    param: str
    because: str
    wanted: Mapping[str, tuple[Any, ...]]  # scenario → values


class Examined(Protocol):
    """What a report says that matters here."""

    @property
    def dialect(self) -> str: ...
    @property
    def knobs(self) -> tuple[Knob, ...]: ...


def losses(report: Examined, policy: Policy, pool: str | None = None) -> tuple[Loss, ...]:
    """Everything of the presets that does not land; of one pool's scenarios where one is named."""
    found: dict[tuple[str, str], dict[str, list[Any]]] = {}
    for scenario, entry in policy.scenarios.items():
        if pool is not None and entry.pool != pool:
            continue
        for param, value, because in _lost(report, policy, scenario):
            values = found.setdefault((param, because), {}).setdefault(scenario, [])
            if value not in values:
                values.append(value)
    return tuple(
        Loss(param, because, {name: tuple(values) for name, values in wanted.items()})
        for (param, because), wanted in found.items()
    )


def _lost(report: Examined, policy: Policy, scenario: str) -> Iterator[tuple[str, Any, str]]:
    dialect = dialects.of(report.dialect)
    knobs = {knob.name: knob for knob in report.knobs}
    request = parse.chat_request(Endpoint.CHAT, _BODY, {b"x-session-id": b"doctor"})
    for wants_thought in (False, True):
        found = Classification(scenario, "header", 1.0, (), "other", 1, wants_thought)
        decision = decide.preset(request, found, policy)
        said = dialects.say(request, rewrite.changes(request, decision), dialect, "")
        for param in decision.params:
            name, value = param.name, param.value
            knob = knobs.get(name)
            if value is None or (knob is not None and knob.by_itself is value):
                continue  # nothing is asked for, or only what happens anyway
            if name not in said.params:
                if name not in dialect.quiet:
                    yield name, value, "cannot be said"
            elif name in CARRIED:
                continue
            elif knob is not None and knob.verdict in ("ignored", "refused"):
                yield name, value, knob.verdict
