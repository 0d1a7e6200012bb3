"""`bagwise apportion`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from bagwise.cli.messages import failures_explained, say, say_surprises, say_unused, show, show_json
from bagwise.cli.options import AsJson, Counts, Keep, Model, Overwrite, Proportions, Rows, unique
from bagwise.cli.progress import row_progress


def apportion(
    model: Model,
    table: Rows,
    proportions: Proportions,
    out: Annotated[Path, typer.Option(metavar="FILE", help="File to write: .csv, .parquet, .arrow or .feather.")],
    bag: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column of bag ids; by default the one that the model was fitted with."),
    ] = None,
    counts: Counts = False,
    how: Annotated[
        str,
        typer.Option(
            help="rot: soft shares, a compromise of model and proportions. lp: the proportions are met exactly. "
            "combinatorial: one class per row, proportions met as closely as --alpha says."
        ),
    ] = "rot",
    alpha: Annotated[float, typer.Option(help="Weight of the model against the proportions, above 0, below 1.")] = 0.5,
    keep: Keep = None,
    overwrite: Overwrite = False,
    json: AsJson = False,
) -> None:
    """Label rows by a model and their bags' proportions.

    For the rows that the model was fitted on, or others whose bags' proportions are known: labels that agree with the
    proportions are better than those of `bagwise predict`, which does not know of bags. The output has the same
    columns. Rows of a bag with unknown proportions keep the predictions of the model.

    \b
    Example:
      bagwise apportion model people.parquet --proportions results.csv --counts --keep person_id --out labels.csv
    """
    with failures_explained():
        from bagwise.commands.apportion import apportion_file

        with row_progress() as progress:
            done = apportion_file(
                model,
                table,
                proportions,
                out,
                bag=bag,
                counts=counts,
                how=how,
                alpha=alpha,
                keep=unique(keep),
                overwrite=overwrite,
                progress=progress,
            )
        say_unused(done.unused_columns)
        say_surprises(done.surprises, done.rows)
        if done.bags_not_converged:
            say(f"warning: the labels of {done.bags_not_converged:,} of {done.bags:,} bags may not be the best.")
        if json:
            show_json(dataclasses.asdict(done))
            return
        show(
            f"{done.rows:,} rows in {done.bags:,} bags; proportions are missed by {50 * done.gap_after:.2f} points, by "
            f"the model alone by {50 * done.gap_before:.2f}\nlabels: {done.labels}"
        )
