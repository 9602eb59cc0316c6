"""The language in which a scripted upstream is told what to answer.

Rules, steps and a request go in; bytes to write and waits to keep come out, one by
one. It knows neither sockets nor clocks: `scripted.py` carries the effects out.
"""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tests.support.paths import MISSING, lookup, same

Step = Mapping[str, Any]
Framing = Literal["chunked", "length", "close"]


@dataclass(frozen=True, slots=True)
class Head:
    """Status line and headers; `framing` says how the body after it is delimited."""

    status: int
    headers: Mapping[str, str]
    framing: Framing


@dataclass(frozen=True, slots=True)
class Piece:
    """Entity bytes for one write, which is one chunk where the framing is chunked."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Pause:
    ms: float


@dataclass(frozen=True, slots=True)
class Finish:
    """The body is whole; the connection stays usable."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The connection goes away with the body left open: FIN, or RST."""

    reset: bool


@dataclass(frozen=True, slots=True)
class AwaitPeer:
    """Say nothing until the peer leaves, or for this long."""

    max_ms: float


Effect = Head | Piece | Pause | Finish | Cut | AwaitPeer

# --- writing scripts by hand -----------------------------------------------


def chat_ok(text: str) -> Step:
    """An ordinary success in the shape that the request asks for."""
    return {"do": "chat_ok", "text": text}


