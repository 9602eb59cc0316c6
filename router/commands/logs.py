"""`logs`: look at the request log, whoever writes it just now.

Reads no more than it has to: hours are left out by their names, the last records are looked for
from the end, and nothing is held but what is shown.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from router import config as configs
from router import logquery, recordfiles
from router.commands import options
from router.logquery import Choice
from router.record import timestamp
from router.recordfiles import HOUR_S, Follower, Segment, Skipped
from router.tomlfile import FileFault

_SPAN = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d|w)").fullmatch
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SHOWN = 100
_POLL_S = 0.25

_EXAMPLES = """
examples: logs -f · logs --since 1h --errors · logs --scenario faq --slow 2000 -n 20 ·
logs --since 1d --summary · logs --since 2026-11-30 --json | jq .total_ms. Times without a zone
are local, as in the table. A session or an id may be shortened; "-" is a scenario, backend or key
that a record has none of.
"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    options.add_config(parser)
    parser.add_argument(
        "--log-dir", type=Path, metavar="DIR", help="the log's folder (default: as configured)"
    )
    when = "30m, 1h, 2d ago, or 2026-11-30[T12:00[Z]]"
    parser.add_argument("--since", type=_time, metavar="WHEN", help=f"came then or later: {when}")
    parser.add_argument("--until", type=_time, metavar="WHEN", help="came before: likewise")
    for flag, text in (
        ("--scenario", "of this scenario"),
        ("--backend", "that this backend answered"),
        ("--session", "of this session"),
        ("--key", "of this client key's name"),
        ("--model", "with this model's name, the client's or the backend's"),
        ("--id", "with this request id"),
    ):
        parser.add_argument(
            flag, action="append", default=[], metavar=flag[2:].upper(),
            help=f"{text} (repeatable: any of them)",
        )  # fmt: skip
    parser.add_argument("--slow", type=float, metavar="MS", help="that took so long in all")
    parser.add_argument("--slow-ttft", type=float, metavar="MS", help="... to the first token")
    parser.add_argument("--errors", action="store_true", help="that failed, whoever is to blame")
    parser.add_argument(
        "-n", "--limit", type=_count, metavar="N",
        help=f"the last N (default: {_SHOWN}; with --json all)",
    )  # fmt: skip
    parser.add_argument("--fields", type=_fields, metavar="A,B", help="these fields of the record")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("-f", "--follow", action="store_true", help="and those that come from now")
    shape.add_argument("--summary", action="store_true", help="sums by scenario")


def run(args: argparse.Namespace) -> int:
    folder = args.log_dir
    try:
        if folder is None:
            folder = configs.log_folder(args.config)
        elif not folder.is_dir():
            print(f"{folder}: no folder", file=sys.stderr)
            return 2
        skipped = Skipped()
        found = _run(args, folder, skipped)
    except FileFault as fault:
        print(fault, file=sys.stderr)
        return 2
    except BrokenPipeError:
        raise
    except OSError as error:
        print(f"{error.filename or folder}: {error.strerror or error}", file=sys.stderr)
        return 2
    if skipped.total:
        text = f"passed over: {skipped.torn} torn lines, {skipped.foreign} that are no records"
        print(text, file=sys.stderr)
    if not found:
        print(f"nothing found in {folder}", file=sys.stderr)
    return 0 if found else 1


def _run(args: argparse.Namespace, folder: Path, skipped: Skipped) -> bool:
    """Whether there was anything."""
    choice = _choice(args)
    if args.follow:
        with suppress(KeyboardInterrupt):
            _follow(args, folder, choice, skipped)
        return True
    listed = recordfiles.segments(folder, args.since, args.until)
    if args.summary:
        sums = logquery.sums(_all(listed, choice, skipped))
        _tell_sums(sums, as_json=args.json)
        return bool(sums)
    limit = args.limit if args.limit is not None or args.json else _SHOWN
    show = _Shown(args)
    if limit is None:
        for _, line in _all(listed, choice, skipped):
            show([line])
    else:
        show(_last(listed, choice, limit, skipped))
    return show.count > 0


