"""The pure part of a request's journey: bytes in, decision and words for a backend out.

Serving, explain, replay and tests all call `decide_for`. No I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from router import bridge, decide, dialects, params, parse, permission, rewrite, splice
from router.chat import ChatRequest, Classification, Decision, Endpoint
from router.classify import Classifier, Recall
from router.errors import ContextLength, ModelNotFound
from router.health import Health
from router.keyring import Grant
from router.policy import Policy
from router.ports import Upstream
from router.thought import CLOSE, OPEN
from router.trials import ArmInForce, Trials

#: remembered decisions at most; forgotten all at once, since they are quickly made again
_PLANS = 1024
_SAYINGS = 64
_NAMES_CHARS = 2048
#: of a model's name in an error
_TOLD_CHARS = 200
_MAX_INFLIGHT = 1024
_TOKEN_BYTES = 24
_RULERS = b" \t\n\r-=_*#.~|+/\\"


class Slot(msgspec.Struct):
    """A backend as the pipeline knows it: the way to it, its health, and its model's name."""

    name: str
    upstream: Upstream
    dialect: dialects.Dialect
    model: str | None  # None until it was asked
    is_named: bool  # the model's name is from the configuration
    host: bytes
    authorization: bytes | None
    health: Health = Health()
    label: str | None = None  # for /v1/models, where the model is not the asked-for one
    #: what warming it up was worth, ms to the first token: {"cold": …, "warm": …}
    warm_up: Mapping[str, float] | None = None
    is_draining: bool = False  # takes nothing new
    is_warming: bool = False  # its engine is ours and not ready yet, whatever its /health says

    @property
    def max_inflight(self) -> int:
        """Requests at once: as configured, else what this kind of server really takes."""
        limit = self.upstream.backend.max_inflight
        if limit is not None:
            return limit
        return 1 if self.dialect.is_one_at_a_time else _MAX_INFLIGHT


class Live(msgspec.Struct, frozen=True):
    """What a request is served by; a reload makes a new one and swaps it whole."""

    policy: Policy
    classifier: Classifier
    pools: Mapping[str, Sequence[Slot]]
    aliases: frozenset[str]
    real_model_bypass: bool
    allow_policy_off: bool
    has_keys: bool  # clients authenticate here, so their key is not for backends
    plans: dict[tuple[Any, ...], Plan]  # remembered decisions of this policy
    trials: Trials | None = None  # experiments by scenario; None: there are none
    messages: int = parse.NO_LIMIT  # the most that make a conversation

    @property
    def slots(self) -> list[Slot]:
        return [slot for pool in self.pools.values() for slot in pool]

    def served_names(self, grant: Grant | None = None) -> list[str]:
        """Models that are served now, to this client."""
        names = dict.fromkeys(
            slot.model
            for slot in self.slots
            if slot.model and permission.may_reach(grant, slot.upstream.backend.pool)
        )
        return list(names)


class Plan(msgspec.Struct, frozen=True):
    """A decision and how it is said; the same for many requests, so made once."""

    decision: Decision
    changes: rewrite.Changes
    rescue: rewrite.Changes | None  # should thought leave no answer; None: nothing is done
    continuation: rewrite.Changes | None  # behind a thought that was stopped; None: none is
    thought: str  # where the client wants it: one of bridge.MODES
    actions: tuple[tuple[str, str, str], ...]  # for the metrics: scenario, parameter, origin
    said: dict[tuple[Any, ...], Told]
    arm: ArmInForce | None = None  # of an experiment, where the request is in one


class Told(msgspec.Struct, frozen=True):
    """A decision as one kind of backend is told it, and as the record tells it."""

    patch: splice.Patch
    params: Mapping[str, Any]  # what is really said
    warnings: tuple[str, ...]  # those of the decision included
    line: msgspec.Raw  # the record's `params`, as JSON
    collects: bool  # the backend streams, the client gets a whole answer
    budget: int | None  # tokens of thought after which it has to be stopped from here


