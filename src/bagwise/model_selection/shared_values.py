"""Columns that are the same for all instances of a bag: what totals can hardly judge."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from bagwise.bags import BagLayout
from bagwise.tables.sparse import SparseRows

# A value that at least so many bags have, such as a county of precincts, is seen with many kinds of instances.
_MANY_BAGS = 5

_VALUES_AT_ONCE = 2**22
_MOST_NAMED = 8


def shared_value_warnings(inputs: Any, layout: BagLayout, columns: Sequence[str]) -> list[str]:
    """Name the columns with one value in each bag that few other bags have; one warning for all of them.

    Whether the instances of a bag are of a class because of such a value, or because of what they are themselves,
    would show only in bags with the same instances and another value, and in bags with the same value and other
    instances. A model may then read the one as the other, and no fit to proportions shows it.

    The instances are read once, and no further than a column can still be such a one: ordinary ones are done with
    after the first few thousand. Sparse matrices are passed over: their columns (words) are too many to be named.

    Args:
        inputs: `[instances, inputs]`, a tensor or a dataset of rows.
        layout: which instance lies in which bag.
        columns: `[inputs]` the name of the column that each is made of; equal ones are one column.

    Example:
        >>> import torch
        >>> layout, age = BagLayout.from_sizes([2, 2, 3]), torch.tensor([31.0, 42, 56, 31, 80, 18, 42])
        >>> inputs = torch.stack([age, torch.tensor([36.5, 36.5, 43.5, 43.5, 46.7, 46.7, 46.7])], dim=1)
        >>> print(*shared_value_warnings(inputs, layout, ["age", "mean age"]))
        column 'mean age' has one value in each bag, which few other bags have: the proportions cannot tell its ...
    """
    if isinstance(inputs, SparseRows) or layout.num_instances == layout.num_bags:
        return []  # in a bag of one every column has one value
    starts = layout.offsets.numpy()[:-1]
    first = starts if layout.order is None else layout.order.numpy()[starts]  # instance of each bag
    rows_at_once = max(1, _VALUES_AT_ONCE // len(columns))
    same = np.arange(len(columns))  # inputs that are in each instance what they are in the first one of its bag
    rows = np.arange(layout.num_instances)
    for some, heads in zip(
        _inputs_of(inputs, rows, rows_at_once),
        _inputs_of(inputs, first[layout.bag_index.numpy()], rows_at_once),
        strict=True,
    ):
        same = same[(some[:, same] == heads[:, same]).all(axis=0)]
        if len(same) == 0:
            return []
    found = _of_few_bags(inputs, first, same, columns, rows_at_once)
    return [_in_words(found)] if found else []


def _inputs_of(inputs: Any, rows: np.ndarray, rows_at_once: int) -> Iterator[np.ndarray]:
    """Yield the inputs of these instances in their order, `[some, inputs]`."""
    for start in range(0, len(rows), rows_at_once):
        some = rows[start : start + rows_at_once]
        yield inputs.numpy()[some] if isinstance(inputs, Tensor) else inputs.__getitems__(some).numpy()


def _of_few_bags(
    inputs: Any, first: np.ndarray, same: np.ndarray, columns: Sequence[str], rows_at_once: int
) -> list[str]:
    """Return the columns all of whose inputs are among the `same`, and whose values are those of few bags each."""
    others = {columns[place] for place in np.setdiff1d(np.arange(len(columns)), same)}
    places: list[int] = [place for place in same.tolist() if columns[place] not in others]
    values = np.concatenate([some[:, places] for some in _inputs_of(inputs, first, rows_at_once)])  # [bags, places]
    places_of: dict[str, list[int]] = {}
    for number, place in enumerate(places):
        places_of.setdefault(columns[place], []).append(number)
    return [column for column, numbers in places_of.items() if _bags_with_a_value(values[:, numbers]) < _MANY_BAGS]


def _bags_with_a_value(values: np.ndarray) -> float:
    """Return how many bags have a value, in the median over the different values; `values [bags, inputs]`."""
    return float(np.median(np.unique(values, axis=0, return_counts=True)[1]))


def _in_words(columns: Sequence[str]) -> str:
    listed = ", ".join(repr(column) for column in columns[:_MOST_NAMED])
    listed += f" and {len(columns) - _MOST_NAMED} more" if len(columns) > _MOST_NAMED else ""
    ignore = " ".join(f"--ignore {shlex.quote(column)}" for column in columns[:_MOST_NAMED])
    if len(columns) == 1:
        has, its_effect_from_that, it = f"column {listed} has", "its effect from that", "it"
    else:
        has, its_effect_from_that, it = f"columns {listed} have", "their effects from those", "them"
    return (
        f"{has} one value in each bag, which few other bags have: the proportions cannot tell {its_effect_from_that} "
        f"of the rows in the bag. Consider leaving {it} out ({ignore} on the command line)."
    )
