"""What a classifier is given as targets: proportions by bag, or labels, which make every instance a bag of its own."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from sklearn.utils import assert_all_finite, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length

from bagwise.bags import Bags, Memberships
from bagwise.bags.data import number_bags
from bagwise.bags.validation import check_class_labels, check_enough_known_bags, check_one_per_instance
from bagwise.functional.noise import ProportionNoise
from bagwise.tables.shares import read_shares


def bags_of_one(inputs: Any, y: Any) -> tuple[np.ndarray, Bags]:
    """Return the classes and the bags of labelled instances."""
    if y is None:
        raise ValueError(
            "ProportionClassifier requires y to be passed, but the target y is None. To learn from proportions, "
            "pass bags= and proportions=."
        )
    y = column_or_1d(y, warn=True)
    assert_all_finite(y, input_name="y")
    check_classification_targets(y)
    check_consistent_length(inputs, y)
    classes, labels = np.unique(y, return_inverse=True)
    check_class_labels(classes)
    if len(classes) < 2:
        raise ValueError(f"y must hold at least 2 classes, but holds only one class: {classes[0]!r}.")
    return classes, Bags(inputs, np.arange(len(labels)), np.eye(len(classes), dtype=np.float32)[labels])


def bags_of_proportions(
    inputs: Any, bags: Any, proportions: Any, *, counts: bool, noise: ProportionNoise | None, likely_column: object
) -> tuple[np.ndarray, Bags]:
    """Return the classes and the bags of instances of which only the proportions of groups are known.

    Args:
        inputs: of the network, `[instances, width]`.
        bags: `[instances]` the bag id of each, or `Memberships`.
        proportions: as `read_proportions` takes them.
        counts: whether they are counts.
        noise: what was done to them before they were published.
        likely_column: the name that their column of bag ids probably has.
    """
    if proportions is None:
        raise ValueError("bags were given without proportions. Pass proportions=, the known shares of each bag.")
    if isinstance(bags, Memberships):
        inputs, bags = bags.repeated(inputs), bags.bag_ids
    index, names = number_bags(bags)
    check_one_per_instance("bags", len(index), len(inputs))
    sizes = np.bincount(index)
    classes, shares = known_shares(proportions, names, sizes, counts=counts, noise=noise, likely_column=likely_column)
    return classes, Bags(inputs, bags, shares, bag_names=names)


def known_shares(
    proportions: Any,
    names: Sequence[Hashable],
    sizes: np.ndarray,
    *,
    counts: bool,
    noise: ProportionNoise | None,
    likely_column: object,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the classes and the shares `[bags, classes]` of the bags called `names`, which hold `sizes` instances."""
    table, shares = read_shares(proportions, names, sizes, counts=counts, noise=noise, likely_column=likely_column)
    check_class_labels(table.classes)
    check_enough_known_bags(int((~np.isnan(shares[:, 0])).sum()))
    return np.array(table.classes), shares
