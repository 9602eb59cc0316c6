"""The kinds of requests that a backend is to be warmed up with, by the policy in force.

In: what serves requests, and a backend. Out: a request of each kind, as that backend is told
it. Decided and encoded by the code that serves.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from router.chat import Endpoint
from router.dialects import Dialect
from router.launch import Shape
from router.launch.warm import ANSWER_TOKENS, TEXTS
from router.verdict import Live, Verdict, decide_for

_THOUGHT = {True: "thinking on", False: "thinking off", None: "thinking left to the server"}


def shapes(live: Live, *, pool: str, dialect: Dialect, model: str) -> list[Shape]:
    """One for thinking and one for not, where requests of this pool can come to it.

    The default scenario's first: an engine may hold on to what its first request says.
    """
    found: dict[bool | None, Shape] = {}
    live = msgspec.structs.replace(live, trials=None)
    for scenario, wish in _asked(live, pool):
        texts = TEXTS[len(found)], TEXTS[-1]
        verdicts = [_verdict(live, scenario, wish, text) for text in texts]
        decision = verdicts[0].decision
        if decision.pool != pool or decision.thinking in found:
            continue
        bodies = [_said(verdict, dialect, model) for verdict in verdicts]
        found[decision.thinking] = Shape(_THOUGHT[decision.thinking], *bodies)
    return list(found.values())


def _asked(live: Live, pool: str) -> Iterator[tuple[str, bool | None]]:
    """Scenarios with the client's wish about thinking: what it gets without one comes first."""
    policy = live.policy
    here = [name for name, scenario in policy.scenarios.items() if scenario.pool == pool]
    here.sort(key=lambda name: name != policy.default_scenario)
    for wish in (None, False, True):
        yield from ((name, wish) for name in here)


def _verdict(live: Live, scenario: str, wish: bool | None, text: str) -> Verdict:
    thinking = {} if wish is None else {"enable_thinking": wish}
    body = {
        "model": f"auto:{scenario}",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": ANSWER_TOKENS,
        "stream": True,
        **thinking,
    }
    return decide_for(Endpoint.CHAT, msgspec.json.encode(body), {}, live)


def _said(verdict: Verdict, dialect: Dialect, model: str) -> bytes:
    request = verdict.request
    return verdict.told(dialect, model).patch.apply(request.raw, request.spans)
