"""`bagwise predict`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from bagwise.cli.messages import failures_explained, say_surprises, say_unused, show, show_json
from bagwise.cli.options import AsJson, Keep, Model, Overwrite, Rows, unique
from bagwise.cli.progress import row_progress


def predict(
    model: Model,
    table: Rows,
    out: Annotated[
        Path, typer.Option(metavar="PREDICTIONS", help="File to write: .csv, .parquet, .arrow or .feather.")
    ],
    keep: Keep = None,
    overwrite: Overwrite = False,
    json: AsJson = False,
) -> None:
    """Predict the class of each row of a table.

    The output has the columns to --keep, "class", and "probability A", "probability B", ..., a row for each row of
    TABLE, in its order. Columns that the model does not know are passed over. A Parquet file is read in slices, so it
    may be larger than memory.

    \b
    Example:
      bagwise predict model people.parquet --keep person_id --out predictions.parquet
    """
    with failures_explained():
        from bagwise.commands.predict import predict_file

        with row_progress() as progress:
            done = predict_file(model, table, out, keep=unique(keep), overwrite=overwrite, progress=progress)
        say_unused(done.unused_columns)
        say_surprises(done.surprises, done.rows)
        if json:
            show_json(dataclasses.asdict(done))
            return
        classes = ", ".join(f"{label} {count:,}" for label, count in done.classes.items())
        show(f"{done.rows:,} rows: {classes}\npredictions: {done.predictions}")
