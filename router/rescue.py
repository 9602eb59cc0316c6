"""A second try at an answer that thought left no tokens for, joined to the first. No I/O.

In: the answer to the same request with thinking off. Out: its text as the end of the reply
that the client is already reading, under the same id, with the usage of both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from router import relay, sse
from router.bridge import Bridge, choices_in, document_in, says_something
from router.message import AnswerHead
from router.tally import Tally
from router.wire import Piece

#: counts of usage that add up; of the prompt, which is the same, the first is told
_ADDED = ("completion_tokens", "total_tokens")


class SecondTry:
    """Listens to the answer of the second try, be it a stream or a whole."""

    def __init__(
        self, on_event: Callable[[bytes], None], on_over: Callable[[bytes | None], None]
    ) -> None:
        """`on_event` gets the data of a stream's events; `on_over` comes last, exactly once.

        With the body of a whole answer, with nothing after a stream, with None where there was
        no proper answer or it broke off.
        """
        self._on_event = on_event
        self._on_over = on_over
        self._splitter: sse.EventSplitter | None = None
        self._coding = b""
        self._body: list[bytes] = []
        self._size = 0
        self._is_good = False

    def on_sent(self) -> None:
        pass

    def on_head(self, head: AnswerHead, *, has_more: bool) -> None:
        self._is_good = head.status == 200
        self._coding = head.fields.get(b"content-encoding", b"").lower()
        if head.fields.get(b"content-type", b"").startswith(b"text/event-stream"):
            self._splitter = sse.EventSplitter()

    def on_piece(self, data: bytes, piece: Piece) -> None:
        for payload in piece.payloads:
            self._take(payload)
        if piece.is_last:
            self.on_end()

    def _take(self, payload: bytes) -> None:
        if not self._is_good:
            return
        if self._splitter is not None:
            for event in self._splitter.feed(payload):
                if event.data and event.data != sse.DONE:
                    self._on_event(event.data)
            return
        self._size += len(payload)
        if self._size <= relay.WHOLE_LIMIT:
            self._body.append(payload)

    def express(self) -> None:
        return None

    def on_whole(self, head: AnswerHead, body: bytes) -> None:
        self.on_head(head, has_more=True)
        self._take(body)
        self.on_end()

    def on_end(self) -> None:
        if not self._is_good or self._size > relay.WHOLE_LIMIT:
            self._on_over(None)
        elif self._splitter is not None:
            self._on_over(b"")
        else:
            self._on_over(relay.decoded(b"".join(self._body), self._coding))

    def on_failure(self, fault: Exception, *, may_retry: bool) -> None:
        self._on_over(None)


class Joint:
    """Where the second stream continues the first."""

    def __init__(
        self, first: relay.Stream, bridge: Bridge, tally: Tally, *, stopped: int = 0
    ) -> None:
        """`stopped`: the first was stopped after so many pieces of thought."""
        self._first = first
        self._stopped = stopped
        self._bridge = bridge
        self._tally = tally
        self._tokens = tally.output_tokens
        self._shown = relay.shown_in(first.sample)
        self._usage = self._usage_before = _usage_in(first.kept_back)
        self.is_finished = False
        self.has_spoken = False
        self._finish_reason, tally.finish_reason = tally.finish_reason, None
        bridge.begin_again()

    def event(self, data: bytes) -> bytes:
        """An event of the second stream as the client gets it; nothing if it says nothing."""
        document = document_in(data)
        if document is None or document.get("error"):
            return b""
        self._count(data)
        if (usage := document.pop("usage", None)) is not None:
            self._usage = (
                behind(usage, self._stopped) if self._stopped else added(self._usage_before, usage)
            )
        for choice in choices_in(document):
            delta = choice.get("delta")
            if isinstance(delta, dict):
                delta.pop("role", None)  # said at the beginning of the first
                if not any(delta.values()):
                    delta.clear()
            self.is_finished |= choice.get("finish_reason") is not None
        self._bridge.turn(document)
        if not says_something(document):
            return b""
        self.has_spoken = True
        document.update(self._shown)
        return sse.event(orjson.dumps(document))

    @property
    def has_answer(self) -> bool:
        return self._bridge.has_answer

    def as_it_was(self) -> bytes:
        """The end that the first stream would have had."""
        self._tally.finish_reason = self._finish_reason
        events = self._first.kept_back
        if sse.DONE not in events:
            events = [*events, sse.DONE]
        return b"".join(map(sse.event, events))

    def _count(self, data: bytes) -> None:
        """Into the same record: the tokens of both, the prompt of the first."""
        tally = self._tally
        if self._stopped:
            tally.read(data)
            return
        prompt, cached = tally.input_tokens, tally.cached_tokens
        thought = tally.reasoning_tokens
        before = tally.output_tokens
        frame = tally.read(data)
        if frame is not None and frame.usage is not None:
            made = tally.output_tokens
            tally.output_tokens = before if made is None else made + (self._tokens or 0)
        tally.input_tokens, tally.cached_tokens = prompt, cached
        tally.reasoning_tokens = thought

    def end(self, *, tells_usage: bool) -> bytes:
        """The end of the reply; `tells_usage`: the client asked for that frame."""
        text = b""
        if self._stopped and self._usage is not None:
            self._tally.read(orjson.dumps({"usage": self._usage}))
        if tells_usage and self._usage is not None:
            document = {**self._shown, "choices": [], "usage": self._usage}
            text = sse.event(orjson.dumps(document))
        return text + sse.event(sse.DONE)


def joined(
    first: dict[str, Any], second: dict[str, Any], bridge: Bridge, *, stopped: int = 0
) -> dict[str, Any]:
    """Two whole answers as one: the thought of the first, the words of the second.

    `stopped`: the first was stopped after so many pieces of thought.
    """
    bridge.begin_again()
    bridge.turn(second)
    thoughts = _message(first)
    message = _message(second)
    for name in ("reasoning_content", "reasoning"):
        if thoughts.get(name):
            message[name] = thoughts[name]
    before, after = thoughts.get("content"), message.get("content") or ""
    if before and isinstance(before, str) and isinstance(after, str):
        message["content"] = before + after
    usage = second.get("usage")
    usage = behind(usage, stopped) if stopped else added(first.get("usage"), usage)
    whole = dict(second)
    whole.update((name, first[name]) for name in ("id", "created", "model") if name in first)
    if usage is not None:
        whole["usage"] = usage
    return whole


def added(first: Any, second: Any) -> Any:
    """The usage of two answers to one prompt."""
    if not isinstance(first, dict) or not isinstance(second, dict):
        return second if isinstance(second, dict) else first
    total = dict(first)
    made = second.get("completion_tokens")
    if isinstance(made, int):
        for name in _ADDED:
            if isinstance(total.get(name), int):
                total[name] += made
    return total


def behind(usage: Any, thought: int) -> Any:
    """The usage of an answer whose prompt held a thought that was stopped: it is no prompt.

    The first answer has told none, since it was given up; a thought's tokens are its pieces.
    """
    if not isinstance(usage, dict):
        return usage
    moved = dict(usage)
    if isinstance(prompt := usage.get("prompt_tokens"), int):
        moved["prompt_tokens"] = max(0, prompt - thought)
    if isinstance(made := usage.get("completion_tokens"), int):
        moved["completion_tokens"] = made + thought
    return moved


def _usage_in(events: list[bytes]) -> Any:
    for data in reversed(events):
        document = document_in(data)
        if document is not None and (usage := document.get("usage")):
            return usage
    return None


def _message(document: dict[str, Any]) -> dict[str, Any]:
    choices = choices_in(document)
    message = choices[0].get("message") if choices else None
    return message if isinstance(message, dict) else {}