def _follow(args: argparse.Namespace, folder: Path, choice: Choice, skipped: Skipped) -> None:
    recent = time.time() - HOUR_S  # whatever still grows is of this hour or the last
    follower = Follower(folder, since=recent)
    limit = args.limit if args.limit is not None else _SHOWN
    first = deque(
        (line for _, line in logquery.rows(follower.new(), choice, skipped)), maxlen=limit
    )
    before = [
        segment
        for segment in recordfiles.segments(folder, args.since)
        if segment.hour < recordfiles.hour_of(recent)
    ]
    older = _last(before, choice, limit - len(first), skipped)
    show = _Shown(args)
    show([*older, *first])
    pause = threading.Event()
    while True:
        pause.wait(_POLL_S)
        show([line for _, line in logquery.rows(follower.new(), choice, skipped)])


def _all(
    listed: Iterable[Segment], choice: Choice, skipped: Skipped
) -> Iterator[tuple[logquery.Row, bytes]]:
    for segment in listed:
        lines = (line for _, line in recordfiles.lines(segment))
        yield from logquery.rows(lines, choice, skipped)


def _last(listed: Sequence[Segment], choice: Choice, limit: int, skipped: Skipped) -> list[bytes]:
    """The last ones that are meant, looked for from the last file on."""
    found: list[bytes] = []
    for segment in reversed(listed):
        if len(found) >= limit:
            break
        own = deque(
            (line for _, line in _all([segment], choice, skipped)), maxlen=limit - len(found)
        )
        found[:0] = own
    return found


class _Shown:
    """Prints lines, as JSON or in a table."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.count = 0
        self._fields: Sequence[str] | None = args.fields
        self._rows: Any = None
        if not args.json:
            from router.commands import logtable

            out = logtable.console()
            columns = logtable.named(args.fields) if args.fields else logtable.fitting(out.width)
            self._rows = logtable.Rows(out, columns)

    def __call__(self, lines: Sequence[bytes]) -> None:
        self.count += len(lines)
        if self._rows is not None:
            records = [msgspec.json.decode(line) for line in lines]
            self._rows.tell(sorted(records, key=lambda record: record["ts"]))
            return
        out = sys.stdout.buffer
        for line in lines:
            out.write((self._chosen(line) if self._fields else line) + b"\n")
        out.flush()

    def _chosen(self, line: bytes) -> bytes:
        record = msgspec.json.decode(line)
        return msgspec.json.encode({name: record.get(name) for name in self._fields or ()})


def _tell_sums(sums: dict[str, logquery.Sum], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({name: own.told() for name, own in sums.items()}, indent=2))
    elif sums:
        from router.commands import logtable

        logtable.summary(logtable.console(), sums)


def _choice(args: argparse.Namespace) -> Choice:
    return Choice(
        since=timestamp(args.since) if args.since is not None else "",
        until=timestamp(args.until) if args.until is not None else "",
        scenarios=tuple(args.scenario),
        backends=tuple(args.backend),
        sessions=tuple(args.session),
        keys=tuple(args.key),
        models=tuple(args.model),
        ids=tuple(args.id),
        slow_ms=args.slow,
        slow_ttft_ms=args.slow_ttft,
        is_error=args.errors,
    )


def _time(text: str) -> float:
    """Seconds since 1970."""
    if span := _SPAN(text):
        return time.time() - float(span[1]) * _SECONDS[span[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time: 30m, 1h, 2026-11-30T12:00"
        ) from None


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("less than one")
    return value


def _fields(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if unknown := [name for name in names if name not in logquery.FIELDS]:
        raise argparse.ArgumentTypeError(
            f"a record has no {unknown[0]!r}; it has {', '.join(logquery.FIELDS)}"
        )
    return names