class Verdict(msgspec.Struct, frozen=True):
    """The pure part of a request's journey."""

    request: ChatRequest
    found: Classification
    plan: Plan

    @property
    def decision(self) -> Decision:
        return self.plan.decision

    def told(self, dialect: dialects.Dialect, model: str) -> Told:
        """How it is said to this kind of server."""
        return self._told(dialect, model, self.plan.changes)

    def told_again(self, dialect: dialects.Dialect, model: str) -> Told | None:
        """How it is said with thinking off; None where that is not to be, or cannot be said."""
        if self.plan.rescue is None or "thinking" not in dialect.places:
            return None
        return self._told(dialect, model, self.plan.rescue)

    def continued(self, dialect: dialects.Dialect, model: str, thought: str) -> bytes:
        """The request for the answer behind a thought that was stopped."""
        request, changes = self.request, self.plan.continuation
        assert changes is not None
        said = dialects.say(request, changes, dialect, model)
        raw = said.patch.apply(request.raw, request.spans)
        values, spans = splice.members(raw)
        begun = {"role": "assistant", "content": f"{OPEN}\n{thought}\n{CLOSE}"}
        messages = bytes(values["messages"]).rstrip().removesuffix(b"]")
        return splice.apply(
            raw,
            spans,
            {
                "messages": messages + b"," + msgspec.json.encode(begun) + b"]",
                "continue_final_message": b"true",
                "add_generation_prompt": b"false",
            },
        )

    def _told(self, dialect: dialects.Dialect, model: str, changes: rewrite.Changes) -> Told:
        plan, request = self.plan, self.request
        names = tuple(request.spans)
        is_first = changes is plan.changes
        server = dialect.name, dialect.variant, dialect.context, model
        key = (*server, request.model, names, is_first)
        told = plan.said.get(key)
        if told is None:
            said = dialects.say(request, changes, dialect, model)
            told = Told(
                said.patch,
                said.params,
                plan.decision.warnings + said.warnings,
                params_line(plan.decision, said.params),
                said.collects,
                said.budget,
            )
            # Names are the client's: nobody fills memory with them.
            if len(request.model) + sum(map(len, names)) <= _NAMES_CHARS:
                if len(plan.said) >= _SAYINGS:
                    plan.said.clear()
                plan.said[key] = told
        return told


def decide_for(
    endpoint: Endpoint,
    raw: bytes,
    headers: parse.Headers,
    live: Live,
    recall: Recall | None = None,
    request_id: str = "",
    grant: Grant | None = None,
) -> Verdict:
    """Bytes in, decision out. No I/O and no clock: serving and explain both come here.

    `recall` tells the scenario that a session was last in. It is asked only for a turn that
    says nothing by itself and comes without its history. `request_id` draws the arm of an
    experiment where the request has no session; without either it is in none. `grant`: what the
    client's key opens. What it does not open is refused where it is asked for by name, and never
    decided for; its sessions are its own.

    Deciding is pure, so a decision is remembered by all that it depends on: apps send
    the same few parameters all day, and only the text and the session differ.
    """
    owner = grant.name if grant is not None else None
    request = parse.chat_request(endpoint, raw, headers, owner, live.messages)
    if request.model != "auto":
        check_model(request.model, live, grant)
    hint = headers.get(b"x-router-scenario", b"").decode("latin-1")
    policy, plans, arm = live.policy, live.plans, None
    allowed = None
    if grant is not None and grant.is_limited:
        allowed = permission.scenarios(grant, policy)
    found = live.classifier.scenario(request, hint, recall, allowed)
    if allowed is not None and found.scenario not in allowed:
        assert grant is not None
        raise permission.refusal(grant, found.scenario, policy, allowed)
    if live.trials is not None:
        arm = arm_of(live.trials, request, found, request_id)
        if arm is not None:
            policy, plans = arm.policy, arm.plans
    if found.scenario in policy.personal or not parse.is_small(request.signature):
        return Verdict(request, found, plan_for(request, found, policy, arm))
    key = (
        endpoint,
        found.scenario,
        found.wants_thought,
        request.has,
        request.soft_switch,
        request.signature,
        request.notes,
        request.stream,
    )
    plan = plans.get(key)
    if plan is None:
        if len(plans) >= _PLANS:
            plans.clear()
        plan = plans[key] = plan_for(request, found, policy, arm)
    return Verdict(request, found, plan)


