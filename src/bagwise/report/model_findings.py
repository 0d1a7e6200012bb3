"""What is found about a fitted model: its fit to the bags, its accuracy, what to be warned of.

The report shows it, and `bagwise fit` says it, with and without a report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bagwise.estimator import ProportionClassifier
from bagwise.model_selection import AccuracyEstimate
from bagwise.report import model_words as words
from bagwise.report.model_bags import BagComparison, DescribedRows, held_out_accuracy
from bagwise.report.model_statistics import ClassShare, Fit, class_balance, fit_to_bags


@dataclass(frozen=True, eq=False)
class Findings:
    """What is found about a fitted model.

    Attributes:
        compared: known against predicted shares of the bags.
        held_out: fit to the bags that were kept from training; None where there are none.
        trained_on: fit to the others; None where there are none.
        classes: the balance of the classes, the most frequent first.
        accuracy: share of the rows labelled rightly, estimated from bags; None where held-out bags are too few, or
            where noise was declared, which would count as mistakes of the model.
        no_accuracy: why there is no estimate, in words; None where there is one.
        training: what was done, what was kept of it, and by which rule, in words.
        warnings: in plain words: of the tables, of the bags before the training, of the numbers after it.
    """

    compared: BagComparison
    held_out: Fit | None
    trained_on: Fit | None
    classes: list[ClassShare]
    accuracy: AccuracyEstimate | None
    no_accuracy: str | None
    training: str
    warnings: tuple[str, ...]


def find(
    classifier: ProportionClassifier,
    described: DescribedRows,
    *,
    notes: Sequence[str] = (),
    accuracy: AccuracyEstimate | None = None,
) -> Findings:
    """Judge a fitted model by the bags it was fitted on.

    Args:
        classifier: after `fit`.
        described: what `describe_rows` made of its rows.
        notes: warnings of who read the rows; they come first.
        accuracy: an estimate from elsewhere, in place of that from held-out bags.
    """
    compared = BagComparison.of(described)
    overall = compared.sizes @ compared.known / compared.sizes.sum()
    held_out = fit_to_bags(compared.part(held_out=True), overall)
    trained_on = fit_to_bags(compared.part(held_out=False), overall)
    is_known = ~np.isnan(described.shares[:, 0])
    labels = [str(label) for label in classifier.classes_]
    classes = class_balance(compared, described.probabilities[is_known[described.bag_index]], labels)
    has_noise = classifier.proportion_noise is not None
    if accuracy is None and not has_noise:
        accuracy = held_out_accuracy(described)
    no_accuracy = words.no_accuracy_in_words(0 if held_out is None else held_out.num_bags, has_noise=has_noise)
    return Findings(
        compared,
        held_out,
        trained_on,
        classes,
        accuracy,
        no_accuracy if accuracy is None else None,
        words.training_in_words(classifier),
        (*notes, *classifier.warnings_, *words.fit_warnings(held_out, trained_on, classes, has_noise=has_noise)),
    )
