"""`bagwise apportion`: the most likely labels of rows whose bags' proportions are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import torch

from bagwise import functional as BF
from bagwise.bags.setting_checks import check_alpha, check_choice
from bagwise.commands.matching import match_bags
from bagwise.commands.outputs import staged_file
from bagwise.commands.prediction import Progress, RowPredictor, check_kept, prediction_frame
from bagwise.estimator import ProportionClassifier
from bagwise.functional.apportion import HOW
from bagwise.metrics import bag_l1
from bagwise.tables.files import file_type
from bagwise.tables.slices import write_slices
from bagwise.tables.surprises import Surprise

# Weight of the model's predictions against the proportions, where nobody says.
_ALPHA = 0.5

# Stands for a probability of zero, whose logarithm is no number.
_LEAST = 1e-300


@dataclass(frozen=True)
class Apportioned:
    """What was apportioned.

    Attributes:
        labels: the file.
        rows: number of rows.
        bags: number of bags.
        bags_unknown: number of bags whose proportions are not known; their rows keep the predictions of the model.
        bags_not_converged: number of bags whose labels are not proved best.
        gap_before: mean over known bags of the sum of absolute differences between the proportions and the mean
            prediction of the model.
        gap_after: the same for the probabilities that were written.
        gap_classes: the same for the classes that were written: one per row, that with the highest probability.
        unused_columns: columns of the table that the model does not know.
        surprises: columns with categories or gaps that the model does not know.
    """

    labels: str
    rows: int
    bags: int
    bags_unknown: int
    bags_not_converged: int
    gap_before: float
    gap_after: float
    gap_classes: float
    unused_columns: tuple[str, ...]
    surprises: tuple[Surprise, ...]


def apportion_file(
    model: Path,
    table: Path,
    proportions: Path,
    out: Path,
    *,
    bag: str | None = None,
    counts: bool,
    how: str,
    alpha: float | None = None,
    keep: Sequence[str] = (),
    overwrite: bool,
    progress: Progress,
) -> Apportioned:
    """Write the labels of the rows of `table` given the proportions of their bags, in the order of its rows.

    Args:
        model: folder of the model.
        table: of the rows.
        proportions: table with a row per bag, and the classes of the model.
        out: file of the labels: the columns of `bagwise predict`.
        bag: the column of bag ids; by default the one that the model was fitted with.
        counts: whether `proportions` holds counts.
        how: see `bagwise.functional.apportion`.
        alpha: weight of the model's predictions against the proportions, 0.5 by default; not for "lp", which meets
            the proportions exactly.
        keep: columns of `table` to repeat.
        overwrite: whether to replace `out`.
        progress: told how many rows are done.
    """
    check_choice("--how", how, HOW)
    if how == "lp" and alpha is not None:
        raise ValueError(
            f"--alpha weighs the model against the proportions, which --how lp meets exactly, but got {alpha}. "
            "Leave it out, or choose --how rot or combinatorial."
        )
    alpha = _ALPHA if alpha is None else alpha
    check_alpha(alpha)
    file_type(out)
    with staged_file(out, overwrite=overwrite, inputs=[table, proportions]) as staged:
        classifier = ProportionClassifier.load(model)
        bag = bag or classifier.bag_column_
        if bag is None:
            raise ValueError("this model was fitted without a column of bag ids. Name that of the table: --bag COLUMN.")
        predictor = RowPredictor(classifier, table, [bag, *keep], text=[bag])
        labels = [str(label) for label in classifier.classes_.tolist()]
        check_kept(keep, labels)
        # counts of a model that was fitted on counts; shares are unchanged when divided by their sum, which is 1
        counts, noise = counts or classifier.counts, classifier.proportion_noise
        matched = match_bags(predictor.table, table, bag, proportions, classes=labels, counts=counts, noise=noise)
        shares = torch.from_numpy(matched.shares[:, [matched.table.classes.index(label) for label in labels]])

        others = list(dict.fromkeys([bag, *keep]))
        slices = [(frame.select(others), part) for frame, part in predictor.slices(progress)]
        frame = pl.concat(frame for frame, _ in slices)
        probabilities = torch.from_numpy(np.concatenate([part for _, part in slices]))
        number_of = {name: number for number, name in enumerate(matched.bags)}
        index = torch.tensor([number_of[name] for name in frame[bag].to_list()])
        logits = probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny).log()  # not minus infinity
        plan = BF.apportion(logits, index, shares, how=how, alpha=alpha)
        write_slices([prediction_frame(frame.select(keep), labels, plan.labels.numpy())], staged)
    classes = np.eye(len(labels))[plan.labels.numpy().argmax(axis=1)]
    return Apportioned(
        labels=str(out),
        rows=frame.height,
        bags=len(matched.bags),
        bags_unknown=matched.num_unknown,
        bags_not_converged=int((~plan.converged).sum()),
        gap_before=float(bag_l1(logits, index, shares)),
        gap_after=float(bag_l1(plan.labels.clamp(min=_LEAST).log(), index, shares)),
        gap_classes=float(bag_l1(torch.from_numpy(classes).clamp(min=_LEAST).log(), index, shares)),
        unused_columns=predictor.unused,
        surprises=predictor.surprises(),
    )
