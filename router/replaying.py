"""What another policy would have made of requests that were served. No model is asked.

In: records, what was said where that was kept, and two policies as they would serve. Out:
each request under either, what differs, and what that would do to tokens and time by the
log's own distributions. Pure; deciding is the code that serves.

A request is put together again from its record: with the prompt, where it was kept, it is
classified anew; without it the scenario stays as recorded, unless the other policy has no
such scenario or its gate shuts the request out. Both policies get the very same request, so
the same policy twice makes no difference at all, whatever the log does not tell.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from router import dialects, parse, verdict
from router.body import Body, Message
from router.chat import ChatRequest, Classification, Endpoint, Session
from router.errors import RouterError
from router.params import PARAMS
from router.policy import Policy
from router.record import Record
from router.verdict import Live

_ENDPOINTS = {e.value: e for e in Endpoint if e is not Endpoint.OTHER}
#: what a guard's reason says of the request, as a member that says it again
_GUARDED: Mapping[str, dict[str, Any]] = {
    "guard: tools": {"tools": [{"type": "function", "function": {"name": "f"}}]},
    "guard: structured output": {"response_format": {"type": "json_object"}},
    "guard: logprobs": {"logprobs": True},
}
_ABSENT = "?"
#: texts of clients among the parameters are told by their length
_BY_LENGTH = re.compile(r"\[\d+ bytes\]").fullmatch
_UNKNOWN_TEXT = "of its {name} no more is known than the length"


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """A request under one policy."""

    scenario: str | None = None
    source: str | None = None
    arm: str | None = None
    pool: str | None = None
    thinking: bool | None = None
    params: Mapping[str, Any] = {}  # as the backend would be told
    fault: str | None = None  # why there is none of all that


class Row(msgspec.Struct, kw_only=True):
    """A request under both."""

    record: Record
    basis: str  # body | features
    notes: tuple[str, ...]
    before: Side
    after: Side
    request: ChatRequest
    bodies: tuple[bytes, bytes]  # what the backend would be sent

    @property
    def differs(self) -> bool:
        return self.before != self.after

    @property
    def is_whole(self) -> bool:
        """Whether all is known that the client had said, so that it can be said again."""
        return self.basis == "body" and not self.notes and all(self.bodies)

    @property
    def changed(self) -> dict[str, tuple[Any, Any]]:
        """The parameters that differ: name → (before, after)."""
        old, new = self.before.params, self.after.params
        return {
            name: (old.get(name), new.get(name))
            for name in dict.fromkeys([*old, *new])
            if old.get(name) != new.get(name)
        }


class Replay(msgspec.Struct, kw_only=True):
    """All of it."""

    rows: list[Row]
    passed_over: int  # requests that no policy decides on
    reproduced: tuple[int, int]  # rows decided by the first policy: as recorded, of so many

    @property
    def differing(self) -> list[Row]:
        return [row for row in self.rows if row.differs]

    def moves(self) -> Counter[tuple[str, str]]:
        """(scenario before, after) → how many, those that stay included."""
        return Counter(
            (row.before.scenario or _ABSENT, row.after.scenario or _ABSENT) for row in self.rows
        )

    def params(self) -> Counter[tuple[str, str, str, str]]:
        """(scenario after, parameter, value before, after) → how many."""
        return Counter(
            (row.after.scenario or _ABSENT, name, said(old), said(new))
            for row in self.differing
            for name, (old, new) in row.changed.items()
        )


def said(value: Any) -> str:
    """A parameter's value in short; nothing is a dash."""
    return "–" if value is None else msgspec.json.encode(value).decode()


def replay(
    records: Iterable[Record], kept: Mapping[str, Body], before: Live, after: Live
) -> Replay:
    """The records, oldest first, under both policies. `kept` is by the request's id."""
    rows, passed_over, same, checked = [], 0, 0, 0
    old, new = _Serving(before), _Serving(after)
    for record in records:
        if record.scenario is None or record.endpoint not in _ENDPOINTS:
            passed_over += 1
            continue
        request, notes = _request(record, kept.get(record.request_id))
        if request is None:
            passed_over += 1
            continue
        has_body = record.request_id in kept
        (one, first), (other, second) = (
            serving.side(record, request, has_body=has_body) for serving in (old, new)
        )
        rows.append(
            Row(
                record=record,
                basis="body" if has_body else "features",
                notes=notes,
                before=one,
                after=other,
                request=request,
                bodies=(first, second),
            )
        )
        if record.policy == before.policy.hash:
            checked += 1
            same += _is_as_recorded(one, record)
    return Replay(rows=rows, passed_over=passed_over, reproduced=(same, checked))


