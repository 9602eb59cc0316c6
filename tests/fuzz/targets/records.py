"""The request log: any bytes in its files are records, or counted as what they are not."""

from __future__ import annotations

import gzip
import json

from router import logquery, record, recordfiles
from router.logquery import Choice
from router.recordfiles import Skipped, read
from tests.fuzz import folders, source

FOLDER = folders.new("records")
HOUR = "20261130T10"


def check(data: bytes) -> None:
    given = source.of(data)
    plain = FOLDER / recordfiles.name_of("requests", HOUR)
    packed = plain.with_name(plain.name + recordfiles.PACKED)
    lines = given.raw.split(b"\n")
    skipped = Skipped()
    found = [one for line in lines if (one := read(line, skipped)) is not None]
    assert len(found) + skipped.total == sum(1 for line in lines if line.strip())
    for one in found:
        assert read(record.line(one).rstrip(b"\n"), skipped) == one
    if given.has(0):  # as it stands on the disk
        packed.unlink(missing_ok=True)
        plain.write_bytes(given.raw)
        (segment,) = recordfiles.segments(FOLDER)
        assert list(recordfiles.records(segment)) == found
        check_offsets(segment, given.raw)
    elif given.has(1):  # what is packed may be cut off or no such file
        plain.unlink(missing_ok=True)
        content = given.raw if given.has(2) else gzip.compress(given.raw, 1)[: -given.seed or None]
        packed.write_bytes(content)
        for segment in recordfiles.segments(FOLDER):
            list(recordfiles.records(segment))
    rows = logquery.rows(iter(lines), Choice(since="2026", slow_ms=1.0), Skipped())
    for told in logquery.sums(rows).values():
        json.dumps(told.told())


def check_offsets(segment: recordfiles.Segment, raw: bytes) -> None:
    """Whoever goes on from where a line ended reads what follows, no byte more or less."""
    for offset, _ in recordfiles.lines(segment):
        rest = [line for _, line in recordfiles.lines(segment, offset)]
        assert b"\n".join(rest) == raw[offset:].removesuffix(b"\n")
