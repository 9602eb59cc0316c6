"""What was said: one JSON object a request, for those that are written down. Pure.

Version 1. In: the client's bytes, and what was kept of the answer. Out: the line. Texts have
their secrets taken out (redaction.py) before they are cut to the limit. What is no text, images
above all, is named and not stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from router.chat import Endpoint
from router.redaction import redact
from router.said import SLACK, Said

SCHEMA = 1

#: of names that clients make up: roles, kinds of parts, functions
_NAME_CHARS = 64
_LONGEST_ESCAPE = 13  # two halves of a letter, each \\uXXXX, and one more
_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal"})


class Message(msgspec.Struct):
    """One message of a prompt."""

    role: str = ""
    text: str = ""
    parts: Annotated[
        tuple[str, ...], Meta(description="what is not stored: image_url, tool_call weather, …")
    ] = ()


class Call(msgspec.Struct):
    """A call of a tool in an answer."""

    name: str = ""
    arguments: str = ""


class Body(msgspec.Struct, kw_only=True):
    """What one request and its answer said."""

    schema: Annotated[int, Meta(description="version of this schema")] = SCHEMA
    ts: Annotated[str, Meta(description="as in its record")] = ""
    request_id: Annotated[str, Meta(description="as in its record")] = ""
    endpoint: Annotated[str, Meta(description="as in its record")] = ""
    scenario: Annotated[str | None, Meta(description="as in its record")] = None
    prompt: Annotated[tuple[Message, ...], Meta(description="the last ones that fit")] = ()
    answer: Annotated[str, Meta(description="as the backend told it")] = ""
    other_answers: Annotated[tuple[str, ...], Meta(description="where n > 1")] = ()
    reasoning: Annotated[str, Meta(description="thought, where the backend tells it apart")] = ""
    tool_calls: tuple[Call, ...] = ()
    cut: Annotated[bool, Meta(description="something is left out, being too long")] = False
    redacted: Annotated[dict[str, int], Meta(description="kind → how many were replaced")] = {}


class Spoken(msgspec.Struct, kw_only=True):
    """A request that is to be written down, still unread."""

    ts: str
    request_id: str
    endpoint: Endpoint
    scenario: str | None
    raw: bytes
    said: Said

    @property
    def size(self) -> int:
        """Bytes that it holds, about."""
        return len(self.raw) + self.said.size


_encode = msgspec.json.Encoder().encode


def line(spoken: Spoken, limit: int) -> bytes:
    """The line of a request; `limit`: bytes of the prompt, and of the answer."""
    return _encode(of(spoken, limit)) + b"\n"


def of(spoken: Spoken, limit: int) -> Body:
    """What a request and its answer said, with secrets taken out."""
    prompt, answer = _Paper(limit), _Paper(limit)
    body = Body(
        ts=spoken.ts,
        request_id=spoken.request_id,
        endpoint=spoken.endpoint,
        scenario=spoken.scenario,
        prompt=_prompt(spoken.endpoint, spoken.raw, prompt),
    )
    _describe(body, spoken.said, answer)
    body.cut = prompt.is_cut or answer.is_cut or spoken.said.is_cut
    body.redacted = {
        kind: prompt.found.get(kind, 0) + answer.found.get(kind, 0)
        for kind in prompt.found | answer.found
    }
    return body


def json_schema() -> dict[str, Any]:
    """JSON Schema of a line."""
    schema: dict[str, Any] = msgspec.json.schema(Body)
    return schema


class _Paper:
    """Room for so much text; what is put on it is clean, and cut where there is no more."""

    def __init__(self, room: int) -> None:
        self._room = room
        self.is_cut = False
        self.found: dict[str, int] = {}

    @property
    def is_full(self) -> bool:
        return self._room <= 0

    def put(self, text: str) -> str:
        if not text:
            return ""
        if self.is_full:
            self.is_cut = True
            return ""
        clean = redact(text[: self._room + SLACK], self.found).encode()
        if len(clean) > self._room or len(text) > self._room + SLACK:
            self.is_cut = True
            clean = clean[: self._room]
        self._room -= len(clean)
        return clean.decode("utf-8", "ignore")

    def put_raw(self, raw: bytes) -> str:
        """A JSON string, of which no more is decoded than there is room for."""
        if len(raw) > 4 * (self._room + SLACK):
            self.is_cut = True
            return self.put(_beginning(raw, 2 * (self._room + SLACK)))
        return self.put(_text(raw))


def _beginning(raw: bytes, size: int) -> str:
    """The beginning of a JSON string; an escape or a letter that is cut in two is left out."""
    for end in range(size, size - _LONGEST_ESCAPE, -1):
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            return _text(raw[:end] + b'"')
    return ""


# --- the prompt -------------------------------------------------------------------------------


class _Request(msgspec.Struct):
    messages: msgspec.Raw = msgspec.Raw(b"null")
    input: msgspec.Raw = msgspec.Raw(b"null")
    instructions: msgspec.Raw = msgspec.Raw(b"null")
    prompt: msgspec.Raw = msgspec.Raw(b"null")


class _Item(msgspec.Struct):
    """A message, or an item of /v1/responses."""

    role: Any = None
    content: msgspec.Raw = msgspec.Raw(b"null")
    type: Any = None
    tool_calls: Any = None
    name: Any = None
    output: msgspec.Raw = msgspec.Raw(b"null")


class _Part(msgspec.Struct):
    type: Any = None
    text: msgspec.Raw = msgspec.Raw(b"null")


_request = msgspec.json.Decoder(_Request).decode
_items = msgspec.json.Decoder(list[_Item]).decode
_parts = msgspec.json.Decoder(list[_Part]).decode
_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode
_text = msgspec.json.Decoder(str).decode


def _prompt(endpoint: Endpoint, raw: bytes, paper: _Paper) -> tuple[Message, ...]:
    """The messages; none where the body cannot be read. The last are the first to have room."""
    try:
        request = _request(raw)
        match endpoint:
            case Endpoint.CHAT:
                told = _messages(_items(request.messages), paper)
            case Endpoint.RESPONSES:
                told = _input(bytes(request.input), paper)
                if _is_text(request.instructions):
                    told.append(Message("system", paper.put_raw(bytes(request.instructions))))
            case _:
                told = _texts(bytes(request.prompt), paper)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ()
    return tuple(reversed(told))


def _messages(items: Sequence[_Item], paper: _Paper) -> list[Message]:
    told = []
    for item in reversed(items):
        if paper.is_full:
            paper.is_cut = True
            break
        message = Message(_name(item.role) if item.role else _name(item.type))
        names: list[str] = []
        content = bytes(item.output if item.role is None else item.content)
        if content[:1] == b'"':
            message.text = paper.put_raw(content)
        elif content[:1] == b"[":
            message.text = _joined(_parts(content), paper, names)
        if item.role is None and item.name is not None:
            names.append(_name(item.name))
        names += [
            f"tool_call {_name(_function(call).get('name'))}" for call in _list(item.tool_calls)
        ]
        message.parts = tuple(names)
        told.append(message)
    return told


def _joined(parts: Iterable[_Part], paper: _Paper, names: list[str]) -> str:
    texts = []
    for part in parts:
        if part.type in _TEXT_PARTS and _is_text(part.text):
            texts.append(paper.put_raw(bytes(part.text)))
        else:
            names.append(_name(part.type))
    return "\n".join(texts)


def _input(raw: bytes, paper: _Paper) -> list[Message]:
    if raw[:1] == b"[":
        return _messages(_items(raw), paper)
    return _texts(raw, paper)


def _texts(raw: bytes, paper: _Paper) -> list[Message]:
    """A text or several; tokens, which are numbers, are named."""
    if raw[:1] == b'"':
        return [Message("user", paper.put_raw(raw))]
    if raw[:1] != b"[":
        return []
    entries = _raws(raw)
    told = [Message("user", paper.put_raw(bytes(e))) for e in reversed(entries) if _is_text(e)]
    return told or ([Message("user", "", ("tokens",))] if entries else [])


def _is_text(raw: msgspec.Raw) -> bool:
    return memoryview(raw)[:1].tobytes() == b'"'


def _name(given: Any) -> str:
    """A name that a client made up, if it is one."""
    is_name = isinstance(given, str) and len(given) <= _NAME_CHARS
    return given if is_name and all(c.isalnum() or c in "_-." for c in given) else "other"


# --- the answer -------------------------------------------------------------------------------


class _Whole(msgspec.Struct):
    """An answer that came in one."""

    choices: Any = None
    output: Any = None


_whole = msgspec.json.Decoder(_Whole).decode


def _describe(body: Body, said: Said, paper: _Paper) -> None:
    answers = {index: "".join(texts) for index, texts in said.answers.items()}
    thoughts = list(said.thoughts)
    calls = _calls(said.calls)
    for document in said.wholes:
        try:
            whole = _whole(document)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        for index, choice in enumerate(_list(whole.choices)):
            _read(choice.get("message") or choice, index, answers, thoughts, calls)
        for item in _list(whole.output):
            _read_item(item, answers, thoughts, calls)
    told = [paper.put(answers[index]) for index in sorted(answers)]
    if body.endpoint == Endpoint.RESPONSES:
        told = ["".join(told)]
    body.answer, body.other_answers = (told[0] if told else ""), tuple(told[1:])
    body.tool_calls = tuple(Call(_name(call.name), paper.put(call.arguments)) for call in calls)
    body.reasoning = paper.put("".join(thoughts))


def _read(
    message: Any, index: int, answers: dict[int, str], thoughts: list[str], calls: list[Call]
) -> None:
    """A message of a chat, or the choice of a completion."""
    if not isinstance(message, dict):
        return
    for name in ("reasoning_content", "reasoning"):
        if isinstance(thought := message.get(name), str):
            thoughts.append(thought)
            break
    content = message.get("content", message.get("text"))
    if isinstance(content, list):
        content = "".join(_texts_in(content))
    if isinstance(content, str):
        answers[index] = answers.get(index, "") + content
    calls += _calls(_list(message.get("tool_calls")))


def _read_item(
    item: Mapping[str, Any], answers: dict[int, str], thoughts: list[str], calls: list[Call]
) -> None:
    """An item of what /v1/responses puts out."""
    texts = "".join(_texts_in(item.get("content")))
    if item.get("type") == "reasoning":
        thoughts.append(texts or "".join(_texts_in(item.get("summary"))))
    elif item.get("type") == "message":
        answers[0] = answers.get(0, "") + texts
    else:
        calls += _calls([item])


def _calls(pieces: Iterable[Any]) -> list[Call]:
    """Calls of tools, whole or in the pieces of a stream."""
    calls: dict[Any, Call] = {}
    for number, piece in enumerate(pieces):
        function = _function(piece)
        if not function:
            continue
        call = calls.setdefault(piece.get("index", f"at {number}"), Call())
        if isinstance(name := function.get("name"), str) and name:
            call.name = name
        if isinstance(arguments := function.get("arguments"), str):
            call.arguments += arguments
    return list(calls.values())


def _function(call: Any) -> Mapping[str, Any]:
    if not isinstance(call, dict):
        return {}
    function = call.get("function")
    if isinstance(function, dict):
        return function
    return call if call.get("type") == "function_call" else {}


def _texts_in(parts: Any) -> list[str]:
    return [part["text"] for part in _list(parts) if isinstance(part.get("text"), str)]


def _list(given: Any) -> list[Any]:
    return [entry for entry in given if isinstance(entry, dict)] if isinstance(given, list) else []