class _Serving:
    """One policy, and what its sessions were last."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._last: dict[str, str] = {}

    def side(self, record: Record, request: ChatRequest, *, has_body: bool) -> tuple[Side, bytes]:
        """What becomes of it, and the bytes that the backend would be sent."""
        live = self._live
        try:
            if has_body:
                hint = record.scenario or "" if record.source == "header" else ""
                found = live.classifier.scenario(request, hint, self._last.get)
            else:
                found = _recorded(record, live.policy)
        except RouterError as fault:
            return Side(fault=str(fault)), b""
        if request.session is not None and request.session.is_named:
            self._last[request.session.hash] = found.scenario
        policy, arm = live.policy, None
        if live.trials is not None:
            arm = verdict.arm_of(live.trials, request, found, record.request_id)
            if arm is not None:
                policy = arm.policy
        plan = verdict.plan_for(request, found, policy, arm)
        whole = verdict.Verdict(request, found, plan)
        dialect = dialects.of(record.dialect or "openai")
        told = whole.told(dialect, record.backend_model or "")
        side = Side(
            scenario=found.scenario,
            source=found.source,
            arm=None if arm is None else f"{arm.experiment}/{arm.name}",
            pool=plan.decision.pool,
            thinking=plan.decision.thinking,
            params=msgspec.json.decode(msgspec.json.encode(told.params)),
        )
        return side, told.patch.apply(request.raw, request.spans)


def _recorded(record: Record, policy: Policy) -> Classification:
    """What is known of a request without its text. Raises RouterError."""
    name = record.scenario or ""
    if name not in policy.scenarios:
        raise RouterError(f"the policy has no scenario {name!r}, and the prompt was not kept")
    gate = policy.scenarios[name].match.require
    turns, chars = record.turns or 0, record.prompt_chars or 0
    if (
        record.source not in ("header", "alias")
        and gate.says_something
        and (
            (gate.turns is not None and not gate.turns.holds(turns))
            or (gate.chars is not None and not gate.chars.holds(chars))
            or (gate.lang and record.lang not in gate.lang)
        )
    ):
        raise RouterError(f"the gate of {name!r} shuts it out, and the prompt was not kept")
    return Classification(
        scenario=name,
        source=record.source or "default",
        confidence=record.confidence or 0.0,
        signals=(),
        lang=record.lang or "other",
        chars=chars,
        wants_thought=bool(record.thinking),
    )


# --- a request, put together again --------------------------------------------------------------


def _request(record: Record, kept: Body | None) -> tuple[ChatRequest | None, tuple[str, ...]]:
    """The request as far as the log tells it, and what that leaves open."""
    endpoint = _ENDPOINTS[record.endpoint]
    notes = []
    if kept is not None:
        messages = [_message(line) for line in kept.prompt]
        if kept.cut:
            notes.append("its prompt was kept in part")
        if kept.redacted:
            notes.append("of its prompt some was taken out")
    else:
        messages = [{"role": "user", "content": "…"}]
    body: dict[str, Any] = {"model": record.client_model or "auto"}
    match endpoint:
        case Endpoint.COMPLETIONS:
            body["prompt"] = "\n".join(line.text for line in kept.prompt) if kept else "…"
        case Endpoint.RESPONSES:
            body["input"] = messages
        case _:
            body["messages"] = messages
    if record.stream:
        body["stream"] = True
    for reason, members in _GUARDED.items():
        if reason in record.signals:
            body |= members
    wish = _put_params(body, record, notes)
    try:
        request = parse.chat_request(endpoint, msgspec.json.encode(body), {})
    except RouterError:
        return None, ()
    given = request.session
    session = None
    if record.session is not None:
        # The log has no more of a session than its hash. One that is not the conversation's
        # beginning is one that the client has a name for.
        is_named = given is None or given.hash != record.session
        session = Session(record.session, "header" if is_named else "fingerprint")
    soft_switch = request.soft_switch if kept is not None else wish
    return (
        msgspec.structs.replace(request, session=session, soft_switch=soft_switch),
        tuple(notes),
    )


def _message(line: Message) -> dict[str, Any]:
    images = [part for part in line.parts if "image" in part]
    if not images:
        return {"role": line.role or "user", "content": line.text}
    parts: list[dict[str, Any]] = [{"type": "text", "text": line.text}]
    parts += [{"type": "image_url", "image_url": {"url": ""}} for _ in images]
    return {"role": line.role or "user", "content": parts}


def _put_params(body: dict[str, Any], record: Record, notes: list[str]) -> bool | None:
    """Say the client's parameters again; what it wished of thinking in its text, if anything."""
    wish = None
    told: Mapping[str, Sequence[Any]] = (
        msgspec.json.decode(record.params)
        if isinstance(record.params, msgspec.Raw)
        else record.params
    )
    for name, (client, sent, origin) in told.items():
        if name == "thinking" and client is None and origin == "client" and sent is not None:
            wish = bool(sent)
            continue
        if isinstance(client, str) and _BY_LENGTH(client):
            notes.append(_UNKNOWN_TEXT.format(name=name))
        # A client's null counts as sent; which it was, only these two origins tell.
        if client is None and origin not in ("client", "strip"):
            continue
        if name.startswith("extra."):
            body[name.removeprefix("extra.")] = client
        elif name in PARAMS and PARAMS[name].spellings:
            *above, last = PARAMS[name].spellings[0].split(".")
            place = body
            for part in above:
                place = place.setdefault(part, {})
            place[last] = client
    return wish


def _is_as_recorded(side: Side, record: Record) -> bool:
    """Whether the request that was put together again got what the real one had got."""
    told: Mapping[str, Any] = (
        msgspec.json.decode(record.params)
        if isinstance(record.params, msgspec.Raw)
        else record.params
    )
    sent = {name: value[1] for name, value in told.items() if value[1] is not None}
    return (side.scenario, side.thinking) == (record.scenario, record.thinking) and {
        name: value for name, value in side.params.items() if value is not None
    } == sent
