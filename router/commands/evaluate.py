"""`eval`: labelled prompts through the code that serves, measured and held to bounds.

What rows say goes to the screen and to the file that was asked for, nowhere else.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from router import evaluation, report_html, report_text
from router.commands import labelled, offline
from router.evaluation import Answer, BadRows, Gates, Outcome, Report
from router.verdict import Live

_ROWS = """
One JSON object a line: {"text": "...", "label": "..."} or {"messages": [...], "label": "..."} with
OpenAI messages, the user's last. A label may be a list: any of them is right. Also read, where
there: "id", "lang", "think" (does thinking pay?), "source". The rest is left alone.
"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _ROWS
    offline.add(parser, "measure this policy file")
    labelled.add_file(parser)
    parser.add_argument(
        "--alias",
        action="append",
        default=[],
        type=_pair("="),
        metavar="A=B",
        help="where the answer is scenario A, count it as B (repeatable)",
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page to look at, too")
    parser.add_argument(
        "--mistakes",
        type=labelled.count,
        default=20,
        metavar="N",
        help="so many are told (default: 20)",
    )
    parser.add_argument(
        "--show",
        action="append",
        default=[],
        type=_pair(">"),
        metavar="LABEL>GOT",
        help="tell all rows of one cell of the confusion matrix (repeatable)",
    )
    parser.add_argument(
        "--repeat",
        type=_positive,
        default=3,
        metavar="N",
        help="runs of each prompt, of which the fastest counts (default: 3)",
    )
    for flag, text in (
        ("--min-accuracy", "accuracy"),
        ("--min-macro-f1", "macro-F1"),
        ("--max-ece", "expected calibration error"),
        ("--min-think-precision", f"precision of thinking at recall {evaluation.RECALL:.2f}"),
        ("--min-lang-accuracy", f"accuracy of each language of {evaluation.LANGUAGE_ROWS} rows"),
    ):
        bound = "at most" if flag.startswith("--max") else "at least"
        parser.add_argument(
            flag, type=_share, metavar="0..1", help=f"exit 1 unless {text} is {bound} this"
        )


def run(args: argparse.Namespace) -> int:
    live = offline.live(args)
    if live is None:
        return 1
    aliases = dict(args.alias)
    name = "standard input" if args.file == "-" else report_text.plain(Path(args.file).name)
    try:
        rows = evaluation.rows_of(labelled.read(args.file))
        outcomes = evaluation.outcomes(rows, live, ticks=time.perf_counter, repeat=args.repeat)
        report = evaluation.report(outcomes, aliases, mistakes=args.mistakes)
        if args.html is not None:
            page = report_html.page(report, title=name, policy=live.policy.hash)
            args.html.write_text(page, encoding="utf-8")
    except BadRows as bad:
        labelled.tell_faults(bad)
        return 2
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    shown = {
        f"{label}>{got}": evaluation.cell(outcomes, label, got, aliases) for label, got in args.show
    }
    missed = evaluation.missed(report, _gates(args))
    if args.json:
        told = _document(name, live, aliases, report, shown, missed)
        print(json.dumps(told, indent=2, ensure_ascii=False))
    else:
        print(f"{name} under policy {live.policy.hash}")
        _print(report_text.lines(report))
        for pair, answers in shown.items():
            print()
            _print(report_text.answers(pair, answers))
    for text in [*_oddities(outcomes, aliases, live), *(f"missed: {line}" for line in missed)]:
        print(report_text.plain(text), file=sys.stderr)
    return 1 if missed else 0


def _gates(args: argparse.Namespace) -> Gates:
    return Gates(**{name: getattr(args, name) for name in Gates.__struct_fields__})


def _document(
    file: str,
    live: Live,
    aliases: dict[str, str],
    report: Report,
    shown: dict[str, tuple[Answer, ...]],
    missed: Sequence[str],
) -> dict[str, object]:
    return {
        "file": file,
        "policy": live.policy.hash,
        "aliases": aliases,
        **msgspec.to_builtins(report),
        "shown": msgspec.to_builtins(shown),
        "missed": missed,
    }


def _oddities(outcomes: Sequence[Outcome], aliases: dict[str, str], live: Live) -> Iterator[str]:
    """What was probably not meant: names that lead nowhere."""
    known = live.policy.scenarios
    for name in aliases:
        if name not in known:
            yield f"note: the policy has no scenario {name!r}, which --alias names"
    possible = {aliases.get(name, name) for name in known}
    labels = {outcome.row.labels for outcome in outcomes}
    for names in sorted(labels):
        if possible.isdisjoint(names):
            yield f"note: no answer can be right where the label is {' or '.join(names)!r}"


def _print(lines: Iterator[str]) -> None:
    for line in lines:
        print(line)


def _pair(mark: str) -> Callable[[str], tuple[str, str]]:
    """An argument of two names with a mark between them."""

    def read(text: str) -> tuple[str, str]:
        left, found, right = (part.strip() for part in text.partition(mark))
        if not (left and found and right):
            raise argparse.ArgumentTypeError(f"{text!r} is not two names with {mark} between")
        return left, right

    return read


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("less than one")
    return value
