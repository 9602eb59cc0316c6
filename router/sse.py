"""Server-sent events without sockets: payload bytes in, whole events out.

An event keeps its bytes, so that it can be passed on as it came; `data` is what a
client would read of it. A line longer than the limit is passed on unread.
"""

from __future__ import annotations

import re
from typing import NamedTuple

#: an event longer than this is not read for the record (its bytes pass all the same)
EVENT_LIMIT = 1 << 20
#: the data of the event that ends a stream of OpenAI's
DONE = b"[DONE]"


class Event(NamedTuple):
    raw: bytes  # with the blank line that ends it
    data: bytes  # the data lines joined; empty for comments


class EventSplitter:
    """Payload bytes → events. `feed` gives those that are complete; the rest is held."""

    __slots__ = ("_held", "_seen")

    def __init__(self) -> None:
        self._held = b""
        self._seen = 0  # how much of the held bytes was already searched

    @property
    def held(self) -> bytes:
        """The beginning of an event that is not complete yet."""
        return self._held

    def take_held(self) -> bytes:
        """Give up on the open event: its bytes, which are no longer held."""
        held, self._held, self._seen = self._held, b"", 0
        return held

    def feed(self, payload: bytes) -> list[Event]:
        if not self._held and payload.endswith(b"\n\n") and payload.count(b"\n") == 2:
            return [Event(payload, data_of(payload))]  # one line a chunk, as engines send it
        text = self._held + payload if self._held else payload
        events = []
        at = 0
        search = max(0, self._seen - 3)
        while (end := _event_end(text, search)) > 0:
            raw = text[at:end]
            events.append(Event(raw, data_of(raw)))
            at = search = end
        self._held = text[at:] if at else text
        self._seen = len(self._held)
        return events


_BLANK_LINE = re.compile(rb"\r?\n\r?\n")


def _event_end(text: bytes, start: int) -> int:
    """Behind the next blank line, whichever line endings; 0 where there is none."""
    found = _BLANK_LINE.search(text, start)
    return found.end() if found is not None else 0


def data_of(raw: bytes) -> bytes:
    """The data of one event (its lines joined with \\n, as the specification has it)."""
    if raw.startswith(b"data:") and raw.count(b"\n") == 2 and b"\r" not in raw:
        return raw[5:-2].removeprefix(b" ")
    lines = []
    for line in raw.replace(b"\r\n", b"\n").split(b"\n"):
        if line.startswith(b"data:"):
            lines.append(line[5:].removeprefix(b" "))
        elif line == b"data":
            lines.append(b"")
    return b"\n".join(lines)


def event(data: bytes) -> bytes:
    """An event with this data, which holds no line break."""
    return b"data: " + data + b"\n\n"
