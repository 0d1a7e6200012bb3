"""Known proportions, counts or noisy counts, all as shares that sum to 1 in every bag."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from bagwise.functional.noise import ProportionNoise, nearest_proportions
from bagwise.tables.proportions import ProportionTable, read_proportions, shares_of


def read_shares(
    proportions: Any,
    names: Sequence[Hashable],
    sizes: np.ndarray,
    *,
    counts: bool,
    noise: ProportionNoise | None,
    likely_column: object = None,
) -> tuple[ProportionTable, np.ndarray]:
    """Read the proportions of the bags called `names`: return them as they are, and as shares that sum to 1.

    Args:
        proportions: see `read_proportions`. Only a `ProportionTable` may hold further bags.
        names: `[bags]` their ids.
        sizes: `[bags]` number of instances.
        counts: whether `proportions` holds counts.
        noise: what was done to the counts before they were published.
        likely_column: a name that the column of bag ids probably has.
    """
    table = read_proportions(proportions, likely_column=likely_column)
    rows = table.rows_of(names, allow_others=isinstance(proportions, ProportionTable))
    shares = clean_shares(table, rows, names, sizes, counts=counts, noise=noise)
    return ProportionTable(tuple(names), table.classes, rows), shares


def clean_shares(
    table: ProportionTable,
    rows: np.ndarray,
    names: Sequence[Hashable],
    sizes: np.ndarray,
    *,
    counts: bool,
    noise: ProportionNoise | None,
) -> np.ndarray:
    """Return `rows [bags, classes]` of a table as shares that sum to 1 in every bag.

    Noise takes them off: a noisy count may be negative, and those of a bag need not add up to its size. The nearest
    shares that do are what the noise most likely left.

    Args:
        table: that the rows are from.
        rows: shares or counts; a row of NaN is a bag whose proportions are unknown.
        names: `[bags]` for the messages.
        sizes: `[bags]` number of instances.
        counts: whether the rows are counts.
        noise: what was done to the counts before they were published.
    """
    if noise is None or noise.scale == 0:
        return shares_of(table, rows, names, counts)
    return nearest_proportions(rows if counts else rows * sizes[:, None], sizes, noise, names)
