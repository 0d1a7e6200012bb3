"""Adult census income (UCI, 1996): 32,561 + 16,281 people, and who of them earns more than 50,000 dollars."""

from __future__ import annotations

import csv
import io
import lzma
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bagwise.experiments.datasets.storage import data_folder
from bagwise.tables.columns import fit_categories, fit_numbers

NUMBERS = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship"),
    *("race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income"),
)
_ADDRESS = "https://archive.ics.uci.edu/dataset/2/adult"

Split = tuple[np.ndarray, np.ndarray]


def load_adult(folder: str | os.PathLike[str] | None) -> tuple[Split, Split]:
    """Return `(inputs [people, width] float32, labels [people])` of the official training and test split.

    Numbers are standardised and categories have an input each, as `bagwise fit` does it, fitted to the training split.

    Args:
        folder: holds `adult.data` and `adult.test`, as they are or as `.xz`; else that of BAGWISE_DATA, else the cache.
    """
    train, test = (read_people(folder, part) for part in ("data", "test"))
    encoded: list[list[np.ndarray]] = [[], []]
    numbers = [np.array([[float(row[name]) for name in NUMBERS] for row in rows]) for rows in (train, test)]
    fitted = fit_numbers(NUMBERS, numbers[0])
    for parts, values in zip(encoded, numbers, strict=True):
        parts.append(fitted.encode(values))
    for name in COLUMNS[:-1]:
        if name in NUMBERS:
            continue
        columns = [[None if row[name] == "?" else row[name] for row in rows] for rows in (train, test)]
        categories = fit_categories(name, columns[0])
        for parts, values in zip(encoded, columns, strict=True):
            parts.append(categories.encode(values))
    labels = [np.array([row["income"].startswith(">50K") for row in rows], dtype=np.int64) for rows in (train, test)]
    inputs = [np.concatenate(parts, axis=1) for parts in encoded]
    return (inputs[0], labels[0]), (inputs[1], labels[1])


def read_people(folder: str | os.PathLike[str] | None, part: str) -> list[dict[str, str]]:
    """Return the people of `part`, "data" (to train) or "test", as the file has them: cells by the name of the column.

    What has another number of cells (the first line of the test file) is no person.
    """
    place, name = data_folder(folder), f"adult.{part}"
    rows = [
        dict(zip(COLUMNS, map(str.strip, cells), strict=True))
        for cells in csv.reader(_lines(place, name))
        if len(cells) == len(COLUMNS)
    ]
    if not rows:
        raise ValueError(
            f"{place / name}: no line has the {len(COLUMNS)} cells of the Adult census. Download it again: {_ADDRESS}"
        )
    return rows


def _lines(folder: Path, name: str) -> Iterator[str]:
    plain, packed = folder / name, folder / f"{name}.xz"
    if plain.is_file():
        return io.StringIO(plain.read_text(encoding="utf-8"))
    if packed.is_file():
        return io.StringIO(lzma.decompress(packed.read_bytes()).decode("utf-8"))
    raise FileNotFoundError(
        f"adult is not in {folder}: there is no {name} (nor {name}.xz). Get adult.data and adult.test from {_ADDRESS}, "
        "put both into one folder, and name it with --data or BAGWISE_DATA."
    )
