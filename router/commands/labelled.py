"""What `eval` and `suggest` share: where labelled rows come from, and what is wrong with them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from router import report_text
from router.evaluation import BadRows

_FAULTS_TOLD = 20


def add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help='JSON Lines; "-" is standard input')


def read(name: str) -> bytes:
    return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()


def tell_faults(bad: BadRows) -> None:
    for fault in bad.faults[:_FAULTS_TOLD]:
        print(report_text.plain(fault), file=sys.stderr)
    if (more := len(bad.faults) - _FAULTS_TOLD) > 0:
        print(f"and {more} more", file=sys.stderr)


def count(text: str) -> int:
    """An argument that is a number, or none."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("less than none")
    return value
