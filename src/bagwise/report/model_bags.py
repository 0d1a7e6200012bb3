"""A fitted model beside its bags: known against predicted shares, with the noise that chance alone would bring."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import narwhals as nw
import numpy as np
from sklearn.utils import _safe_indexing

from bagwise.bags import Memberships
from bagwise.bags.data import number_bags
from bagwise.bags.setting_checks import check_choice
from bagwise.bags.validation import check_one_per_instance
from bagwise.estimator import ProportionClassifier
from bagwise.estimator.targets import known_shares
from bagwise.model_selection import AccuracyEstimate, estimate_accuracy
from bagwise.model_selection.evidence import BagEvidence

# Beyond this a sample of bags tells the same story, and a page should not take minutes to make.
MOST_ROWS = 1_000_000
# With fewer held-out bags than this, what they say is mostly luck.
FEWEST_HELD_OUT_BAGS = 20


@dataclass(frozen=True, eq=False)
class DescribedRows:
    """The rows that a report describes: all of them, or whole bags of a large table.

    Attributes:
        X: the rows, as the classifier takes them, without a column of bag ids.
        bag_index: `[rows]` the bag of each, as a row of `shares`.
        bag_names: `[bags]`.
        shares: `[bags, classes]` known proportions; a row of NaN is an unknown bag.
        held_out: `[bags]` whether the bag was kept from training.
        probabilities: `[rows, classes]` as predicted.
        all_rows: number of rows that the model was fitted on.
        all_bags: number of their bags.
    """

    X: Any
    bag_index: np.ndarray
    bag_names: tuple[Hashable, ...]
    shares: np.ndarray
    held_out: np.ndarray
    probabilities: np.ndarray
    all_rows: int
    all_bags: int


def describe_rows(
    classifier: ProportionClassifier, X: Any, bags: Any, proportions: Any, *, most_rows: int = MOST_ROWS, seed: int = 0
) -> DescribedRows:
    """Match rows, bags and proportions as `fit` did, and predict; draw whole bags where there are too many rows."""
    likely_column = bags if isinstance(bags, str) else getattr(bags, "name", None)
    X, bags = _without_bag_column(X, bags)
    if isinstance(bags, Memberships):  # an instance counts in each of its bags
        X, bags = _safe_indexing(X, bags.rows), bags.bag_ids
    bag_index, names = number_bags(bags)
    check_one_per_instance("bags", len(bag_index), X.shape[0])
    _, shares = known_shares(
        proportions,
        names,
        np.bincount(bag_index),
        counts=classifier.counts,
        noise=classifier.proportion_noise,
        likely_column=likely_column,
    )
    held_out = was_held_out(classifier, names)
    if len(bag_index) > most_rows:
        kept = draw_bags(np.bincount(bag_index), held_out, most_rows, seed=seed)
        chosen = np.flatnonzero(kept[bag_index])
        X, bag_index = _safe_indexing(X, chosen), (np.cumsum(kept) - 1)[bag_index[chosen]]
        names = tuple(name for name, is_kept in zip(names, kept, strict=True) if is_kept)
        shares, held_out = shares[kept], held_out[kept]
    fitted_on = classifier.bag_report_["size"]
    return DescribedRows(
        X, bag_index, names, shares, held_out, classifier.predict_proba(X), int(fitted_on.sum()), len(fitted_on)
    )


def held_out_accuracy(described: DescribedRows) -> AccuracyEstimate | None:
    """Estimate the accuracy on instances from the held-out bags; None where they are too few."""
    usable = described.held_out & ~np.isnan(described.shares[:, 0])
    if usable.sum() < FEWEST_HELD_OUT_BAGS:
        return None
    rows = usable[described.bag_index]
    shares = np.where(usable[:, None], described.shares, np.nan)
    return estimate_accuracy(shares, described.probabilities[rows], described.bag_index[rows])


def _without_bag_column(X: Any, bags: Any) -> tuple[Any, Any]:
    frame = nw.from_native(X, pass_through=True)
    if isinstance(frame, nw.LazyFrame):
        frame = frame.collect()
    if isinstance(frame, nw.DataFrame):
        if not isinstance(bags, str):
            return frame.to_native(), bags
        check_choice("bags", bags, frame.columns)
        return frame.drop(bags).to_native(), frame.get_column(bags).to_list()
    if isinstance(bags, str):
        raise TypeError(f"bags={bags!r} names a column, so X must be a data frame. Pass the bag ids themselves.")
    return (X if hasattr(X, "shape") else np.asarray(X)), bags


def was_held_out(classifier: ProportionClassifier, names: Sequence[Hashable]) -> np.ndarray:
    """Return which of the bags `fit` held out, `[bags]`."""
    report = classifier.bag_report_
    held_out = dict(zip(report["bag"], report["held_out"], strict=True))
    # a model that was saved has kept ids that are neither text nor numbers, such as dates, as text
    names = [name if isinstance(name, str | int | float) or name in held_out else str(name) for name in names]
    if unknown := [name for name in names if name not in held_out]:
        raise ValueError(
            f"a report is about the bags that the model was fitted on, but bag {unknown[0]!r} is none of them. Leave "
            "its rows out; for new bags use score(X, bags=..., proportions=...)."
        )
    return np.array([held_out[name] for name in names], dtype=bool)


def draw_bags(sizes: np.ndarray, held_out: np.ndarray, most_rows: int, *, fewest: int = 1, seed: int = 0) -> np.ndarray:
    """Return which bags to describe, `[bags]`: held-out ones first, since the honest numbers rest on them.

    A bag that is too large for what is left is passed over, and the next one has its turn. At least `fewest` are
    drawn, which may have more rows than `most_rows`.
    """
    order = np.lexsort([np.random.default_rng(seed).permutation(len(sizes)), ~held_out])
    kept = np.zeros(len(sizes), dtype=bool)
    room = most_rows
    for bag, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
        if size <= room:
            kept[bag] = True
            room -= size
    if kept.sum() < fewest:
        kept[order[:fewest]] = True
    return kept


@dataclass(frozen=True, eq=False)
class BagComparison:
    """Known against predicted shares of every bag whose proportions are known.

    Attributes:
        names: `[bags]`.
        sizes: `[bags]` number of instances.
        held_out: `[bags]` whether the bag was kept from training.
        known: `[bags, classes]` shares.
        predicted: `[bags, classes]` mean of the predicted probabilities.
        noise: `[bags, classes]` standard error of the known share about the predicted one, if the probabilities are
            right: sqrt(sum of f (1 - f)) / n over the n instances of the bag. It shrinks as bags grow.
    """

    names: tuple[Hashable, ...]
    sizes: np.ndarray
    held_out: np.ndarray
    known: np.ndarray
    predicted: np.ndarray
    noise: np.ndarray

    @staticmethod
    def of(described: DescribedRows) -> BagComparison:
        """Compare the bags with known proportions."""
        evidence, used = BagEvidence.collect_used(described.shares, described.probabilities, described.bag_index)
        sizes = evidence.sizes[:, None]
        return BagComparison(
            tuple(name for name, is_used in zip(described.bag_names, used, strict=True) if is_used),
            evidence.sizes,
            described.held_out[used],
            evidence.counts / sizes,
            evidence.bag_sums(evidence.probabilities) / sizes,
            np.sqrt(evidence.count_variance()) / sizes,
        )

    def part(self, *, held_out: bool) -> BagComparison:
        """The bags that were held out, or those that were trained on."""
        chosen = self.held_out == held_out
        return BagComparison(
            tuple(name for name, is_chosen in zip(self.names, chosen, strict=True) if is_chosen),
            *(column[chosen] for column in (self.sizes, self.held_out, self.known, self.predicted, self.noise)),
        )

    @property
    def deviations(self) -> np.ndarray:
        """`[bags, classes]` known minus predicted share, in standard errors."""
        return (self.known - self.predicted) / self.noise

    def worst(self, count: int) -> np.ndarray:
        """Return the numbers of the bags whose largest deviation, in standard errors, is largest; the worst first."""
        largest = np.abs(self.deviations).max(axis=1)
        return np.argsort(-largest, kind="stable")[:count]

    def drawn(self, most: int, worst: int, seed: int = 0) -> np.ndarray:
        """Return the numbers of the bags to draw, ascending: all, or the `worst` ones and a random choice of others."""
        if len(self.names) <= most:
            return np.arange(len(self.names))
        first = self.worst(worst)
        others = np.setdiff1d(np.arange(len(self.names)), first)
        return np.sort(np.concatenate([first, np.random.default_rng(seed).permutation(others)[: most - worst]]))
