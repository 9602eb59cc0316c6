"""The account of a finished request: its record, and what its preset did for the metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from router import prefix
from router.chat import Endpoint
from router.record import Record, timestamp
from router.tracing import Journey, parent_in
from router.verdict import Verdict, params_line

if TYPE_CHECKING:
    from router.exchange import Exchange

#: of a model's name; a client may call it anything, and a line is no place for a book
_NAME_CHARS = 200


def of(exchange: Exchange) -> tuple[Record, Sequence[tuple[str, str, str]]]:
    """The log line, and (scenario, parameter, origin) of what the preset did."""
    clock = exchange.pipeline.clock
    total_s = exchange.ended_at - exchange.started
    order, slot, sent_at = exchange.order, exchange.slot, exchange.sent_at
    record = Record(
        ts=timestamp(clock.now() - (clock.ticks() - exchange.started)),
        request_id=exchange.request_id,
        key=order.grant.name if order.grant is not None else None,
        endpoint=order.endpoint if order.endpoint is not Endpoint.OTHER else _name(order.path),
        policy=exchange.live.policy.hash,
        warnings=exchange.warnings,
        total_ms=_ms(total_s),
        status=exchange.status,
        outcome=exchange.outcome,
        error_code=exchange.error_code,
    )
    if exchange.pipeline.tracer is not None:
        record.trace_id = exchange.traced(exchange.pipeline.tracer).trace_id
    elif b"traceparent" in order.http.fields:
        parent = parent_in(order.http.fields)
        record.trace_id = parent.trace_id if parent is not None else None
    if slot is not None:
        record.backend = slot.name
        record.backend_model = slot.model
        record.dialect = slot.dialect.name
        record.retries = exchange.attempts - 1
        record.tried = exchange.tried
    if sent_at is not None:
        record.overhead_ms = _ms(sent_at - exchange.started - exchange.queued_s)
    record.affinity = exchange.affinity
    record.moved_because = exchange.moved_because
    if exchange.queued_s:
        record.queue_ms = _ms(exchange.queued_s)
    if (toll := exchange.toll) is not None and toll.standing is not None:
        record.limit = toll.standing.refused or None
    verdict = exchange.verdict
    if verdict is not None:
        _describe(record, verdict, exchange)
    if exchange.answering.is_read:
        _describe_answer(record, exchange, total_s)
    return record, verdict.plan.actions if verdict is not None else ()


def journey(exchange: Exchange, record: Record) -> Journey | None:
    """The same for its spans; None where its trace is not to be told of."""
    trace, clock, slot = exchange.trace, exchange.pipeline.clock, exchange.slot
    if trace is None or not trace.is_sampled:
        return None
    since_epoch = clock.now() - clock.ticks()
    first = exchange.answering.first_token_at
    backend = slot.upstream.backend if slot is not None else None
    return Journey(
        trace=trace,
        record=record,
        path=exchange.order.path,
        arrived_at=since_epoch + exchange.started,
        asked_at=exchange.asked_at if exchange.attempts else None,
        first_token_at=since_epoch + first if first is not None else None,
        ended_at=since_epoch + exchange.ended_at,
        host=backend.host if backend is not None else None,
        port=backend.port if backend is not None else None,
    )


def _describe(record: Record, verdict: Verdict, exchange: Exchange) -> None:
    request, found, decision = verdict.request, verdict.found, verdict.plan.decision
    if request.session is not None:
        record.session = request.session.hash
    record.client_model = request.model[:_NAME_CHARS]
    record.pool = decision.pool
    record.scenario = found.scenario
    record.source = found.source
    record.confidence = int(found.confidence * 1e3 + 0.5) / 1e3
    record.signals = found.signals + decision.because if decision.because else found.signals
    record.lang = found.lang
    record.turns = request.turns
    record.prompt_chars = found.chars
    record.stream = request.stream
    record.thinking = decision.thinking
    if (arm := verdict.plan.arm) is not None:
        record.experiment, record.arm = arm.experiment, arm.name
    told = exchange.told
    record.params = told.line if told is not None else params_line(decision, {})
    if exchange.classify_us is not None:
        record.classify_us = int(exchange.classify_us * 10 + 0.5) / 10


def _describe_answer(record: Record, exchange: Exchange, total_s: float) -> None:
    answering = exchange.answering
    answering.count()
    tally, first = answering.tally, answering.first_token_at
    record.input_tokens = tally.input_tokens
    record.output_tokens = tally.output_tokens
    record.cached_tokens = tally.cached_tokens
    record.reasoning_tokens = tally.reasoning_tokens
    record.answer_chars = tally.answer_chars
    record.reasoning_chars = tally.reasoning_chars
    record.finish_reason = tally.finish_reason
    record.rescued = answering.is_rescued
    if tally.input_tokens and exchange.verdict is not None:
        _describe_cache(record, exchange, exchange.verdict)
    if first is not None:
        ttft_s = first - exchange.started
        record.ttft_ms = _ms(ttft_s)
        if tally.output_tokens is not None and tally.output_tokens > 1 and exchange.is_stream:
            record.tpot_ms = _ms((total_s - ttft_s) / (tally.output_tokens - 1))


def _describe_cache(record: Record, exchange: Exchange, verdict: Verdict) -> None:
    """What the session's last prompt was worth to this one."""
    request, slot = verdict.request, exchange.slot
    cached, tokens = record.cached_tokens, record.input_tokens
    messages = request.values.get("messages")
    if request.session is None or slot is None or messages is None or tokens is None:
        return
    if cached is None and slot.dialect.keeps_prefix:
        return  # it does not tell, so there is nothing to find out
    sessions, session = exchange.pipeline.sessions, request.session.hash
    tools = bytes(request.values.get("tools", b""))
    now = prefix.turn(slot.name, tokens, record.thinking, tools, messages)
    found = prefix.finding(
        sessions.prompt(session), now, cached or 0, keeps_prefix=slot.dialect.keeps_prefix
    )
    sessions.prompted(session, now)
    if cached is not None:
        record.cached_share = int(found.share * 1e3 + 0.5) / 1e3
    if found.miss is not None:
        record.cache_miss, record.cache_hint = found.miss.kind, found.miss.text


def _ms(seconds: float) -> float:
    """Milliseconds, three digits behind the point: a third of what round() takes."""
    return int(seconds * 1e6 + 0.5) / 1e3


def _name(path: bytes) -> str:
    return path.partition(b"?")[0].decode("latin-1").removeprefix("/v1").lstrip("/")