def reply_json(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Step:
    return {"do": "json", "status": status, "body": body, "headers": dict(headers or {})}


def stream_head(status: int = 200) -> Step:
    return {"do": "head", "status": status, "headers": {"Content-Type": "text/event-stream"}}


def delta(finish_reason: str | None = None, **fields: Any) -> Step:
    """One frame of a chat stream with this delta."""
    return {"do": "sse", "data": _chunk([_choice(fields, finish_reason)])}


def pause(ms: float) -> Step:
    return {"do": "sleep", "ms": ms}


DONE: Step = {"do": "send", "text": "data: [DONE]\n\n"}
END: Step = {"do": "end"}
CLOSE: Step = {"do": "close"}
RESET: Step = {"do": "reset"}


def stream_of(*texts: str) -> list[Step]:
    """A whole event stream, one frame for each text."""
    frames = [delta(content=text) for text in texts]
    return [stream_head(), *frames, delta("stop"), DONE, END]


# --- choosing ----------------------------------------------------------------


def choose(rules: Sequence[Mapping[str, Any]], steps: Sequence[Step], body: bytes) -> list[Step]:
    """The steps of the first rule that fits this body, else the plain steps."""
    for rule in rules:
        if _fits(rule.get("when", {}), body):
            return list(rule["steps"])
    if steps:
        return list(steps)
    message = "the script has nothing for this request"
    return [reply_json({"error": {"message": message}}, status=500)]


def _fits(when: Mapping[str, Any], body: bytes) -> bool:
    value = as_json(body)
    for kind, wanted in when.items():
        match kind:
            case "body_has":
                fits = lookup(value, wanted) is not MISSING
            case "body_eq":
                fits = all(same(lookup(value, path), want) for path, want in wanted.items())
            case "body_not_eq":
                fits = all(not same(lookup(value, path), want) for path, want in wanted.items())
            case "body_text":
                fits = wanted in body.decode("utf-8", "replace")
            case _:
                raise ValueError(f"no such condition: {kind}")
        if not fits:
            return False
    return True


def as_json(body: bytes) -> Any:
    """The JSON value of these bytes, or MISSING where they are none."""
    try:
        return json.loads(body)
    except ValueError:
        return MISSING


# --- playing -----------------------------------------------------------------


def effects(
    steps: Sequence[Step], *, path: str, headers: Mapping[str, str], body: bytes
) -> Iterator[Effect]:
    """What to do, in order. `headers` of the request come with lower-case names."""
    for step in steps:
        match step["do"]:
            case "chat_ok":
                yield from _ordinary(step["text"], path, as_json(body))
            case "json":
                entity = _json_bytes(step["body"])
                yield from _whole(step.get("status", 200), entity, step.get("headers") or {})
            case "json_negotiated":
                yield from _negotiated(step, headers.get("accept-encoding", ""))
            case "head":
                yield Head(
                    step.get("status", 200), step.get("headers", {}), step.get("framing", "chunked")
                )
            case "sse":
                yield Piece(_frame(step["data"]))
            case "send":
                yield Piece(step["text"].encode())
            case "send_b64":
                yield Piece(base64.b64decode(step["b64"]))
            case "fill":
                yield from _filling(step)
            case "repeat":
                for _ in range(step["times"]):
                    yield from effects(step["steps"], path=path, headers=headers, body=body)
            case "sleep":
                yield Pause(step["ms"])
            case "end":
                yield Finish()
            case "close" | "reset":
                yield Cut(reset=step["do"] == "reset")
            case "wait_disconnect":
                yield AwaitPeer(step["max_ms"])
            case other:
                raise ValueError(f"no such step: {other}")


def _whole(status: int, entity: bytes, headers: Mapping[str, str]) -> Iterator[Effect]:
    extra = {"Content-Type": "application/json", **headers, "Content-Length": str(len(entity))}
    yield Head(status, extra, "length")
    yield Piece(entity)
    yield Finish()


def _negotiated(step: Step, accepted: str) -> Iterator[Effect]:
    wanted = [part.split(";")[0].strip().lower() for part in accepted.split(",")]
    coding = next((name for name in step["codings"] if name in wanted), None)
    entity = _json_bytes(step["body"])
    match coding:
        case None:
            headers = {}
        case "gzip":
            entity, headers = gzip.compress(entity), {"Content-Encoding": "gzip"}
        case "deflate":
            entity, headers = zlib.compress(entity), {"Content-Encoding": "deflate"}
        case _:
            raise ValueError(f"no such coding: {coding}")
    yield from _whole(step.get("status", 200), entity, headers)


def _filling(step: Step) -> Iterator[Effect]:
    whole = (step["prefix"] + step["char"] * step["count"] + step["suffix"]).encode()
    size = step.get("write_size", len(whole))
    for start in range(0, len(whole), size):
        yield Piece(whole[start : start + size])


def _ordinary(text: str, path: str, asked: Any) -> Iterator[Effect]:
    words = len(text.split())
    usage = {"prompt_tokens": 9, "completion_tokens": words, "total_tokens": 9 + words}
    if lookup(asked, "stream") is not True:
        yield from _whole(200, _json_bytes(_answer(text, path, usage)), {})
        return
    yield Head(200, {"Content-Type": "text/event-stream"}, "chunked")
    if _is_plain_completion(path):
        yield Piece(_frame(_chunk([{"index": 0, "text": text, "finish_reason": None}])))
        yield Piece(_frame(_chunk([{"index": 0, "text": "", "finish_reason": "stop"}])))
    else:
        yield Piece(_frame(_chunk([_choice({"role": "assistant", "content": ""}, None)])))
        yield Piece(_frame(_chunk([_choice({"content": text}, None)])))
        yield Piece(_frame(_chunk([_choice({}, "stop")])))
    if lookup(asked, "stream_options.include_usage") is True:
        yield Piece(_frame({**_chunk([]), "usage": usage}))
    yield Piece(b"data: [DONE]\n\n")
    yield Finish()


def _answer(text: str, path: str, usage: Mapping[str, int]) -> dict[str, Any]:
    base = {"id": "cmpl-scripted", "created": 1700000000, "model": "qwen3-0.6b", "usage": usage}
    if _is_plain_completion(path):
        choice = {"index": 0, "text": text, "finish_reason": "stop"}
        return {**base, "object": "text_completion", "choices": [choice]}
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {**base, "object": "chat.completion", "choices": [choice]}


def _is_plain_completion(path: str) -> bool:
    return path.endswith("/completions") and not path.endswith("/chat/completions")


def _choice(fields: Mapping[str, Any], finish_reason: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": dict(fields), "finish_reason": finish_reason}


def _chunk(choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": "cmpl-scripted",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": "qwen3-0.6b",
        "choices": choices,
    }


def _frame(data: Any) -> bytes:
    return b"data: " + _json_bytes(data) + b"\n\n"


def _json_bytes(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
