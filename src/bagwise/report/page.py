"""One self-contained HTML page from records: no script, no external reference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from markupsafe import Markup

from bagwise.experiments.records import Provenance, Record
from bagwise.report.figures import draw_figures, inline_svg
from bagwise.report.markdown import results_caption
from bagwise.report.reading import headline, missing_cells, read_findings
from bagwise.report.rendering import write_html
from bagwise.report.summary import LOSS_LABELS, Summary

# for people who hear the page
_FIGURE_LABELS = {
    "bag-sizes": "Final test accuracy by bag size and loss",
    "curves": "Test accuracy over epochs, by loss",
}


def write_page(path: Path, summary: Summary, records: Sequence[Record]) -> None:
    """Render the page of one data set and preset."""
    values = {
        "summary": summary,
        "labels": LOSS_LABELS,
        "headline": headline(summary),
        "caption": results_caption(summary).replace("`", ""),
        "missing": missing_cells(summary),
        "findings": read_findings(summary),
        "figures": {
            name: Markup(inline_svg(figure, _FIGURE_LABELS[name])) for name, figure in draw_figures(summary).items()
        },
        "records": records,
        "recipe": common_recipe(records),
        "environments": environments(records),
        "time": duration(sum(record.seconds for record in records)),
    }
    write_html(path, "page.html", values)


def common_recipe(records: Sequence[Record]) -> dict[str, str]:
    """Return each setting with its values over all records; the learning rate and seed have their own table."""
    words = {"True": "yes", "False": "no", "None": "none"}
    values: dict[str, dict[str, None]] = {}  # ordered sets
    for record in records:
        for name, value in {"network": record.network, **record.recipe}.items():
            values.setdefault(name.replace("_", " "), {})[words.get(str(value), str(value))] = None
    return {name: ", ".join(seen) for name, seen in values.items() if name not in ("learning rate", "seed")}


def environments(records: Sequence[Record]) -> list[tuple[Provenance, int]]:
    """Return the distinct machines and versions, with the number of records made on each."""
    counts: Counter[Provenance] = Counter()
    for record in records:
        counts[Provenance(**{**asdict(record.provenance), "started": ""})] += 1
    return counts.most_common()


def duration(seconds: float) -> str:
    """Return a time in the unit that suits it.

    Example:
        >>> duration(42), duration(1200), duration(9000)
        ('42 seconds', '20 minutes', '2.5 hours')
    """
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"
