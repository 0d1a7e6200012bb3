"""What is done to columns of each kind: fitted once, frozen, plain values that go into JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# More than these and a column's rarer categories share one input. Enough for occupations, countries and states.
MAX_CATEGORIES = 64

# Standardised numbers end here: beyond it float32 could overflow in a network. No row that the standardisation was
# fitted on comes near, since among n values none is more than sqrt(n) standard deviations from the mean.
MOST_DEVIATIONS = 1e6

_SECONDS_PER_DAY = 86400


@dataclass(frozen=True)
class Numbers:
    r"""Numbers with mean 0 and standard deviation 1; a missing value becomes the mean, and is marked.

    .. math:: x_{ij} \mapsto (x_{ij} - c_j) / s_j, \qquad \text{missing} \mapsto 0

    New values may lie anywhere, so the result is cut off at `MOST_DEVIATIONS` on both sides.

    Attributes:
        names: of the columns.
        center: mean of each column's known values.
        scale: their standard deviation; 1 where it is zero.
        valued: whether the column gives its value as an input: not when it is constant.
        marked: whether it gives a second input that is 1 where the value is missing.
    """

    names: tuple[str, ...]
    center: tuple[float, ...]
    scale: tuple[float, ...]
    valued: tuple[bool, ...]
    marked: tuple[bool, ...]

    @property
    def width(self) -> int:
        """Number of inputs made of these columns."""
        return sum(self.valued) + sum(self.marked)

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Return the inputs `[rows, width]` float32 of `values [rows, columns]`, NaN where missing."""
        valued, marked = np.array(self.valued, dtype=bool), np.array(self.marked, dtype=bool)
        scaled = values[:, valued] - np.array(self.center)[valued]
        with np.errstate(over="ignore"):  # an infinity is cut off below
            scaled /= np.array(self.scale)[valued]
        np.nan_to_num(scaled, copy=False, nan=0.0)
        np.clip(scaled, -MOST_DEVIATIONS, MOST_DEVIATIONS, out=scaled)
        missing = np.isnan(values[:, marked])
        return np.concatenate([scaled, missing], axis=1, dtype=np.float32, casting="unsafe")


def fit_numbers(names: Sequence[str], values: np.ndarray) -> Numbers:
    """Fit `values [rows, columns]`, NaN where missing."""
    center, scale = np.zeros(len(names)), np.ones(len(names))
    valued, marked = np.zeros(len(names), dtype=bool), np.zeros(len(names), dtype=bool)
    for place, column in enumerate(values.T):  # one at a time: copies of the whole table would not fit in memory
        known = column[~np.isnan(column)]
        if len(known) == 0:
            continue
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused on the next line
            center[place], deviation = known.mean(), known.std()
        _check_moments(names[place], known, center[place], deviation)
        # a constant column's deviation is rounding, in proportion to its size
        valued[place] = deviation > 10 * np.finfo(np.float64).eps * abs(center[place])
        if valued[place]:
            scale[place] = deviation
        marked[place] = len(known) < len(column)
    return Numbers(
        tuple(names),
        center=tuple(center.tolist()),
        scale=tuple(scale.tolist()),
        valued=tuple(valued.tolist()),
        marked=tuple(marked.tolist()),
    )


def _check_moments(name: str, known: np.ndarray, center: float, deviation: float) -> None:
    """Raise where a column holds numbers so large that its mean or standard deviation overflows."""
    if not (np.isfinite(center) and np.isfinite(deviation)):
        largest = known[np.abs(known).argmax()]
        raise ValueError(
            f"the mean and the standard deviation of a column must be finite, but column {name!r} holds {largest:.4g}. "
            "Such a number is usually a code for a missing value: leave the cell empty."
        )


def fit_sparse_numbers(names: Sequence[str], mean_squares: np.ndarray) -> Numbers:
    """Fit columns that are mostly zero, by the mean of their squares: zero stays zero, so that they stay sparse."""
    if not np.isfinite(mean_squares).all():
        place = int(np.flatnonzero(~np.isfinite(mean_squares))[0])
        raise ValueError(
            f"the mean square of a column must be finite, but that of column {names[place]!r} is "
            f"{mean_squares[place]}. A number so large is usually a code for a missing value: leave the entry out."
        )
    valued = mean_squares > 0
    scale = np.sqrt(np.where(valued, mean_squares, 1.0))
    nothing = (False,) * len(names)
    return Numbers(tuple(names), (0.0,) * len(names), tuple(scale.tolist()), tuple(valued.tolist()), nothing)


@dataclass(frozen=True)
class Categories:
    """One input per category, 1 where the row has it; rare and new categories share "other" where there is one.

    Attributes:
        name: of the column.
        categories: that have an input of their own, the most frequent first.
        other: whether the rest shares an input. If not, a category that is new has no input at all.
        missing: whether a missing value has an input.
    """

    name: str
    categories: tuple[str, ...]
    other: bool
    missing: bool

    @property
    def width(self) -> int:
        """Number of inputs made of this column."""
        return len(self.categories) + self.other + self.missing

    def encode(self, values: Sequence[str | None]) -> np.ndarray:
        """Return the inputs `[rows, width]` float32."""
        nothing = self.width  # a place beyond the last input
        place_of: dict[str | None, int] = {category: place for place, category in enumerate(self.categories)}
        place_of[None] = self.width - 1 if self.missing else nothing
        rest = len(self.categories) if self.other else nothing
        places = np.fromiter((place_of.get(value, rest) for value in values), dtype=np.int64, count=len(values))
        inputs = np.zeros((len(values), self.width), dtype=np.float32)
        rows = np.flatnonzero(places < nothing)
        inputs[rows, places[rows]] = 1
        return inputs


