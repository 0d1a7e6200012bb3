"""Make bags from labelled data: what an experiment does before it forgets the labels.

Each function returns `Bags`, which keep the label proportions of every bag and no label of an instance.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from bagwise.bags.data import Bags, Instances, as_instances, number_bags, take
from bagwise.bags.setting_checks import check_count
from bagwise.bags.validation import check_bag_fits, check_labels, check_one_per_instance


def uniform_bags(instances: Any, labels: Any, num_classes: int, bag_size: int, seed: int) -> Bags:
    """Draw bags uniformly without replacement: as many full bags as fit, the rest is dropped (the paper).

    Args:
        instances: `[instances, ...]`, tensor, array or map-style dataset.
        labels: `[instances]` class numbers.
        num_classes: number of classes.
        bag_size: instances per bag.
        seed: which of the possible partitions.

    Example:
        >>> uniform_bags(torch.randn(10, 2), torch.arange(10) % 3, num_classes=3, bag_size=4, seed=0)
        Bags(8 instances in 2 bags of 4, 3 classes)
    """
    instances, labels = _checked(instances, labels, num_classes, bag_size)
    order = np.random.default_rng(seed).permutation(len(labels))
    return _cut(instances, labels, order[: len(order) // bag_size * bag_size], num_classes, bag_size)


def dirichlet_bags(
    instances: Any, labels: Any, num_classes: int, bag_size: int, concentration: float, seed: int
) -> Bags:
    """Draw bags whose class mix varies: each mix comes from a Dirichlet around the overall class shares.

    A small `concentration` gives nearly pure bags, a large one approaches `uniform_bags`. Drawn without
    replacement: when a class runs out, the bag is filled from the classes that are left.

    Args:
        instances: `[instances, ...]`, tensor, array or map-style dataset.
        labels: `[instances]` class numbers.
        num_classes: number of classes.
        bag_size: instances per bag.
        concentration: sum of the Dirichlet's parameters, positive.
        seed: seed of all draws.
    """
    instances, labels = _checked(instances, labels, num_classes, bag_size)
    if not 0 < concentration < float("inf"):
        raise ValueError(f"concentration must be positive and finite, but got {concentration}.")
    generator = np.random.default_rng(seed)
    stock = [generator.permutation(np.flatnonzero(labels == k)) for k in range(num_classes)]
    left = np.array([len(rows) for rows in stock])
    # a class that never occurs would make the Dirichlet's parameter zero; its draw is never used
    shares = np.maximum(left / max(len(labels), 1), 1e-12)
    order = []
    for mix in generator.dirichlet(concentration * shares, size=len(labels) // bag_size):
        counts = _draw_counts(mix, left, bag_size, generator)
        members = [stock[k][left[k] - counts[k] : left[k]] for k in range(num_classes)]
        # shuffled: an instance's place in its bag must not tell its class
        order.append(generator.permutation(np.concatenate(members)))
        left -= counts
    return _cut(instances, labels, np.concatenate(order), num_classes, bag_size)


def clustered_bags(
    instances: Any,
    labels: Any,
    num_classes: int,
    bag_size: int,
    seed: int,
    *,
    features: np.ndarray | Tensor | None = None,
) -> Bags:
    """Draw each bag from one k-means cluster, so that the instances of a bag are alike.

    There are as many clusters as classes. Each is cut into as many full bags as fit; what is left of it is dropped.

    Args:
        instances: `[instances, ...]`, tensor, array or map-style dataset.
        labels: `[instances]` class numbers.
        num_classes: number of classes.
        bag_size: instances per bag.
        seed: seed of the clustering and of the draw within clusters.
        features: `[instances, features]` what to cluster; by default the instances themselves, flattened.
    """
    from sklearn.cluster import MiniBatchKMeans

    instances, labels = _checked(instances, labels, num_classes, bag_size)
    if features is None:
        if not isinstance(instances, Tensor):
            raise ValueError("to cluster a dataset, pass features=[instances, features].")
        features = instances.detach().cpu().float().numpy()
    points = np.asarray(features, dtype=np.float32).reshape(len(features), -1)
    check_one_per_instance("features", len(points), len(labels))
    k_means = MiniBatchKMeans(num_classes, random_state=seed, n_init="auto", batch_size=4096)
    cluster_of = k_means.fit_predict(points)
    generator = np.random.default_rng(seed)
    order = []
    for cluster in range(num_classes):
        members = generator.permutation(np.flatnonzero(cluster_of == cluster))
        order.append(members[: len(members) // bag_size * bag_size])
    rows = np.concatenate(order)
    if len(rows) == 0:
        raise ValueError(f"no cluster holds a full bag of {bag_size}; ask for smaller bags.")
    return _cut(instances, labels, rows, num_classes, bag_size)


def bags_by_column(instances: Any, labels: Any, column: Any, num_classes: int) -> Bags:
    """Make one bag of all instances that share a value of `column [instances]` (a hospital, a precinct).

    Example:
        >>> bags_by_column(torch.randn(3, 2), [0, 1, 1], ["north", "south", "north"], num_classes=2).bag_names
        ('north', 'south')
    """
    instances, labels = _checked(instances, labels, num_classes, bag_size=1)
    bag, names = number_bags(column)
    check_one_per_instance("column", len(bag), len(labels))
    return Bags(instances, column, _class_counts(labels, bag, num_classes), counts=True, bag_names=names)


def _checked(instances: Any, labels: Any, num_classes: int, bag_size: int) -> tuple[Instances, np.ndarray]:
    instances, labels = as_instances(instances), torch.as_tensor(labels).cpu()
    check_count("num_classes", num_classes)
    check_count("bag_size", bag_size)
    check_labels(labels, num_instances=len(instances), num_classes=num_classes)
    check_bag_fits(bag_size, len(labels))
    return instances, labels.long().numpy()


def _cut(instances: Instances, labels: np.ndarray, rows: np.ndarray, num_classes: int, bag_size: int) -> Bags:
    """Cut `rows` into consecutive bags of `bag_size`."""
    bag = np.repeat(np.arange(len(rows) // bag_size), bag_size)
    return Bags(take(instances, rows), bag, _class_counts(labels[rows], bag, num_classes), counts=True)


def _class_counts(labels: np.ndarray, bag: np.ndarray, num_classes: int) -> np.ndarray:
    """`[bags, classes]` how often each class occurs in each bag."""
    num_bags = int(bag.max()) + 1
    return np.bincount(bag * num_classes + labels, minlength=num_bags * num_classes).reshape(num_bags, -1)


def _draw_counts(mix: np.ndarray, left: np.ndarray, size: int, generator: np.random.Generator) -> np.ndarray:
    """Draw `size` class labels from `mix`, never more of a class than is left."""
    counts = np.zeros(len(left), dtype=np.int64)
    while (missing := size - counts.sum()) > 0:
        open_classes = left > counts
        weights = np.where(open_classes, mix, 0)
        if weights.sum() == 0:  # the classes this bag wants are used up
            weights = open_classes.astype(float)
        counts = np.minimum(counts + generator.multinomial(missing, weights / weights.sum()), left)
    return counts
