"""The leaderboard of a data set: one self-contained page, figures, and a table for a README, all made from records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from bagwise.experiments.leaderboard.presets import BenchmarkCell
from bagwise.experiments.leaderboard.published import Published, read_published
from bagwise.experiments.leaderboard.running import benchmark_folder, read_benchmark
from bagwise.experiments.records import Record
from bagwise.report.figures import inline_svg, save_figure
from bagwise.report.leaderboard_figures import draw_accuracy_by_bag_size, draw_accuracy_by_seconds
from bagwise.report.leaderboard_summary import Leaderboard, Setting, summarise_benchmark
from bagwise.report.leaderboard_words import (
    headline,
    label,
    read_missing,
    read_self_training,
    read_setting,
    read_spread,
)
from bagwise.report.markdown import update_readme
from bagwise.report.page import common_recipe, duration, environments
from bagwise.report.rendering import write_html


@dataclass(frozen=True)
class LeaderboardReport:
    """What was written, and the numbers in it. `readme` is None where no region was found."""

    board: Leaderboard
    page: Path
    figures: tuple[Path, ...]
    readme: Path | None


@dataclass(frozen=True)
class PublishedRow:
    """What one publication says about one kind of bags, by bag size."""

    method: str
    terms: str
    source: str
    accuracy: dict[int, float]


def build_leaderboard(
    out: Path, dataset: str, preset: str, *, figures: Path | None = None, readme: Path | None = None
) -> LeaderboardReport:
    """Read all records of a data set and preset and write the page, the figures and the README's table.

    Args:
        out: the folder of the records; the page lies beside them.
        figures: where the figures go as PNG; by default beside the records, where they are also as SVG.
        readme: a file with a region `<!-- results:DATASET/benchmark/PRESET -->` for the table.
    """
    records = read_benchmark(out, dataset, preset)
    folder = benchmark_folder(out, dataset, preset)
    if not records:
        raise FileNotFoundError(
            f"there is no record in {folder}. Run the benchmark first (without --report-only), or name the folder "
            "of the records with --out."
        )
    board = summarise_benchmark(records, read_published(dataset))
    page = folder / "report.html"
    by_size, by_seconds = draw_accuracy_by_bag_size(board), draw_accuracy_by_seconds(board)
    values = {
        "board": board,
        "label": label,
        "Setting": Setting,
        "headline": headline(board),
        "readings": [(str(setting), read_setting(board, setting)) for setting in board.settings],
        "spread": read_spread(board),
        "self_training": read_self_training(records),
        "missing": read_missing(board),
        "published": {kind: published_rows(board, kind) for kind in board.bag_kinds},
        "is_narrow": len(by_size.axes) == 1,
        "by_size": Markup(inline_svg(by_size, "Final test accuracy by bag size and contender")),
        "by_seconds": Markup(inline_svg(by_seconds, "Test accuracy by seconds of computation")),
        "records": records,
        "recipe": _shared_recipe(records),
        "environments": environments(records),
        "time": duration(sum(record.seconds for record in records)),
    }
    write_html(page, "leaderboard.html", values)
    name = f"{dataset}-benchmark-{preset}"
    drawn = [
        *save_figure(by_size, f"{name}-bag-sizes", png=figures or folder, svg=folder),
        *save_figure(by_seconds, f"{name}-seconds", png=figures or folder, svg=folder),
    ]
    is_updated = readme is not None and update_readme(
        readme, f"{dataset}/benchmark/{preset}", leaderboard_region(board)
    )
    return LeaderboardReport(board, page, tuple(drawn), readme if is_updated else None)


def published_rows(board: Leaderboard, bag_kind: str) -> list[PublishedRow]:
    """Return what is published at the bag sizes that ran here, a row per method and network."""
    sizes = set(board.sizes(bag_kind))
    groups: dict[tuple[str, str], list[Published]] = {}
    for entry in board.published:
        if entry.bag_kind == bag_kind and entry.bag_size in sizes:
            groups.setdefault((entry.method, entry.terms), []).append(entry)
    return [
        PublishedRow(method, terms, entries[0].source, {entry.bag_size: entry.accuracy for entry in entries})
        for (method, terms), entries in groups.items()
    ]


def markdown_leaderboard(board: Leaderboard) -> str:
    """Return the accuracies as a Markdown table, a row per contender and published method, a column per setting.

    A star marks the best of a setting and what is within its spread; a dash stands where there is no record.
    """
    leaders = {setting: board.leaders(setting) for setting in board.settings}
    lines = [["contender", *map(str, board.settings)], ["---", *["---:"] * len(board.settings)]]
    for name in board.contenders:
        cells = []
        for setting in board.settings:
            score = board.scores[name].get(setting)
            star = " *" if name in leaders[setting] and len(board.contenders) > 1 else ""
            cells.append("–" if score is None else f"{score.accuracy}{star}")
        lines.append([label(name), *cells])
    for kind in board.bag_kinds:
        for row in published_rows(board, kind):
            cells = [
                f"{100 * row.accuracy[setting.bag_size]:.1f}"
                if setting.bag_kind == kind and setting.bag_size in row.accuracy
                else ""
                for setting in board.settings
            ]
            lines.append([f"published, not ours: {row.method} ({row.terms})", *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def leaderboard_caption(board: Leaderboard) -> str:
    """Say what the numbers of the table are."""
    budget = " or ".join(f"{budget:g}" for budget in board.budgets)
    seeds = "one seed" if board.max_seeds == 1 else f"mean ± standard deviation over up to {board.max_seeds} seeds"
    return (
        f"Test accuracy in % of the last epoch, {board.title}, {seeds}; at most {budget} network passes per training "
        "instance for each number, the search by held-out bags included. Always naming the most frequent class is "
        f"right in {100 * board.chance:.3g} %. * best, or within the spread of it."
    )


def leaderboard_region(board: Leaderboard) -> str:
    """Return what a README shows of a leaderboard."""
    return f"{markdown_leaderboard(board)}\n\n{leaderboard_caption(board)}"


def _shared_recipe(records: Sequence[Record[BenchmarkCell]]) -> dict[str, str]:
    """Return the settings that all contenders share; how many epochs the budget buys is in the table of cells."""
    return {name: value for name, value in common_recipe(records).items() if name != "epochs"}
