"""Cross-validation on bags: fit on some, judge by the proportions of others."""

from __future__ import annotations

import time
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from sklearn.base import clone
from sklearn.utils import _safe_indexing, indexable
from sklearn.utils.validation import _num_samples

from bagwise.bags import Memberships
from bagwise.bags.data import number_bags
from bagwise.bags.setting_checks import check_choice
from bagwise.bags.validation import check_one_per_instance
from bagwise.model_selection.accuracy import AccuracyEstimate, estimate_accuracy
from bagwise.model_selection.identifiability import BagWarning
from bagwise.model_selection.scores import SCORES, Score
from bagwise.model_selection.splitters import Splitter, WholeBags
from bagwise.tables import ProportionTable
from bagwise.tables.shares import read_shares


class BagEstimator(Protocol):
    """What is asked of an estimator, beside scikit-learn's `clone`: `bagwise.ProportionClassifier` has it."""

    def fit(self, X: Any, y: Any = None, *, bags: Any = None, proportions: Any = None) -> Any:
        """Learn from bags; `proportions` is a `ProportionTable` that may hold further bags."""
        ...

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return probabilities `[instances, classes]`, classes in sorted order."""
        ...


@dataclass(frozen=True, eq=False)
class CrossValidation:
    """What a cross-validation gives back.

    Attributes:
        scores: `{name: [splits]}` score of each split's test bags; lower is better.
        fit_seconds: `[splits]` time of each fit.
        bag_names: `[bags]` the ids of the bags.
        proportions: `[bags, classes]` known shares.
        bag_index: `[instances]` the bag of each instance, as a row of `proportions`.
        probabilities: `[instances, classes]` predicted while the instance was in a test part; the mean over splits
            where it was in several, NaN where it was in none.
        times_tested: `[instances]` in how many test parts the instance was.
        split_of_bag: `[bags]` the last split that tested the bag, -1 where none did.
    """

    scores: dict[str, np.ndarray]
    fit_seconds: np.ndarray
    bag_names: tuple[Hashable, ...] = field(repr=False)
    proportions: np.ndarray = field(repr=False)
    bag_index: np.ndarray = field(repr=False)
    probabilities: np.ndarray = field(repr=False)
    times_tested: np.ndarray = field(repr=False)
    split_of_bag: np.ndarray = field(repr=False)

    def mean(self, score: str) -> float:
        """Return the mean over splits of a score."""
        check_choice("score", score, self.scores)
        return float(self.scores[score].mean())

    def standard_error(self, score: str) -> float:
        """Return the standard error of that mean, as if splits were independent; NaN for a single split."""
        check_choice("score", score, self.scores)
        values = self.scores[score]
        return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")

    def accuracy(self, method: str = "auto", level: float = 0.95, seed: int = 0) -> AccuracyEstimate:
        """Estimate the instance accuracy of the test predictions, from the bags alone: see `estimate_accuracy`.

        Each bag must have been tested once, as a whole: split by `WholeBags`.
        """
        if not (self.times_tested == 1).all():
            raise ValueError(
                "accuracy can be estimated where every bag was held out once, as a whole, but here some instances "
                f"were tested {self.times_tested.min()} and some {self.times_tested.max()} times. "
                "Use cross_validate with splitter=WholeBags(...)."
            )
        return estimate_accuracy(
            self.proportions,
            self.probabilities,
            self.bag_index,
            method=method,
            model_of_bag=self.split_of_bag,
            level=level,
            seed=seed,
        )


def cross_validate(
    estimator: BagEstimator,
    X: Any,
    bags: Any,
    proportions: Any,
    *,
    splitter: Splitter = WholeBags(),  # noqa: B008  (frozen)
    scores: Sequence[str | Score] = ("kl", "l1", "chi-square"),
) -> CrossValidation:
    """Fit clones of `estimator` on parts of the bags and score each on the rest, by proportions alone.

    Args:
        estimator: `bagwise.ProportionClassifier`, or any other with the interface of `BagEstimator`.
        X: `[instances, ...]`, array, sparse matrix or data frame.
        bags: `[instances]` the bag id of each instance.
        proportions: data frame, `{bag: row}` or array in the order of the sorted bag ids; shares or counts.
        splitter: `WholeBags`, `HalfBags`, `BootstrapBags` or a group splitter of scikit-learn.
        scores: names ("kl", "l1", "chi-square") or functions (see `bagwise.model_selection.scores`).

    Example:
        >>> result = cross_validate(classifier, X, bags, proportions, splitter=WholeBags(folds=5))  # doctest: +SKIP
        >>> result.mean("kl")  # doctest: +SKIP
        0.0213
        >>> print(result.accuracy())  # doctest: +SKIP
        estimated accuracy 84.1% (95% interval 83.0% to 85.2%, from 509 bags)
    """
    functions = _named(scores)
    if isinstance(bags, str):
        raise TypeError(
            f"bags must hold the bag id of each instance, but got the text {bags!r}. Pass the column itself, and X "
            "without it."
        )
    if isinstance(bags, Memberships):
        raise TypeError(
            "bags that overlap are split as copies: pass X[memberships.rows] as X and memberships.bag_ids as bags."
        )
    X = indexable(X)[0]  # some sparse matrices have no rows to take
    bag_index, names = number_bags(bags)
    check_one_per_instance("bags", len(bag_index), _num_samples(X))
    noise = getattr(estimator, "proportion_noise", None)
    counts = noise is None or getattr(estimator, "counts", True)  # without noise, what sums to 1 stays as it is
    likely_column = getattr(bags, "name", None)
    table, shares = read_shares(
        proportions, names, np.bincount(bag_index), counts=counts, noise=noise, likely_column=likely_column
    )

    probability_sum = np.zeros((len(bag_index), len(table.classes)))
    times_tested = np.zeros(len(bag_index), dtype=np.int64)
    split_of_bag = np.full(len(names), -1)
    values: dict[str, list[float]] = {name: [] for name in functions}
    seconds = []
    for split, (train, test) in enumerate(splitter.split(X, None, bags)):
        train_bags, train_table = _training_bags(train, bags, bag_index, table)
        started = time.perf_counter()
        fitted: Any = clone(estimator)  # pyright: ignore[reportArgumentType]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BagWarning)  # said once, by the fit to all bags, not by every fold
            fitted.fit(_safe_indexing(X, train), bags=train_bags, proportions=train_table)
        seconds.append(time.perf_counter() - started)
        probabilities = np.asarray(fitted.predict_proba(_safe_indexing(X, test)), dtype=np.float64)
        for name, score in functions.items():
            values[name].append(score(shares, probabilities, bag_index[test]))
        probability_sum[test] += probabilities
        times_tested[test] += 1
        split_of_bag[bag_index[test]] = split
    with np.errstate(invalid="ignore"):  # 0 / 0 is the NaN of an instance that was never tested
        probabilities = probability_sum / times_tested[:, None]
    return CrossValidation(
        {name: np.array(column) for name, column in values.items()},
        np.array(seconds),
        names,
        shares,
        bag_index,
        probabilities,
        times_tested,
        split_of_bag,
    )


def _training_bags(
    train: np.ndarray, bags: Any, bag_index: np.ndarray, table: ProportionTable
) -> tuple[Any, ProportionTable]:
    """Return the bag ids of the training rows; rows that come twice (a bootstrap) make bags of their own."""
    _, times = np.unique(train, return_counts=True)
    if times.max(initial=1) == 1:
        return _safe_indexing(bags, train), table
    order = np.argsort(train, kind="stable")
    copy = np.empty(len(train), dtype=np.int64)
    copy[order] = np.arange(len(train)) - np.repeat(np.cumsum(times) - times, times)
    copies, num_bags = int(times.max()), len(table.values)
    copied = ProportionTable(tuple(range(copies * num_bags)), table.classes, np.tile(table.values, (copies, 1)))
    return bag_index[train] + num_bags * copy, copied


def _named(scores: Sequence[str | Score]) -> dict[str, Score]:
    functions: dict[str, Score] = {}
    for score in scores:
        if callable(score):
            functions[getattr(score, "__name__", repr(score))] = score
        else:
            check_choice("score", score, SCORES)
            functions[score] = SCORES[score]
    if not functions:
        raise ValueError(f"scores must name at least one of {', '.join(SCORES)}, but is empty.")
    return functions
