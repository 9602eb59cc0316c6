"""Who a request is to the traces it is part of: W3C trace context, read and passed on.

The client's trace goes on with two spans of ours, one for the request and in it one for what the
backend was asked; a backend sees the latter as its parent. What becomes of the spans is not known
here: see spans.py and otlp.py.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping

import msgspec

from router.record import Record

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NO_TRACE, _NO_SPAN = b"0" * 32, b"0" * 16
_OURS = (b"traceparent:", b"tracestate:")
_IDS_BELOW = 1 << 56


class Parent(msgspec.Struct, frozen=True):
    """What a traceparent says; ids in hex."""

    trace_id: str
    span_id: str
    is_sampled: bool


def parent_in(fields: Mapping[bytes, bytes]) -> Parent | None:
    """The client's trace; None where it has none, or one that is no trace."""
    given = fields.get(b"traceparent")
    found = _TRACEPARENT.fullmatch(given.strip()) if given is not None else None
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == b"ff" or trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    if version == b"00" and more is not None:  # later versions may say more
        return None
    return Parent(trace_id.decode(), span_id.decode(), bool(int(flags, 16) & 1))


class Trace(msgspec.Struct, frozen=True):
    """One request's place in a trace; ids in hex."""

    trace_id: str
    parent: Parent | None
    request_span: str
    backend_span: str
    is_sampled: bool

    def lead(self, lines: list[bytes]) -> list[bytes]:
        """The header lines for a backend with the way back to us in place of the client's."""
        if self.parent is not None and not self.is_sampled:
            return lines  # nothing of ours is told, so there is nothing to lead to
        if self.parent is not None:
            led = [line for line in lines if not line.startswith(_OURS[0])]
        else:  # without its traceparent a tracestate means nothing
            led = [line for line in lines if not line.startswith(_OURS)]
        flags = "01" if self.is_sampled else "00"
        led.append(f"traceparent: 00-{self.trace_id}-{self.backend_span}-{flags}".encode())
        return led


class Journey(msgspec.Struct, frozen=True, kw_only=True):
    """A finished request, for its spans. Times are seconds since the epoch."""

    trace: Trace
    record: Record
    path: bytes
    arrived_at: float
    asked_at: float | None  # the first backend; None: none was
    first_token_at: float | None
    ended_at: float
    host: str | None  # of the backend
    port: int | None


class Tracer:
    """Gives requests their place in a trace, and hands on those that are to be told of."""

    def __init__(self, share: float, take: Callable[[Journey], None]) -> None:
        """`share`: of the requests whose client has not decided. `take` must not block."""
        self.take = take
        self._share_of_ids = int(share * _IDS_BELOW)
        # Its own, and so a different one in each worker, whoever seeds the module's.
        self._bits = random.Random().getrandbits

    def begin(self, fields: Mapping[bytes, bytes]) -> Trace:
        """The place of a request with these headers."""
        parent = parent_in(fields)
        bits = self._bits
        request_span, backend_span = f"{bits(64) or 1:016x}", f"{bits(64) or 1:016x}"
        if parent is not None:
            return Trace(parent.trace_id, parent, request_span, backend_span, parent.is_sampled)
        trace_id = bits(128) or 1
        # Of the id, as others decide it, so that all who are asked agree.
        is_sampled = trace_id % _IDS_BELOW < self._share_of_ids
        return Trace(f"{trace_id:032x}", None, request_span, backend_span, is_sampled)
