"""The table of a README, kept between two marks and made from records."""

from __future__ import annotations

import re
from pathlib import Path

from bagwise.experiments.records import write_file
from bagwise.report.summary import LOSS_LABELS, Summary


def markdown_table(summary: Summary) -> str:
    """Return the accuracies as a Markdown table: a row per bag size that has a record, a column per loss.

    A dash stands where the record of a loss is missing.
    """
    header = ["bag size", *(LOSS_LABELS[loss] for loss in summary.losses)]
    rows = [
        [str(size), *(str(summary.accuracy[loss].get(size, "–")) for loss in summary.losses)]
        for size in summary.measured_sizes
    ]
    lines = [header, ["---:"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def results_caption(summary: Summary) -> str:
    """Say what the numbers of the table are."""
    seeds = sorted({point.seeds for points in summary.accuracy.values() for point in points.values()})
    if seeds[-1] == 1:
        what = "one seed"
    elif len(seeds) == 1:
        what = f"mean ± standard deviation over {seeds[0]} seeds"
    else:
        what = f"mean ± standard deviation over the seeds that ran ({seeds[0]} to {seeds[-1]} a cell)"
    return (
        f"Test accuracy in %, {summary.title}, preset `{summary.preset}`, {what}. Chance is {100 * summary.chance:g} %."
    )


def results_region(summary: Summary) -> str:
    """Return what a README shows of a summary."""
    return f"{markdown_table(summary)}\n\n{results_caption(summary)}"


def update_region(text: str, name: str, content: str) -> str | None:
    """Return `text` with what lies between `<!-- results:name -->` and `<!-- /results -->` replaced.

    None when the text has no such region.
    """
    opening, closing = f"<!-- results:{name} -->", "<!-- /results -->"
    pattern = re.compile(f"{re.escape(opening)}.*?{re.escape(closing)}", re.DOTALL)
    if not pattern.search(text):
        return None
    return pattern.sub(lambda _: f"{opening}\n{content}\n{closing}", text)


def update_readme(path: Path, name: str, content: str) -> bool:
    """Write the content into the region `name` of a file; return whether the file has that region."""
    if not path.is_file():
        return False
    updated = update_region(path.read_text(encoding="utf-8"), name, content)
    if updated is not None:
        write_file(path, updated)
    return updated is not None
