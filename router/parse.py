"""Bytes and headers in, a ChatRequest out; anything else is the client's error.

Reads the envelope, the roles, and the texts that deciding needs; the rest stays
undecoded. Knows the OpenAI request shapes, no policy and no backend.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from types import MappingProxyType
from typing import Any

import msgspec

from router import history, params, splice
from router.chat import ChatRequest, Endpoint, Sent, Session, Turn, sampled
from router.envelope import Item, Message, items_in, messages_in, parts_in, text_in, value_in
from router.errors import InvalidJson, InvalidValue

Values = Mapping[str, msgspec.Raw]
#: header names in lower case → value
Headers = Mapping[bytes, bytes]


_TEXT_PARTS = frozenset({"text", "input_text"})
_IMAGE_PARTS = frozenset({"image_url", "input_image", "image"})
_TOOL_ROLES = frozenset({"tool", "function"})
_STRUCTURED = frozenset(
    {"structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"}
    | {"json_schema", "grammar", "format"}
)
#: members that parameters are read from, or that a dialect merges into
_SIGNING = params.TOP_LEVEL | {"stream_options", "generation_config", "reasoning_format"}
_REMEMBERED = 2048
#: messages of a conversation, for those who read what was let in before
NO_LIMIT = 1 << 40
#: earlier user turns that are read to understand the last one, and how much of each
_EARLIER = 3
_EARLIER_HEAD, _EARLIER_TAIL = 300, 100
_ASKS_NOTHING: frozenset[str] = frozenset()
_NO_PARAMS: Mapping[str, Sent] = MappingProxyType({})
#: members that say what the answer must look like or be able to do
_SHAPING = _STRUCTURED | {
    "tools", "functions", "tool_choice", "response_format", "text", "n", "logprobs", "top_logprobs",
}  # fmt: skip
_SOFT_SWITCH = re.compile(r"(?<!\S)/(no_)?think(?![\w/])")
_SESSION_HEADERS = (b"x-session-id", b"x-conversation-id", b"x-litellm-session-id")
_SESSION_KEYS = ("session_id", "conversation_id", "metadata", "prompt_cache_key", "user")
_SESSION_KEY_SET = frozenset(_SESSION_KEYS)
_NOTHING = re.compile(rb'null|false|""|"none"|\[\s*\]|\{\s*\}')
#: what apps send when they mean nobody in particular; it would join strangers
_NOBODY = frozenset({"", "default", "none", "null", "undefined", "anonymous", "user"})


def chat_request(
    endpoint: Endpoint,
    raw: bytes,
    headers: Headers,
    owner: str | None = None,
    messages: int = NO_LIMIT,
) -> ChatRequest:
    """The request; raises ClientError with the parameter at fault.

    `owner` is the name of the client's key: its sessions are its own, whatever others call theirs.
    `messages`: so many at most make a conversation.
    """
    try:
        return _request(endpoint, raw, headers, owner, messages)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidJson(f"The body cannot be read: {error}.") from None


def _request(
    endpoint: Endpoint, raw: bytes, headers: Headers, owner: str | None, limit: int
) -> ChatRequest:
    values, spans = splice.members(raw)
    notes: tuple[str, ...] = ()
    if "extra_body" in values:
        raw, notes = _flattened(raw, values, spans)
        values, spans = splice.members(raw)
    model = _optional_text(values, "model")
    stream = _flag(values, "stream")
    has: set[str] = set()
    if endpoint is Endpoint.CHAT:
        text, earlier, turns, opening, thoughts = _conversation(values, has, limit)
        if thoughts:
            raw = splice.apply(
                raw, spans, {"messages": history.without_thoughts(values["messages"], thoughts)}
            )
            values, spans = splice.members(raw)
    elif endpoint is Endpoint.RESPONSES:
        text, earlier, turns, opening = _responses_input(values, has, limit)
    else:
        text, turns, opening = _prompt(values)
        earlier = ()
    _shape(values, text, has)
    soft_switch = None
    if "think" in text:
        for found in _SOFT_SWITCH.finditer(text):
            soft_switch = found[1] is None
    signature = _signature(values)
    return ChatRequest(
        endpoint=endpoint,
        raw=raw,
        spans=spans,
        values=values,
        model=model,
        stream=stream,
        wants_usage=stream and _wants_usage(values),
        text=text,
        earlier=earlier,
        turns=turns,
        has=frozenset(has) if has else _ASKS_NOTHING,
        params=_params_of(signature),
        signature=signature,
        soft_switch=soft_switch,
        session=_session(headers, values, opening, owner),
        notes=notes,
    )


def _flattened(raw: bytes, values: Values, spans: splice.Spans) -> tuple[bytes, tuple[str, ...]]:
    """A literal `extra_body`, as hand-written clients send it, lifted to the top level.

    Its keys win over the same names outside, as they do in the OpenAI SDK.
    """
    inner_raw = bytes(values["extra_body"])
    edits: dict[str, bytes | None] = {"extra_body": None}
    if inner_raw[:1] == b"{":
        inner, _ = splice.members(inner_raw, "extra_body")
        edits.update((name, bytes(value)) for name, value in inner.items())
        if "extra_body" in inner:
            edits["extra_body"] = None
    elif inner_raw != b"null":
        raise InvalidValue("extra_body must be an object.", param="extra_body")
    return splice.apply(raw, spans, edits), ("extra_body was flattened",)


def _optional_text(values: Values, name: str) -> str:
    raw = values.get(name)
    if raw is None:
        return ""
    try:
        return text_in(raw)
    except msgspec.DecodeError:
        if bytes(raw) == b"null":
            return ""
        raise InvalidValue(f"{name} must be a string.", param=name) from None


def _flag(values: Values, name: str) -> bool:
    raw = values.get(name)
    if raw is None:
        return False
    match bytes(raw):
        case b"true":
            return True
        case b"false" | b"null":
            return False
    raise InvalidValue(f"{name} must be true or false.", param=name)


def _wants_usage(values: Values) -> bool:
    raw = values.get("stream_options")
    if raw is None:
        return False
    options = value_in(raw)
    return isinstance(options, dict) and options.get("include_usage") is True


_Opening = Sequence[msgspec.Raw]  # the texts that a conversation begins with


_Said = tuple[str, tuple[Turn, ...], int, _Opening]  # text, earlier turns, turns, opening


def _conversation(values: Values, has: set[str], limit: int) -> tuple[*_Said, list[int]]:
    """What was said, and where earlier turns of the assistant still carry their thought."""
    raw = values.get("messages")
    if raw is None:
        raise InvalidValue("messages is missing: a list of messages.", param="messages")
    try:
        messages = messages_in(raw)
    except msgspec.DecodeError as error:
        raise _bad_field("messages", error) from None
    if not messages:
        raise InvalidValue("messages must not be empty.", param="messages")
    if len(messages) > limit:
        raise _too_many("messages", limit)
    roles = [message.role for message in messages]
    if roles[-1] in _TOOL_ROLES:
        has.add("tool_loop")
    turns = roles.count("user")
    if not turns:
        return "", (), 0, (), []
    last = len(roles) - 1
    while roles[last] != "user":
        last -= 1
    text = _content(messages[last].content, last, has)
    thoughts = [
        at
        for at in range(last)
        if roles[at] == "assistant" and history.begins_with_thought(messages[at].content)
    ]
    if last and roles[last - 1] == "user":  # one turn in several messages
        first = last
        while first and roles[first - 1] == "user":
            first -= 1
        before = [_content(messages[at].content, at, has) for at in range(first, last)]
        text = "\n".join([*before, text])
        last = first
    earlier = _earlier(messages, [at for at in range(last) if roles[at] == "user"])
    return text, earlier, turns, _opening(messages, roles), thoughts


def _too_many(name: str, limit: int) -> InvalidValue:
    return InvalidValue(
        f"{name} has more than {limit} entries, the most that are taken here.",
        param=name,
        limit="messages",
    )


def _earlier(
    messages: Sequence[Message] | Sequence[Item], users: Sequence[int]
) -> tuple[Turn, ...]:
    """What the user wrote before, the newest first. What cannot be read is the backend's matter."""
    found = []
    for at in reversed(users[-_EARLIER:]):
        with suppress(InvalidValue):
            text = _content(messages[at].content, at, set())
            found.append(Turn(sampled(text, _EARLIER_HEAD, _EARLIER_TAIL), len(text)))
    return tuple(found)


