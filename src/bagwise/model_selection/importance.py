"""What a model relies on: how much worse it fits the bags when a column is shuffled."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import narwhals as nw
import numpy as np
from scipy import sparse
from sklearn.utils import _safe_indexing, indexable
from sklearn.utils.validation import _num_samples

from bagwise.bags.data import number_bags
from bagwise.bags.setting_checks import check_count
from bagwise.bags.validation import check_one_per_instance
from bagwise.model_selection.scores import kl_score
from bagwise.tables.shares import read_shares

Columns = tuple[tuple[str, ...], Callable[[int, np.ndarray], Any]]

# A sample of rows has at least this many bags where there are as many: a score of a few bags says little.
_FEWEST_BAGS = 50


class PredictsProbabilities(Protocol):
    """What is asked of a model."""

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return probabilities `[instances, classes]`, classes in sorted order."""
        ...


@dataclass(frozen=True)
class ColumnImportance:
    """One column.

    Attributes:
        column: its name, or "x3" for the one at place 3 of an array.
        increase: how much KL(known | predicted) of the bags grows when the column is shuffled, mean over shuffles.
        spread: standard deviation over shuffles; NaN for a single one.
    """

    column: str
    increase: float
    spread: float


@dataclass(frozen=True)
class Importance:
    """What a model relies on.

    Attributes:
        columns: every column, the most important first.
        score: KL of the bags with no column shuffled.
        num_rows: how many rows it rests on.
        num_bags: how many bags.
        repeats: how many times each column was shuffled.
    """

    columns: tuple[ColumnImportance, ...]
    score: float
    num_rows: int
    num_bags: int
    repeats: int


def permutation_importance(
    model: PredictsProbabilities,
    X: Any,
    bags: Any,
    proportions: Any,
    *,
    repeats: int = 5,
    most_rows: int = 5000,
    seconds: float = 30.0,
    seed: int = 0,
) -> Importance:
    """Shuffle one column at a time over all rows and see how much worse the proportions of bags are predicted.

    Breiman, *Random forests* (2001), with the score of bags in the place of the accuracy of instances: no label is
    needed. A column that another one can stand in for loses little, so a small number does not mean that the column
    says nothing about the classes; nor does a large one mean that it causes them.

    Args:
        model: fitted; give bags that it was not trained on where there are some.
        X: `[instances, columns]`, array, sparse matrix or data frame.
        bags: `[instances]` the bag id of each instance.
        proportions: as in `cross_validate`.
        repeats: number of shuffles of each column.
        most_rows: a sample of this many rows is used where there are more: whole bags, and parts of large ones.
        seconds: no further round of shuffles is begun after this time.
        seed: of the shuffles and the sample.

    Example:
        >>> importance = permutation_importance(classifier, X, bags, table)  # doctest: +SKIP
        >>> importance.columns[0]  # doctest: +SKIP
        ColumnImportance(column='age', increase=0.031, spread=0.002)
    """
    check_count("repeats", repeats)
    check_count("most_rows", most_rows)
    started = time.perf_counter()
    X = indexable(X)[0]  # some sparse matrices have no rows to take
    bag_index, names = number_bags(bags)
    check_one_per_instance("bags", len(bag_index), _num_samples(X))
    # as counts: what sums to 1 stays as it is
    likely_column = getattr(bags, "name", None)
    _, shares = read_shares(
        proportions, names, np.bincount(bag_index), counts=True, noise=None, likely_column=likely_column
    )

    rng = np.random.default_rng(seed)
    chosen = _sample(bag_index, ~np.isnan(shares[:, 0]), most_rows, rng)
    X, bag_index = _safe_indexing(X, chosen), bag_index[chosen]
    columns, shuffle = _columns_of(X)
    check_one_per_instance("X", len(model_output := model.predict_proba(X)), len(bag_index))
    score = kl_score(shares, model_output, bag_index)
    increases: list[list[float]] = []
    while len(increases) < repeats and (not increases or time.perf_counter() - started < seconds):
        order = rng.permutation(len(chosen))  # one for all columns, so that they are compared on equal terms
        shuffled = (model.predict_proba(shuffle(place, order)) for place in range(len(columns)))
        increases.append([kl_score(shares, probabilities, bag_index) - score for probabilities in shuffled])
    mean = np.mean(increases, axis=0)
    spread = np.std(increases, axis=0, ddof=1) if len(increases) > 1 else np.full(len(columns), np.nan)
    ranked = [ColumnImportance(columns[at], float(mean[at]), float(spread[at])) for at in np.argsort(-mean)]
    return Importance(tuple(ranked), score, len(chosen), len(np.unique(bag_index)), len(increases))


def _sample(bag_index: np.ndarray, is_known: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    """Return at most `most` rows of bags with known proportions: bags in random order, no more than a part of each."""
    rows = np.flatnonzero(is_known[bag_index])
    if len(rows) <= most:
        return rows
    rows = rng.permutation(rows)
    turn = rng.permutation(len(is_known))[bag_index[rows]]  # when the bag of each row has its turn
    order = np.argsort(turn, kind="stable")
    rows, turn = rows[order], turn[order]
    starts = np.flatnonzero(np.diff(turn, prepend=-1))
    place_in_bag = np.arange(len(rows)) - np.repeat(starts, np.diff(starts, append=len(rows)))
    largest_part = max(1, most // _FEWEST_BAGS)
    return np.sort(rows[place_in_bag < largest_part][:most])


def _columns_of(X: Any) -> Columns:
    """Return the names of the columns, and a function that returns X with one column in another order of rows."""
    frame = nw.from_native(X, pass_through=True)
    if isinstance(frame, nw.DataFrame):

        def shuffle_frame(place: int, order: np.ndarray) -> Any:
            series = frame.get_column(frame.columns[place])[order]
            return frame.with_columns(series.alias(frame.columns[place])).to_native()

        return tuple(str(name) for name in frame.columns), shuffle_frame

    if sparse.issparse(X):
        by_column = X.tocsc()

        def shuffle_sparse(place: int, order: np.ndarray) -> Any:
            parts = [by_column[:, :place], by_column[order, place : place + 1], by_column[:, place + 1 :]]
            return sparse.hstack(parts, format="csr")

        return _numbered(by_column.shape[1]), shuffle_sparse

    array = np.asarray(X)

    def shuffle_array(place: int, order: np.ndarray) -> np.ndarray:
        shuffled = array.copy()
        shuffled[:, place] = array[order, place]
        return shuffled

    return _numbered(array.shape[1]), shuffle_array


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(f"x{place}" for place in range(count))
