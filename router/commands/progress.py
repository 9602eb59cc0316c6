"""How far a measurement has come, on a terminal; elsewhere nothing is drawn."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Progress(Protocol):
    def step(self, note: str = "") -> None:
        """One more is done."""


class _Silent:
    def step(self, note: str = "") -> None:
        pass


@contextmanager
def progress(what: str, total: int) -> Iterator[Progress]:
    if not sys.stderr.isatty():
        yield _Silent()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total, note="")

        class Drawn:
            def step(self, note: str = "") -> None:
                bar.update(task, advance=1, note=note)

        yield Drawn()
