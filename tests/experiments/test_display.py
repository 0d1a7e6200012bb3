import io

from rich.console import Console

from bagwise.experiments.cells import cell_epochs
from bagwise.experiments.display import SweepDisplay
from bagwise.experiments.sweep import FailedCell
from fakes.records import make_record


def follow_two_cells(**console):
    """Show one whole cell and the start of another; return what was printed and the place of the bar."""
    file = io.StringIO()
    first, second = make_record("kl", 1), make_record("kl", 2)
    display = SweepDisplay(Console(file=file, width=120, **console), [first.cell, second.cell], cell_epochs)
    with display.shown():
        display.run_starts(first.cell, "candidate 1 of 2", 12)
        display.run_starts(first.cell, "final run", 40)
        display.cell_ends(first)
        display.run_starts(second.cell, "candidate 1 of 2", 12)
        display.run_starts(second.cell, "candidate 2 of 2", 12)
        (task,) = display._bar.tasks
    return file.getvalue(), task


def test_a_terminal_shows_the_run_and_how_far_the_sweep_is():
    printed, task = follow_two_cells(force_terminal=True)
    cells = cell_epochs(make_record("kl", 1).cell)
    assert task.total == 2 * cells
    assert task.completed == cells + 12  # a candidate that came from the work folder counts with its cell
    assert task.description == "kl-2-seed0, candidate 2 of 2"
    assert "[1/2] kl-1-seed0: 94.6 % (learning rate 0.1, 80 s)" in printed


def test_elsewhere_there_is_a_line_per_cell_and_no_bar():
    printed, _ = follow_two_cells(force_terminal=False)
    assert printed == "[1/2] kl-1-seed0: 94.6 % (learning rate 0.1, 80 s)\n"


def test_a_cell_that_fails_is_one_line_and_its_work_is_over():
    file, cell = io.StringIO(), make_record("kl", 1).cell
    display = SweepDisplay(Console(file=file, width=40), [cell], cell_epochs)
    display.cell_ends(FailedCell(cell, "training diverged [with] every candidate (3 were tried)."))
    assert file.getvalue() == "[1/1] kl-1-seed0 failed: training diverged [with] every candidate (3 were tried).\n"
    assert display._bar.tasks[0].completed == cell_epochs(cell)
