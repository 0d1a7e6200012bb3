"""A table of rows and a table of proportions, brought together by the ids of bags."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from bagwise.bags.setting_checks import check_choice
from bagwise.bags.validation import check_proportion_values
from bagwise.functional.noise import ProportionNoise
from bagwise.tables.files import ParquetFile, file_type, read_frame
from bagwise.tables.proportions import ProportionTable, read_proportions
from bagwise.tables.shares import clean_shares
from bagwise.tables.slices import FrameInMemory

if TYPE_CHECKING:
    import polars as pl

_ROWS_PER_SLICE = 1_000_000
_PLAIN_INTEGER = re.compile(r"0|-?[1-9][0-9]*")


@dataclass(frozen=True, eq=False)
class MatchedBags:
    """The bags of two tables, which have the same.

    Attributes:
        bags: ids, sorted.
        sizes: `[bags]` number of rows.
        table: the proportions as read, its ids of the type of those of the rows.
        values: `[bags, classes]` the shares or counts as they were written.
        shares: `[bags, classes]`; NaN where unknown.
    """

    bags: tuple[Hashable, ...]
    sizes: np.ndarray
    table: ProportionTable
    values: np.ndarray
    shares: np.ndarray

    @property
    def num_unknown(self) -> int:
        """Number of bags whose proportions are not known."""
        return int(np.isnan(self.shares[:, 0]).sum())


def match_bags(
    rows: ParquetFile | FrameInMemory,
    rows_file: Path,
    bag: str,
    proportions_file: Path,
    *,
    classes: Sequence[str] | None,
    counts: bool,
    noise: ProportionNoise | None,
) -> MatchedBags:
    """Read the proportions of the bags of `rows`; raise where a bag is in one table only, or its row is no proportions.

    CSV has no types, so ids in it are text. Beside ids of another file that are whole numbers they are compared with
    these as numbers, but for those with leading zeros, which would be lost.

    Args:
        rows: the table of the instances.
        rows_file: its file.
        bag: its column of bag ids. Where the other table has no such column, `read_proportions` finds it.
        proportions_file: the other table, with a row per bag.
        classes: columns of the other table that are classes; None for all but the ids.
        counts: whether the other table holds counts.
        noise: what was done to them before they were published.
    """
    check_choice(f"the column of bag ids in {rows_file}", bag, rows.columns)
    bags, sizes = _bag_sizes(rows, rows_file, bag)
    table = _read_proportion_file(proportions_file, bag, classes)
    if "CSV" in (file_type(rows_file), file_type(proportions_file)):
        table = _with_ids_like(table, bags)
    values = table.rows_of(bags, allow_others=False)
    shares = clean_shares(table, values, bags, sizes, counts=counts, noise=noise)
    check_proportion_values(torch.from_numpy(shares), bags)
    return MatchedBags(bags, sizes, table, values, shares)


def _bag_sizes(rows: ParquetFile | FrameInMemory, path: Path, bag: str) -> tuple[tuple[Hashable, ...], np.ndarray]:
    """Return the ids of the bags, sorted, and the number of rows of each."""
    import polars as pl

    tallies = [frame[bag].alias("bag").value_counts(name="size") for frame in rows.slices(_ROWS_PER_SLICE, [bag])]
    ids = tallies[0]["bag"]
    if ids.dtype.is_nested():
        raise TypeError(
            f"column {bag!r} of {path} must hold bag ids, text or numbers, but holds {ids.dtype}. Convert it."
        )
    tally = pl.concat(tallies).group_by("bag").agg(pl.col("size").sum()).sort("bag")
    ids = tally["bag"]
    missing = ids.is_null()
    if ids.dtype.is_float():
        missing |= ids.is_nan().fill_null(True)
    elif ids.dtype == pl.String:
        missing |= (ids.str.strip_chars() == "").fill_null(True)
    if missing.any():
        count = tally.filter(missing)["size"].sum()
        raise ValueError(
            f"column {bag!r} of {path} must hold a bag id in every row, but {count} of {rows.num_rows} rows have none. "
            "Drop these rows, or give them a bag of their own with empty cells as proportions."
        )
    return tuple(ids.to_list()), tally["size"].to_numpy().astype(np.int64)


def _read_proportion_file(path: Path, bag: str, classes: Sequence[str] | None) -> ProportionTable:
    frame = read_frame(path, text=[bag, "bag"])
    if classes is not None:
        for name in classes:
            check_choice(f"{path} must have a column for each class: a class", name, frame.columns)
        frame = frame.select(_id_column(frame, bag, classes, path), *classes)
    try:
        table = read_proportions(frame, likely_column=bag)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None
    if classes is None:
        _check_no_total(table, path)
    return table


def _id_column(frame: pl.DataFrame, bag: str, classes: Sequence[str], path: Path) -> str:
    others = [name for name in frame.columns if name not in classes]
    for name in (bag, "bag"):
        if name in others:
            return name
    if len(others) != 1:
        raise ValueError(f"{path} must have a column {bag!r} of bag ids, but beside the classes it has {others}.")
    return others[0]


def _with_ids_like(table: ProportionTable, bags: Sequence[Hashable]) -> ProportionTable:
    """Return the table with its ids as whole numbers or as text, as those of `bags` are."""
    ids = list(table.bags or ())
    if all(isinstance(bag, int) for bag in bags):
        ids = [int(bag) if isinstance(bag, str) and _PLAIN_INTEGER.fullmatch(bag) else bag for bag in ids]
    elif all(isinstance(bag, str) for bag in bags):
        ids = [str(bag) if isinstance(bag, int) else bag for bag in ids]
    return dataclasses.replace(table, bags=tuple(ids))


def _check_no_total(table: ProportionTable, path: Path) -> None:
    """Raise where a column is the sum of all others: taken for a class, it would spoil the model unseen."""
    values = table.values[~np.isnan(table.values).any(axis=1)]
    if values.shape[1] < 3 or len(values) < 3:
        return
    halves = np.isclose(2 * values, values.sum(axis=1, keepdims=True)).all(axis=0) & (values > 0).all(axis=0)
    if halves.any():
        total = table.classes[int(np.flatnonzero(halves)[0])]
        others = [str(label) for label in table.classes if label != total]
        # a name with a comma cannot be told from two
        named = "" if "," in "".join(others) else f", or name the classes: --classes {shlex.quote(','.join(others))}"
        raise ValueError(
            f"{path}: column {total!r} is the sum of the other columns in every bag, so it can hardly be a class. "
            f"Drop it{named}."
        )
