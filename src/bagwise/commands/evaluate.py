"""`bagwise evaluate`: how good a model is where the labels of instances are known."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bagwise.bags.setting_checks import check_choice
from bagwise.commands.prediction import Progress, RowPredictor
from bagwise.estimator import ProportionClassifier
from bagwise.metrics import instance_metrics
from bagwise.tables.csv_reading import MISSING_WORDS
from bagwise.tables.surprises import Surprise

_POINT_ZERO = re.compile(r"^([+-]?[0-9]+)\.0+$")


@dataclass(frozen=True)
class ClassScore:
    """How one class fares.

    Attributes:
        label: of the class.
        rows: labelled rows that have it.
        recall: share of these that are predicted to have it; None where there are none.
        precision: share of the rows predicted to have it that do; None where there are none.
    """

    label: str
    rows: int
    recall: float | None
    precision: float | None


@dataclass(frozen=True)
class Evaluated:
    """How a model fares on labelled rows.

    Attributes:
        rows: rows with a label.
        rows_without_label: rows that have none and were passed over.
        metrics: "accuracy", "balanced_accuracy", "log_loss" and "calibration_error"; see `bagwise.metrics`.
        classes: the score of each class.
        unused_columns: columns of the table that the model does not know.
        surprises: columns with categories or gaps that the model does not know.
    """

    rows: int
    rows_without_label: int
    metrics: dict[str, float]
    classes: tuple[ClassScore, ...]
    unused_columns: tuple[str, ...]
    surprises: tuple[Surprise, ...]


def evaluate_file(model: Path, table: Path, label: str, *, progress: Progress) -> Evaluated:
    """Compare the predictions for `table` with its column `label`; rows where it is missing are passed over."""
    predictor = RowPredictor(ProportionClassifier.load(model), table, [label], text=[label])
    names = [str(name) for name in predictor.classifier.classes_.tolist()]
    if label in predictor.classifier.preprocessing_.names:
        raise ValueError(
            f"column {label!r} is an input of this model, so it cannot be judged by it. "
            f"Fit the model anew with --ignore {shlex.quote(label)}."
        )
    parts = [
        (class_numbers(frame[label].to_list(), names, label), probabilities)
        for frame, probabilities in predictor.slices(progress)
    ]
    numbers = np.concatenate([part[0] for part in parts])
    labelled = numbers >= 0
    if not labelled.any():
        raise ValueError(f"column {label!r} must hold the label of at least one row, but is empty in all. Fill it in.")
    truth = torch.from_numpy(numbers[labelled])
    probabilities = torch.from_numpy(np.concatenate([part[1] for part in parts])[labelled])
    logits = probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny).log()  # the logarithm of 0 is no number
    return Evaluated(
        rows=int(labelled.sum()),
        rows_without_label=int((~labelled).sum()),
        metrics=instance_metrics(logits, truth),
        classes=_class_scores(truth.numpy(), probabilities.numpy().argmax(axis=1), names),
        unused_columns=predictor.unused,
        surprises=predictor.surprises(),
    )


def class_numbers(labels: Sequence[Any], classes: Sequence[str], column: str) -> np.ndarray:
    """Return the place in `classes` of each label, `[rows]`; -1 where the label is missing.

    Classes are the names of columns and so are text, while labels may be numbers or booleans, and text in CSV files: 1,
    1.0, "1" and "1.0" are the class "1" or "1.0", True is "True" or "true". "NA" and its like are missing labels where
    no class has that name.
    """
    place_of = {name: place for place, name in enumerate(classes)}
    numbers: dict[Any, int] = {None: -1}
    for value in dict.fromkeys(labels):
        if value is None or value != value or (value in MISSING_WORDS and value not in place_of):
            numbers[value] = -1
            continue
        text = next((form for form in _spellings(value) if form in place_of), str(value))
        check_choice(f"column {column!r} must hold classes of the model: a label", text, classes)
        numbers[value] = place_of[text]
    return np.array([numbers[value] for value in labels], dtype=np.int64)


def _spellings(value: object) -> tuple[str, ...]:
    """Return the names that the class of a label may have."""
    if isinstance(value, bool):
        return str(value), str(value).lower()
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    whole = _POINT_ZERO.sub(r"\1", text)
    return text, whole, f"{whole}.0"


def _class_scores(truth: np.ndarray, predicted: np.ndarray, names: Sequence[str]) -> tuple[ClassScore, ...]:
    right = np.bincount(truth[truth == predicted], minlength=len(names)).tolist()
    rows = np.bincount(truth, minlength=len(names)).tolist()
    found = np.bincount(predicted, minlength=len(names)).tolist()
    return tuple(
        ClassScore(name, rows[k], right[k] / rows[k] if rows[k] else None, right[k] / found[k] if found[k] else None)
        for k, name in enumerate(names)
    )
