"""`Preprocessing`: the default way from a table with columns of any kind to the inputs of a network."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bagwise.bags.setting_checks import DIFFERS_IN_FORM, differ_in_form_alone
from bagwise.tables.columns import (
    Categories,
    Dates,
    Embedding,
    Numbers,
    fit_categories,
    fit_dates,
    fit_embedding,
    fit_numbers,
    fit_sparse_numbers,
)
from bagwise.tables.reading import Table

_PARTS = {"numbers": Numbers, "categories": Categories, "dates": Dates, "embedding": Embedding}


@dataclass(frozen=True, repr=False)
class Preprocessing:
    """What is done to each column, in the order of the inputs: numbers first, then the other columns.

    Print it to see a table of the columns and their treatment.

    Attributes:
        kinds: name and kind of each column of the table it was fitted on, in that order.
        numbers: what is done to columns of numbers and booleans.
        others: what is done to each column of another kind.

    Example:
        >>> import pyarrow
        >>> from bagwise.tables.reading import read_table
        >>> table = read_table(pyarrow.table({"age": [31.0, None, 45.0], "town": ["Ulm", "Bonn", "Ulm"]}))
        >>> preprocessing = fit_preprocessing(table)
        >>> print(preprocessing)
        column  kind      inputs  treatment
        age     number         2  mean 38, sd 7; missing values marked
        town    category       2  one input each for 2 categories
        >>> preprocessing.encode(table).shape
        (3, 4)
    """

    kinds: tuple[tuple[str, str], ...]
    numbers: Numbers
    others: tuple[Categories | Dates | Embedding, ...]

    @property
    def width(self) -> int:
        """Number of inputs."""
        return self.numbers.width + sum(part.width for part in self.others)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(name for name, _ in self.kinds)

    def encode(self, table: Table) -> np.ndarray:
        """Return the inputs `[rows, width]` float32 of a table with the same columns, in any order."""
        self.check_columns(table.names)
        if extra := [name for name in table.names if name not in set(self.names)]:
            raise ValueError(
                f"the table must have only the columns that the model was fitted on, but also has {_listed(extra)}. "
                "Leave them out."
            )
        expected = dict(self.kinds)
        for name in self.names:
            _check_kind(name, expected[name], table)
        parts = [self.numbers.encode(table.numbers(self.numbers.names))]
        parts += [self._encode_other(part, table) for part in self.others]
        return np.concatenate(parts, axis=1)

    def check_columns(self, given: Sequence[str]) -> None:
        """Raise unless the names of the columns it was fitted on are all among the `given`."""
        known = set(given)
        if missing := [name for name in self.names if name not in known]:
            alike = any(differ_in_form_alone(missing[0], name) for name in given)
            raise ValueError(
                f"the table must have the columns that the model was fitted on, but {_listed(missing)} "
                f"{'is' if len(missing) == 1 else 'are'} missing. It has {_listed(given)}."
                f"{f' The name {DIFFERS_IN_FORM}' if alike else ''}"
            )

    def _encode_other(self, part: Categories | Dates | Embedding, table: Table) -> np.ndarray:
        if table.kind(part.name) == "empty":
            return _encode_missing(part, table.num_rows)
        if isinstance(part, Categories):
            return part.encode(table.categories(part.name))
        if isinstance(part, Dates):
            return part.encode(table.dates(part.name))
        return part.encode(table.embedding(part.name))

    def __repr__(self) -> str:
        rows = [("column", "kind", "inputs", "treatment"), *self.treatments()]
        wide = [max(len(str(row[place])) for row in rows) for place in range(3)]
        lines = [f"{row[0]:<{wide[0]}}  {row[1]:<{wide[1]}}  {row[2]:>{wide[2]}}  {row[3]}" for row in rows]
        return "\n".join(lines)

    def treatments(self) -> list[tuple[str, str, int, str]]:
        """Return (column, kind, number of inputs, treatment in words) for each column."""
        others = {part.name: part for part in self.others}
        places = {name: place for place, name in enumerate(self.numbers.names)}
        rows: list[tuple[str, str, int, str]] = []
        for name, kind in self.kinds:
            if name in places:
                width, words = _number_in_words(self.numbers, places[name])
            elif name in others:
                width, words = others[name].width, _in_words(others[name])
            else:
                width, words = 0, "left out: no values" if kind == "empty" else "left out: no value occurs twice"
            rows.append((name, kind, width, words))
        return rows

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values; `preprocessing_from_json` reads it back."""
        tags = {part: tag for tag, part in _PARTS.items()}
        return {
            "kinds": [list(pair) for pair in self.kinds],
            "numbers": dataclasses.asdict(self.numbers),
            "others": [{"part": tags[type(part)], **dataclasses.asdict(part)} for part in self.others],
        }


