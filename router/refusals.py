"""A backend's refusal in the one shape that clients read, whatever shape it came in. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from router import errors

_CONTEXT_CODE = errors.ContextLength.code
#: how vLLM and llama.cpp say that a prompt is too long (BadRequestError is all the type it has)
_TOO_LONG = re.compile(
    r"maximum context length|longer than the maximum model length|exceed_context_size"
    r"|exceeds the available context size",
    re.IGNORECASE,
)
#: what can be a code, and no sentence: it goes into the record and is a label of metrics
_IS_CODE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}").fullmatch
#: what a number in place of a code comes to
_CODES: Mapping[int, str] = {
    400: "invalid_value",
    401: "invalid_api_key",
    403: "forbidden",
    404: "model_not_found",
    405: "method_not_allowed",
    413: "request_too_large",
    422: "invalid_value",
    429: "rate_limit_exceeded",
}


def in_shape(status: int, body: bytes) -> bytes:
    """A backend's error as an OpenAI error object; one that clients can read stays as it is.

    Seen in the field: FastAPI's `{"detail": …}`, a text in place of the object, plain text, and
    an `{"object": "error", "message": …}` with a number for its code from older vLLM.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = body.decode("utf-8", "replace").strip()[:2000]
    given = document.get("error") if isinstance(document, dict) else None
    source: Mapping[str, Any] = {}
    if isinstance(document, dict):
        source = given if isinstance(given, dict) else document
        message = source.get("message") or given or document.get("detail") or document
    else:
        message = document
    if not isinstance(message, str):
        message = _text(message)
    code, param, kind = source.get("code"), source.get("param"), source.get("type")
    if source is given and isinstance(source.get("message"), str) and isinstance(kind, str):
        return body
    text = f"{kind} {message}"
    if not isinstance(kind, str):
        kind = "invalid_request_error" if 400 <= status < 500 else "server_error"
    if isinstance(code, int) or code is None:
        code = _code(code or status, text, had_none=code is None)
    return errors.error_body(
        message or f"The backend answered with status {status}.",
        type=kind,
        param=param if isinstance(param, str) else None,
        code=code if isinstance(code, str) else "backend_error",
    )


def _text(document: Any) -> str:
    """A document that stands for a message; what is nested too deep to be written is left out.

    FastAPI repeats what a client sent, to any depth that it can read.
    """
    try:
        return orjson.dumps(document).decode()
    except TypeError:
        return ""


def _code(number: int, text: str, *, had_none: bool) -> str:
    if _TOO_LONG.search(text):
        return _CONTEXT_CODE
    return "backend_error" if had_none else _CODES.get(number, "backend_error")


def code_in(status: int, body: bytes) -> str | None:
    """The code of an error in shape, for the record; what a number, or none, comes to."""
    try:
        error = orjson.loads(body)["error"]
        code = error.get("code")
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return "backend_error"
    if code is not None and not isinstance(code, int):
        return code if isinstance(code, str) and _IS_CODE(code) else "backend_error"
    text = f"{error.get('type')} {error.get('message')}"
    if code is None and not _TOO_LONG.search(text):
        return None
    return _code(code or status, text, had_none=code is None)


def error_text(error: bytes) -> str:
    """The message of an error member, in whichever shape."""
    try:
        given = orjson.loads(error)
    except orjson.JSONDecodeError:
        return ""
    if isinstance(given, dict):
        given = given.get("message", "")
    return str(given)[:500]
