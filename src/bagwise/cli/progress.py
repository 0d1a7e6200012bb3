"""A progress bar over rows, on the standard error output."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def row_progress() -> Iterator[Callable[[int, int], None]]:
    """Give a function that is told how many rows are done and how many there are; without a terminal it is mute."""
    if not sys.stderr.isatty():
        yield lambda done, total: None  # noqa: ARG005
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("predicting"), BarColumn(), MofNCompleteColumn(), TextColumn("rows"), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("predicting", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
