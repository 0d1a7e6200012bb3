"""What was understood of the tables of a fit, in plain values, for a dry run."""

from __future__ import annotations

from dataclasses import dataclass

import narwhals as nw
import numpy as np

from bagwise.commands.training_data import TrainingData
from bagwise.model_selection import identifiability_warnings
from bagwise.tables.preprocessing import fit_preprocessing
from bagwise.tables.reading import Table
from bagwise.tables.slices import FrameInMemory
from bagwise.tables.spool import survey_parquet


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
            f"{len(self.columns)} columns as inputs:",
            *(f"  {column.name:<{wide}}  {column.kind:<9}  {column.treatment}" for column in self.columns),
            *(f"warning: {warning}" for warning in self.warnings),
        ]
        return "\n".join(lines)


def understand(data: TrainingData, bag_column: str) -> Understanding:
    """Describe the tables, and warn of what stands in the way of learning from them."""
    rows = data.rows
    if isinstance(rows, FrameInMemory):
        preprocessing = fit_preprocessing(Table(nw.from_native(rows.frame.select(data.inputs), eager_only=True)))
    else:
        preprocessing = survey_parquet(rows.path, bag_column, data.inputs).preprocessing
    matched = data.matched
    known = ~np.isnan(matched.shares[:, 0])
    overall = np.average(matched.shares[known], axis=0, weights=matched.sizes[known])
    labels = [str(label) for label in matched.table.classes]
    warnings = list(data.notes)
    if matched.sizes.max() > 1:  # bags of one are labels
        warnings += identifiability_warnings(matched.shares, matched.sizes, labels)
    return Understanding(
        rows=rows.num_rows,
        columns=tuple(Column(*treatment) for treatment in preprocessing.treatments()),
        bag_column=bag_column,
        bags=len(matched.bags),
        bags_unknown=matched.num_unknown,
        smallest_bag=int(matched.sizes.min()),
        median_bag=float(np.median(matched.sizes)),
        largest_bag=int(matched.sizes.max()),
        classes=dict(zip(labels, overall.tolist(), strict=True)),
        warnings=tuple(warnings),
    )
