"""The encoder that all dialects share: their tables, turned into edits of the client's bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from router import params, splice
from router.chat import ChatRequest, Endpoint, Wire
from router.errors import InvalidValue
from router.rewrite import Change, Changes

_json = msgspec.json.Encoder().encode

#: said of a parameter, instead of a value, when this value cannot be said here
UNSAYABLE: Any = object()


def as_it_is(value: Any) -> Any:
    return value


class Place(msgspec.Struct, frozen=True):
    """Where a server reads a parameter. Several paths: any of them is understood.

    `say` turns our value into the server's, or gives UNSAYABLE. `within` gives the bound
    instead of a number that this server would turn down; see `bounded`.
    """

    paths: tuple[str, ...]
    say: Callable[[Any], Any] = as_it_is
    within: Callable[[Any], Any] | None = None


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of server.

    `quiet` are parameters with nothing to say and nothing lost: the server already
    does what they ask for, another parameter carries them, or the router itself does
    it (a session is kept on its replica whether or not the replica hears its id). `does` are
    those of one value, which is what the server does anyway. `unheard` are members that it
    takes and does not act on, with what a request then misses. `allowed`, where
    given, are the only top-level members the server accepts. `finish` may put
    finishing touches to the edits. `optional` are places that only some servers of this kind
    have, by how they were started: used where one was seen to honour them (capabilities.py).
    """

    name: str
    title: str
    places: Mapping[str, Place]
    optional: Mapping[str, Place] = {}
    #: which one of the kind: tells apart what was fitted to what one server was seen to do
    variant: str = ""
    context: int | None = None  # tokens that one conversation may have, where that is known
    quiet: frozenset[str] = frozenset()
    does: Mapping[str, Any] = {}
    unheard: Mapping[str, str] = {}
    allowed: frozenset[str] | None = None
    finish: Callable[[ChatRequest, dict[str, Any], dict[str, bytes | None]], None] | None = None
    takes_stream_options: bool = True
    passes_unsayable: bool = False  # an unknown server: what the client wrote may be right
    aborts_only_streams: bool = False  # a whole answer is generated to its end, client or not
    keeps_prefix: bool = True  # the next turn of a conversation finds its past in a cache
    #: streams the prompt's empty think block as a thought of blanks where thinking is off
    leaks_empty_thought: bool = False
    #: goes on with a last message of the assistant's, asked to by `continue_final_message`
    continues: bool = False
    is_one_at_a_time: bool = False  # a second request waits for the first inside the server
    #: the thought's opening tag is in the prompt, so that an answer begins inside the thought
    opens_in_prompt: bool = False
    proven: str = ""  # how this table is known


#: what the router does with an answer itself, whatever the server could do
OURS = frozenset({"reasoning_output", "stream"})
#: what each endpoint but chat can carry; chat carries everything
_COMPLETIONS = frozenset(params.PARAMS) - {"thinking", "thinking_budget", "reasoning_output"}
_RESPONSES = frozenset({"temperature", "top_p", "max_new_tokens"})
_SAYABLE = {Endpoint.COMPLETIONS: _COMPLETIONS, Endpoint.RESPONSES: _RESPONSES}
_LIMIT_NAME = {
    Endpoint.COMPLETIONS: Place(("max_tokens",)),
    Endpoint.RESPONSES: Place(("max_output_tokens",)),
}


#: members that are read here, or written. Servers in Go take any letter case for theirs, and of
#: `max_tokens` and `MAX_TOKENS` the later one: what is said here would be said over again.
READ = params.TOP_LEVEL | {
    "functions", "input", "messages", "model", "n", "prompt", "response_format", "stream",
    "stream_options", "tool_choice", "tools", "user",
}  # fmt: skip

#: of what was left out: so many are named, and of a name so much
_NAMED, _NAME_CHARS = 20, 64


class Said(msgspec.Struct, frozen=True):
    """How a request is said to one kind of backend, before it is written down."""

    patch: splice.Patch
    params: Mapping[str, Any]
    warnings: tuple[str, ...]
    collects: bool = False  # it will stream, although the client wants a whole answer
    budget: int | None = None  # tokens of thought after which we have to stop it ourselves

    def wire(self, request: ChatRequest) -> Wire:
        return Wire(self.patch.apply(request.raw, request.spans), self.params, self.warnings)


def encode(request: ChatRequest, changes: Changes, dialect: Dialect, model: str) -> Wire:
    """The request as this server wants it."""
    return say(request, changes, dialect, model).wire(request)