def fit_categories(name: str, values: Sequence[str | None]) -> Categories:
    """Fit a column of text. Categories that occur once get no input of their own where there are too many."""
    counts = Counter(value for value in values if value is not None)
    missing = counts.total() < len(values)
    _check_not_numbers(name, counts)
    # the most frequent first; ties in the order of the alphabet, so that the order of the rows does not matter
    ranked = sorted(counts, key=lambda category: (-counts[category], category))
    if len(ranked) > MAX_CATEGORIES:
        ranked = [category for category in ranked[:MAX_CATEGORIES] if counts[category] > 1]
    return Categories(name, tuple(ranked), other=len(ranked) < len(counts), missing=missing)


def _check_not_numbers(name: str, counts: Counter[str]) -> None:
    """Raise where text in a few rows has turned a column of numbers into text."""
    if len(counts) <= MAX_CATEGORIES:
        return
    strays = [value for value in counts if not _is_number(value)]
    if 0 < len(strays) < 0.1 * len(counts):
        example = next(value for value in counts if value not in strays)
        raise ValueError(
            f"column {name!r} is text, but nearly all of its values are numbers (such as {example!r}). "
            f"Replace {strays[0]!r} by a number or a missing value and convert the column to numbers."
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class Dates:
    """A date as a number, its place in the year and in the week, and, where there is a time, in the day.

    Attributes:
        name: of the column.
        with_time: whether the place in the day counts.
        numbers: what is done to the numbers that `expand_dates` makes of a date.
    """

    name: str
    with_time: bool
    numbers: Numbers

    @property
    def width(self) -> int:
        """Number of inputs made of this column."""
        return self.numbers.width

    def encode(self, dates: np.ndarray) -> np.ndarray:
        """Return the inputs `[rows, width]` float32 of `dates [rows]`, NaT where missing."""
        return self.numbers.encode(expand_dates(dates, self.with_time))


def fit_dates(name: str, dates: np.ndarray, with_time: bool) -> Dates:
    """Fit a column of dates, `[rows]` datetime64."""
    values = expand_dates(dates, with_time)
    parts = ["days", "year sin", "year cos", "week sin", "week cos", "day sin", "day cos"]
    names = [f"{name} {part}" for part in parts[: values.shape[1]]]
    return Dates(name, with_time, _mark_once(fit_numbers(names, values)))


def expand_dates(dates: np.ndarray, with_time: bool) -> np.ndarray:
    """Return days since 1970 and points on the circles of the year, the week and the day, `[rows, 5 or 7]`."""
    seconds = dates.astype("datetime64[s]").astype(np.int64)
    starts = dates.astype("datetime64[Y]").astype("datetime64[s]").astype(np.int64)
    # remainders of whole seconds are exact: where all dates fall on one weekday or at one time, rounding would make
    # these places differ by 1e-12, and standardised that is an input
    turns = [(seconds - starts) / (365.25 * _SECONDS_PER_DAY)]
    turns += [seconds % period / period for period in (7 * _SECONDS_PER_DAY, _SECONDS_PER_DAY)[: 1 + with_time]]
    angles = [2 * np.pi * turn for turn in turns]
    waves = [wave for angle in angles for wave in (np.sin(angle), np.cos(angle))]
    values = np.stack([seconds / _SECONDS_PER_DAY, *waves], axis=1)
    values[np.isnat(dates)] = np.nan
    return values


@dataclass(frozen=True)
class Embedding:
    """A column of equally long lists of numbers, each place of the list standardised.

    Attributes:
        name: of the column.
        numbers: what is done to each place of the list.
    """

    name: str
    numbers: Numbers

    @property
    def width(self) -> int:
        """Number of inputs made of this column."""
        return self.numbers.width

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Return the inputs `[rows, width]` float32 of `values [rows, length]`."""
        if values.shape[1] != len(self.numbers.names):
            raise ValueError(
                f"the lists in column {self.name!r} must have length {len(self.numbers.names)}, as when the model "
                f"was fitted, but have length {values.shape[1]}."
            )
        _check_finite_lists(self.name, values)
        return self.numbers.encode(values)


def fit_embedding(name: str, values: np.ndarray) -> Embedding:
    """Fit a column of lists, `[rows, length]`."""
    _check_finite_lists(name, values)
    names = [f"{name}[{place}]" for place in range(values.shape[1])]
    return Embedding(name, _mark_once(fit_numbers(names, values)))


def _check_finite_lists(name: str, values: np.ndarray) -> None:
    if np.isinf(values).any():
        raise ValueError(f"numbers must be finite, but lists in column {name!r} hold infinities. Replace them.")


def _mark_once(numbers: Numbers) -> Numbers:
    """Return the same with one mark for all columns, which are missing together."""
    marked = (any(numbers.marked), *(False for _ in numbers.marked[1:]))
    return Numbers(numbers.names, numbers.center, numbers.scale, numbers.valued, marked)
