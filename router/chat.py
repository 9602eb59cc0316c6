"""The nouns that travel through the stages: made once, never edited.

msgspec structs rather than dataclasses: five of them are made per request and
their constructors run in C (0.2 against 1.5 µs for a frozen dataclass of this size).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from router.splice import Spans


class Endpoint(StrEnum):
    """What a path asks for; the first three are classified and rewritten."""

    CHAT = "chat.completions"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    OTHER = "other"


#: what of OTHER there is: paths that pass as they came, and names in the record
PASSED = (
    "embeddings",
    "score",
    "rerank",
    "pooling",
    "classify",
    "tokenize",
    "detokenize",
    "messages",
    "moderations",
    "audio/transcriptions",
    "audio/translations",
)


class Sent(msgspec.Struct, frozen=True):
    """A parameter as the client sent it: our reading, and the spellings it used."""

    value: Any
    spellings: tuple[str, ...]


class Session(msgspec.Struct, frozen=True):
    """Who a request belongs with: a hash (never the client's own text) and where it came from."""

    hash: str
    source: str  # header | body | user | fingerprint

    @property
    def is_named(self) -> bool:
        """Whether the client has a name for it; else it is known by how it began."""
        return self.source != "fingerprint"


def sampled(text: str, head: int, tail: int) -> str:
    """A long text's beginning and end: people put the task at either end of what they paste."""
    if len(text) <= head + tail:
        return text
    return text[:head] + "\n" + text[len(text) - tail :]


class Turn(NamedTuple):
    """What the user wrote in an earlier turn."""

    text: str  # the ends of a long one
    chars: int  # of the whole


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One inference request: the client's bytes, and what deciding needs of them."""

    endpoint: Endpoint
    raw: bytes
    spans: Spans
    values: Mapping[str, Any]  # top-level members as undecoded JSON
    model: str
    stream: bool
    wants_usage: bool  # the client itself asked for the usage frame
    text: str  # what the user wrote in the last turn
    earlier: tuple[Turn, ...]  # in the few turns before, the newest first
    turns: int  # user turns so far, this one included
    has: frozenset[str]  # tools forced_tool json_schema json_object image code tool_loop n logprobs
    params: Mapping[str, Sent]  # by our names
    signature: tuple[tuple[str, bytes], ...]  # all members that `params` was read from
    soft_switch: bool | None  # /think or /no_think in the last turn
    session: Session | None
    notes: tuple[str, ...]  # warnings that reading it gave


class Features(msgspec.Struct, frozen=True):
    """A request as the classifier sees it."""

    text: str  # sampled, full-width letters and case folded
    chars: int  # of the whole text
    lang: str  # zh | ja | ko | en | other
    turns: int
    has: frozenset[str]


class Classification(msgspec.Struct, frozen=True):
    """Which scenario, how we know, and how sure the evidence makes us."""

    scenario: str
    source: str  # header alias structure keyword pattern learned sticky default
    confidence: float  # share of the evidence, 0..1; see classify/
    signals: tuple[str, ...]
    lang: str
    chars: int
    wants_thought: bool  # thinking pays: what `thinking = "auto"` comes to
    thought: float = 0.0  # how likely that is, 0..1


class ParamDecision(msgspec.Struct, frozen=True):
    """One parameter: what the client said, what will be sent, and who decided it."""

    name: str
    client: Any  # None also when nothing was sent; see `was_sent`
    was_sent: bool
    value: Any  # None: nothing will be sent
    origin: str  # client force cap floor strip fill defaults guard
    action: str  # kept forced capped floored stripped filled


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What we will do with a request, and why."""

    scenario: str
    pool: str
    thinking: bool | None  # None: nobody said, the backend's default holds
    params: tuple[ParamDecision, ...]
    because: tuple[str, ...]  # what guards did; the classification has its own reasons
    warnings: tuple[str, ...]
    answer_tokens: int | None = None  # the limit on the answer alone, where there is one
    may_rescue: bool = False  # an answer that thought used up is to be asked for once more

    def value(self, name: str) -> Any:
        """What a parameter came to; None where nothing will be said of it."""
        return next((param.value for param in self.params if param.name == name), None)


class Wire(msgspec.Struct, frozen=True):
    """A request in the words of one kind of backend."""

    body: bytes
    params: Mapping[str, Any]  # what is really said, by our names
    warnings: tuple[str, ...]