def arm_of(
    trials: Trials, request: ChatRequest, found: Classification, request_id: str
) -> ArmInForce | None:
    """The arm that a request is in; None where it takes no part.

    Who names a scenario in the header knows what to expect of it, and gets that. A model name
    like `auto:faq` is how an app is set up, so those requests take part.
    """
    trial = trials.get(found.scenario)
    if trial is None or found.source == "header":
        return None
    unit = request.session.hash if request.session is not None else request_id
    return trial.arm(unit) if unit else None


def plan_for(
    request: ChatRequest, found: Classification, policy: Policy, arm: ArmInForce | None
) -> Plan:
    """What is decided, made anew; `decide_for` remembers it."""
    decision = decide.preset(request, found, policy)
    actions = tuple(
        (decision.scenario, param.name.partition(".")[0], param.origin)
        for param in decision.params
        if param.origin != "client"
    )
    rescue = None
    if decision.may_rescue:
        rescue = rewrite.changes(request, decide.rescue(request, found, policy))
    thought = decision.value("reasoning_output")
    changes = rewrite.changes(request, decision)
    continuation = None
    if changes.budget is not None:
        continuation = rewrite.changes(request, decide.continuation(decision))
        continuation = msgspec.structs.replace(continuation, budget=None)
    return Plan(
        decision,
        changes,
        rescue,
        continuation,
        thought if thought in bridge.MODES else "keep",
        actions,
        {},
        arm,
    )


def params_line(decision: Decision, sent: Mapping[str, Any]) -> msgspec.Raw:
    """The record's `params`: what the client said, what was sent, and who decided it.

    Texts of clients, as stop words and session names, are told by their length.
    """
    told = {p.name: (p.client, sent.get(p.name), p.origin) for p in decision.params}
    for name, (client, value, origin) in told.items():
        if isinstance(client, (str, list, tuple, Mapping)) and not params.is_choice(name):
            length = f"[{len(msgspec.json.encode(client))} bytes]"
            told[name] = length, length if value == client else value, origin
    return msgspec.Raw(msgspec.json.encode(told))


def check_fits(request: ChatRequest, context: int | None) -> None:
    """Raise ContextLength for a prompt that cannot fit, however it is cut into tokens.

    A guess would refuse good prompts, so this is a bound from below: no token takes more than
    24 bytes on average once rulers and blanks, which one token holds many of, are left out.
    What is closer to the limit the backend itself refuses, by its own count.
    """
    if context is None or len(request.raw) <= _TOKEN_BYTES * context or "image" in request.has:
        return
    prompt = request.values.get("messages")
    if prompt is None:
        return
    tokens = len(bytes(prompt).translate(None, _RULERS)) // _TOKEN_BYTES
    if tokens > context:
        raise ContextLength(
            f"The messages have at least {tokens} tokens, and the model takes {context} in all.",
            param="messages",
        )


def check_model(model: str, live: Live, grant: Grant | None = None) -> None:
    """Raise ModelNotFound for a name that leads nowhere.

    A backend that has not told its model yet might serve it: then the backend is
    asked, and refuses by itself.
    """
    if not model or model == "auto" or model.startswith("auto:") or model in live.aliases:
        return
    if model in live.served_names() or any(slot.model is None for slot in live.slots):
        return
    names = live.served_names(grant)
    exist = ", ".join(["auto", "auto:<scenario>", *sorted(live.aliases), *names])
    model = model[:_TOLD_CHARS]
    raise ModelNotFound(f"The model {model!r} does not exist. There are: {exist}.", param="model")


def is_virtual(model: str, live: Live) -> bool:
    """A name that means us and no backend."""
    return not model or model == "auto" or model.startswith("auto:") or model in live.aliases
