"""The pure part of a request's journey in one call, for tests of single stages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from router import decide, dialects, parse, rewrite
from router.chat import ChatRequest, Classification, Decision, Endpoint, ParamDecision, Wire
from router.policy import Policy
from router.policy import parse as parse_policy

MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
HEAD = 'schema = 1\ndefault_scenario = "chat"\n'


def policy_of(preset: str = "", *, more: str = "") -> Policy:
    """A policy of one scenario; `preset` are lines of its preset, `more` any other tables."""
    return parse_policy(f"{HEAD}[scenarios.chat.preset]\n{preset}\n{more}")


def asked(
    body: Mapping[str, Any] | bytes,
    endpoint: Endpoint = Endpoint.CHAT,
    headers: Mapping[bytes, bytes] | None = None,
) -> ChatRequest:
    """The request, parsed; a chat body without messages is given one."""
    if isinstance(body, bytes):
        return parse.chat_request(endpoint, body, headers or {})
    whole = {**body, **_missing(body, endpoint)}
    return parse.chat_request(endpoint, json.dumps(whole).encode(), headers or {})


def _missing(body: Mapping[str, Any], endpoint: Endpoint) -> dict[str, Any]:
    name = {Endpoint.CHAT: "messages", Endpoint.COMPLETIONS: "prompt"}.get(endpoint, "input")
    if name in body:
        return {}
    return {name: MESSAGES if endpoint is Endpoint.CHAT else "hi"}


def found(scenario: str = "chat", *, wants_thought: bool = False) -> Classification:
    return Classification(scenario, "default", 0.0, ("a test",), "en", 2, wants_thought)


def decided(request: ChatRequest, policy: Policy, *, wants_thought: bool = False) -> Decision:
    return decide.preset(request, found(wants_thought=wants_thought), policy)


def by_name(decision: Decision) -> dict[str, ParamDecision]:
    return {param.name: param for param in decision.params}


def wired(request: ChatRequest, policy: Policy, dialect: str, model: str = "") -> Wire:
    """The request as this dialect says it, after deciding under the policy."""
    changes = rewrite.changes(request, decided(request, policy))
    return dialects.encode(request, changes, dialects.of(dialect), model)


def body_of(wire: Wire) -> dict[str, Any]:
    """The encoded body without its messages, and without being a stream."""
    value: dict[str, Any] = json.loads(wire.body)
    for name in ("messages", "prompt", "input"):
        value.pop(name, None)
    if value.get("stream") is True:
        del value["stream"]
    return value
