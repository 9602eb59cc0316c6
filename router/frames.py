"""The few members of an answer's JSON documents that are counted, as msgspec reads them.

A whole answer and each frame of a stream are a Frame. Nothing else of them is built.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Delta(msgspec.Struct, gc=False):
    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: Any = None


class Choice(msgspec.Struct, gc=False):
    delta: Delta | None = None
    message: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class Details(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens_details: Details | None = None
    completion_tokens_details: Details | None = None
    input_tokens_details: Details | None = None
    output_tokens_details: Details | None = None


class Response(msgspec.Struct, gc=False):
    usage: Usage | None = None
    status: str | None = None


class Frame(msgspec.Struct, gc=False):
    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")
    type: str | None = None
    delta: Any = None  # /v1/responses: the text itself
    response: Response | None = None


#: JSON → Frame; raises msgspec.DecodeError
frame_in = msgspec.json.Decoder(Frame).decode
