"""An answer's events: the client and the record get the same wherever the bytes are cut."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from router import sse, wire
from router.bridge import MODES, Bridge
from router.collect import Collector
from router.relay import Stream
from router.tally import Tally
from tests.fuzz import source

#: of these the router mends something, wherever they stand
MENDED = (b"error", b"finish_reason", b"think", b"reasoning", b"\\")


def check(data: bytes) -> None:
    given = source.of(data)
    raw = given.raw
    check_events(given)
    entity, tally = relayed(given, [raw])
    for pieces in given.pieces():
        assert relayed(given, pieces) == (entity, tally), "another cut, another stream"
    is_plain = not (given.has(0) or given.has(1) or given.has(2))
    if is_plain and not any(mark in raw for mark in MENDED):
        assert entity == raw
    whole = collected([raw])
    for pieces in given.pieces():
        assert collected(pieces) == whole
    if whole[1] is None:
        json.loads(whole[0])


def check_events(given: source.Source) -> None:
    wanted, rest = split([given.raw])
    for pieces in given.pieces():
        assert split(pieces) == (wanted, rest)
    assert b"".join(event.raw for event in wanted) + rest == given.raw
    if re.search(rb"\r(?!\n)", given.raw) is None:
        assert [e.data for e in wanted if e.data] == list(filter(None, by_the_book(wanted)))


def split(pieces: Sequence[bytes]) -> tuple[list[sse.Event], bytes]:
    splitter = sse.EventSplitter()
    events = [event for piece in pieces for event in splitter.feed(piece)]
    return events, splitter.held


def by_the_book(events: Sequence[sse.Event]) -> list[bytes]:
    """The data of each event, line by line as the specification has it."""
    found: list[bytes] = []
    lines: list[bytes] = []
    for line in b"".join(event.raw for event in events).replace(b"\r\n", b"\n").split(b"\n"):
        name, _, value = line.partition(b":")
        if not line:
            found.append(b"\n".join(lines))
            lines = []
        elif name == b"data":
            lines.append(value.removeprefix(b" "))
    return found


def relayed(given: source.Source, pieces: Sequence[bytes]) -> tuple[bytes, dict[str, Any]]:
    """What the client gets of these payloads, and what was counted."""
    bridge = None
    if given.has(2):
        bridge = Bridge(MODES[given.pick(4, 3)], thinking=(None, False, True)[given.pick(3, 5)])
    passage = Stream(Tally(), cuts_usage=given.has(0), adds_done=given.has(1), bridge=bridge)
    body = wire.ChunkedBody()
    out, may_express = b"", False
    for data in [*map(wire.chunk, pieces), wire.LAST_CHUNK]:
        if may_express and data != wire.LAST_CHUNK and passage.express(data):
            out += data
            continue
        out += passage.pass_on(data, body.feed(data), True)
        may_express = body.is_between() and passage.is_clear
    passage.count()
    client = wire.ChunkedBody()
    entity = client.feed(out)
    assert client.close(), "the client's body does not end"
    assert not entity.excess
    tally = passage.tally
    names = [name for name in dir(tally) if not name.startswith("_")]
    values = {name: getattr(tally, name) for name in names}
    told = {name: value for name, value in values.items() if not callable(value)}
    return b"".join(entity.payloads), told


def collected(pieces: Sequence[bytes]) -> tuple[bytes, bytes | None, bool]:
    collector = Collector()
    for piece in pieces:
        collector.take(piece)
    collector.close()
    return collector.whole(), collector.error, collector.is_finished
