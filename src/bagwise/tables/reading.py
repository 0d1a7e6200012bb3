"""Read any table (pandas, polars, pyarrow, a plain array) as columns of a few kinds, in NumPy."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from decimal import Decimal
from numbers import Number
from typing import Any, Literal

import narwhals as nw
import numpy as np

# "empty" is a column without a single value: it can stand for any kind
Kind = Literal["number", "boolean", "category", "date", "datetime", "embedding", "empty"]


class Table:
    """Named columns of a data frame.

    Attributes:
        names: of the columns, in their order.
        num_rows: number of rows.
        is_named: whether the frame names its columns by text (pandas may number them).

    Args:
        frame: the data frame.
        rows: the number of each row in the table that this is a part of; None where it is the whole.
    """

    def __init__(self, frame: nw.DataFrame[Any], rows: range | None = None) -> None:
        self._frame = frame
        self._rows = range(len(frame)) if rows is None else rows
        self._native_names = {str(name): name for name in frame.columns}
        self.names = tuple(self._native_names)
        self.num_rows = len(frame)
        self.is_named = all(isinstance(name, str) for name in frame.columns)
        if len(self.names) != len(frame.columns):
            raise ValueError(f"the names of columns must differ, but got {list(frame.columns)}.")

    def kind(self, name: str) -> Kind:
        """Return what the column holds."""
        series = self._series(name)
        dtype = series.dtype
        if isinstance(dtype, nw.Object | nw.Unknown):
            return _kind_of_objects(name, series.to_list())
        if series.null_count() == len(series):
            return "empty"
        if dtype.is_numeric() or isinstance(dtype, nw.Duration):
            return "number"
        if isinstance(dtype, nw.Boolean):
            return "boolean"
        if isinstance(dtype, nw.String | nw.Categorical | nw.Enum):
            return "category"
        if isinstance(dtype, nw.Date):
            return "date"
        if isinstance(dtype, nw.Datetime):
            return "datetime"
        if isinstance(dtype, nw.List | nw.Array):
            return "embedding"
        raise TypeError(
            f"column {name!r} holds {dtype}, which is not a number, text, a boolean, a date or a list of numbers. "
            "Convert it or leave it out."
        )

    def numbers(self, names: Sequence[str]) -> np.ndarray:
        """Return columns of numbers or booleans as `[rows, columns]` float64; NaN where missing."""
        matrix = np.empty((self.num_rows, len(names)))
        for place, name in enumerate(names):
            series = self._series(name)
            if isinstance(series.dtype, nw.Object | nw.Unknown):
                matrix[:, place] = [np.nan if _is_missing(value) else float(value) for value in series.to_list()]
            elif isinstance(series.dtype, nw.Duration):
                seconds = series.dt.total_microseconds() / 1e6
                matrix[:, place] = seconds.cast(nw.Float64).to_numpy()
            elif isinstance(series.dtype, nw.Boolean):
                # by way of integers: not every frame library casts booleans with missing values to floats
                matrix[:, place] = series.cast(nw.Int8).cast(nw.Float64).to_numpy()
            else:
                matrix[:, place] = series.cast(nw.Float64).to_numpy()
            if np.isinf(matrix[:, place]).any():
                row = int(np.flatnonzero(np.isinf(matrix[:, place]))[0])
                raise ValueError(
                    f"numbers must be finite, but column {name!r} holds {matrix[row, place]} in row {self._rows[row]}. "
                    "Replace it by a number, or by a missing value."
                )
        return matrix

    def categories(self, name: str) -> list[str | None]:
        """Return a column of text or categories; None where missing."""
        values = self._series(name).to_list()
        return [None if _is_missing(value) else value if type(value) is str else str(value) for value in values]

    def dates(self, name: str) -> np.ndarray:
        """Return a column of dates or times as `[rows]` datetime64[s], in UTC; NaT where missing."""
        series = self._series(name)
        if isinstance(series.dtype, nw.Datetime) and series.dtype.time_zone is not None:
            series = series.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
        values = series.to_numpy()
        if values.dtype == object:
            values = np.array([None if _is_missing(value) else value for value in values], dtype="datetime64[us]")
        return values.astype("datetime64[s]")

    def embedding(self, name: str) -> np.ndarray:
        """Return a column of equally long lists as `[rows, width]` float64; a missing list is a row of NaN."""
        values = self._series(name).to_numpy()
        if values.ndim == 2:
            return values.astype(np.float64)
        widths = {len(value) for value in values if not _is_missing(value)}
        if len(widths) != 1:
            raise ValueError(
                f"the lists in column {name!r} must be equally long, but have lengths {sorted(widths)}. "
                "Pad them, or leave the column out."
            )
        width = widths.pop()
        gap = np.full(width, np.nan)
        try:
            matrix = np.array([gap if _is_missing(value) else value for value in values], dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise TypeError(f"the lists in column {name!r} must hold numbers ({error}).") from None
        return matrix.reshape(self.num_rows, width)

    def values(self, name: str) -> list[Any]:
        """Return a column as Python values."""
        return self._series(name).to_list()

    def without(self, name: str) -> Table:
        """Return the table without a column."""
        return Table(self._frame.drop(self._native_names[name]), self._rows)

    def _series(self, name: str) -> nw.Series[Any]:
        return self._frame.get_column(self._native_names[name])


def read_table(table: Any) -> Table | None:
    """Return a data frame of any library as a `Table`, and None where it is something else.

    Example:
        >>> import pyarrow
        >>> table = read_table(pyarrow.table({"age": [31, None], "town": ["Ulm", "Bonn"]}))
        >>> [(name, table.kind(name)) for name in table.names]
        [('age', 'number'), ('town', 'category')]
    """
    frame = nw.from_native(table, pass_through=True)
    if isinstance(frame, nw.LazyFrame):
        frame = frame.collect()
    return Table(frame) if isinstance(frame, nw.DataFrame) else None


def _is_missing(value: Any) -> bool:
    if value is None:
        return True
    if isinstance(value, (str, list, tuple, np.ndarray)):
        return False
    try:
        return bool(value != value)  # NaN and NaT differ from themselves
    except TypeError:  # pandas.NA will not say
        return True


def _kind_of_objects(name: str, values: Sequence[Any]) -> Kind:
    """Return the kind of a column that its library knows only as Python objects."""
    kinds: set[Kind] = set()
    for kind in {type(value): value for value in values if not _is_missing(value)}.values():
        kinds.add(_kind_of_object(name, kind))
    if not kinds:
        return "empty"
    if kinds == {"boolean", "number"}:
        return "number"
    if kinds == {"date", "datetime"}:
        return "datetime"
    if len(kinds) > 1:
        raise TypeError(
            f"column {name!r} mixes kinds of values ({', '.join(sorted(kinds))}). Convert it to one of them."
        )
    return kinds.pop()


def _kind_of_object(name: str, value: Any) -> Kind:
    if isinstance(value, str):
        return "category"
    if isinstance(value, (bool, np.bool_)):
        return "boolean"
    if isinstance(value, (Number, Decimal)) and not isinstance(value, complex):
        return "number"
    if isinstance(value, datetime.datetime):
        return "datetime"
    if isinstance(value, datetime.date):
        return "date"
    if isinstance(value, (list, tuple, np.ndarray)):
        return "embedding"
    raise TypeError(
        f"column {name!r} holds {type(value).__name__} objects, but must hold numbers, text, booleans, dates or "
        "lists of numbers. Convert it or leave it out."
    )