def say(request: ChatRequest, changes: Changes, dialect: Dialect, model: str) -> Said:
    """How the request is said to this server.

    The same for every request with the same member names, signature and model name.
    """
    edits: dict[str, bytes | None] = {}
    nested: dict[str, dict[str, bytes | None]] = {}
    said: dict[str, Any] = {}
    warnings: list[str] = []
    for change in changes.params:
        if change.name.startswith("extra."):
            _say_extra(change, dialect, edits, said, warnings)
        else:
            _say(change, request, dialect, edits, nested, said, warnings)
    is_whole_chat = request.endpoint is Endpoint.CHAT and not request.stream
    collects = changes.collects or (is_whole_chat and dialect.aborts_only_streams)
    budget = None
    # A thought can be stopped where it is seen. A whole answer is not streamed for that alone:
    # it would cost server and router more than the rescue that it may need.
    can_stop = dialect.continues and (request.stream or collects)
    if changes.budget is not None and can_stop and "thinking_budget" not in said:
        budget = said["thinking_budget"] = changes.budget
    if collects:
        edits["stream"] = b"true"
    if (changes.ask_usage or collects) and dialect.takes_stream_options:
        nested.setdefault("stream_options", {})["include_usage"] = b"true"
    for name, inner in nested.items():
        edits[name] = splice.merge(_raw(request, name), inner)
    if dialect.finish is not None:
        dialect.finish(request, said, edits)
    if model and model != request.model:
        edits["model"] = _json(model)
    for name in request.spans:
        if name not in READ and name.casefold() in READ:
            edits[name] = None
            warnings.append(f"{name} was left out: it differs from {name.casefold()} in case alone")
    warnings += [
        f"{name} has no effect on {dialect.title}"
        for name, wish in dialect.unheard.items()
        if wish in request.has and name in request.spans
    ]
    if dialect.allowed is not None:
        refused = [
            name
            for name in dict.fromkeys([*request.spans, *edits])
            if name not in dialect.allowed and edits.get(name, b"") is not None
        ]
        for name in refused:
            edits[name] = None
        # Names are the client's own text, and go into the record.
        told = [name[:_NAME_CHARS] for name in refused[:_NAMED]]
        warnings += [f"{name} is refused by {dialect.title}" for name in told]
        if len(refused) > _NAMED:
            more = len(refused) - _NAMED
            warnings.append(f"{more} more members are refused by {dialect.title}")
    return Said(splice.patch(request.spans, edits), said, tuple(warnings), collects, budget)


def _raw(request: ChatRequest, name: str) -> bytes | None:
    value = request.values.get(name)
    return None if value is None else bytes(value)


def _place(change: Change, request: ChatRequest, dialect: Dialect) -> Place | None:
    sayable = _SAYABLE.get(request.endpoint)
    if sayable is not None and change.name not in sayable:
        return None
    place = dialect.places.get(change.name)
    if place is not None and "max_tokens" in place.paths:
        return _LIMIT_NAME.get(request.endpoint, place)
    return place


def _say(
    change: Change,
    request: ChatRequest,
    dialect: Dialect,
    edits: dict[str, bytes | None],
    nested: dict[str, dict[str, bytes | None]],
    said: dict[str, Any],
    warnings: list[str],
) -> None:
    place = _place(change, request, dialect)
    value = change.value
    if change.name in OURS:
        # The router does it itself. To a server of unknown kind the client's own word goes on.
        if not dialect.passes_unsayable:
            _remove(change, (), edits, nested)
        if value is not None and request.endpoint is Endpoint.CHAT:
            said[change.name] = value
        return
    told = UNSAYABLE
    if place is not None and value is not None:
        # A limit that is no number, such as "0x400", is one to some server, and no cap has seen it.
        if not dialect.passes_unsayable or change.name == "max_new_tokens":
            _check_kind(change)
        told = place.say(value)
        bound = _bound(change.name, told, place, dialect)
        if bound is not told:
            sent = "nothing" if bound is UNSAYABLE else f"{bound:g}"
            warnings.append(
                f"{change.name} {value} is outside what {dialect.title} takes: {sent} was sent"
            )
            if bound is UNSAYABLE:
                _remove(change, (), edits, nested)
                return
            value = told = bound
    target = _target(change, place)
    if place is not None and _stays(change, request, place, target):
        _remove(change, (target,), edits, nested)
        said[change.name] = value
        return
    is_client_null = value is None and not change.was_decided
    if is_client_null and place is not None:
        _remove(change, (target,), edits, nested)
        if target not in change.spellings:
            _put(target, b"null", edits, nested)
        return
    if told is UNSAYABLE:
        if dialect.passes_unsayable and not change.was_decided:
            said[change.name] = value
            return
        _remove(change, (), edits, nested)
        is_done = change.name in dialect.quiet or dialect.does.get(change.name) == value
        if value is not None and not is_done:
            warnings.append(f"{change.name} cannot be said to {dialect.title}")
        return
    _remove(change, (target,), edits, nested)
    said[change.name] = value
    is_as_sent = not change.was_decided and target in change.spellings and told == value
    if not is_as_sent or _differs(request, target, told):
        _put(target, _json(told), edits, nested)


