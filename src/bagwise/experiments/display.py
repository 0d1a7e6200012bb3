"""What a person sees while a sweep runs: a bar over all its work, and a line per cell that has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from bagwise.experiments.records import AnyCell, CellType
from bagwise.experiments.sweep import Ended, FailedCell


class SweepDisplay(Generic[CellType]):
    """Follows a sweep. The bar counts work, so that its time left allows for long and short cells.

    Args:
        console: where to print.
        cells: what is to be run.
        work_of: how much work a cell is, in the unit in which its runs are announced (epochs, or passes).
    """

    def __init__(self, console: Console, cells: Sequence[CellType], work_of: Callable[[CellType], float]) -> None:
        self._console = console
        self._work_of = work_of
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(f"{len(cells)} cells", total=sum(map(work_of, cells)))
        self._cells, self._finished = len(cells), 0
        self._work_of_finished = 0.0
        self._work_of_cell = 0.0  # whose runs have started
        self._work_of_run = 0.0

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the bar while the block runs, on a terminal."""
        with self._bar:
            yield

    def run_starts(self, cell: AnyCell, what: str, work: float) -> None:
        """Name the training that starts now; the one before it is done."""
        self._work_of_cell += self._work_of_run
        self._work_of_run = work
        done = self._work_of_finished + self._work_of_cell
        self._bar.update(self._task, completed=done, description=f"{cell.name}, {what}")

    def cell_ends(self, ended: Ended[CellType]) -> None:
        """Print the line of a cell that is done or has failed."""
        self._finished += 1
        self._work_of_finished += self._work_of(ended.cell)
        self._work_of_cell = self._work_of_run = 0
        self._bar.update(self._task, completed=self._work_of_finished)
        place = f"[{self._finished}/{self._cells}] {ended.cell.name}"
        if isinstance(ended, FailedCell):
            line = f"{place} failed: {ended.reason}"
        else:
            accuracy = 100 * (ended.final.accuracy or 0)
            line = f"{place}: {accuracy:.1f} % ({ended.chosen}, {ended.seconds:.0f} s)"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
