"""Tiny chat requests in the words of a dialect, counted, one at a time.

Parameters go through the encoder that serves, so that what is proven is what the
router will say. What no dialect says (`n`, `logprobs`, …) is added as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import orjson

from router import dialects, parse
from router.chat import ChatRequest, Endpoint
from router.dialects import Dialect
from router.dialects.spoken import UNSAYABLE
from router.doctor import reply as replies
from router.doctor.asking import Answer, Asker, NoAnswer
from router.doctor.reply import Reply, is_word
from router.rewrite import Change, Changes

STORY = "Write a short story about a cat."
REPEAT = "Repeat the word ha twenty times: ha ha ha ha ha ha"
CAP = 8
_PATH = "/v1/chat/completions"
_RENDERING = {"llamacpp": "/apply-template"}
_MOST_REQUESTS = 30
_SILENCES = 3
_PATIENCE = 3
_NO_MORE = f"{_SILENCES} questions in a row got no answer"


class Prober:
    """Asks one model. `base` is said with every request; None takes a parameter of it away."""

    def __init__(self, asker: Asker, dialect: Dialect, model: str) -> None:
        #: with what only some servers of the kind have: whether this one does is a question, too.
        #: Answers come whole, since so they are read.
        self.dialect = msgspec.structs.replace(
            dialect,
            places={**dialect.optional, **dialect.places},
            quiet=dialect.quiet - dialect.optional.keys(),
            aborts_only_streams=False,
        )
        self.count = 0
        self.base: dict[str, Any] = {}
        self.always: dict[str, Any] = {}  # members beside what the dialect says
        self._asker = asker
        self._model = model
        self._silent = 0
        self.is_cut_short = False  # the server was too slow for all that was to be asked

    def can_say(self, name: str, value: Any) -> bool:
        place = self.dialect.places.get(name)
        return place is not None and place.say(value) is not UNSAYABLE

    def is_ours(self, name: str) -> bool:
        """Whether the router does it itself, whatever the server could."""
        changes = Changes((Change(name, True, (), True),), False)
        said = dialects.say(self._request(STORY), changes, self.dialect, self._model)
        return name in said.params and name not in self.dialect.places

    def spelling(self, name: str) -> str | None:
        """Where this server is told the parameter."""
        place = self.dialect.places.get(name)
        return place.paths[0] if place is not None else None

    def words(self, name: str) -> tuple[str, ...]:
        """What a server may call a parameter: as we do, or as it was said."""
        place = self.dialect.places.get(name)
        parts = [part for path in (place.paths if place else ()) for part in path.split(".")]
        packed = ["generation_config"] if self.dialect.finish is not None else []
        return (name, *parts, *packed)

    def names(self, reply: Reply, name: str) -> bool:
        """Whether what a server says names the parameter."""
        return any(is_word(word, reply.whole) for word in self.words(name))

    def ask(
        self,
        text: str = STORY,
        members: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> Reply:
        """One request. A silence is a reply, too, that says nothing about any knob."""
        try:
            return replies.read(self.post(text, members, **params))
        except NoAnswer as silence:
            return Reply(is_ok=False, is_silence=True, told=str(silence), whole=str(silence))

    def rendered(self, text: str = STORY, **params: Any) -> str:
        """The prompt that the template makes of a request, from a server that has a path for it."""
        path = _RENDERING.get(self.dialect.name)
        if path is None:
            return ""
        try:
            document = self._asker.post(path, self._body(text, {}, params)).json()
        except NoAnswer:
            return ""
        prompt = document.get("prompt") if isinstance(document, dict) else None
        return prompt if isinstance(prompt, str) else ""

    def post(
        self, text: str = STORY, members: Mapping[str, Any] | None = None, **params: Any
    ) -> Answer:
        if why := self._asker.why_late or (_NO_MORE if self._silent >= _SILENCES else ""):
            self.is_cut_short = True
            raise NoAnswer(f"not asked: {why}")
        if self.count >= _MOST_REQUESTS:
            raise NoAnswer(f"not asked: {_MOST_REQUESTS} requests were enough")
        self.count += 1
        try:
            # A server's first answer may wait for what it compiles.
            patience = _PATIENCE if self.count == 1 else 1
            answer = self._asker.post(
                _PATH, self._body(text, members or {}, params), patience=patience
            )
        except NoAnswer:
            self._silent += 1
            raise
        self._silent = 0
        return answer

    def _body(self, text: str, members: Mapping[str, Any], params: Mapping[str, Any]) -> bytes:
        request = self._request(text)
        wanted = {**self.base, **params}
        changes = tuple(
            Change(name, value, (), True) for name, value in wanted.items() if value is not None
        )
        wire = dialects.encode(request, Changes(changes, False), self.dialect, self._model)
        added = {**self.always, **members}
        if not added:
            return wire.body
        return msgspec.json.encode({**msgspec.json.decode(wire.body), **added})

    def _request(self, text: str) -> ChatRequest:
        raw = orjson.dumps({"model": self._model, "messages": [{"role": "user", "content": text}]})
        return parse.chat_request(Endpoint.CHAT, raw, {})
