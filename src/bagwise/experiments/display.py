"""What a person sees while a sweep runs: a bar over all epochs, and a line per finished cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from bagwise.experiments.cells import cell_epochs
from bagwise.experiments.records import Cell, Record


class SweepDisplay:
    """Follows a sweep. The bar counts epochs, so that its time left allows for long and short cells."""

    def __init__(self, console: Console, cells: Sequence[Cell]) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(f"{len(cells)} cells", total=sum(cell_epochs(cell) for cell in cells))
        self._cells, self._finished = len(cells), 0
        self._epochs_of_finished = 0
        self._epochs_of_cell = 0  # whose runs have started
        self._epochs_of_run = 0

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the bar while the block runs, on a terminal."""
        with self._bar:
            yield

    def run_starts(self, cell: Cell, what: str, epochs: int) -> None:
        """Name the training that starts now; the one before it is done."""
        self._epochs_of_cell += self._epochs_of_run
        self._epochs_of_run = epochs
        done = self._epochs_of_finished + self._epochs_of_cell
        self._bar.update(self._task, completed=done, description=f"{cell.name}, {what}")

    def cell_ends(self, record: Record) -> None:
        """Print the line of a finished cell."""
        self._finished += 1
        self._epochs_of_finished += cell_epochs(record.cell)
        self._epochs_of_cell = self._epochs_of_run = 0
        self._bar.update(self._task, completed=self._epochs_of_finished)
        accuracy = 100 * (record.final.accuracy or 0)
        chosen = f"learning rate {record.chosen.learning_rate:g}"
        if record.chosen.alpha is not None:
            chosen += f", alpha {record.chosen.alpha:g}"
        self._console.print(
            f"[{self._finished}/{self._cells}] {record.cell.name}: {accuracy:.1f} % ({chosen}, {record.seconds:.0f} s)",
            markup=False,
            highlight=False,
        )
