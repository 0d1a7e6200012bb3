"""`bagwise reproduce`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bagwise.cli.messages import failures_explained
from bagwise.cli.sweeping import (
    DEFAULT_OUT,
    DEFAULT_README,
    BagSizes,
    Data,
    Figures,
    Jobs,
    MaxSeconds,
    OnRay,
    Out,
    Readme,
    ReportOnly,
    Seeds,
    ShardOfCells,
    choose_manner,
    parse_list,
    presets_to_draw,
    print_report,
    raise_for_failed,
    run_sweep,
    way_on,
)

if TYPE_CHECKING:
    from bagwise.experiments.records import Cell
    from bagwise.experiments.sweep import RunCell
    from bagwise.report.build import Report


def reproduce(
    dataset: Annotated[str, typer.Argument(help="digits, fashion-mnist, cifar10 or cifar100.")],
    preset: Annotated[
        str | None,
        typer.Option(
            help="demo (minutes on a laptop), fast (an hour of one GPU) or paper (its full recipe); by default "
            "demo for digits, fast for the others; with --report-only all that have records."
        ),
    ] = None,
    losses: Annotated[str, typer.Option(help="Which of avg-kl, kl and rot.")] = "avg-kl,kl,rot",
    bag_sizes: BagSizes = None,
    seeds: Seeds = None,
    data: Data = None,
    out: Out = DEFAULT_OUT,
    figures: Figures = None,
    readme: Readme = DEFAULT_README,
    shard: ShardOfCells = None,
    jobs: Jobs = None,
    ray: OnRay = False,
    report_only: ReportOnly = False,
    max_seconds: MaxSeconds = None,
) -> None:
    """Reproduce the paper's figures on a data set.

    Runs a sweep over bag sizes and losses, then draws a report. Every cell of the sweep leaves a record; run the same
    command again to go on where it was stopped.

    Example: bagwise reproduce digits --losses kl,rot --bag-sizes 1,16,256
    """
    with failures_explained(way_on(), clears_up_on_sigterm=False):
        from bagwise.bags.setting_checks import check_choice
        from bagwise.experiments.cells import cell_epochs
        from bagwise.experiments.datasets import DATASET_NAMES
        from bagwise.experiments.grid import PRESETS, default_preset, plan_cells
        from bagwise.experiments.records import read_records
        from bagwise.experiments.sweep import Shard
        from bagwise.report.build import build_report

        check_choice("dataset", dataset, DATASET_NAMES)
        default = default_preset(dataset)
        chosen = preset or default
        check_choice("preset", chosen, PRESETS)
        loss_names = parse_list("--losses", losses, str)
        sizes = None if bag_sizes is None else parse_list("--bag-sizes", bag_sizes, int)
        cells = plan_cells(dataset, chosen, losses=loss_names, bag_sizes=sizes, seeds=seeds)
        if shard is not None:
            cells = Shard.parse(shard).take(cells)
        read_records(out, dataset, chosen)  # a damaged one is better found before hours of work than after
        failed = []
        if not report_only:
            manner = choose_manner(jobs, ray, max_seconds, is_small=PRESETS[chosen].is_small)
            failed = run_sweep(cells, out, manner, prepare=partial(_prepare, folder=data), work_of=cell_epochs)
        records_of = partial(read_records, out, dataset)
        for name in presets_to_draw(preset, default, PRESETS, records_of, report_only=report_only):
            report = build_report(
                out,
                dataset,
                name,
                losses=loss_names,
                bag_sizes=sizes,
                figures=figures or (Path("docs/figures") if report_only else None),
                readme=readme if report_only else None,
            )
            _print_report(report)
        raise_for_failed(failed)


def _prepare(cells: Sequence[Cell], folder: Path | None) -> RunCell[Cell]:
    """Load the data set of the cells; return what runs one of them."""
    from bagwise.bags.validation import check_bag_fits
    from bagwise.experiments.cells import run_cell
    from bagwise.experiments.datasets import load_dataset

    dataset = load_dataset(cells[0].dataset, folder)
    for cell in cells:  # better found before hours of work than after
        check_bag_fits(cell.bag_size, len(dataset.train_labels), f"training instances of {dataset.name}")
    return partial(run_cell, dataset=dataset)


def _print_report(report: Report) -> None:
    """Print the accuracies, a row per bag size, and where everything is."""
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
    print_report(table, report)