def _opening(messages: Sequence[Message], roles: Sequence[str]) -> _Opening:
    first_user = roles.index("user")
    system = [m.content for m in messages[:first_user] if m.role in ("system", "developer")]
    return (*system, messages[first_user].content)


def _content(raw: msgspec.Raw, index: int, has: set[str], where: str = "messages") -> str:
    """The text a user wrote: a string, text parts joined, or nothing for null."""
    opening = _opens_with(raw)
    if opening == b'"':
        return text_in(raw)
    if opening == b"n":
        return ""
    field = f"{where}[{index}].content"
    if opening != b"[":
        raise InvalidValue(f"{field} must be a string, a list of parts, or null.", param=field)
    try:
        parts = parts_in(raw)
    except msgspec.DecodeError as error:
        raise _bad_field(field, error) from None
    if not _IMAGE_PARTS.isdisjoint(part.type for part in parts):
        has.add("image")
    return "\n".join(part.text for part in parts if part.text and part.type in _TEXT_PARTS)


def _responses_input(values: Values, has: set[str], limit: int) -> _Said:
    raw = values.get("input")
    if raw is None or _opens_with(raw) == b"n":
        return "", (), 0, ()
    if _opens_with(raw) == b'"':
        return text_in(raw), (), 1, (raw,)
    try:
        items = items_in(raw)
    except msgspec.DecodeError as error:
        raise _bad_field("input", error) from None
    if len(items) > limit:
        raise _too_many("input", limit)
    if items and items[-1].type == "function_call_output":
        has.add("tool_loop")
    users = [index for index, item in enumerate(items) if item.role == "user"]
    if not users:
        return "", (), 0, ()
    last = users[-1]
    text = _content(items[last].content, last, has, "input")
    return text, _earlier(items, users[:-1]), len(users), (items[users[0]].content,)


