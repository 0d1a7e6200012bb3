"""`bagwise evaluate`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from bagwise.cli.messages import failures_explained, say_surprises, say_unused, show, show_json
from bagwise.cli.options import AsJson, Model, Rows
from bagwise.cli.progress import row_progress

if TYPE_CHECKING:
    from bagwise.commands.evaluate import Evaluated


def evaluate(
    model: Model,
    table: Rows,
    label: Annotated[
        str, typer.Option(metavar="COLUMN", help="Column of TABLE with the true class; empty where it is not known.")
    ],
    json: AsJson = False,
) -> None:
    """Judge a model by rows whose true class is known.

    Labels are only compared with the predictions; the model does not change.

    \b
    Example:
      bagwise evaluate model survey.csv --label vote
    """
    with failures_explained():
        from bagwise.commands.evaluate import evaluate_file

        with row_progress() as progress:
            done = evaluate_file(model, table, label, progress=progress)
        say_unused(done.unused_columns)
        say_surprises(done.surprises, done.rows + done.rows_without_label)
        show_json(dataclasses.asdict(done)) if json else show(_in_words(done))


def _in_words(done: Evaluated) -> str:
    passed_over = f" ({done.rows_without_label:,} without a label passed over)" if done.rows_without_label else ""
    wide = max(len("class"), *(len(score.label) for score in done.classes))
    lines = [
        f"{done.rows:,} labelled rows{passed_over}",
        f"accuracy           {done.metrics['accuracy']:.1%}",
        f"balanced accuracy  {done.metrics['balanced_accuracy']:.1%}",
        f"log loss           {done.metrics['log_loss']:.4f}",
        f"calibration error  {done.metrics['calibration_error']:.4f}",
        "",
        f"{'class':<{wide}}  {'rows':>9}  {'recall':>7}  {'precision':>9}",
    ]
    for score in done.classes:
        recall, precision = ("–" if share is None else f"{share:.1%}" for share in (score.recall, score.precision))
        lines.append(f"{score.label:<{wide}}  {score.rows:>9,}  {recall:>7}  {precision:>9}")
    return "\n".join(lines)
