"""Literal loops for neighbours, smoothing and the head of a probe; nothing of bagwise is imported."""

import numpy as np


def nearest(row, others, count, skip=None):
    """Places of the `count` nearest of `others` by Euclidean distance, one at a time."""
    distances = [float(((row - other) ** 2).sum()) for other in others]
    places = sorted((distance, place) for place, distance in enumerate(distances) if place != skip)
    return [place for _, place in places[:count]]


def smoothed(rows, count, rounds):
    """Each row becomes the mean of itself and its neighbours, which are those of the first rows in every round."""
    found = [nearest(row, rows, count, skip=place) for place, row in enumerate(rows)]
    for _ in range(rounds):
        rows = np.array(
            [
                np.mean([row, *(rows[other] for other in others)], axis=0)
                for row, others in zip(rows, found, strict=True)
            ]
        )
    return rows


def mean_divergence(rows, weights, biases, bag_of, proportions):
    """Mean over bags of KL(known | mean prediction)."""
    total = 0.0
    for bag, known in enumerate(proportions):
        mean = np.zeros(len(known))
        members = [row for row, its_bag in zip(rows, bag_of, strict=True) if its_bag == bag]
        for row in members:
            scores = np.exp(row @ weights + biases)
            mean += scores / scores.sum() / len(members)
        total += sum(z * np.log(z / p) for z, p in zip(known, mean, strict=True) if z > 0)
    return total / len(proportions)
