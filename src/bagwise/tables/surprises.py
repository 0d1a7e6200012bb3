"""What is in the columns of new rows that was not there when a model was fitted, counted slice by slice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bagwise.tables.columns import Categories
from bagwise.tables.preprocessing import Preprocessing

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Surprise:
    """A column of new rows that differs from what a model was fitted on.

    Attributes:
        column: its name.
        unknown_rows: rows with a category that the model does not know.
        example: one of these categories; None where there are none.
        missing_rows: rows without a value, if all rows had one when the model was fitted, or if none has one now.
    """

    column: str
    unknown_rows: int
    example: str | None
    missing_rows: int


class Surprises:
    """Counts over slices of a table.

    Columns that make no input are passed over. Where rare categories share an input, a category that is new cannot be
    told from a rare one: such a column counts only if it holds nothing but such categories.

    Example:
        >>> import polars as pl
        >>> from bagwise.tables.preprocessing import fit_preprocessing
        >>> from bagwise.tables.reading import read_table
        >>> table = read_table(pl.DataFrame({"age": [31, 45, 62], "home": ["own", "rent", "own"]}))
        >>> surprises = Surprises(fit_preprocessing(table))
        >>> surprises.count(pl.DataFrame({"age": [None, 50], "home": ["OWN", "rent"]}))
        >>> [(found.column, found.unknown_rows, found.example, found.missing_rows) for found in surprises.found()]
        [('age', 0, None, 1), ('home', 1, 'OWN', 0)]
    """

    def __init__(self, preprocessing: Preprocessing) -> None:
        # whether rows without a value were seen when the model was fitted, by column that makes an input
        numbers = preprocessing.numbers
        had_gaps = {
            name: marked
            for name, valued, marked in zip(numbers.names, numbers.valued, numbers.marked, strict=True)
            if valued or marked
        }
        self._categories: dict[str, Categories] = {}
        for part in preprocessing.others:
            if isinstance(part, Categories):
                self._categories[part.name] = part
                had_gaps[part.name] = part.missing
            else:
                had_gaps[part.name] = any(part.numbers.marked)
        self._had_gaps = {name: had_gaps[name] for name in preprocessing.names if name in had_gaps}
        self._rows = 0
        self._missing = dict.fromkeys(self._had_gaps, 0)
        self._unknown = dict.fromkeys(self._categories, 0)
        self._examples: dict[str, str] = {}

    def count(self, frame: pl.DataFrame) -> None:
        """Take the next slice into account."""
        self._rows += frame.height
        for name in self._had_gaps:
            self._missing[name] += _num_missing(frame[name])
        for name, part in self._categories.items():
            unknown = _unknown_categories(frame[name], part)
            self._unknown[name] += len(unknown)
            if len(unknown):
                self._examples.setdefault(name, unknown[0])

    def found(self) -> tuple[Surprise, ...]:
        """Return the columns in which something was found, in the order of the fit."""
        found: list[Surprise] = []
        for name, had_gaps in self._had_gaps.items():
            missing, unknown = self._missing[name], self._unknown.get(name, 0)
            if name in self._categories and self._categories[name].other and unknown < self._rows - missing:
                unknown = 0
            if had_gaps and missing < self._rows:
                missing = 0
            if missing or unknown:
                found.append(Surprise(name, unknown, self._examples[name] if unknown else None, missing))
        return tuple(found)


def _num_missing(column: pl.Series) -> int:
    missing = column.null_count()
    if column.dtype.is_float():
        missing += int(column.is_nan().sum())
    return missing


def _unknown_categories(column: pl.Series, part: Categories) -> pl.Series:
    """Return the values, one per row that has an unknown one."""
    import polars as pl

    known = column.drop_nulls().cast(pl.String)
    return known.filter(~known.is_in(list(part.categories)))
