"""A Parquet file larger than memory as inputs of a network: encoded once, slice by slice, into a file on disk.

The first pass over the file (`survey_parquet`) numbers the bags and fits the preprocessing; the second
(`spool_parquet`) writes the inputs, bag after bag, into a temporary file that is mapped into memory. The training then
runs on it as on any other instances, and the system keeps in memory what fits.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

import narwhals as nw
import numpy as np
import torch

from bagwise.bags.data import number_bags
from bagwise.bags.setting_checks import check_choice
from bagwise.bags.stored import StoredRows
from bagwise.tables.files import ParquetFile, open_parquet
from bagwise.tables.preprocessing import Preprocessing, fit_preprocessing
from bagwise.tables.reading import Table

if TYPE_CHECKING:
    import polars as pl

# Rows on which the preprocessing is fitted, spread evenly over the file: a mean of a million is known to a thousandth
# of a standard deviation. Columns of long lists make do with fewer.
MOST_ROWS_TO_FIT = 1_000_000
_MOST_BYTES_TO_FIT = 2**29

# Large enough that the work per slice does not count, small enough that its copies in float64 do not either.
_MOST_ROWS_PER_SLICE = 2**16
_MOST_BYTES_PER_SLICE = 2**25


@dataclass(frozen=True, eq=False)
class Survey:
    """What a first pass over a Parquet file found.

    Attributes:
        file: that was read.
        bag_names: the ids of the bags, sorted.
        sizes: `[bags]` number of rows of each.
        places: `[rows]` where a row goes when the rows are put bag after bag; None when that is how they come.
        preprocessing: fitted on at most `MOST_ROWS_TO_FIT` rows.
        rows_per_slice: how many rows to read at a time.
    """

    file: ParquetFile
    bag_names: tuple[Hashable, ...]
    sizes: np.ndarray
    places: np.ndarray | None
    preprocessing: Preprocessing
    rows_per_slice: int


def survey_parquet(path: str | os.PathLike[str], bag_column: str, columns: Sequence[str] | None = None) -> Survey:
    """Number the bags of a Parquet file and fit the preprocessing of its columns.

    Args:
        path: of the file.
        bag_column: the column of bag ids.
        columns: that are inputs; None for all but the bag ids.
    """
    file = open_parquet(path)
    check_choice("bags", bag_column, file.columns)
    for name in columns or ():
        check_choice("columns", name, file.columns)
    inputs = [name for name in (file.columns if columns is None else columns) if name != bag_column]
    if file.num_rows < 2 or not inputs:
        raise ValueError(
            f"{file.path} must have at least 2 rows and 1 column beside {bag_column!r}, but has {file.num_rows} and "
            f"{len(inputs)}."
        )
    bytes_per_row = _bytes_per_row(file, inputs)
    step = -(-file.num_rows // max(2, min(MOST_ROWS_TO_FIT, _MOST_BYTES_TO_FIT // bytes_per_row)))
    rows_per_slice = max(1, min(_MOST_ROWS_PER_SLICE, _MOST_BYTES_PER_SLICE // bytes_per_row))

    index = np.empty(file.num_rows, dtype=np.int32)
    numbers: dict[Hashable, int] = {}
    sample: list[pl.DataFrame] = []
    start = 0
    for frame in file.slices(rows_per_slice, [bag_column, *inputs]):
        index[start : start + frame.height] = _number_rows(frame[bag_column], numbers)
        sample.append(frame.select(inputs).gather_every(step, offset=-start % step))
        start += frame.height
    rank, bag_names = number_bags(list(numbers))  # in the order of the ids, in place of their first rows
    index = rank.astype(np.int32)[index]
    return Survey(
        file,
        bag_names,
        sizes=np.bincount(index),
        places=_places(index),
        preprocessing=fit_preprocessing(_joined(sample, range(0, file.num_rows, step))),
        rows_per_slice=rows_per_slice,
    )


def spool_parquet(survey: Survey) -> StoredRows:
    """Write the inputs of all rows, bag after bag, to a temporary file; it is gone with the last use of the result.

    Raises:
        OSError: where the folder of temporary files (TMPDIR) has no room for them.
    """
    file, preprocessing = survey.file, survey.preprocessing
    shape = file.num_rows, preprocessing.width
    # the file has no name in any folder, so that nothing is left behind, however the process ends
    with tempfile.TemporaryFile(prefix="bagwise-") as spool:
        _reserve(spool, 4 * shape[0] * shape[1], file)
        inputs = np.memmap(spool, dtype=np.float32, mode="r+", shape=shape)
    start = 0
    for frame in file.slices(survey.rows_per_slice, preprocessing.names):
        rows = range(start, start + frame.height)
        places = slice(rows.start, rows.stop) if survey.places is None else survey.places[rows.start : rows.stop]
        inputs[places] = preprocessing.encode(Table(nw.from_native(frame, eager_only=True), rows))
        start = rows.stop
    return StoredRows(torch.from_numpy(inputs))


def _bytes_per_row(file: ParquetFile, columns: Sequence[str]) -> int:
    """Estimate how much a row takes in memory, as it is and as numbers, from the first rows."""
    first = next(file.slices(1000, columns))
    return 8 * len(columns) + int(first.estimated_size() / first.height)


def _number_rows(ids: pl.Series, numbers: dict[Hashable, int]) -> np.ndarray:
    """Return the number of each row's bag, `[rows]`; bags that are not among `numbers` are added."""
    import polars as pl

    if ids.dtype.is_nested():
        raise TypeError(f"bag ids must be text or numbers, but column {ids.name!r} holds {ids.dtype}.")
    bags = ids.unique()
    table = pl.DataFrame({"bag": bags, "number": [numbers.setdefault(bag, len(numbers)) for bag in bags.to_list()]})
    rows = ids.alias("bag").to_frame()
    return rows.join(table, on="bag", how="left", maintain_order="left", nulls_equal=True)["number"].to_numpy()


def _places(index: np.ndarray) -> np.ndarray | None:
    """Return where each row goes in the order of its bag, `[rows]`; None where the rows are in that order."""
    if bool((index[1:] >= index[:-1]).all()):
        return None
    order = np.argsort(index, kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return places


def _joined(frames: Sequence[pl.DataFrame], rows: range) -> Table:
    import polars as pl

    return Table(nw.from_native(pl.concat(frames), eager_only=True), rows)


def _reserve(spool: IO[bytes], num_bytes: int, file: ParquetFile) -> None:
    """Make room on the disk now: to find it full while writing to mapped memory would end the process."""
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(spool.fileno(), 0, num_bytes)
        else:
            spool.truncate(num_bytes)
    except OSError as error:
        raise OSError(
            f"to learn from {file.path} takes {num_bytes / 1e9:.3g} GB of temporary space, but there is not as much in "
            f"{tempfile.gettempdir()} ({error.strerror}). Free some, or set TMPDIR to a folder on a larger disk."
        ) from None
