"""From a decision to the changes it makes, still in our own names.

In: a ChatRequest and its Decision. Out: Changes, which a dialect then puts into
the words of one kind of backend. Pure.
"""

from __future__ import annotations

from typing import Any

import msgspec

from router.chat import ChatRequest, Decision, Endpoint
from router.params import is_number


class Change(msgspec.Struct, frozen=True):
    """One parameter as it must arrive: the client's spellings, and the value to say."""

    name: str
    value: Any  # None with `was_decided` False: leave the client's null alone
    spellings: tuple[str, ...]
    was_decided: bool  # the value is ours and not the client's


class Changes(msgspec.Struct, frozen=True):
    params: tuple[Change, ...]
    ask_usage: bool
    collects: bool = False  # a whole answer is to be streamed to us
    budget: int | None = None  # tokens of thought, where the thought can be stopped by itself


def changes(request: ChatRequest, decision: Decision) -> Changes:
    """What must be said differently from how the client said it.

    Usage is asked for on streams of the client's that did not ask, and the frame is
    taken out again on the way back: a record without tokens is half a record. Only
    where `stream` is really true: strict servers refuse the option otherwise.
    """
    params = tuple(
        Change(
            param.name,
            param.value,
            request.params[param.name].spellings if param.name in request.params else (),
            param.origin != "client" or (param.value is not None and not param.was_sent),
        )
        for param in decision.params
    )
    streams_tokens = request.endpoint in (Endpoint.CHAT, Endpoint.COMPLETIONS)
    collects = (
        request.endpoint is Endpoint.CHAT
        and not request.stream
        and decision.value("stream") == "collect"
    )
    asks = request.stream or collects
    ask_usage = asks and not request.wants_usage and streams_tokens
    return Changes(params, ask_usage, collects, _budget(request, decision))


def _budget(request: ChatRequest, decision: Decision) -> int | None:
    value = decision.value("thinking_budget")
    is_stoppable = (
        decision.thinking is True
        and request.endpoint is Endpoint.CHAT
        and "n" not in request.has
        and is_number(value)
        and value > 0
    )
    return int(value) if is_stoppable else None