def _prompt(values: Values) -> tuple[str, int, _Opening]:
    raw = values.get("prompt")
    if raw is None:
        return "", 0, ()
    prompt = value_in(raw)
    if isinstance(prompt, list):
        prompt = next((entry for entry in reversed(prompt) if isinstance(entry, str)), "")
    return (prompt, 1, (raw,)) if isinstance(prompt, str) and prompt else ("", 0, ())


def _shape(values: Values, text: str, has: set[str]) -> None:
    """What else a request asks for that a preset must not break or a policy may match."""
    if "```" in text:
        has.add("code")
    if _SHAPING.isdisjoint(values):
        return
    for name in _SHAPING.intersection(values):
        raw = bytes(values[name])
        if not _NOTHING.fullmatch(raw) and (kind := _asks_for(name, raw)):
            has.add(kind)


def _asks_for(name: str, raw: bytes) -> str | None:
    """What one member, which is not empty, asks for."""
    match name:
        case "tools" | "functions":
            return "tools"
        case "tool_choice":
            return "forced_tool" if raw[:1] == b"{" or raw == b'"required"' else None
        case "response_format":
            return "json_schema" if _is_schema(value_in(raw)) else None
        case "text":  # the place of a response format on /v1/responses
            asked = value_in(raw)
            shape = asked.get("format") if isinstance(asked, dict) else None
            return "json_schema" if _is_schema(shape) else None
        case "n":
            return "n" if raw not in (b"1", b"0") else None
        case "logprobs" | "top_logprobs":
            return "logprobs" if raw != b"0" else None
    return "json_schema"


