"""What was understood of the tables of a fit, in plain values, for a dry run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import narwhals as nw
import numpy as np
import torch

from bagwise.bags import BagLayout
from bagwise.bags.data import number_bags
from bagwise.commands.training_data import TrainingData, TrainingFiles
from bagwise.estimator.inputs import name_of_each_input
from bagwise.model_selection import identifiability_warnings, noise_warnings
from bagwise.model_selection.shared_values import shared_value_warnings
from bagwise.tables.files import ParquetFile, unusual_style
from bagwise.tables.preprocessing import Preprocessing, fit_preprocessing
from bagwise.tables.reading import Table
from bagwise.tables.slices import FrameInMemory
from bagwise.tables.spool import survey_parquet

_ROWS_PER_SLICE = 1_000_000

# Half a gigabyte of inputs.
_MOST_VALUES_TO_COMPARE = 2**27


@dataclass(frozen=True)
class Column:
    """A column of the table.

    Attributes:
        name: of the column.
        kind: "number", "category", ...
        inputs: how many inputs of the network are made of it.
        treatment: in words.
    """

    name: str
    kind: str
    inputs: int
    treatment: str


@dataclass(frozen=True)
class Understanding:
    """The tables of a fit.

    Attributes:
        rows: number of rows.
        columns: the inputs.
        bag_column: the column of bag ids.
        bags: number of bags.
        bags_unknown: number of bags whose proportions are not known.
        smallest_bag: rows of the smallest bag.
        median_bag: rows of a bag in the middle.
        largest_bag: rows of the largest bag.
        classes: share of each class over all rows of bags that are known.
        reading: how CSV files are written that have no commas between the columns.
        warnings: in plain words.
    """

    rows: int
    columns: tuple[Column, ...]
    bag_column: str
    bags: int
    bags_unknown: int
    smallest_bag: int
    median_bag: float
    largest_bag: int
    classes: dict[str, float]
    reading: tuple[str, ...]
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        """Return it as text over several lines."""
        wide = max(len(column.name) for column in self.columns)
        unknown = f", {self.bags_unknown:,} of them with unknown proportions" if self.bags_unknown else ""
        sizes = f"{self.smallest_bag:,}"
        if self.smallest_bag < self.largest_bag:
            sizes += f" to {self.largest_bag:,} (median {self.median_bag:g})"
        lines = [
            f"{self.rows:,} rows in {self.bags:,} bags of {sizes}, by column {self.bag_column!r}{unknown}",
            f"{len(self.classes)} classes: " + ", ".join(f"{name} {share:.1%}" for name, share in self.classes.items()),
            f"{len(self.columns)} columns as inputs:" if len(self.columns) > 1 else "1 column as input:",
            *(f"  {column.name:<{wide}}  {column.kind:<9}  {column.treatment}" for column in self.columns),
            *self.reading,
            *(f"warning: {warning}" for warning in self.warnings),
        ]
        return "\n".join(lines)


def _shared_values(data: TrainingData, bag_column: str, preprocessing: Preprocessing) -> list[str]:
    """Name columns with one value in each bag; a table so large that this takes long is left to the fit itself."""
    if data.rows.num_rows * preprocessing.width > _MOST_VALUES_TO_COMPARE:
        return []
    import polars as pl

    frame = pl.concat(data.rows.slices(_ROWS_PER_SLICE, [bag_column, *data.inputs]))
    inputs = preprocessing.encode(Table(nw.from_native(frame.select(data.inputs), eager_only=True)))
    index, _ = number_bags(frame[bag_column].to_list())
    layout = BagLayout.from_index(torch.from_numpy(index))
    return shared_value_warnings(torch.from_numpy(inputs), layout, name_of_each_input(preprocessing))


def understand(data: TrainingData, files: TrainingFiles) -> Understanding:
    """Describe the tables, and warn of what stands in the way of learning from them."""
    rows = data.rows
    if isinstance(rows, FrameInMemory):
        preprocessing = fit_preprocessing(Table(nw.from_native(rows.frame.select(data.inputs), eager_only=True)))
    else:
        preprocessing = survey_parquet(rows.path, files.bag, data.inputs).preprocessing
    matched = data.matched
    known = ~np.isnan(matched.shares[:, 0])
    overall = np.average(matched.shares[known], axis=0, weights=matched.sizes[known])
    labels = [str(label) for label in matched.table.classes]
    warnings = list(data.notes)
    if matched.sizes.max() > 1:  # bags of one are labels
        warnings += identifiability_warnings(matched.shares, matched.sizes, labels)
        if files.noise is not None:
            warnings += noise_warnings(matched.shares, matched.sizes, files.noise)
        warnings += _shared_values(data, files.bag, preprocessing)
    columns = tuple(Column(*treatment) for treatment in preprocessing.treatments())
    return Understanding(
        rows=rows.num_rows,
        columns=_with_spans(columns, rows),
        bag_column=files.bag,
        bags=len(matched.bags),
        bags_unknown=matched.num_unknown,
        smallest_bag=int(matched.sizes.min()),
        median_bag=float(np.median(matched.sizes)),
        largest_bag=int(matched.sizes.max()),
        classes=dict(zip(labels, overall.tolist(), strict=True)),
        reading=tuple(words for path in (files.rows, files.proportions) if (words := unusual_style(path))),
        warnings=tuple(warnings),
    )


def _with_spans(columns: Sequence[Column], rows: ParquetFile | FrameInMemory) -> tuple[Column, ...]:
    """Add the first and the last date, which show dates that were read wrongly."""
    ends: dict[str, list[Any]] = {column.name: [] for column in columns if column.kind in ("date", "datetime")}
    for frame in rows.slices(_ROWS_PER_SLICE, list(ends)) if ends else ():
        for name, found in ends.items():
            found += [end for end in (frame[name].min(), frame[name].max()) if end is not None]
    spans = {name: f"{min(found)} to {max(found)}: " for name, found in ends.items()}
    return tuple(
        dataclasses.replace(column, treatment=spans.get(column.name, "") + column.treatment) for column in columns
    )
