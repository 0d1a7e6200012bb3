"""`bagwise apportion`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bagwise.cli.messages import failures_explained, say, say_surprises, say_unused, show, show_json
from bagwise.cli.options import AsJson, Counts, Keep, Model, Overwrite, Proportions, Rows, unique
from bagwise.cli.progress import row_progress

if TYPE_CHECKING:
    from bagwise.commands.apportion import Apportioned


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
            help="lp: the totals of every bag come out right; where bags are not random, single rows may be right less "
            "often than with `bagwise predict`. rot: soft shares, a compromise of model and proportions; with --alpha "
            "0.02 the best guess per row. combinatorial: one class per row, proportions met as closely as --alpha says."
        ),
    ] = "lp",
    alpha: Annotated[
        float | None,
        typer.Option(
            help="For rot and combinatorial: weight of the model against the proportions, above 0, below 1; 0.5 if "
            "not given."
        ),
    ] = None,
    keep: Keep = None,
    overwrite: Overwrite = False,
    json: AsJson = False,
) -> None:
    """Label rows by a model and their bags' proportions.

    For the rows that the model was fitted on, or others whose bags' proportions are known: labels that agree with the
    proportions, unlike those of `bagwise predict`, which does not know of bags. The output has the same columns. By
    default the classes meet the proportions, up to what whole rows allow, so that the totals of every bag come out
    right; for the best guess per row choose --how rot --alpha 0.02. Rows of a bag with unknown proportions keep the
    predictions of the model.

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
        show(_in_words(done))


def _in_words(done: Apportioned) -> str:
    # half the sum of absolute differences is the share of rows in the wrong class
    classes, after, before = (f"{50 * gap:.2f}" for gap in (done.gap_classes, done.gap_after, done.gap_before))
    probabilities = "" if after == classes else f", the probabilities by {after}"
    unknown = ""
    if done.bags_unknown:
        keep = "bag with unknown proportions keeps" if done.bags_unknown == 1 else "bags with unknown proportions keep"
        unknown = f"\n{done.bags_unknown:,} {keep} the model's predictions"
    return (
        f"{done.rows:,} rows in {done.bags:,} bags; the classes miss the proportions by {classes} points"
        f"{probabilities}, the model alone by {before}{unknown}\nlabels: {done.labels}"
    )