def _check_kind(change: Change) -> None:
    """Raise InvalidValue for a client's value of the wrong kind: some servers fall over it."""
    param = params.PARAMS[change.name]
    if change.was_decided or not change.spellings or param.kind not in ("int", "float"):
        return
    if not params.is_number(change.value):
        name = change.spellings[0]
        raise InvalidValue(f"{name} must be a number.", param=name)


def _bound(name: str, told: Any, place: Place, dialect: Dialect) -> Any:
    """A number as this server takes it: itself, the nearest it takes, or UNSAYABLE."""
    if told is UNSAYABLE or not params.is_number(told):
        return told
    if place.within is not None:
        told = place.within(told)
    if name == "max_new_tokens" and dialect.context is not None and told is not UNSAYABLE:
        told = min(told, dialect.context)
    return told


def _stays(change: Change, request: ChatRequest, place: Place, target: str) -> bool:
    """Whether the client said it in this server's own finer words (`reasoning_effort: low`)."""
    if change.was_decided or place.say is as_it_is or target not in change.spellings:
        return False
    given = msgspec.json.decode(request.values[target])
    return bool(params.reading(params.PARAMS[change.name], target, given) == change.value)


def _differs(request: ChatRequest, target: str, told: Any) -> bool:
    """Whether the client's own text at the target says something else than `told`."""
    top, _, inner = target.partition(".")
    given = msgspec.json.decode(request.values[top])
    if inner:
        given = given.get(inner)
    return type(given) is not type(told) or bool(given != told)


def _target(change: Change, place: Place | None) -> str:
    """The spelling to use: the client's own where this server understands it."""
    if place is None:
        return ""
    for spelling in change.spellings:
        if spelling in place.paths:
            return spelling
    return place.paths[0]


def _put(
    target: str,
    value: bytes,
    edits: dict[str, bytes | None],
    nested: dict[str, dict[str, bytes | None]],
) -> None:
    top, _, inner = target.partition(".")
    if inner:
        nested.setdefault(top, {})[inner] = value
    else:
        edits[top] = value


def _remove(
    change: Change,
    keep: tuple[str, ...],
    edits: dict[str, bytes | None],
    nested: dict[str, dict[str, bytes | None]],
) -> None:
    for spelling in change.spellings:
        is_stripped = change.was_decided and change.value is None
        if spelling in keep or (spelling in params.SHARED and not is_stripped):
            continue
        top, _, inner = spelling.partition(".")
        if inner:
            nested.setdefault(top, {})[inner] = None
        else:
            edits[top] = None


def _say_extra(
    change: Change,
    dialect: Dialect,
    edits: dict[str, bytes | None],
    said: dict[str, Any],
    warnings: list[str],
) -> None:
    """`extra.x` goes out as `x`, unread: the operator knows this server."""
    name = change.name.removeprefix("extra.")
    if dialect.allowed is not None and name not in dialect.allowed:
        warnings.append(f"{change.name} is refused by {dialect.title}")
    elif change.was_decided:
        edits[name] = None if change.value is None else _json(change.value)
        said[change.name] = change.value


def bounded(low: float, high: float) -> Callable[[Any], Any]:
    """A `within` for numbers: the nearest one in [low, high]. Both have to be of its kind."""

    def nearest(value: Any) -> Any:
        if value < low:
            return low
        return high if value > high else value

    return nearest


def above(low: float) -> Callable[[Any], Any]:
    """A `within` for a number without a sensible neighbour: nothing is said instead."""
    return lambda value: value if value > low else UNSAYABLE


def tokens(value: Any) -> Any:
    """A `within` for a token limit. Less than none means no limit, which goes without saying."""
    if value < 0:
        return UNSAYABLE
    return max(int(value), 1)


def onoff(on: Any, off: Any) -> Callable[[Any], Any]:
    """A `say` for a switch."""
    return lambda value: on if value else off
