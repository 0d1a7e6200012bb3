"""The progress bar of a training: loss, throughput, time left."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


class Silence:
    """A progress bar that nobody sees."""

    def show(self, epochs_done: float, loss: float, instances_per_second: float) -> None:
        """Do nothing."""


class Bar(Silence):
    """A rich progress bar on the standard error output."""

    def __init__(self, epochs: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("epochs  loss {task.fields[loss]}  {task.fields[rate]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task("training", total=epochs, loss="-", rate="")

    def show(self, epochs_done: float, loss: float, instances_per_second: float) -> None:
        """Move the bar to `epochs_done` and show these numbers."""
        rate = f"{instances_per_second:,.0f} instances/s"
        self._bar.update(self._task, completed=epochs_done, loss=f"{loss:.4f}", rate=rate)


@contextmanager
def progress_bar(epochs: int, wanted: bool) -> Iterator[Silence]:
    """Show a bar while the block runs, if it is `wanted` and somebody can see it."""
    if not (wanted and sys.stderr.isatty()):
        yield Silence()
        return
    bar = Bar(epochs)
    with bar._bar:
        yield bar
