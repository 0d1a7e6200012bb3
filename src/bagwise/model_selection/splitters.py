"""Ways to split bags into a part to learn from and a part to judge by. Scikit-learn's interface; no label is read.

All three take the bag of each instance as `groups` and yield pairs of row numbers (training, test), so they also
serve as `cv` of scikit-learn's own tools.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from bagwise.bags.data import number_bags
from bagwise.bags.seeds import derived_seed
from bagwise.bags.setting_checks import check_count

Rows = np.ndarray


class Splitter(Protocol):
    """What `cross_validate` needs of a splitter; scikit-learn's group splitters fit too."""

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[Rows, Rows]]:
        """Yield row numbers (training, test)."""
        ...


@dataclass(frozen=True)
class WholeBags:
    """Cut the bags at random into folds; each fold is the test part once. The default, and the honest one.

    Attributes:
        folds: number of folds, at least 2 and at most the number of bags.
        seed: which of the possible cuts.

    Example:
        >>> for train, test in WholeBags(folds=2).split(None, groups=["a", "a", "b", "c", "c"]):
        ...     print(train, test)
        [3 4] [0 1 2]
        [0 1 2] [3 4]
    """

    folds: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("folds", self.folds)
        if self.folds < 2:
            raise ValueError(f"folds must be at least 2, but got {self.folds}; each fold is tested by the others.")

    def split(self, X: Any = None, y: Any = None, groups: Any = None) -> Iterator[tuple[Rows, Rows]]:  # noqa: ARG002
        """Yield row numbers (training, test), in ascending order."""
        bag_of, num_bags = _bag_numbers(groups)
        if num_bags < self.folds:
            raise ValueError(
                f"folds must not exceed the number of bags, but there are {num_bags} bags for {self.folds} folds. "
                "Lower folds, or split within bags by HalfBags."
            )
        fold_of = np.random.default_rng(self.seed).permutation(num_bags) % self.folds
        for fold in range(self.folds):
            is_test = fold_of[bag_of] == fold
            yield np.flatnonzero(~is_test), np.flatnonzero(is_test)

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:  # noqa: ARG002
        """Return the number of folds."""
        return self.folds


@dataclass(frozen=True)
class HalfBags:
    """Cut the instances of every bag at random into halves, of which each is the test part once.

    For data with too few bags to hold any out. Both halves stand for the whole bag and keep its proportions, so:

    - training sees proportions with the noise of a sample (half of the bag was drawn);
    - the test half shares that noise with the training half: scores favour models that fit the proportions too
      closely. Compare models of one kind with it; do not read the scores as those of new bags.

    Bags of one instance are always in the training part.

    Attributes:
        repeats: how many times to cut; each gives two splits.
        seed: which of the possible cuts.
    """

    repeats: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("repeats", self.repeats)

    def split(self, X: Any = None, y: Any = None, groups: Any = None) -> Iterator[tuple[Rows, Rows]]:  # noqa: ARG002
        """Yield row numbers (training, test), in ascending order."""
        bag_of, num_bags = _bag_numbers(groups)
        sizes = np.bincount(bag_of, minlength=num_bags)
        if (sizes < 2).all():
            raise ValueError("to halve bags there must be one with at least 2 instances; use WholeBags instead.")
        starts = np.cumsum(sizes) - sizes
        for repeat in range(self.repeats):
            rng = np.random.default_rng(derived_seed(self.seed, "halves", repeat))
            shuffled = rng.permutation(len(bag_of))
            by_bag = shuffled[np.argsort(bag_of[shuffled], kind="stable")]
            rank = np.arange(len(bag_of)) - np.repeat(starts, sizes)  # place within the bag, in random order
            # of an odd bag the larger half alternates at random, so that neither part is larger on the whole
            half = (sizes + rng.integers(2, size=num_bags)) // 2
            is_first = np.empty(len(bag_of), dtype=bool)
            is_first[by_bag] = rank < np.repeat(half, sizes)
            single = (sizes == 1)[bag_of]
            for is_test in (is_first & ~single, ~is_first & ~single):
                yield np.flatnonzero(~is_test), np.flatnonzero(is_test)

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:  # noqa: ARG002
        """Return the number of splits, two per repeat."""
        return 2 * self.repeats


@dataclass(frozen=True)
class BootstrapBags:
    """Draw as many bags as there are, with replacement; the bags never drawn (about 37 %) are the test part.

    The rows of a bag that was drawn twice appear twice in the training part. `cross_validate` makes them bags of
    their own, so that the bag counts twice instead of becoming one of double size.

    Attributes:
        repeats: number of draws.
        seed: of the draws.
    """

    repeats: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("repeats", self.repeats)

    def split(self, X: Any = None, y: Any = None, groups: Any = None) -> Iterator[tuple[Rows, Rows]]:  # noqa: ARG002
        """Yield row numbers (training, test); training rows are in ascending order, copies one after the other."""
        bag_of, num_bags = _bag_numbers(groups)
        if num_bags < 2:
            raise ValueError("to draw bags there must be at least 2, but there is only 1; use HalfBags instead.")
        for repeat in range(self.repeats):
            rng = np.random.default_rng(derived_seed(self.seed, "bootstrap", repeat))
            times = np.zeros(num_bags, dtype=np.int64)
            while times.all() or np.count_nonzero(times) == 0:  # a draw of every bag leaves none to test
                times = np.bincount(rng.integers(num_bags, size=num_bags), minlength=num_bags)
            yield np.repeat(np.arange(len(bag_of)), times[bag_of]), np.flatnonzero(times[bag_of] == 0)

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:  # noqa: ARG002
        """Return the number of draws."""
        return self.repeats


def _bag_numbers(groups: Any) -> tuple[np.ndarray, int]:
    if groups is None:
        raise ValueError("groups must hold the bag of each instance, but is None; pass groups=bags.")
    bag_of, names = number_bags(groups)
    return bag_of, len(names)