def _is_schema(asked: Any) -> bool:
    return isinstance(asked, dict) and asked.get("type") not in (None, "text")


def _signature(values: Values) -> tuple[tuple[str, bytes], ...]:
    return tuple([(name, bytes(values[name])) for name in values if name in _SIGNING])


def is_small(signature: tuple[tuple[str, bytes], ...]) -> bool:
    """Whether what was found out of these members may be remembered.

    Apps send the same few small parameters all day long; large ones are somebody's own,
    and remembering thousands of those would be a client's way to our memory.
    """
    return sum([len(raw) for _, raw in signature]) <= _REMEMBERED


def _params_of(signature: tuple[tuple[str, bytes], ...]) -> Mapping[str, Sent]:
    if not signature:
        return _NO_PARAMS
    read = _client_params if is_small(signature) else _client_params.__wrapped__
    return read(signature)


@lru_cache(maxsize=4096)
def _client_params(signature: tuple[tuple[str, bytes], ...]) -> Mapping[str, Sent]:
    """The parameters among these members."""
    found: dict[str, list[tuple[str, Any]]] = {}
    for name, raw in signature:
        value = value_in(raw)
        spelled = [(name, value)]
        if isinstance(value, dict):
            spelled += [(f"{name}.{key}", inner) for key, inner in value.items()]
        for spelling, given in spelled:
            param = params.SPELLING.get(spelling)
            if param is not None:
                reading = params.reading(param, spelling, given)
                found.setdefault(param.name, []).append((spelling, reading))
    return MappingProxyType(
        {
            name: Sent(
                params.strongest(params.PARAMS[name], readings),
                tuple(spelling for spelling, _ in readings),
            )
            for name, readings in found.items()
        }
    )


def session_of(headers: Headers, owner: str | None = None) -> Session | None:
    """Who a request belongs with by its headers alone, where its body is not for us to read."""
    return _session(headers, {}, (), owner)


def _session(
    headers: Headers, values: Values, opening: _Opening, owner: str | None
) -> Session | None:
    whose = b"" if owner is None else owner.encode() + b"\0"
    for name in _SESSION_HEADERS:
        if (value := headers.get(name)) and (found := _identity("header", value, whose)):
            return found
    for key in _SESSION_KEYS if not _SESSION_KEY_SET.isdisjoint(values) else ():
        if (raw := values.get(key)) is not None:
            given = value_in(raw)
            if key == "metadata":
                given = given.get("session_id") if isinstance(given, dict) else None
            if isinstance(given, (str, int)) and not isinstance(given, bool):
                source = "user" if key == "user" else "body"
                if found := _identity(source, str(given).encode(), whose):
                    return found
    if not opening:
        return None
    begun = whose + b"\0".join(opening)
    return Session(blake2b(begun, digest_size=8).hexdigest(), "fingerprint")


def _identity(source: str, value: bytes, whose: bytes) -> Session | None:
    text = value.strip()
    if text.lower().decode("utf-8", "replace") in _NOBODY:
        return None
    return Session(blake2b(whose + text, digest_size=8).hexdigest(), source)


def _opens_with(raw: msgspec.Raw) -> bytes:
    """The first byte, which tells a JSON value's kind."""
    return memoryview(raw)[:1].tobytes()


def _bad_field(name: str, error: msgspec.DecodeError) -> InvalidValue:
    """msgspec says where: "Expected `str`, got `int` - at `$[2].role`"."""
    text = str(error)
    found = re.search(r" - at `\$(.*)`$", text)
    where = name + (found[1].replace("[...]", "[]") if found else "")
    reason = text[: found.start()] if found else text
    return InvalidValue(f"{where}: {reason}.", param=where)
