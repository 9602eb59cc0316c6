"""What to do with a request: thinking, and each parameter's final value with its origin.

In: a ChatRequest, its Classification and the Policy. Out: a Decision. Pure: serving,
explain, replay and tests all call `preset`.

Order of authority for one parameter, strongest first:

    operator force, cap, floor, strip > client > operator fill > defaults > backend

A client's null or 0 counts as sent, so `fill` leaves it alone. A bound must hold for
what the backend will do: where nobody names a value, the bound itself is sent (for a
client's null: the value that `fill` names beside it).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from router.chat import ChatRequest, Classification, Decision, Endpoint, ParamDecision, Sent
from router.params import is_number
from router.policy import Guard, Policy, PresetRule, Rule

#: a cut or a penalty on repeated tokens breaks JSON and tool calls
_BREAKS_STRUCTURE = frozenset(
    {
        "max_new_tokens",
        "thinking_budget",
        "stop",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
    }
)
#: of these, zero or less means "no limit" to the servers that take it
_UNLIMITED_BELOW = {"max_new_tokens": 0, "thinking_budget": 0, "top_k": 1}


def preset(request: ChatRequest, found: Classification, policy: Policy) -> Decision:
    """The decision for this request under this policy."""
    return _decide(request, found, policy, without_thought=False)


def _decide(
    request: ChatRequest, found: Classification, policy: Policy, *, without_thought: bool
) -> Decision:
    scenario = policy.scenarios[found.scenario]
    protected, notes = _protected(request, scenario.guard)
    decided: dict[str, ParamDecision] = {}
    thinking: bool | None = None
    if request.endpoint is Endpoint.CHAT:
        switch = _thinking(request, found, policy, scenario.guard)
        if without_thought:
            sent = request.params.get("thinking")
            client = sent.value if sent is not None else None
            switch = ParamDecision("thinking", client, sent is not None, False, "rescue", "forced")
        elif switch is not None and switch.value is True:
            switch = _without_room(switch, request, found, policy)
        if switch is not None:
            decided["thinking"] = switch
            thinking = switch.value
    # Nothing but a chat template switches thinking: elsewhere the plain pair holds.
    mode = thinking if request.endpoint is Endpoint.CHAT else False
    for entry in policy.presets[found.scenario, mode]:
        if entry.name == "thinking" or (entry.name == "thinking_budget" and thinking is not True):
            continue
        if entry.name in protected:
            continue
        resolved = _resolve(entry, request)
        if resolved is not None and not _breaks_choices(resolved, request, scenario.guard):
            decided[entry.name] = resolved
    for name, sent in request.params.items():
        if name not in decided:
            decided[name] = ParamDecision(name, sent.value, True, sent.value, "client", "kept")
    limit = decided.get("max_new_tokens")
    has_limit = limit is not None and is_number(limit.value) and limit.value > 0
    warnings = [*request.notes, *_make_room_for_thought(decided, thinking)]
    return Decision(
        scenario=found.scenario,
        pool=scenario.pool,
        thinking=thinking,
        params=tuple(decided.values()),
        because=tuple(notes),
        warnings=tuple(warnings),
        answer_tokens=int(limit.value) if limit is not None and has_limit else None,
        may_rescue=scenario.guard.empty_answers
        and request.endpoint is Endpoint.CHAT
        and thinking is not False
        and "n" not in request.has,
    )


def rescue(request: ChatRequest, found: Classification, policy: Policy) -> Decision:
    """The same request without thinking: for an answer that thought left no tokens for."""
    return _decide(request, found, policy, without_thought=True)


def continuation(decision: Decision) -> Decision:
    """The same, for the answer behind a thought that was stopped at its budget.

    A policy's limit counts answer tokens. Of the client's own, which counts all, the thought
    has used its share.
    """
    tokens, budget = decision.answer_tokens, decision.value("thinking_budget")
    params = []
    for param in decision.params:
        if param.name == "thinking":
            # A parser that still expects a thought would take the answer for one.
            param = msgspec.structs.replace(param, value=False, origin="rescue", action="forced")
        elif param.name == "max_new_tokens" and tokens is not None:
            left = max(1, tokens - int(budget)) if param.origin == "client" else tokens
            param = msgspec.structs.replace(param, value=left)
        params.append(param)
    return msgspec.structs.replace(decision, params=tuple(params))


def _protected(request: ChatRequest, guard: Guard) -> tuple[frozenset[str], list[str]]:
    """The parameters that no preset may touch in this request."""
    protected: frozenset[str] = frozenset()
    notes = []
    if guard.structured_output and "json_schema" in request.has:
        protected |= _BREAKS_STRUCTURE
        notes.append("guard: structured output")
    if guard.tools and "tools" in request.has:
        protected |= _BREAKS_STRUCTURE
        notes.append("guard: tools")
    if guard.logprobs and "logprobs" in request.has:
        protected |= {"reasoning_output"}
        notes.append("guard: logprobs")
    return protected, notes


def _breaks_choices(resolved: ParamDecision, request: ChatRequest, guard: Guard) -> bool:
    """Several different choices cannot be drawn greedily; vLLM refuses it outright."""
    return (
        guard.choices
        and "n" in request.has
        and resolved.name == "temperature"
        and resolved.value == 0
        and resolved.origin != "client"
    )


def _thinking(
    request: ChatRequest, found: Classification, policy: Policy, guard: Guard
) -> ParamDecision | None:
    rule = policy.thinking_rule(found.scenario) or Rule()
    sent = request.params.get("thinking")
    client = sent.value if sent is not None else None
    wish = request.soft_switch if client is None else client
    was_sent = sent is not None

    def decided(value: bool, origin: str, action: str) -> ParamDecision:
        return ParamDecision("thinking", client, was_sent, value, origin, action)

    if rule.strip:
        return ParamDecision("thinking", client, was_sent, None, "strip", "stripped")
    if rule.force is False:
        return decided(False, "force", "forced")
    is_askers_choice = wish is True or (wish is False and rule.force is None)
    if not is_askers_choice and _thought_would_break(request, guard):
        return decided(False, "guard", "forced")
    if rule.force is True:
        return decided(True, "force", "forced")
    if rule.force == "auto":
        return decided(found.wants_thought, "force", "forced")
    if wish is not None:
        return decided(wish, "client", "kept")
    if was_sent:  # a null: sent, and left to the backend
        return ParamDecision("thinking", client, True, None, "client", "kept")
    if rule.fill is None:
        return None
    return decided(found.wants_thought if rule.fill == "auto" else rule.fill, "fill", "filled")


def _without_room(
    switch: ParamDecision, request: ChatRequest, found: Classification, policy: Policy
) -> ParamDecision:
    """A thought without a token is none; servers that are told so think on in the answer."""
    for entry in policy.presets[found.scenario, True]:
        if entry.name == "thinking_budget":
            budget = _resolve(entry, request)
            break
    else:
        sent = request.params.get("thinking_budget")
        budget = None
        if sent is not None:
            budget = ParamDecision(
                "thinking_budget", sent.value, True, sent.value, "client", "kept"
            )
    if budget is None or not is_number(budget.value) or budget.value != 0:
        return switch
    return ParamDecision("thinking", switch.client, switch.was_sent, False, budget.origin, "forced")


def _thought_would_break(request: ChatRequest, guard: Guard) -> bool:
    """A thought before the JSON makes clients that parse the content fail."""
    return (guard.structured_output and "json_schema" in request.has) or (
        guard.tools and "forced_tool" in request.has
    )


def _resolve(entry: PresetRule, request: ChatRequest) -> ParamDecision | None:
    """One parameter; None where the rules come to nothing."""
    name, rule, default = entry.name, entry.rule or Rule(), entry.default or Rule()
    sent = request.params.get(name) or _extra(name, request)
    client = sent.value if sent is not None else None
    was_sent = sent is not None

    def decided(value: Any, origin: str, action: str) -> ParamDecision:
        return ParamDecision(name, client, was_sent, value, origin, action)

    for source in (rule, default):
        if source.strip:
            return decided(None, "strip", "stripped") if was_sent else None
        if source.force is not None:
            forced = _value(source.force, name, request)
            return None if forced is None else decided(forced, "force", "forced")
        if source.fill is not None:
            break  # the scenario has its own idea, so a default's does not come into it
    if was_sent:
        value, origin, action = client, "client", "kept"
    elif rule.fill is not None:
        value, origin, action = _value(rule.fill, name, request), "fill", "filled"
    elif default.fill is not None:
        value, origin, action = _value(default.fill, name, request), "defaults", "filled"
    else:
        value, origin, action = None, "backend", "kept"
    # A client's null is lifted to what would have been filled in, where there is such a value.
    filling = rule.fill if rule.fill is not None else default.fill
    for source in (default, rule):  # the scenario's own bounds last: they are closer to the job
        nothing = filling if value is None else None
        if source.floor is not None and _floored(name, value, source.floor):
            value = source.floor if nothing is None else nothing
            origin, action = "floor", "floored"
        if source.cap is not None and _capped(name, value, source.cap):
            value = source.cap if nothing is None else nothing
            origin, action = "cap", "capped"
    return None if value is None and not was_sent else decided(value, origin, action)


def _value(given: Any, name: str, request: ChatRequest) -> Any:
    if given == "auto" and name == "session_id":
        return request.session.hash if request.session is not None else None
    return given


def _extra(name: str, request: ChatRequest) -> Sent | None:
    if name.startswith("extra.") and (key := name.removeprefix("extra.")) in request.values:
        return Sent(msgspec.json.decode(request.values[key]), (key,))
    return None


def _capped(name: str, value: Any, cap: float) -> bool:
    if value is None:
        return True
    if not is_number(value):
        return False  # no number at all: the backend will say so in its own words
    unlimited = name in _UNLIMITED_BELOW and value < _UNLIMITED_BELOW[name]
    return bool(unlimited or value > cap)


def _floored(name: str, value: Any, floor: float) -> bool:
    if value is None:
        return True
    if not is_number(value) or (name in _UNLIMITED_BELOW and value < _UNLIMITED_BELOW[name]):
        return False
    return bool(value < floor)


def _make_room_for_thought(
    decided: dict[str, ParamDecision], thinking: bool | None
) -> Iterator[str]:
    """A policy's token limit counts answer tokens; a server's counts thought as well.

    So the sum goes out. A limit without a thinking budget beside it would let the
    thought eat the answer, and is lifted instead. What the client itself asked for
    is a limit on everything, and stays one.
    """
    limit = decided.get("max_new_tokens")
    if thinking is not True or limit is None or limit.origin in ("client", "strip"):
        return
    budget = decided.get("thinking_budget")
    if budget is None or not is_number(budget.value) or budget.value < 0:
        del decided["max_new_tokens"]
        if limit.was_sent:
            decided["max_new_tokens"] = ParamDecision(
                limit.name, limit.client, True, limit.client, "client", "kept"
            )
        yield f"max_new_tokens {limit.value} lifted: thinking without a thinking_budget"
        return
    total = int(limit.value + budget.value)
    if limit.was_sent and is_number(limit.client) and limit.origin == "cap":
        client_limit = limit.client if limit.client > 0 else total
        total = min(total, int(client_limit))
    decided["max_new_tokens"] = ParamDecision(
        limit.name, limit.client, limit.was_sent, total, limit.origin, limit.action
    )
