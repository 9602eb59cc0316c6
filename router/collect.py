"""A stream put together again, for a client that asked for a whole answer.

In: the data of a chat stream's events. Out: the document that the server would have sent as a
whole. Some servers give up a generation only while they stream it, and so are always asked
to; and some stream unasked.
"""

from __future__ import annotations

from typing import Any

import orjson

from router import bridge, sse
from router.bridge import Bridge

#: texts that come piece by piece
_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")


class Gathered:
    """A whole answer, kept until it can be looked at."""

    has_token = False

    def __init__(self, coding: bytes) -> None:
        self.coding = coding
        self.size = 0
        self._payloads: list[bytes] = []

    def take(self, payload: bytes) -> None:
        self._payloads.append(payload)
        self.size += len(payload)

    def raw(self) -> bytes:
        return b"".join(self._payloads)


class Collector:
    """A streamed answer that is to be a whole one."""

    def __init__(self, watcher: Bridge | None = None) -> None:
        """`watcher` sees every document, to tell when a thought is over its budget."""
        self._splitter = sse.EventSplitter()
        self._watcher = watcher
        self._unread: list[bytes] = []  # while there are too few events to be over a budget
        self._events = 0
        self.error: bytes | None = None  # a document that tells of an error instead
        self._document: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}

    def take(self, payload: bytes) -> None:
        """Take bytes of the stream, cut anywhere.

        Where a thought is watched, reading can wait until it might be over its budget.
        """
        self._unread.append(payload)
        if self._watcher is None:
            self._read(None)
            return
        self._events += payload.count(b"\n\n")
        if self._events > self._watcher.budget:
            self._read(self._watcher)

    def close(self) -> None:
        """The stream is over."""
        self._read(None)

    def _read(self, watcher: Bridge | None) -> None:
        unread, self._unread = self._unread, []
        for payload in unread:
            for event in self._splitter.feed(payload):
                if watcher is not None and event.data not in (b"", sse.DONE):
                    watcher.event(event.data)
                self.feed(event.data)

    def feed(self, data: bytes) -> None:
        """Take the data of one event; what is no document of a stream is passed over."""
        if not data or data == sse.DONE or self.is_stopped:
            return
        document = bridge.document_in(data)
        if document is None:
            return
        if document.get("error"):
            self.error = data
            return
        for choice in bridge.choices_in(document):
            self._take(choice)
        document.pop("choices", None)
        for name, value in document.items():
            if value is not None or name not in self._document:
                self._document[name] = value

    def _take(self, piece: dict[str, Any]) -> None:
        index = piece.get("index")
        if not isinstance(index, int):
            index = piece["index"] = 0
        choice = self._choices.setdefault(index, {"index": index, "message": {"role": "assistant"}})
        delta = piece.pop("delta", None)
        if isinstance(delta, dict):
            _add(choice["message"], delta)
        logprobs = piece.pop("logprobs", None)
        if isinstance(logprobs, dict):
            kept = choice.setdefault("logprobs", {})
            for name, entries in logprobs.items():
                if isinstance(entries, list) and isinstance(kept.get(name), list):
                    kept[name] += entries
                else:
                    kept[name] = entries
        choice.update(
            (name, value)
            for name, value in piece.items()
            if value is not None or name not in choice
        )

    @property
    def is_stopped(self) -> bool:
        """Whether the thought is over its budget."""
        return self._watcher is not None and self._watcher.is_over and not self.is_finished

    @property
    def has_token(self) -> bool:
        if self._unread:
            return True
        return any(
            value
            for choice in self._choices.values()
            for name, value in choice["message"].items()
            if name != "role"
        )

    @property
    def is_finished(self) -> bool:
        """Whether every choice came to its end."""
        return bool(self._choices) and all(
            choice.get("finish_reason") is not None for choice in self._choices.values()
        )

    def whole(self) -> bytes:
        return orjson.dumps(self.document())

    def document(self) -> dict[str, Any]:
        """The whole answer, as far as it came."""
        choices = [self._choices[index] for index in sorted(self._choices)]
        for choice in choices:
            message = choice["message"]
            for call in _calls_in(message):
                call.pop("index", None)  # only pieces have one
            message.setdefault("content", None if "tool_calls" in message else "")
        return {**self._document, "object": "chat.completion", "choices": choices}


def _add(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        if value is None:
            continue
        if name == "tool_calls" and isinstance(value, list):
            message["tool_calls"] = _added(_calls_in(message), value)
        elif name in _TEXTS and isinstance(value, str):
            before = message.get(name)
            message[name] = before + value if isinstance(before, str) else value
        else:
            message[name] = value


def _calls_in(message: dict[str, Any]) -> list[dict[str, Any]]:
    calls = message.get("tool_calls")
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def _added(calls: list[dict[str, Any]], pieces: list[Any]) -> list[dict[str, Any]]:
    """Each call comes with an index, its arguments in pieces; a name once, then perhaps empty."""
    for piece in pieces:
        if not isinstance(piece, dict):
            continue
        index = piece.get("index", len(calls))
        call = next((call for call in calls if call.get("index") == index), None)
        if call is None:
            call = {"index": index, "type": "function", "function": {}}
            calls.append(call)
        function = piece.get("function")
        known = call["function"]
        for name, text in function.items() if isinstance(function, dict) else ():
            before = known.get(name)
            if name == "arguments" and isinstance(text, str) and isinstance(before, str):
                known[name] = before + text
            elif text or (text is not None and name not in known):
                known[name] = text
        call.update(
            (name, value)
            for name, value in piece.items()
            if name not in ("index", "function") and (value or name not in call)
        )
    return calls
