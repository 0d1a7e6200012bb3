"""`bagwise reproduce`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from bagwise.cli.messages import command_line, failures_explained

if TYPE_CHECKING:
    from bagwise.experiments.records import Cell
    from bagwise.report.build import Report


def reproduce(
    dataset: Annotated[str, typer.Argument(help="digits, fashion-mnist, cifar10 or cifar100.")],
    preset: Annotated[
        str | None,
        typer.Option(help="demo (minutes on a laptop), fast (an hour of one GPU) or paper (its full recipe)."),
    ] = None,
    losses: Annotated[str, typer.Option(help="Which of avg-kl, kl and rot.")] = "avg-kl,kl,rot",
    bag_sizes: Annotated[str | None, typer.Option(help="For example 1,16,256; by default the preset's.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Repetitions; by default the preset's.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the data set's files.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the records; what is there is not run again.")] = Path("results"),
    figures: Annotated[
        Path | None,
        typer.Option(help="Folder of the figures; by default docs/figures with --report-only, else the records'."),
    ] = None,
    readme: Annotated[Path, typer.Option(help="File whose marked table --report-only brings up to date.")] = Path(
        "README.md"
    ),
    shard: Annotated[str | None, typer.Option(help="Run part 2 of 8 of the cells: 2/8.")] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Cells side by side on this machine; by default 1, for the demo one per core."),
    ] = None,
    ray: Annotated[bool, typer.Option("--ray", help="Run the cells on a Ray cluster.")] = False,
    report_only: Annotated[bool, typer.Option("--report-only", help="Run nothing, redraw from the records.")] = False,
    max_seconds: Annotated[
        float | None, typer.Option(min=0, help="Start no run that would end later than this.")
    ] = None,
) -> None:
    """Reproduce the paper's figures on a data set.

    Runs a sweep over bag sizes and losses, then draws a report. Every cell of the sweep leaves a record; run the same
    command again to go on where it was stopped.

    Example: bagwise reproduce digits --losses kl,rot --bag-sizes 1,16,256
    """
    interrupted = "Finished cells and candidates are kept; to go on, run the same command again:\n  " + command_line()
    with failures_explained(interrupted):
        from bagwise.bags.validation import check_choice
        from bagwise.experiments.datasets import DATASET_NAMES
        from bagwise.experiments.grid import PRESETS, Shard, default_preset, plan_cells
        from bagwise.experiments.records import read_records
        from bagwise.report.build import build_report

        check_choice("dataset", dataset, DATASET_NAMES)
        preset = preset or default_preset(dataset)
        check_choice("preset", preset, PRESETS)
        loss_names = _parse_list("--losses", losses, str)
        sizes = None if bag_sizes is None else _parse_list("--bag-sizes", bag_sizes, int)
        cells = plan_cells(dataset, preset, losses=loss_names, bag_sizes=sizes, seeds=seeds)
        if shard is not None:
            cells = Shard.parse(shard).take(cells)
        read_records(out, dataset, preset)  # a damaged one is better found before hours of work than after
        if not report_only:
            if max_seconds is not None and (ray or jobs):
                raise ValueError("--max-seconds runs one cell after the other; drop --ray and --jobs, or drop it.")
            if jobs is None:
                jobs = (os.cpu_count() or 1) if PRESETS[preset].is_small and max_seconds is None else 1
            _sweep(cells, data, out, jobs=jobs, on_ray=ray, max_seconds=max_seconds)
            if not read_records(out, dataset, preset):
                return  # the time was up before the first cell was done
        report = build_report(
            out,
            dataset,
            preset,
            losses=loss_names,
            bag_sizes=sizes,
            figures=figures or (Path("docs/figures") if report_only else None),
            readme=readme if report_only else None,
        )
        _print_report(report)


def _sweep(
    cells: Sequence[Cell], data: Path | None, out: Path, *, jobs: int, on_ray: bool, max_seconds: float | None
) -> None:
    """Run the cells that have no record and show how it goes."""
    from rich.console import Console

    from bagwise.experiments.datasets import load_dataset
    from bagwise.experiments.display import SweepDisplay
    from bagwise.experiments.sweep import missing_cells, run_cells, run_cells_in_processes, run_cells_on_ray
    from bagwise.experiments.time_limit import OutOfTimeError

    console = Console(stderr=True)
    missing = missing_cells(cells, out)
    if len(missing) < len(cells):
        console.print(f"{len(cells) - len(missing)} of {len(cells)} cells have a record in {out} already.")
    if not missing:
        return
    dataset = load_dataset(missing[0].dataset, data)
    display = SweepDisplay(console, missing)
    with display.shown():
        try:
            if on_ray:
                records = run_cells_on_ray(cells, dataset, out)
            elif jobs > 1:
                records = run_cells_in_processes(cells, dataset, out, jobs)
            else:
                records = run_cells(cells, dataset, out, max_seconds=max_seconds, announce=display.run_starts)
            for record in records:
                display.cell_ends(record)
        except OutOfTimeError:
            console.print(f"The next run would not end within {max_seconds:g} seconds.")
    if left := missing_cells(cells, out):
        console.print(f"{len(left)} of {len(cells)} cells are left; run the same command again to go on.")


def _print_report(report: Report) -> None:
    """Print the accuracies, a row per bag size, and where everything is."""
    from rich.console import Console
    from rich.table import Table

    from bagwise.report.markdown import results_caption
    from bagwise.report.summary import LOSS_LABELS

    summary = report.summary
    table = Table(caption=results_caption(summary).replace("`", ""), caption_justify="left")
    table.add_column("bag size", justify="right")
    for loss in summary.losses:
        table.add_column(LOSS_LABELS[loss], justify="right")
    for size in summary.bag_sizes:
        table.add_row(str(size), *(str(summary.accuracy[loss].get(size, "–")) for loss in summary.losses))
    console = Console()
    console.print(table)
    for label, path in [("page", report.page), *(("figure", path) for path in report.figures)]:
        console.print(f"{label}: {path}", soft_wrap=True, highlight=False, markup=False)
    if report.readme is not None:
        console.print(f"table brought up to date: {report.readme}", highlight=False)


_Item = TypeVar("_Item", int, str)


def _parse_list(option: str, text: str, kind: Callable[[str], _Item]) -> list[_Item]:
    try:
        return [kind(part.strip()) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} must be whole numbers with commas between them, but got {text!r}.") from None
