"""`bagwise fit`: from two tables to the folder of a model and its report."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bagwise.commands.outputs import staged_model_folder
from bagwise.commands.training_data import TrainingData, TrainingFiles, read_training_data
from bagwise.commands.understanding import Understanding, understand
from bagwise.estimator import ProportionClassifier
from bagwise.model_selection import AccuracyEstimate
from bagwise.report.model import write_model_report
from bagwise.report.model_bags import MOST_ROWS, describe_rows, draw_bags, was_held_out
from bagwise.report.model_findings import find
from bagwise.report.model_statistics import Fit
from bagwise.tables.slices import FrameInMemory

if TYPE_CHECKING:
    import polars as pl

REPORT_FILE = "report.html"

_ROWS_PER_SLICE = 100_000


@dataclass(frozen=True)
class Fitted:
    """What a fit left behind.

    Attributes:
        model: folder of the model.
        report: its page; None where none was asked for.
        rows: number of rows it was fitted on.
        bags: number of bags.
        classes: labels of the classes.
        epochs: passes over the bags that were made.
        best_epoch: the one whose weights were kept.
        training: what was done, what was kept of it, and by which rule, in words.
        directions: number of directions that a probe sees; None for other methods.
        held_out: "kl" and "l1" of the held-out bags, as the report has them, and "l1_of_overall_shares", if every bag
            were given these; None where none were held out.
        accuracy: share of the rows labelled rightly, estimated from held-out bags; None where they are too few
            or where noise was declared.
        no_accuracy: why there is no estimate; None where there is one.
        warnings: in plain words, as the report has them: of the tables, of the bags, of the numbers of the model.
        seconds: that it took.
    """

    model: str
    report: str | None
    rows: int
    bags: int
    classes: tuple[str, ...]
    epochs: int
    best_epoch: int
    training: str
    directions: int | None
    held_out: dict[str, float] | None
    accuracy: AccuracyEstimate | None
    no_accuracy: str | None
    warnings: tuple[str, ...]
    seconds: float


def check_files(files: TrainingFiles) -> Understanding:
    """Read and check the tables, and tell how they were understood; nothing is written."""
    return understand(read_training_data(files), files)


def fit_files(
    files: TrainingFiles,
    classifier: ProportionClassifier,
    out: Path,
    *,
    overwrite: bool,
    report: bool,
    note: Callable[[str], None],
) -> Fitted:
    """Fit `classifier` on two tables and write the folder of the model: all of it, or nothing.

    Args:
        files: the tables.
        classifier: not fitted yet.
        out: the folder.
        overwrite: whether to replace another model there.
        report: whether to write a page about the model into the folder.
        note: told of what looks odd: in the tables before the training, in the numbers of the model after it.
    """
    start = time.monotonic()
    with staged_model_folder(out, overwrite=overwrite) as folder:
        data = read_training_data(files)
        for text in data.notes:
            note(text)
        if isinstance(data.rows, FrameInMemory):
            frame = data.rows.frame.select(files.bag, *data.inputs)
            classifier.fit(frame, bags=files.bag, proportions=data.matched.table)
        else:
            classifier.fit_parquet(data.rows.path, bags=files.bag, proportions=data.matched.table, columns=data.inputs)
            frame = _some_bags(data, files.bag, classifier)
        classifier.save(folder)
        described = classifier, frame, files.bag, data.matched.table
        if report:
            title = out.resolve().name
            found = write_model_report(folder / REPORT_FILE, *described, notes=data.notes, title=title)
        else:
            found = find(classifier, describe_rows(*described), notes=data.notes)
    for text in found.warnings[len(data.notes) + len(classifier.warnings_) :]:  # `fit` itself gave its own
        note(text)
    held_out = found.held_out
    return Fitted(
        model=str(out),
        report=str(out / REPORT_FILE) if report else None,
        rows=data.rows.num_rows,
        bags=len(data.matched.bags),
        classes=tuple(str(label) for label in classifier.classes_),
        epochs=len(classifier.history_),
        best_epoch=classifier.best_epoch_,
        training=found.training,
        directions=classifier.history_[0].get("directions"),
        held_out=None if held_out is None else _as_numbers(held_out),
        accuracy=found.accuracy,
        no_accuracy=found.no_accuracy,
        warnings=found.warnings,
        seconds=round(time.monotonic() - start, 3),
    )


def _as_numbers(fit: Fit) -> dict[str, float]:
    return {"kl": fit.kl, "l1": 2 * fit.missed, "l1_of_overall_shares": 2 * fit.blind_missed}


def _some_bags(data: TrainingData, bag: str, classifier: ProportionClassifier) -> pl.DataFrame:
    """Read the rows of as many bags as fit in memory easily: all of them, where they do."""
    import polars as pl

    matched = data.matched
    kept = draw_bags(matched.sizes, was_held_out(classifier, matched.bags), MOST_ROWS, fewest=2)
    chosen = {name for name, is_kept in zip(matched.bags, kept, strict=True) if is_kept}
    slices = data.rows.slices(_ROWS_PER_SLICE, [bag, *data.inputs])
    return pl.concat(frame.filter([name in chosen for name in frame[bag].to_list()]) for frame in slices)
