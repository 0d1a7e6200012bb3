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
    if not counts:
        _check_not_counts(rows, sizes, noise)
    return nearest_proportions(rows if counts else rows * sizes[:, None], sizes, noise, names)


def _check_not_counts(rows: np.ndarray, sizes: np.ndarray, noise: ProportionNoise) -> None:
    """Raise where noisy shares are counts that nobody declared: all together add up to the instances, not the bags."""
    known = ~np.isnan(rows).any(axis=1)
    total, num_bags, num_instances = rows[known].sum(), int(known.sum()), int(sizes[known].sum())
    deviation = np.sqrt(rows.shape[1] * noise.count_variance * (1 / np.square(sizes[known], dtype=np.float64)).sum())
    if abs(total - num_instances) < abs(total - num_bags) and abs(total - num_bags) > 4 * deviation:
        raise ValueError(
            f"proportions must sum to 1 in every bag but for the noise, but those of {num_bags} bags with "
            f"{num_instances} instances sum to {total:g}. If these are counts, pass counts=True (--counts on the "
            "command line)."
        )
