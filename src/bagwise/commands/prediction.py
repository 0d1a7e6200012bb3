"""Predictions for the rows of a file, slice by slice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bagwise.bags.setting_checks import check_choice
from bagwise.estimator import ProportionClassifier
from bagwise.tables.slices import open_table
from bagwise.tables.surprises import Surprise, Surprises

if TYPE_CHECKING:
    import polars as pl

# Told how many rows are done and how many there are.
Progress = Callable[[int, int], None]

# A slice of a thousand columns takes a few hundred megabytes.
_ROWS_PER_SLICE = 50_000


class RowPredictor:
    """A model, and a table with the columns that it was fitted on, among others.

    Args:
        classifier: the model.
        table: CSV, Parquet or Arrow file. Parquet is read in slices, so that it may be larger than memory.
        others: further columns that will be asked for.
        text: those of them that are text in a CSV file, whatever they look like.

    Attributes:
        classifier: the model.
        table: the table.
        unused: columns of the table that the model does not need and nobody asks for; that of the bags is no surprise.
    """

    def __init__(
        self, classifier: ProportionClassifier, table: Path, others: Sequence[str] = (), text: Sequence[str] = ()
    ) -> None:
        self.classifier = classifier
        preprocessing = classifier.preprocessing_
        # CSV has no types: what was text when the model was fitted is text now, even if these rows look like numbers
        categories = [name for name, kind in preprocessing.kinds if kind == "category"]
        self.table = open_table(table, text=[*categories, *text])
        try:
            preprocessing.check_columns(self.table.columns)
        except ValueError as error:
            raise ValueError(f"{table}: {error}") from None
        for name in others:
            check_choice(f"a column of {table}", name, self.table.columns)
        self._inputs = list(preprocessing.names)
        self._columns = list(dict.fromkeys([*self._inputs, *others]))
        expected = {*self._columns, classifier.bag_column_}
        self.unused = tuple(name for name in self.table.columns if name not in expected)
        self._surprises = Surprises(preprocessing)

    def slices(self, progress: Progress) -> Iterator[tuple[pl.DataFrame, np.ndarray]]:
        """Yield slices of the table with their probabilities `[rows, classes]`."""
        done = 0
        for frame in self.table.slices(_ROWS_PER_SLICE, self._columns):
            probabilities = self.classifier.predict_proba(frame.select(self._inputs))
            self._surprises.count(frame)  # after the predictions, which refuse columns of another kind
            yield frame, probabilities
            done += frame.height
            progress(done, self.table.num_rows)

    def surprises(self) -> tuple[Surprise, ...]:
        """Return the columns that differ from what the model was fitted on, in the slices so far."""
        return self._surprises.found()


def prediction_frame(kept: pl.DataFrame, classes: Sequence[object], probabilities: np.ndarray) -> pl.DataFrame:
    """Return the kept columns, the most likely class, and the probability of each class, a row per instance."""
    import polars as pl

    labels = np.array([str(label) for label in classes])
    columns = [pl.Series("class", labels[probabilities.argmax(axis=1)])]
    for place, label in enumerate(labels):
        columns.append(pl.Series(f"probability {label}", probabilities[:, place].astype(np.float32)))
    return pl.DataFrame([*kept, *columns])


def check_kept(keep: Sequence[str], classes: Sequence[object]) -> None:
    """Raise where a column to keep has the name of a column of predictions."""
    own = {"class", *(f"probability {label}" for label in classes)}
    if clash := [name for name in keep if name in own]:
        raise ValueError(
            f"--keep {clash[0]}: the predictions have a column of that name themselves. Rename it in the table."
        )
