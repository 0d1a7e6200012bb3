"""What a classifier is given as X: tables, arrays and sparse matrices, made the inputs of a network."""

from __future__ import annotations

from itertools import compress
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data
from torch import Tensor

from bagwise.bags.setting_checks import check_choice
from bagwise.tables.columns import Embedding
from bagwise.tables.preprocessing import Preprocessing, fit_array, fit_preprocessing, fit_sparse
from bagwise.tables.reading import Table, read_table
from bagwise.tables.sparse import SparseRows


class TableInputs(BaseEstimator):
    """The part of an estimator that reads X.

    Attributes:
        preprocessing_: what is done to each column.
        bag_column_: the column of bag ids that came with X, or None; new data may bring it along.
        n_features_in_: number of columns of X, without a column of bag ids.
        feature_names_in_: their names, where X was a data frame.
    """

    preprocessing_: Preprocessing
    bag_column_: str | None
    n_features_in_: int
    feature_names_in_: np.ndarray

    def _fit_inputs(self, X: Any, table: Table | None) -> Tensor | SparseRows:
        """Fit the preprocessing to X (to `table`, where X is a data frame); return the inputs `[instances, width]`."""
        if table is not None:
            if table.num_rows < 2 or not table.names:
                raise ValueError(
                    f"X must have at least 2 rows and 1 column, but has {table.num_rows} and {len(table.names)}."
                )
            self._set_columns(fit_preprocessing(table), is_named=table.is_named)
            return torch.from_numpy(self.preprocessing_.encode(table))
        values = self._array(X, reset=True)
        self.preprocessing_ = fit_sparse(values) if sparse.issparse(values) else fit_array(values)
        return self._encode_array(values)

    def _set_columns(self, preprocessing: Preprocessing, *, is_named: bool) -> None:
        """Take over a fitted preprocessing and the columns it knows."""
        self.preprocessing_ = preprocessing
        self.n_features_in_ = len(preprocessing.names)
        self.__dict__.pop("feature_names_in_", None)  # of an earlier fit
        if is_named:
            self.feature_names_in_ = np.array(preprocessing.names, dtype=object)

    def _encode(self, X: Any) -> Tensor | SparseRows:
        """Return the inputs of the network for new instances."""
        table = read_table(X)
        if table is None:
            if self.preprocessing_.names != self.preprocessing_.numbers.names:
                raise TypeError(
                    "this model was fitted on a data frame with columns that are not numbers; pass a data frame with "
                    f"the same columns, not {type(X).__name__}."
                )
            return self._encode_array(self._array(X, reset=False))
        if self.bag_column_ in table.names:
            table = table.without(self.bag_column_)
        if table.num_rows == 0:
            raise ValueError("X must have at least one row, but has none.")
        if not hasattr(self, "feature_names_in_") and set(table.names) != set(self.preprocessing_.names):
            # fitted on an array: there are no names to match, so columns count by their place
            return self._encode_array(self._array(table.numbers(table.names), reset=False))
        return torch.from_numpy(self.preprocessing_.encode(table))

    def _array(self, X: Any, *, reset: bool) -> Any:
        """Return X as a float64 array or CSR matrix, checked as scikit-learn does it; NaN is a missing value."""
        values: Any = validate_data(
            self,
            X,
            reset=reset,
            accept_sparse="csr",
            ensure_all_finite="allow-nan",
            ensure_min_samples=2 if reset else 1,
        )
        if sparse.issparse(values) and np.isnan(values.data).any():
            raise ValueError("a sparse X must not hold NaN: zero is its missing value. Fill the NaN in.")
        return values.astype(np.float64, copy=False)

    def _encode_array(self, values: Any) -> Tensor | SparseRows:
        if sparse.issparse(values):
            return SparseRows(values, self.preprocessing_.numbers)
        return torch.from_numpy(self.preprocessing_.numbers.encode(values))


def column_of_each_input(preprocessing: Preprocessing) -> tuple[int, ...]:
    """Return a number per input, equal for those that encode one column; each number of a list counts as a column.

    Numbered from 0, and below the number of inputs: numbers and their marks of missing values, then the other columns.
    """
    numbers = preprocessing.numbers
    columns = [*np.flatnonzero(numbers.valued).tolist(), *np.flatnonzero(numbers.marked).tolist()]
    labels: list[tuple[str | None, int]] = [(None, column) for column in columns]
    for part in preprocessing.others:
        alone = isinstance(part, Embedding)
        labels += [(part.name, place if alone else 0) for place in range(part.width)]
    number_of = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    return tuple(number_of[label] for label in labels)


def name_of_each_input(preprocessing: Preprocessing) -> list[str]:
    """Return the name of the column that each input is made of."""
    numbers = preprocessing.numbers
    names = [*compress(numbers.names, numbers.valued), *compress(numbers.names, numbers.marked)]
    return names + [part.name for part in preprocessing.others for _ in range(part.width)]


def take_bag_column(table: Table | None, name: str) -> tuple[list[Any], Table]:
    """Return the bag ids and the table without them."""
    if table is None:
        raise TypeError(f"bags={name!r} names a column, so X must be a data frame. Pass the bag ids themselves.")
    check_choice("bags", name, table.names)
    return table.values(name), table.without(name)
