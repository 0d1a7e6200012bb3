"""What the commands that run many cells share: their options, the sweep itself, what is said while it runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from bagwise.cli.messages import command_line

if TYPE_CHECKING:
    from rich.table import Table

    from bagwise.experiments.records import CellType
    from bagwise.experiments.sweep import FailedCell, RunCell
    from bagwise.report.build import Report
    from bagwise.report.leaderboard import LeaderboardReport

BagSizes = Annotated[str | None, typer.Option(help="For example 1,16,256; by default the preset's.")]
Seeds = Annotated[int | None, typer.Option(min=1, help="Repetitions; by default the preset's.")]
Data = Annotated[Path | None, typer.Option(help="Folder of the data set's files.")]
Out = Annotated[Path, typer.Option(help="Folder of the records; what is there is not run again.")]
Figures = Annotated[
    Path | None,
    typer.Option(help="Folder of the PNG figures; by default docs/figures with --report-only, else the records'."),
]
Readme = Annotated[Path, typer.Option(help="File whose marked table --report-only brings up to date.")]
ShardOfCells = Annotated[str | None, typer.Option("--shard", help="Run part 2 of 8 of the cells: 2/8.")]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="Cells side by side on this machine; by default 1, for the demo one per core."),
]
OnRay = Annotated[bool, typer.Option("--ray", help="Run the cells on a Ray cluster.")]
ReportOnly = Annotated[bool, typer.Option("--report-only", help="Run nothing, redraw from the records.")]
MaxSeconds = Annotated[float | None, typer.Option(min=0, help="Start no run that would end later than this.")]

DEFAULT_OUT, DEFAULT_README = Path("results"), Path("README.md")


@dataclass(frozen=True)
class Manner:
    """How to run cells: how many side by side, on a cluster or not, for how long."""

    jobs: int
    on_ray: bool
    max_seconds: float | None


def choose_manner(jobs: int | None, on_ray: bool, max_seconds: float | None, *, is_small: bool) -> Manner:
    """Return what the options ask for; small cells use all cores unless told otherwise."""
    if max_seconds is not None and (on_ray or jobs):
        raise ValueError("--max-seconds runs one cell after the other; drop --ray and --jobs, or drop it.")
    if jobs is None:
        jobs = (os.cpu_count() or 1) if is_small and max_seconds is None else 1
    return Manner(jobs, on_ray, max_seconds)


def run_sweep(
    cells: Sequence[CellType],
    out: Path,
    manner: Manner,
    *,
    prepare: Callable[[Sequence[CellType]], RunCell[CellType]],
    work_of: Callable[[CellType], float],
) -> list[FailedCell[CellType]]:
    """Run the cells that have no record, show how it goes, and return those that failed.

    Args:
        prepare: called with those cells, where there are any; loads their data and returns what runs one of them.
        work_of: how much work a cell is.
    """
    from rich.console import Console

    from bagwise.experiments.display import SweepDisplay
    from bagwise.experiments.sweep import (
        FailedCell,
        missing_cells,
        run_cells,
        run_cells_in_processes,
        run_cells_on_ray,
    )
    from bagwise.experiments.time_limit import OutOfTimeError

    console = Console(stderr=True)
    missing = missing_cells(cells, out)
    if len(missing) < len(cells):
        console.print(f"{len(cells) - len(missing)} of {len(cells)} cells have a record in {out} already.")
    failed: list[FailedCell[CellType]] = []
    if not missing:
        return failed
    run = prepare(missing)
    display = SweepDisplay(console, missing, work_of)
    with display.shown():
        try:
            if manner.on_ray:
                all_ended = run_cells_on_ray(cells, run, out)
            elif manner.jobs > 1:
                all_ended = run_cells_in_processes(cells, run, out, manner.jobs)
            else:
                all_ended = run_cells(cells, run, out, max_seconds=manner.max_seconds, announce=display.run_starts)
            for ended in all_ended:
                display.cell_ends(ended)
                if isinstance(ended, FailedCell):
                    failed.append(ended)
        except OutOfTimeError:
            console.print(f"The next run would not end within {manner.max_seconds:g} seconds.")
    if left := set(missing_cells(cells, out)) - {one.cell for one in failed}:
        console.print(f"{len(left)} of {len(cells)} cells are left; run the same command again to go on.")
    return failed


def presets_to_draw(
    preset: str | None,
    default: str,
    presets: Iterable[str],
    records_of: Callable[[str], Sequence[object]],
    *,
    report_only: bool,
) -> list[str]:
    """Return the presets to draw: the one that ran; with --report-only and none named, all that have records."""
    chosen = preset or default
    if not report_only:  # no record: the time was up before the first cell was done, or all have failed
        return [chosen] if records_of(chosen) else []
    if preset is not None:
        return [preset]
    return [name for name in presets if records_of(name)] or [chosen]


def print_report(table: Table, report: Report | LeaderboardReport, saying: str | None = None) -> None:
    """Print a table, what it says, and where the page, the figures and the brought-up-to-date table are."""
    from rich.console import Console

    console = Console()
    console.print(table)
    if saying is not None:
        console.print(saying, highlight=False)
    for kind, path in [("page", report.page), *(("figure", path) for path in report.figures)]:
        console.print(f"{kind}: {path}", soft_wrap=True, highlight=False, markup=False)
    if report.readme is not None:
        console.print(f"table brought up to date: {report.readme}", highlight=False)


def raise_for_failed(failed: Sequence[FailedCell[CellType]]) -> None:
    """Raise an error that names the cells that failed, and why, where there are any."""
    names_of: dict[str, list[str]] = {}
    for one in failed:
        names_of.setdefault(one.reason, []).append(f"{one.cell.dataset}/{one.cell.name}")
    if failed:
        listed = " ".join(f"{', '.join(names)}: {reason}" for reason, names in names_of.items())
        raise ValueError(f"{len(failed)} cell{'s' * (len(failed) > 1)} failed and left no record. {listed}")


def way_on() -> str:
    """Return what to say to somebody who interrupted a sweep."""
    return "Finished cells and candidates are kept; to go on, run the same command again:\n  " + command_line()


_Item = TypeVar("_Item", int, str)


def parse_list(option: str, text: str, kind: Callable[[str], _Item]) -> list[_Item]:
    """Return the items of a list with commas."""
    try:
        return [kind(part.strip()) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} must be whole numbers with commas between them, but got {text!r}.") from None
