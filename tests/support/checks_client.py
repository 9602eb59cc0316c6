"""What a client must have got: status, headers, bytes, frames, times."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Callable
from typing import Any

from tests.support.casefile import JsonObject, names_of
from tests.support.casejudge import (
    compare,
    compare_times,
    judge_of,
    or_missing,
    seen_of,
    sent_of,
    short,
)
from tests.support.caserun import Run, Sent
from tests.support.paths import MISSING, lookup
from tests.support.rawclient import RawReply, sse_events, sse_payloads
from tests.support.script import as_json
from tests.support.scripted import Seen
from tests.support.sdkclient import add_call, joined_calls


def _each_reply(run: Run, check: JsonObject, read: Callable[[RawReply], Any], what: str) -> None:
    for sent in sent_of(run, check):
        compare(read(sent.reply), check, f"{sent.label}: {what}")


@judge_of("client")
def client_status(run: Run, check: JsonObject) -> None:
    for sent in sent_of(run, check):
        why = f"{sent.label}: status ({sent.reply.broken or sent.reply.text[:200]})"
        compare(sent.reply.status, check, why)


@judge_of("client")
def client_status_or_close(run: Run, check: JsonObject) -> None:
    for sent in sent_of(run, check):
        if sent.reply.status is not None or not sent.reply.closed:
            compare(sent.reply.status, check, f"{sent.label}: status")


@judge_of("client")
def client_refused_or_status(run: Run, check: JsonObject) -> None:
    for sent in sent_of(run, check):
        if not sent.reply.refused:
            compare(sent.reply.status, check, f"{sent.label}: status")


@judge_of("client")
def client_connection_closed(run: Run, check: JsonObject) -> None:
    for sent in sent_of(run, check):
        assert sent.reply.closed, f"{sent.label}: the connection stays open"
        max_ms = check.get("max_ms", math.inf)
        compare(sent.reply.closed_ms, {"max": max_ms}, f"{sent.label}: ms until it closed")


@judge_of("client")
def client_header(run: Run, check: JsonObject) -> None:
    name = check["name"]
    _each_reply(run, check, lambda reply: or_missing(reply.header(name)), name)


@judge_of("client")
def client_body_json(run: Run, check: JsonObject) -> None:
    path = check["path"]
    _each_reply(run, check, lambda reply: lookup(as_json(reply.body), path), path)


@judge_of("client")
def client_body_contains(run: Run, check: JsonObject) -> None:
    _each_reply(run, {**check, "contains": check["text"]}, lambda reply: reply.text, "body")


@judge_of("client")
def client_body_not_contains(run: Run, check: JsonObject) -> None:
    for sent in sent_of(run, check):
        assert check["text"] not in sent.reply.text, f"{sent.label}: {short(sent.reply.text)}"


@judge_of("client")
def client_body_same_as_backend(run: Run, check: JsonObject) -> None:
    for sent in sent_of(run, check):
        entity, body = seen_of(run, sent)[-1].entity, sent.reply.body
        at = next((i for i, (a, b) in enumerate(zip(entity, body, strict=False)) if a != b), None)
        assert entity == body, (
            f"{sent.label}: {len(entity)} bytes became {len(body)}; first difference at {at}: "
            f"{short(entity[-120:])} against {short(body[-120:])}"
        )


@judge_of("client")
def client_decodes_to_json(run: Run, check: JsonObject) -> None:
    for sent in sent_of(run, check):
        value = as_json(_decoded(sent.reply))
        compare(lookup(value, check["path"]), check, f"{sent.label}: {check['path']}")


@judge_of("client")
def client_text(run: Run, check: JsonObject) -> None:
    for sent in sent_of(run, check):
        compare(text_of(sent), check, f"{sent.label}: text")


@judge_of("client")
def client_text_length(run: Run, check: JsonObject) -> None:
    for sent in sent_of(run, check):
        compare(len(text_of(sent)), check, f"{sent.label}: characters of text")


@judge_of("client")
def client_tool_calls(run: Run, check: JsonObject) -> None:
    for sent in sent_of(run, check):
        calls = sent.sdk.tool_calls if sent.sdk else _calls_in(sent.reply)
        compare(calls, check, f"{sent.label}: tool calls")


@judge_of("client")
def client_usage(run: Run, check: JsonObject) -> None:
    for sent in sent_of(run, check):
        usage = sent.sdk.usage if sent.sdk else _usage_in(sent.reply)
        compare(usage, check, f"{sent.label}: usage")


@judge_of("client")
def client_sse_last(run: Run, check: JsonObject) -> None:
    _each_reply(run, check, lambda reply: sse_payloads(reply.body)[-1], "last data")


@judge_of("client")
def client_sse_error_frame(run: Run, check: JsonObject) -> None:
    for sent in sent_of(run, check):
        frames = _error_frames(sent.reply)
        assert frames, f"{sent.label}: no error frame in {short(sent.reply.text)}"
        if "path" in check:
            compare(lookup(frames[-1], check["path"]), check, f"{sent.label}: {check['path']}")


@judge_of("client")
def client_no_sse_field(run: Run, check: JsonObject) -> None:
    start = f"{check['field']}:"
    for sent in sent_of(run, check):
        found = [line for line in sent.reply.text.splitlines() if line.startswith(start)]
        assert not found, f"{sent.label}: {found}"


@judge_of("client")
def client_no_clean_end_without_error(run: Run, check: JsonObject) -> None:
    for sent in sent_of(run, check):
        reply = sent.reply
        assert reply.status is not None, f"{sent.label}: no reply at all ({reply.broken})"
        assert not reply.ended_properly or _error_frames(reply), (
            f"{sent.label}: ends as if it were whole: {short(reply.text[-200:])}"
        )


@judge_of("client")
def client_completes(run: Run, check: JsonObject) -> None:
    for sent in sent_of(run, check):
        assert sent.reply.ended_properly, f"{sent.label}: {sent.reply.broken}"
        assert not (sent.sdk and sent.sdk.error), f"{sent.label}: {sent.sdk!r}"


@judge_of("client")
def client_raises(run: Run, check: JsonObject) -> None:
    for sent in sent_of(run, check):
        assert sent.sdk is not None, f"{sent.label} did not go through the SDK"
        assert set(sent.sdk.error_classes) & set(check["classes"]), f"{sent.label}: {sent.sdk!r}"
        wanted = check.get("message_contains", "")
        assert wanted in str(sent.sdk.error), f"{sent.label}: {sent.sdk.error}"


@judge_of("client")
def client_time_ms(run: Run, check: JsonObject) -> None:
    compare_times([sent.reply.total_ms for sent in sent_of(run, check)], check, "time")


@judge_of("client")
def client_head_ms(run: Run, check: JsonObject) -> None:
    compare_times([sent.reply.head_ms for sent in sent_of(run, check)], check, "time to head")


@judge_of("client")
def client_first_frame_ms(run: Run, check: JsonObject) -> None:
    times = [sent.reply.first_frame_ms for sent in sent_of(run, check)]
    compare_times(times, check, "time to first frame")


@judge_of("client")
def client_frame_delay_ms(run: Run, check: JsonObject) -> None:
    for sent in sent_of(run, check):
        compare_times(frame_delays_ms(seen_of(run, sent)[-1], sent.reply), check, sent.label)


@judge_of("client")
def client_poll_ok(run: Run, check: JsonObject) -> None:
    for name in names_of(check, list(run.polls)):
        took = run.polls[name]
        assert took is not None, f"{name} never came about"
        compare(took, {"max": check.get("max_ms", math.inf)}, f"{name}: ms")


def text_of(sent: Sent) -> str:
    """What a reader of the answer has read, up to where it broke."""
    if sent.sdk is not None:
        return sent.sdk.text
    choices = [
        choice
        for event in _values_in(sent.reply)
        for choice in (lookup(event, "choices") or ())
        if isinstance(choice, dict)
    ]
    parts = [lookup(choice, "delta.content") or "" for choice in choices if "delta" in choice]
    parts += [lookup(choice, "message.content") or "" for choice in choices if "message" in choice]
    return "".join(part for part in parts if part is not MISSING)


def frame_delays_ms(seen: Seen, reply: RawReply) -> list[float | None]:
    """For each piece that the backend wrote, how much later the client had all of it."""
    body, place = reply.body, 0
    delays: list[float | None] = []
    for frame in seen.frames:
        found = body.find(frame.data, place)
        assert found >= 0, f"{short(frame.data)} never arrived"
        place = found + len(frame.data)
        delays.append((_arrival(reply, place) - frame.at) * 1000)
    return delays


def _arrival(reply: RawReply, count: int) -> float:
    """When the client had so many bytes of the body."""
    for frame in reply.frames:
        count -= len(frame.data)
        if count <= 0:
            return frame.at
    return math.inf


def _values_in(reply: RawReply) -> list[Any]:
    if "text/event-stream" in (reply.header("content-type") or ""):
        return sse_events(reply.body)
    value = as_json(_decoded(reply))
    return [] if value is MISSING else [value]


def _error_frames(reply: RawReply) -> list[Any]:
    return [
        event for event in sse_events(reply.body) if isinstance(event, dict) and "error" in event
    ]


def _usage_in(reply: RawReply) -> Any:
    found = [lookup(value, "usage") for value in _values_in(reply)]
    return next((usage for usage in reversed(found) if isinstance(usage, dict)), None)


def _calls_in(reply: RawReply) -> list[dict[str, Any]]:
    calls: dict[int, tuple[str, str]] = {}
    for event in sse_events(reply.body):
        for call in lookup(event, "choices.0.delta.tool_calls") or ():
            function = call.get("function", {})
            add_call(calls, call["index"], function.get("name"), function.get("arguments"))
    return joined_calls(calls)


def _decoded(reply: RawReply) -> bytes:
    coding = reply.header("content-encoding") or "identity"
    match coding:
        case "identity":
            return reply.body
        case "gzip":
            return gzip.decompress(reply.body)
        case "deflate":
            return zlib.decompress(reply.body)
        case _:
            raise AssertionError(f"a coding that nobody here asked for: {coding}")
