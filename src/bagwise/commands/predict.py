"""`bagwise predict`: the most likely class of each row of a table, and the probability of each class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bagwise.commands.outputs import staged_file
from bagwise.commands.prediction import Progress, RowPredictor, check_kept, prediction_frame
from bagwise.estimator import ProportionClassifier
from bagwise.tables.files import file_type
from bagwise.tables.slices import write_slices
from bagwise.tables.surprises import Surprise

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Predicted:
    """What was predicted.

    Attributes:
        predictions: the file.
        rows: number of rows.
        classes: number of rows whose most likely class it is, by class.
        unused_columns: columns of the table that the model does not know.
        surprises: columns with categories or gaps that the model does not know.
    """

    predictions: str
    rows: int
    classes: dict[str, int]
    unused_columns: tuple[str, ...]
    surprises: tuple[Surprise, ...]


def predict_file(
    model: Path, table: Path, out: Path, *, keep: Sequence[str] = (), overwrite: bool, progress: Progress
) -> Predicted:
    """Write the predictions for `table` to `out`, in the order of its rows."""
    file_type(out)  # a suffix that nobody knows is better found now than after the work
    with staged_file(out, overwrite=overwrite, inputs=[table]) as staged:
        predictor = RowPredictor(ProportionClassifier.load(model), table, keep)
        classes = predictor.classifier.classes_.tolist()
        check_kept(keep, classes)
        counts = dict.fromkeys((str(label) for label in classes), 0)

        def frames() -> Iterator[pl.DataFrame]:
            for frame, probabilities in predictor.slices(progress):
                predicted = prediction_frame(frame.select(keep), classes, probabilities)
                for label, count in predicted["class"].value_counts().iter_rows():
                    counts[label] += count
                yield predicted

        write_slices(frames(), staged)
    return Predicted(str(out), predictor.table.num_rows, counts, predictor.unused, predictor.surprises())
