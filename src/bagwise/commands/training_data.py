"""The two tables of a fit: read and checked before any training."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bagwise.bags.setting_checks import check_choice
from bagwise.bags.validation import check_enough_known_bags
from bagwise.commands.matching import MatchedBags, match_bags
from bagwise.functional.noise import ProportionNoise
from bagwise.tables.columns import MAX_CATEGORIES
from bagwise.tables.csv_reading import MISSING_WORDS
from bagwise.tables.files import ParquetFile
from bagwise.tables.slices import FrameInMemory, open_table

if TYPE_CHECKING:
    import polars as pl

# Enough to see what a column holds.
_ROWS_TO_LOOK_AT = 10_000

# What CSV files and spreadsheets make of numbers (separators, currencies, percent signs) and of American dates.
_FORMS_OF_TEXT = (
    ("numbers", r"^[-+]?[$€£]? ?[0-9]{1,3}([ ,.'’\x{a0}\x{202f}]?[0-9]{3})*([.,][0-9]+)? ?[$€£%]?$", "as in 1234.5"),
    ("dates", r"^[0-9]{1,2}[/-][0-9]{1,2}[/-][0-9]{4}$", "as YYYY-MM-DD"),
)


@dataclass(frozen=True)
class TrainingFiles:
    """Where the tables of a fit are, and how to read them.

    Attributes:
        rows: table with a row per instance.
        bag: its column of bag ids.
        proportions: table with a row per bag.
        counts: whether `proportions` holds counts.
        noise: what was done to them before they were published.
        classes: columns of `proportions` that are classes; None for all but the bag ids.
        ignore: columns of `rows` that are no inputs.
    """

    rows: Path
    bag: str
    proportions: Path
    counts: bool = False
    noise: ProportionNoise | None = None
    classes: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Both tables of a fit, which fit each other.

    Attributes:
        rows: the table of the instances.
        inputs: its columns that are inputs.
        matched: the bags and their proportions.
        notes: what looks odd without being wrong, in plain words.
    """

    rows: ParquetFile | FrameInMemory
    inputs: tuple[str, ...]
    matched: MatchedBags
    notes: tuple[str, ...]


def read_training_data(files: TrainingFiles) -> TrainingData:
    """Read and check everything that a fit will rely on."""
    rows = open_table(files.rows, text=[files.bag])
    for name in files.ignore:
        check_choice(f"--ignore: a column of {files.rows}", name, rows.columns)
    inputs = tuple(name for name in rows.columns if name != files.bag and name not in files.ignore)
    if not inputs:
        raise ValueError(f"{files.rows} must have a column beside {files.bag!r} that tells of the instances.")
    matched = match_bags(
        rows,
        files.rows,
        files.bag,
        files.proportions,
        classes=files.classes,
        counts=files.counts,
        noise=files.noise,
    )
    check_enough_known_bags(len(matched.bags) - matched.num_unknown)
    sample = next(rows.slices(_ROWS_TO_LOOK_AT, inputs))
    notes = _notes_on_labels(sample, matched.table.classes) + _notes_on_text(sample)
    if isinstance(rows, FrameInMemory):
        notes += _notes_on_dates([name for name in rows.unsure_dates if name in inputs])
    if files.counts and files.noise is None:
        notes += _notes_on_counts(matched)
    return TrainingData(rows, inputs, matched, tuple(notes))


def _notes_on_labels(sample: pl.DataFrame, classes: Sequence[object]) -> list[str]:
    """Say which columns look like the labels themselves, which must not be inputs."""
    names = {str(label) for label in classes}
    notes = []
    for column in sample:
        if column.dtype.is_nested() or column.dtype.is_float():
            continue
        values = {str(value) for value in column.unique().head(len(names) + 2).to_list() if value is not None}
        if len(values) > 1 and values <= names:
            notes.append(
                f"column {column.name!r} holds the names of classes ({', '.join(sorted(values))}) and is an input. If "
                f"it is the label of the rows, leave it out: --ignore {shlex.quote(column.name)}."
            )
    return notes


def _notes_on_text(sample: pl.DataFrame) -> list[str]:
    """Say which columns of text are numbers or dates in a form that is not read as such."""
    import polars as pl

    notes = []
    for column in sample:
        if column.dtype != pl.String:
            continue
        values = column.drop_nulls().filter(~column.drop_nulls().is_in([*MISSING_WORDS, ""]))
        if values.n_unique() <= MAX_CATEGORIES:
            continue  # as many as there are inputs for, so that little is lost
        for kind, form, plainly in _FORMS_OF_TEXT:
            marked = values.filter(~values.str.contains(r"^[0-9]*$"))  # digits alone may be ids
            if len(marked) and values.str.contains(form).all():
                notes.append(
                    f"column {column.name!r} is text and taken for categories, but its values look like {kind}, such "
                    f"as {marked[0]!r}. Write them {plainly}, or leave it out: --ignore {shlex.quote(column.name)}."
                )
    return notes


def _notes_on_dates(unsure: Sequence[str]) -> list[str]:
    return [
        f"column {name!r} is read as day/month/year, since no number in it tells: none before the year exceeds 12. "
        "If it is month/day/year, write it as YYYY-MM-DD."
        for name in unsure
    ]


def _are_rounded(totals: np.ndarray, whole: int) -> bool:
    """Whether these are `whole` but for rounding, which takes as much from some bags as it gives to others."""
    near = (np.abs(totals - whole) <= whole / 20).all()
    return bool(near and abs(totals.mean() - whole) <= whole / 100)


def _notes_on_counts(matched: MatchedBags) -> list[str]:
    """Say where the counts of a bag do not add up to its rows."""
    totals, sizes = matched.values.sum(axis=1), matched.sizes
    differ = np.flatnonzero(~np.isnan(totals) & (totals != sizes))
    known = totals[~np.isnan(totals)]
    if len(differ) == 0 or any(_are_rounded(known, whole) for whole in (1, 100)):
        return []  # shares and percentages need not add up to anything else
    fall_short = (totals < sizes).sum() > 0.9 * len(known)
    hint = " Nearly all fall short: a column of a class may be missing." if fall_short else ""
    worst = differ[np.abs(totals[differ] - sizes[differ]).argmax()]
    return [
        f"the counts of {len(differ):,} of {len(sizes):,} bags do not add up to their number of rows; bag "
        f"{matched.bags[worst]!r} has {sizes[worst]:,} rows and counts of {totals[worst]:,.12g}. Only the shares are "
        "used." + hint
    ]