def fit_preprocessing(table: Table) -> Preprocessing:
    """Decide from a table what is done to each of its columns.

    Numbers and booleans are standardised; text becomes one input per category, at most `MAX_CATEGORIES` of them;
    dates become numbers and places in the year, week and day; lists of numbers are inputs as they are, standardised.
    Missing values are marked. Columns that carry nothing are left out.
    """
    kinds = {name: table.kind(name) for name in table.names}
    of_numbers = [name for name, kind in kinds.items() if kind in ("number", "boolean")]
    others: list[Categories | Dates | Embedding] = []
    for name, kind in kinds.items():
        if kind == "category":
            part = fit_categories(name, table.categories(name))
            if part.categories:  # none where no value occurs twice: names, serial numbers
                others.append(part)
        elif kind in ("date", "datetime"):
            others.append(fit_dates(name, table.dates(name), with_time=kind == "datetime"))
        elif kind == "embedding":
            others.append(fit_embedding(name, table.embedding(name)))
    numbers = fit_numbers(of_numbers, table.numbers(of_numbers))
    return _checked(Preprocessing(tuple(kinds.items()), numbers, tuple(others)))


def fit_array(values: np.ndarray) -> Preprocessing:
    """Decide what is done to the columns of an array `[rows, columns]` of numbers; NaN is a missing value."""
    return _only_numbers(fit_numbers(_place_names(values), values))


def fit_sparse(matrix: Any) -> Preprocessing:
    """Decide what is done to the columns of a SciPy sparse matrix; zeros stay zeros."""
    with np.errstate(over="ignore"):  # what overflows is refused by `fit_sparse_numbers`
        mean_squares = np.asarray(matrix.multiply(matrix).mean(axis=0)).ravel()
    return _only_numbers(fit_sparse_numbers(_place_names(matrix), mean_squares))


def _place_names(values: Any) -> list[str]:
    return [f"x{place}" for place in range(values.shape[1])]


def _only_numbers(numbers: Numbers) -> Preprocessing:
    return _checked(Preprocessing(tuple((name, "number") for name in numbers.names), numbers, ()))


def preprocessing_from_json(values: Mapping[str, Any]) -> Preprocessing:
    """Return what `Preprocessing.as_json` wrote."""
    others = []
    for entry in values["others"]:
        fields = {name: value for name, value in entry.items() if name != "part"}
        if "numbers" in fields:
            fields["numbers"] = _numbers_from_json(fields["numbers"])
        if "categories" in fields:
            fields["categories"] = tuple(fields["categories"])
        others.append(_PARTS[entry["part"]](**fields))
    kinds = tuple((name, kind) for name, kind in values["kinds"])
    return Preprocessing(kinds, _numbers_from_json(values["numbers"]), tuple(others))


def _numbers_from_json(values: Mapping[str, Any]) -> Numbers:
    return Numbers(**{name: tuple(entries) for name, entries in values.items()})


def _checked(preprocessing: Preprocessing) -> Preprocessing:
    if preprocessing.width == 0:
        raise ValueError(
            "at least one column must tell the instances apart, but each is constant, empty, or text that never "
            f"repeats: {_listed(preprocessing.names)}. Add a column that says something about the instances."
        )
    return preprocessing


def _check_kind(name: str, expected: str, table: Table) -> None:
    given = table.kind(name)
    alike = ({"number", "boolean"}, {"date", "datetime"})
    same = given == expected or any({given, expected} <= kinds for kinds in alike)
    if not same and "empty" not in (given, expected):
        raise TypeError(
            f"column {name!r} held {PLURALS[expected]} when the model was fitted, but holds {PLURALS[given]} now. "
            "Convert it."
        )


PLURALS = {
    "number": "numbers",
    "boolean": "booleans",
    "category": "text",
    "date": "dates",
    "datetime": "times",
    "embedding": "lists",
}


def _encode_missing(part: Categories | Dates | Embedding, num_rows: int) -> np.ndarray:
    if isinstance(part, Categories):
        return part.encode([None] * num_rows)
    return part.numbers.encode(np.full((num_rows, len(part.numbers.names)), np.nan))


def _number_in_words(numbers: Numbers, place: int) -> tuple[int, str]:
    valued, marked = numbers.valued[place], numbers.marked[place]
    words = f"mean {numbers.center[place]:.4g}, sd {numbers.scale[place]:.4g}" if valued else "left out: constant"
    if marked:
        words += "; missing values marked"
    return valued + marked, words


def _in_words(part: Categories | Dates | Embedding) -> str:
    if isinstance(part, Categories):
        words = f"one input each for {len(part.categories)} categories"
        words += ", one for all others" if part.other else ""
        missing = part.missing
    elif isinstance(part, Dates):
        words = "days, place in the year and the week" + (", time of the day" if part.with_time else "")
        missing = any(part.numbers.marked)
    else:
        words = f"{len(part.numbers.names)} numbers, standardised"
        missing = any(part.numbers.marked)
    return words + ("; missing values marked" if missing else "")


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:8])
    return shown + (f" and {len(names) - 8} more" if len(names) > 8 else "")
