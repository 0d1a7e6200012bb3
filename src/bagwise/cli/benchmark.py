"""`bagwise benchmark`."""

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
    from bagwise.experiments.leaderboard.presets import BenchmarkCell
    from bagwise.experiments.sweep import RunCell
    from bagwise.report.leaderboard import LeaderboardReport


def benchmark(
    datasets: Annotated[
        list[str], typer.Argument(metavar="DATASET...", help="digits, adult, fashion-mnist, cifar10, cifar100.")
    ],
    preset: Annotated[
        str | None,
        typer.Option(
            help="demo (minutes on a laptop), fast or full (meant for two or ten minutes of one GPU a cell); "
            "by default demo for digits and adult, fast for the others; with --report-only all that have records."
        ),
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Contenders with commas between them, such as kl,rot,ahil; by default all.")
    ] = None,
    bag_sizes: BagSizes = None,
    bags: Annotated[
        str | None, typer.Option(help="Which of uniform, clustered and dirichlet; by default the preset's.")
    ] = None,
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
    """Compare methods on equal terms.

    All get the same bags and the same budget of network passes; held-out bags choose, labels only score.
    Every cell (a method on a kind and size of bags, from a seed) leaves a record; run the same command again to go on
    where it was stopped. Ends with a page per data set: who wins where, tables, curves, and published numbers.

    Example: bagwise benchmark digits --methods kl,rot,dsq --bag-sizes 16,64
    """
    with failures_explained(way_on(), clears_up_on_sigterm=False):
        from bagwise.bags.setting_checks import check_choice
        from bagwise.experiments.leaderboard.contenders import CONTENDERS
        from bagwise.experiments.leaderboard.data import BENCHMARK_DATASETS
        from bagwise.experiments.leaderboard.presets import PRESETS, default_preset, plan_benchmark
        from bagwise.experiments.leaderboard.running import cell_passes, read_benchmark
        from bagwise.experiments.sweep import Shard
        from bagwise.report.leaderboard import build_leaderboard

        for dataset in datasets:
            check_choice("dataset", dataset, BENCHMARK_DATASETS)
        if report_only and any(part is not None for part in (methods, bag_sizes, bags, seeds, shard)):
            raise ValueError(
                "--report-only draws all records that there are: --methods, --bag-sizes, --bags, --seeds and --shard "
                "say which cells to run. Leave them out."
            )
        cells = plan_benchmark(
            datasets,
            preset,
            contenders=list(CONTENDERS) if methods is None else parse_list("--methods", methods, str),
            bag_kinds=None if bags is None else parse_list("--bags", bags, str),
            bag_sizes=None if bag_sizes is None else parse_list("--bag-sizes", bag_sizes, int),
            seeds=seeds,
        )
        if shard is not None:
            cells = Shard.parse(shard).take(cells)
        presets = {dataset: preset or default_preset(dataset) for dataset in datasets}
        for dataset, name in presets.items():
            read_benchmark(out, dataset, name)  # a damaged one is better found before hours of work than after
        failed = []
        if not report_only:
            # one large preset among them needs the whole machine for a cell
            is_small = all(PRESETS[name].is_small for name in presets.values())
            manner = choose_manner(jobs, ray, max_seconds, is_small=is_small)
            failed = run_sweep(cells, out, manner, prepare=partial(_prepare, folder=data), work_of=cell_passes)
        for dataset in presets:
            default, records_of = default_preset(dataset), partial(read_benchmark, out, dataset)
            for name in presets_to_draw(preset, default, PRESETS, records_of, report_only=report_only):
                report = build_leaderboard(
                    out,
                    dataset,
                    name,
                    figures=figures or (Path("docs/figures") if report_only else None),
                    readme=readme if report_only else None,
                )
                _print_report(report)
        raise_for_failed(failed)


def _prepare(cells: Sequence[BenchmarkCell], folder: Path | None) -> RunCell[BenchmarkCell]:
    """Load the data sets of the cells; return what runs one of them."""
    from bagwise.bags.validation import check_bag_fits
    from bagwise.experiments.leaderboard.data import load_benchmark_data
    from bagwise.experiments.leaderboard.running import run_benchmark_cell

    data = {name: load_benchmark_data(name, folder) for name in dict.fromkeys(cell.dataset for cell in cells)}
    for cell in cells:  # better found before hours of work than after
        check_bag_fits(cell.bag_size, len(data[cell.dataset].train), f"training instances of {cell.dataset}")
    return partial(run_benchmark_cell, data=data)


def _print_report(report: LeaderboardReport) -> None:
    """Print the accuracies, a row per contender, what they say, and where everything is."""
    from rich.table import Table

    from bagwise.report.leaderboard import leaderboard_caption
    from bagwise.report.leaderboard_words import headline, label

    board = report.board
    table = Table(title=board.title, caption=leaderboard_caption(board), caption_justify="left")
    table.add_column("contender")
    for setting in board.settings:
        table.add_column(f"{setting.bag_kind} {setting.bag_size}", justify="right")
    leaders = {setting: board.leaders(setting) for setting in board.settings}
    for name in board.contenders:
        scores = board.scores[name]
        cells = [
            f"{scores[setting].accuracy}{' *' if name in leaders[setting] else '  '}" if setting in scores else "–  "
            for setting in board.settings
        ]
        table.add_row(label(name), *cells)
    print_report(table, report, headline(board))
