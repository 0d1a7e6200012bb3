"""Proportions as people bring them (data frame, dict or array) into rows by bag."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch

from bagwise.bags.setting_checks import DIFFERS_IN_FORM, check_choice, differ_in_form_alone
from bagwise.bags.validation import check_counts
from bagwise.tables.reading import Table, read_table

_WHOLE_AS_DECIMAL = re.compile(r"([+-]?[0-9]+)\.0+")
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?")


@dataclass(frozen=True, eq=False)
class ProportionTable:
    """The known proportions or counts of bags.

    It has neither length nor shape on purpose: scikit-learn cuts whatever is as long as X into the folds of a
    cross-validation, and there may be as many bags as rows. Handed to `fit`, it may also hold bags that the rows at
    hand do not touch, as in a fold; a plain frame, dict or array may not.

    Attributes:
        bags: the id of each row; None when the rows follow the sorted ids.
        classes: the label of each column, sorted.
        values: `[bags, classes]` float64; a row of NaN is a bag whose proportions are unknown.
    """

    bags: tuple[Hashable, ...] | None
    classes: tuple[Any, ...]
    values: np.ndarray

    def rows_of(self, bags: Sequence[Hashable], *, allow_others: bool) -> np.ndarray:
        """Return the rows of these bags, `[bags, classes]`; raise where a bag is on one side only."""
        if self.bags is None:
            if len(self.values) != len(bags):
                raise ValueError(
                    "an array of proportions must have one row per bag, in the order of the sorted bag ids, but it has "
                    f"{len(self.values)} rows and there are {len(bags)} bags. Pass a dict {{bag id: row}} to be sure."
                )
            return self.values
        place_of = {bag: place for place, bag in enumerate(self.bags)}
        if missing := [bag for bag in bags if bag not in place_of]:
            known = set(bags)
            free = [bag for bag in self.bags if bag not in known]  # a row that has its bag is no slip of the pen
            raise ValueError(
                f"proportions must cover every bag, but bag {missing[0]!r} is missing"
                f"{_and_more(missing)}. {_likely_cause(missing[0], free)}"
            )
        if not allow_others and len(self.bags) > len(bags):
            known = set(bags)
            extra = [bag for bag in self.bags if bag not in known]
            raise ValueError(
                f"proportions must name only bags that have instances, but bag {extra[0]!r} has none"
                f"{_and_more(extra)}. Drop its row. (In Python, read_proportions(...) around the table allows it.)"
            )
        return self.values[[place_of[bag] for bag in bags]]


def read_proportions(
    proportions: Any, *, bag_column: str | None = None, likely_column: object = None
) -> ProportionTable:
    """Read the proportions (or counts) of bags.

    Args:
        proportions: a data frame with a row per bag, a column of bag ids (or, in pandas, an index) and a column per
            class; a dict `{bag: [value per class]}` or `{bag: {class: value}}`, where a pandas Series, as from
            `value_counts`, counts as a dict; or an array `[bags, classes]` in the order of the sorted bag ids. Missing
            values in all classes make a bag unknown.
        bag_column: the column (or pandas index) of bag ids. By default an index with a name, a column "bag", the one
            column that does not hold numbers, or an index without a name that does not hold numbers either.
        likely_column: a name that the column of bag ids probably has; passed over where there is no such column.

    Example:
        >>> table = read_proportions({"ward-1": {"no": 30, "yes": 10}, "ward-2": {"no": 5, "yes": 20}})
        >>> table.classes, table.values.tolist()
        (('no', 'yes'), [[30.0, 10.0], [5.0, 20.0]])
    """
    if isinstance(proportions, ProportionTable):
        return proportions
    if isinstance(proportions, Mapping):
        bags, classes, values = _from_mapping(proportions)
    elif (table := read_table(proportions)) is not None:
        likely = likely_column if isinstance(likely_column, str) else None
        bags, classes, values = _from_frame(proportions, table, bag_column, likely)
    else:
        bags, classes, values = _from_array(proportions)
    return _sorted_by_class(bags, classes, values)


def shares_of(table: ProportionTable, rows: np.ndarray, bags: Sequence[Hashable], counts: bool) -> np.ndarray:
    """Return `rows` of a table as shares that sum to 1; refuse counts that nobody declared as such."""
    known = np.logical_not(np.isnan(rows).all(axis=1))
    if not known.any():
        raise ValueError("the proportions of at least one bag must be known, but all are missing. Fill them in.")
    if counts:
        check_counts(torch.from_numpy(rows), bags)
        return rows / rows.sum(axis=1, keepdims=True)
    sums = rows.sum(axis=1)
    whole = np.nan_to_num(rows) == np.round(np.nan_to_num(rows))
    percentages = bool((np.abs(sums[known] - 100) < 1).all())
    if (whole[known].all() or percentages) and (np.abs(sums[known] - 1) > 1e-4).any():
        bag = int(np.flatnonzero(known & (np.abs(sums - 1) > 1e-4))[0])
        row = ", ".join(f"{label}: {value:g}" for label, value in zip(table.classes[:6], rows[bag], strict=False))
        raise ValueError(
            f"proportions must sum to 1 in every bag, but bag {bags[bag]!r} sums to {sums[bag]:g} ({row}). If these "
            f"are {'percentages' if percentages else 'counts'}, pass counts=True (--counts on the command line)."
        )
    return rows


def _from_mapping(proportions: Mapping[Hashable, Any]) -> tuple[list[Hashable], list[Any], np.ndarray]:
    if not proportions:
        raise ValueError("proportions must name at least one bag, but the dict is empty.")
    given = {bag: _named_values(bag, row) for bag, row in proportions.items()}
    bags = list(given)
    first = given[bags[0]]
    if isinstance(first, Mapping):
        classes = list(first)
        for bag, row in given.items():
            if not isinstance(row, Mapping) or set(row) != set(classes):
                named = list(row) if isinstance(row, Mapping) else row
                raise ValueError(
                    f"every bag must name the same classes, but bag {bags[0]!r} has {classes} and bag {bag!r} has "
                    f"{named}. Write 0 for a class that does not occur; in pandas row.reindex(classes, fill_value=0)."
                )
        rows = [[row[label] for label in classes] for row in given.values()]
    else:
        rows = list(given.values())
        if any(np.ndim(row) != 1 or len(row) != np.size(first) for row in rows):
            raise ValueError(
                "every bag must have one value per class: {bag: [value, value, ...]} or {bag: {class: value}}."
            )
        classes = list(range(len(first)))
    try:
        values = np.array(rows, dtype=np.float64)  # None becomes NaN
    except (TypeError, ValueError) as error:
        raise TypeError(f"proportions must be numbers ({error}).") from None
    return bags, classes, values


def _named_values(bag: Hashable, row: Any) -> Any:
    """Return a row whose index names the classes (a pandas Series) as a dict, and any other as it is.

    Read by position it would give values to wrong classes: `value_counts` puts the most frequent class first.
    """
    if not (hasattr(row, "index") and hasattr(row, "to_dict")) or np.ndim(row) != 1:
        return row
    named = row.to_dict()
    if len(named) != len(row):
        raise ValueError(
            f"a bag must name a class once, but bag {bag!r} has {list(row.index)}. Add up the values of a class."
        )
    return named


def _from_array(proportions: Any) -> tuple[None, list[Any], np.ndarray]:
    values = np.asarray(proportions, dtype=np.float64)
    if values.ndim != 2:
        raise ValueError(
            f"an array of proportions must have shape [bags, classes], but has {list(values.shape)}. "
            "A data frame or a dict {bag: {class: value}} is accepted too."
        )
    return None, list(range(values.shape[1])), values


def _from_frame(
    native: Any, table: Table, bag_column: str | None, likely_column: str | None
) -> tuple[list[Hashable], list[Any], np.ndarray]:
    if bag_column is None and likely_column in table.names:
        bag_column = likely_column
    index = getattr(native, "index", None)  # pandas alone has one
    index_name = getattr(index, "name", None)
    if index_name is not None and bag_column in (None, index_name):
        bag_column = None
    elif bag_column is None:
        bag_column = _find_bag_column(table, index, likely_column)
    else:
        check_choice("the column of bag ids", bag_column, table.names)
    bags = table.values(bag_column) if bag_column is not None else list(index)  # pyright: ignore[reportArgumentType]
    columns = [name for name in table.names if name != bag_column]
    missing = [row for row, bag in enumerate(bags) if bag is None or bag != bag or bag == ""]
    if missing:
        raise ValueError(
            f"every row of proportions must have a bag id, but row {missing[0]} (counted from 0) has none in column "
            f"{bag_column!r}. Fill it in, or drop the row."
        )
    _check_not_a_row_per_class(table, bag_column, bags, columns)
    for name in columns:
        if table.kind(name) not in ("number", "boolean", "empty"):
            values = table.values(name)
            row = next((row for row, value in enumerate(values) if not _is_number(value)), 0)
            raise TypeError(
                f"proportions must be numbers, but column {name!r} holds {values[row]!r} for bag {bags[row]!r}. "
                "Correct it, or drop the column if it is not a class."
            )
    values = table.numbers(columns)
    _check_one_row_per_bag(bags, values)
    labels = {str(name): name for name in getattr(native, "columns", columns)} if index is not None else {}
    return bags, [labels.get(name, name) for name in columns], values


def _check_not_a_row_per_class(
    table: Table, bag_column: str | None, bags: Sequence[Hashable], columns: Sequence[str]
) -> None:
    """Raise where bags have a row for each class, named in a column, as databases and pollsters like to have it."""
    rows_of = Counter(bags)
    if len(rows_of) == len(bags):
        return
    numbers = [name for name in columns if table.kind(name) == "number"]
    for name in columns:
        if table.kind(name) == "embedding":
            continue
        labels = table.values(name)
        num_labels = len(set(labels))
        if len(set(zip(bags, labels, strict=True))) != len(labels) or 2 * num_labels > len(labels):
            continue
        # numbers could be counts of parts of bags; they are classes if every bag has every one of them
        if name in numbers and set(rows_of.values()) != {num_labels}:
            continue
        if not (values := [other for other in numbers if other != name]):
            continue
        by = "bag" if bag_column is None else bag_column
        raise ValueError(
            f"proportions must have one row per bag and a column for each class, but bag {bags[0]!r} has a row for "
            f"each class in column {name!r}. Make a pivot table of it: in a spreadsheet, in pandas by frame.pivot("
            f"index={by!r}, columns={name!r}, values={values[-1]!r}), or in polars by frame.pivot({name!r}, index="
            f"{by!r}, values={values[-1]!r})."
        )


def _check_one_row_per_bag(bags: Sequence[Hashable], values: np.ndarray) -> None:
    if len(set(bags)) == len(bags):
        return
    seen: set[Hashable] = set()
    twice = next(bag for bag in bags if bag in seen or seen.add(bag))
    sums = values.sum(axis=1)
    sums = sums[~np.isnan(sums)]
    if any((np.abs(sums - whole) < whole / 20).all() for whole in (1, 100)):  # shares or percentages, maybe rounded
        fix = "Keep the right one, or their mean, weighted by the number of instances behind each."
    else:
        fix = "Add them up if they are counts of its parts; drop one if it was written twice."
    raise ValueError(f"every bag must have one row of proportions, but bag {twice!r} has several. {fix}")


def _is_number(value: Any) -> bool:
    """Whether a cell is missing, a number, or text that can be read as one."""
    if value is None:
        return True
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _find_bag_column(table: Table, index: Any, likely_column: str | None) -> str | None:
    """Return the column of bag ids, or None for the index of a pandas frame."""
    if "bag" in table.names:
        return "bag"
    if others := [name for name in table.names if table.kind(name) not in ("number", "boolean", "empty")]:
        if len(others) == 1:
            return others[0]
        raise ValueError(f"which of the columns {others} holds the bag ids? Name it 'bag', and drop the others.")
    # numbers without a name are those of the rows, however the frame was sorted or filtered
    if index is not None and not all(isinstance(bag, Real) for bag in index):
        return None
    name = likely_column or "bag"
    in_index = "" if index is None else f" If the index of the frame holds them, name it: frame.rename_axis({name!r})."
    raise ValueError(
        f"proportions must have a column of bag ids, but none of {list(table.names)} is called 'bag' or holds text. "
        f"Rename the column of bag ids to {name!r}, or pass read_proportions(table, bag_column=...).{in_index}"
    )


def _sorted_by_class(bags: list[Hashable] | None, classes: list[Any], values: np.ndarray) -> ProportionTable:
    if len(classes) < 2:
        raise ValueError(
            f"proportions must have a column for each of at least 2 classes, but there is only {classes}. "
            "For two classes give both, e.g. 'yes' and 'no'."
        )
    if levels := [label for label in classes if isinstance(label, tuple)]:
        raise ValueError(
            f"the label of a class must be a single value, but the columns of proportions have several levels, e.g. "
            f"{levels[0]!r}. Drop one, in pandas by frame.droplevel(0, axis=1)."
        )
    try:
        order = sorted(range(len(classes)), key=lambda place: classes[place])
    except TypeError:
        raise TypeError(f"the labels of classes must be of one type, but got {classes}.") from None
    return ProportionTable(
        None if bags is None else tuple(bags), tuple(classes[place] for place in order), values[:, order]
    )


def _and_more(bags: list[Hashable]) -> str:
    return f" (and {len(bags) - 1} more)" if len(bags) > 1 else ""


def _likely_cause(bag: Hashable, known: Sequence[Hashable]) -> str:
    """Return the fix for the usual reasons why an id has no partner in the other table, of `known` ids without one."""
    if not known:
        return "Add its row, with missing values if it is unknown."
    by_text = {str(name): name for name in known}
    whole = _WHOLE_AS_DECIMAL.fullmatch(str(bag))
    if whole is not None and whole[1] in by_text:
        return _point_zero("with the instances", bag, "in proportions", by_text[whole[1]])
    if f"{bag}.0" in by_text:
        return _point_zero("in proportions", by_text[f"{bag}.0"], "with the instances", bag)
    other = known[0]
    if isinstance(bag, str) != isinstance(other, str):
        return (
            f"Ids are {_type_name(bag)} with the instances ({bag!r}) but {_type_name(other)} in proportions "
            f"({other!r}): convert one of them so that both are of one type."
        )
    if isinstance(bag, str):
        texts = [name for name in known if isinstance(name, str)]
        for name in texts:
            if differ_in_form_alone(name, bag):
                return f"Proportions have {name!r}, which {DIFFERS_IN_FORM}"
            if name.lstrip("0") == bag.lstrip("0"):
                return f"Proportions have {name!r}, which differs by leading zeros: read both ids as text, unchanged."
            if name.casefold().split() == bag.casefold().split():
                return f"Proportions have {name!r}, which differs by spaces or capital letters: make them equal."
        # the nearest number is another bag, not a slip of the pen
        is_number = _NUMBER.fullmatch(bag) is not None
        if not is_number and (nearest := difflib.get_close_matches(bag, texts[:10000], n=1)):
            return f"Did you mean {nearest[0]!r}? Otherwise add its row, with missing values if it is unknown."
    return "Add its row, with missing values if it is unknown."


def _point_zero(decimal_side: str, decimal: Hashable, whole_side: str, whole: Hashable) -> str:
    return (
        f"Ids are decimal numbers {decimal_side} ({decimal!r}) but whole ones {whole_side} ({whole!r}), perhaps since "
        "pandas turns whole numbers into decimal ones where some are missing, as after a merge. Turn them back, in "
        "pandas by .astype(float).astype('Int64')."
    )


def _type_name(bag: Hashable) -> str:
    if isinstance(bag, bool):
        return "booleans"
    return "text" if isinstance(bag, str) else "integers" if isinstance(bag, int) else f"{type(bag).__name__}s"
