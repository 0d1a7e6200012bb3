"""Can these bags tell the classes apart at all? Asked before training, answered in plain words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from bagwise.bags.validation import check_proportion_values
from bagwise.functional.noise import ProportionNoise

# Proportions that vary by less than this share of what random bags of their sizes would, carry next to nothing.
_WEAK_SPREAD = 0.3

# Counts whose variance between bags is noise to more than this share hardly speak of the classes.
_DROWNED = 0.8


class BagWarning(UserWarning):
    """What the bags cannot teach, said before training; `ProportionClassifier.warnings_` keeps it."""


def identifiability_warnings(proportions: Any, sizes: Any, class_names: Sequence[object] | None = None) -> list[str]:
    r"""Say, with the numbers, why a classifier cannot be learned from these bags; an empty list is good news.

    The proportions of a bag are one linear equation per class on the mean prediction of its instances. What can be
    learned rests on how they differ from bag to bag, for every contrast between classes. The yardstick is what
    drawing the bags at random would give by sampling alone, which is enough to learn from: with overall shares
    :math:`\pi` and sizes n, the matrix of

    .. math:: x_{bk} = \sqrt{n_b} \, (z_{bk} - \pi_k) / \sqrt{\pi_k}

    then has K - 1 singular values of about :math:`\sqrt{B - 1}`. The smallest of them, relative to that, is the
    spread in the contrast that is known least.

    Args:
        proportions: `[bags, classes]`, a row of NaN is an unknown bag.
        sizes: `[bags]` number of instances.
        class_names: `[classes]` for the messages; by default their numbers.

    Example:
        >>> for warning in identifiability_warnings([[0.5, 0.5, 0.0], [0.2, 0.8, 0.0]], [10, 10], ["a", "b", "c"]):
        ...     print(warning)
        class 'c' never occurs: its proportion is 0 in all 2 bags, so it will never be predicted. Drop ...
    """
    z, n = np.array(proportions, dtype=np.float64), np.array(sizes, dtype=np.float64)
    if z.ndim != 2:
        raise ValueError(f"proportions must have shape [bags, classes], but got {list(z.shape)}.")
    check_proportion_values(torch.from_numpy(z))
    if n.shape != (len(z),):
        raise ValueError(f"sizes must have one entry per bag, [{len(z)}], but has shape {list(n.shape)}.")
    names = np.array([repr(name) for name in (class_names if class_names is not None else range(z.shape[1]))])
    known = ~np.isnan(z[:, 0]) & (n > 0)
    z, n = z[known], n[known]
    if len(z) == 0:
        return ["no bag has known proportions: nothing can be learned. Give at least as many as there are classes."]

    occurs = z.max(axis=0) > 0
    warnings = [
        f"class {name} never occurs: its proportion is 0 in all {len(z)} bags, so it will never be predicted. "
        "Drop it, or add bags that hold it."
        for name in names[~occurs]
    ]
    z, names = z[:, occurs], names[occurs]
    num_classes = len(names)
    if num_classes == 1:
        return [*warnings, f"only class {names[0]} occurs: there is nothing to tell it from."]
    distinct = len(np.unique(z.round(6), axis=0))
    if distinct < num_classes:
        return [
            *warnings,
            f"there are {distinct} distinct rows of proportions for {num_classes} classes, but at least {num_classes} "
            "are needed: different classifiers fit these bags equally well. Use finer bags or fewer classes.",
        ]
    spread, contrast = _weakest_contrast(z, n)
    if spread < _WEAK_SPREAD:
        high, low = _both_sides(contrast, names)
        between = np.sqrt(np.average((z @ contrast - np.average(z @ contrast, weights=n)) ** 2, weights=n))
        warnings.append(
            f"the proportions of {high} against {low} hardly differ between the {len(z)} bags: they vary by "
            f"{100 * spread:.0f} % of what bags of these sizes drawn at random would show (standard deviation "
            f"{100 * between:.2g} points), so these classes can hardly be told apart. "
            "Use smaller bags, more bags, or bags that differ more."
        )
    return warnings


def noise_warnings(proportions: Any, sizes: Any, noise: ProportionNoise) -> list[str]:
    """Say where the declared noise drowns the counts: it explains most of how they differ from bag to bag.

    Args:
        proportions: `[bags, classes]`, a row of NaN is an unknown bag.
        sizes: `[bags]` number of instances.
        noise: of the counts.

    Example:
        >>> print(*noise_warnings([[0.3, 0.7], [0.5, 0.5]], [10, 10], ProportionNoise("gaussian", 3.0)))
        the declared noise (gaussian, standard deviation 3 per count) explains all of how the counts differ between ...
    """
    z, n = np.array(proportions, dtype=np.float64), np.array(sizes, dtype=np.float64)
    known = ~np.isnan(z[:, 0])
    z, n = z[known], n[known]
    shares = np.average(z, axis=0, weights=n)
    between = np.square(n[:, None] * (z - shares)).mean(axis=0).max()  # variance of the counts of the clearest class
    drowned = noise.count_variance / max(between, 1e-12)
    if drowned < _DROWNED:
        return []
    share = "all" if drowned >= 1 else f"{100 * drowned:.0f} %"
    return [
        f"the declared noise ({noise.kind}, standard deviation {np.sqrt(noise.count_variance):.2g} per count) explains "
        f"{share} of how the counts differ between the {len(z)} bags: little is left to learn from. Use larger bags, "
        "more bags, or counts with less noise."
    ]


def _weakest_contrast(z: np.ndarray, n: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the spread in the direction known least, relative to random bags, and that direction (unit length)."""
    shares = np.average(z, axis=0, weights=n)
    scaled = np.sqrt(n)[:, None] * (z - shares) / np.sqrt(shares)  # [bags, classes]
    scatter = scaled.T @ scaled
    # z - shares sums to zero, so the scatter is 0 in the direction sqrt(shares) for any bags: lift it out of the way
    root = np.sqrt(shares)
    squares, directions = np.linalg.eigh(scatter + (1 + np.trace(scatter)) * np.outer(root, root))  # ascending
    spread = np.sqrt(max(squares[0], 0.0) / (len(z) - 1))
    contrast = directions[:, 0] / root
    return float(spread), contrast / np.linalg.norm(contrast)


def _both_sides(contrast: np.ndarray, names: np.ndarray) -> tuple[str, str]:
    """Name the classes that make up each side of a contrast: those with at least half of its largest weight."""
    sides = [", ".join(names[sign * contrast >= 0.5 * (sign * contrast).max()]) for sign in (1, -1)]
    return sides[0], sides[1]
