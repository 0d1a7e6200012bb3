"""Arguments that several commands share."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[Path, typer.Argument(metavar="MODEL_DIR", help="Folder of a model, as `bagwise fit` wrote it.")]
Rows = Annotated[Path, typer.Argument(metavar="TABLE", help="Table with a row per instance.")]
Proportions = Annotated[
    Path,
    typer.Option(
        metavar="TABLE2",
        help="Table with a row per bag: its id, and a column per class. Empty cells: not known.",
    ),
]
Classes = Annotated[
    str | None,
    typer.Option(metavar="A,B,...", help="Columns of TABLE2 that are classes; by default all but the bag id."),
]
Counts = Annotated[bool, typer.Option("--counts", help="TABLE2 holds counts, not shares that sum to 1.")]
Keep = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN", help="Column of TABLE to repeat in the output, such as an id; may be repeated."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the output where it exists.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object to the standard output, for other programs.")
]


def parse_names(text: str | None) -> tuple[str, ...] | None:
    """Return the names in a list with commas, each once."""
    return None if text is None else unique(name.strip() for name in text.split(","))


def unique(names: Iterable[str] | None) -> tuple[str, ...]:
    """Return what was given to an option that may be repeated, each once."""
    return tuple(dict.fromkeys(names or ()))
