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
from router.chat import Endpoint
from router.dialects import Dialect
from router.dialects.spoken import UNSAYABLE
from router.doctor import reply as replies
from router.doctor.asking import Answer, Asker, NoAnswer
from router.doctor.reply import Reply
from router.rewrite import Change, Changes

STORY = "Write a short story about a cat."
REPEAT = "Repeat the word ha twenty times: ha ha ha ha ha ha"
CAP = 8
_PATH = "/v1/chat/completions"
_MOST_REQUESTS = 30
_SILENCES = 3


class Prober:
    """Asks one model. `base` is said with every request; None takes a parameter of it away."""

    def __init__(self, asker: Asker, dialect: Dialect, model: str) -> None:
        self.dialect = dialect
        self.count = 0
        self.base: dict[str, Any] = {}
        self.always: dict[str, Any] = {}  # members beside what the dialect says
        self._asker = asker
        self._model = model
        self._silent = 0

    def can_say(self, name: str, value: Any) -> bool:
        place = self.dialect.places.get(name)
        return place is not None and place.say(value) is not UNSAYABLE

    def spelling(self, name: str) -> str | None:
        """Where this server is told the parameter."""
        place = self.dialect.places.get(name)
        return place.paths[0] if place is not None else None

    def names(self, told: str, name: str) -> bool:
        """Whether a server's words name a parameter, as we call it or as it was said."""
        place = self.dialect.places.get(name)
        words = {
            name,
            *(part for path in (place.paths if place else ()) for part in path.split(".")),
        }
        if self.dialect.finish is not None:
            words.add("generation_config")
        return any(word.lower() in told.lower() for word in words)

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
            return Reply(is_ok=False, is_silence=True, told=str(silence))

    def post(
        self, text: str = STORY, members: Mapping[str, Any] | None = None, **params: Any
    ) -> Answer:
        if self._silent >= _SILENCES:
            raise NoAnswer(f"not asked: {_SILENCES} questions in a row got no answer")
        if self.count >= _MOST_REQUESTS:
            raise NoAnswer(f"not asked: {_MOST_REQUESTS} requests were enough")
        self.count += 1
        try:
            answer = self._asker.post(_PATH, self._body(text, members or {}, params))
        except NoAnswer:
            self._silent += 1
            raise
        self._silent = 0
        return answer

    def _body(self, text: str, members: Mapping[str, Any], params: Mapping[str, Any]) -> bytes:
        raw = orjson.dumps({"model": self._model, "messages": [{"role": "user", "content": text}]})
        request = parse.chat_request(Endpoint.CHAT, raw, {})
        wanted = {**self.base, **params}
        changes = tuple(
            Change(name, value, (), True) for name, value in wanted.items() if value is not None
        )
        wire = dialects.encode(request, Changes(changes, False), self.dialect, self._model)
        added = {**self.always, **members}
        if not added:
            return wire.body
        return msgspec.json.encode({**msgspec.json.decode(wire.body), **added})
