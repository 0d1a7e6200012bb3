"""Everything that is made from the records of a data set and preset: page, figures, README table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bagwise.experiments.grid import LOSSES, PRESETS, default_preset
from bagwise.experiments.records import cell_folder, read_records
from bagwise.report.figures import draw_figures, save_figure
from bagwise.report.markdown import results_region, update_readme
from bagwise.report.page import write_page
from bagwise.report.summary import Summary, summarise


@dataclass(frozen=True)
class Report:
    """What was written, and the numbers in it. `readme` is None where no region was found."""

    summary: Summary
    page: Path
    figures: tuple[Path, ...]
    readme: Path | None


def build_report(
    out: Path,
    dataset: str,
    preset: str,
    *,
    losses: Sequence[str] = LOSSES,
    bag_sizes: Sequence[int] | None = None,
    figures: Path | None = None,
    readme: Path | None = None,
) -> Report:
    """Read all records of a data set and preset and write the page, the figures and the README's table.

    Args:
        out: the folder of the records; the page lies beside them.
        losses: what was planned: cells of it without a record are named as missing.
        bag_sizes: likewise; by default the preset's.
        figures: where the figures go as PNG; by default beside the records, where they are also as SVG.
        readme: a file with a region `<!-- results:DATASET -->` for the table of the data set's default preset,
            or `<!-- results:DATASET/PRESET -->`.
    """
    records = read_records(out, dataset, preset)
    folder = cell_folder(out, dataset, preset)
    if not records:
        raise FileNotFoundError(
            f"there is no record in {folder}. Run the sweep first (without --report-only), or name the folder "
            "of the records with --out."
        )
    summary = summarise(records, PRESETS[preset].bag_sizes if bag_sizes is None else bag_sizes, losses)
    page = folder / "report.html"
    write_page(page, summary, records)
    pictures = figures or folder
    drawn = [
        path
        for name, figure in draw_figures(summary).items()
        for path in save_figure(figure, f"{dataset}-{preset}-{name}", png=pictures, svg=folder)
    ]
    region = dataset if preset == default_preset(dataset) else f"{dataset}/{preset}"
    is_updated = readme is not None and update_readme(readme, region, results_region(summary))
    return Report(summary, page, tuple(drawn), readme if is_updated else None)
