"""A request that goes on as it came, but for a model name that means the router. Pure."""

from __future__ import annotations

import re

import msgspec

from router import splice
from router.envelope import named_in
from router.errors import ClientError
from router.verdict import Live, is_virtual

_AUTO_FIRST = b'{"model":"auto"'
_MODEL_FIRST = re.compile(rb'\{\s*"model"\s*:\s*"([A-Za-z0-9:_./-]*)"\s*[,}]')


def with_model(body: bytes, model: str | None, live: Live) -> bytes:
    """The client's own bytes; only a model name that means us is put right."""
    if not model or body[:1] != b"{":
        return body
    if body.startswith(_AUTO_FIRST):
        return b'{"model":' + msgspec.json.encode(model) + body[len(_AUTO_FIRST) :]
    first = _MODEL_FIRST.match(body)
    if first is not None:
        if is_virtual(first[1].decode(), live):
            name = msgspec.json.encode(model)
            return body[: first.start(1) - 1] + name + body[first.end(1) + 1 :]
        return body
    try:
        values, spans = splice.members(body)
    except ClientError:
        return body  # not ours to judge here
    if "model" in values and is_virtual(model_of(body), live):
        return splice.apply(body, spans, {"model": msgspec.json.encode(model)})
    return body


def model_of(body: bytes) -> str:
    """The model that a body names; nothing where it names none."""
    try:
        return named_in(body).model or ""
    except (msgspec.DecodeError, RecursionError):
        return ""
