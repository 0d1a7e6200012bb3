"""The record of one cell of the grid: one small JSON file, the evidence for one published number."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bagwise.training.checkpoint import write_atomically

SCHEMA = 1
_FIX = "Delete it and run the command again: only this cell is computed anew."


class RecordError(ValueError):
    """A record on disk cannot be trusted; the message names the file and the fix."""


@dataclass(frozen=True)
class Cell:
    """One point of the grid: what is trained on which bags.

    Example:
        >>> Cell("cifar10", "fast", "kl", bag_size=16, seed=0).name
        'kl-16-seed0'
    """

    dataset: str
    preset: str
    loss: str
    bag_size: int
    seed: int

    @property
    def name(self) -> str:
        """The name of the cell among those of its data set and preset, and of its file."""
        return f"{self.loss}-{self.bag_size}-seed{self.seed}"


@dataclass(frozen=True)
class Candidate:
    """A setting that was tried; `criterion` is None when its training diverged (or nothing was tried)."""

    learning_rate: float
    alpha: float | None  # only ROT has one
    criterion: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Selection:
    """How the setting was chosen: by what, on how many bags, in how many epochs, and from which candidates."""

    criterion: str
    training_bags: int
    held_out_bags: int
    epochs: int
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True)
class Curve:
    """The final run, one entry per epoch; `test_accuracy` is None where the epoch was not evaluated."""

    epoch: tuple[int, ...]
    train_loss: tuple[float | None, ...]
    test_accuracy: tuple[float | None, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Metrics:
    """What the last epoch reached on the test instances; None where a value is not finite."""

    accuracy: float | None
    balanced_accuracy: float | None
    log_loss: float | None
    calibration_error: float | None


@dataclass(frozen=True)
class Provenance:
    """Where a number comes from."""

    started: str
    commit: str | None
    dirty: bool | None
    bagwise: str
    python: str
    torch: str
    cuda: str | None
    hardware: str
    cores: int


@dataclass(frozen=True)
class Record:
    """Everything that is kept of a cell."""

    cell: Cell
    num_classes: int
    num_bags: int
    network: str
    chosen: Candidate
    recipe: dict[str, Any]
    selection: Selection
    curve: Curve
    final: Metrics
    seconds: float
    provenance: Provenance


def rounded(value: float) -> float | None:
    """Return `value` with five significant digits, or None when it is not finite (JSON has no NaN)."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def cell_folder(out: Path, dataset: str, preset: str) -> Path:
    """Return where the records of a data set and preset lie."""
    return out / dataset / preset


def record_path(out: Path, cell: Cell) -> Path:
    """Return the file of a cell, e.g. `results/cifar10/fast/kl-16-seed0.json`."""
    return cell_folder(out, cell.dataset, cell.preset) / f"{cell.name}.json"


def write_record(out: Path, record: Record) -> Path:
    """Write a record and return its path."""
    path = record_path(out, record.cell)
    write_file(path, _dump({"schema": SCHEMA, **asdict(record)}))
    return path


def read_record(path: Path) -> Record:
    """Read and check one record; raise a `RecordError` that names the file when it is not one."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(fields, dict):
            raise TypeError(f"it holds a {type(fields).__name__}, not an object")
        schema = fields.pop("schema", None)
        if schema != SCHEMA:
            raise ValueError(f"its schema is {schema!r}, this version of bagwise reads {SCHEMA}")
        record = _parse(fields)
    except (ValueError, TypeError) as error:
        raise RecordError(f"{path} is not a valid record ({error}). {_FIX}") from error
    except KeyError as error:
        raise RecordError(f"{path} is not a valid record (it lacks {error}). {_FIX}") from error
    place = record_path(Path(), record.cell)
    if path.parts[-len(place.parts) :] != place.parts:
        raise RecordError(
            f"{path} holds the record of another cell, which belongs at {place}. Put it back there, or delete it."
        )
    return record


def read_records(out: Path, dataset: str, preset: str) -> list[Record]:
    """Read every record of a data set and preset, ordered by seed, bag size and loss."""
    records = [read_record(path) for path in cell_folder(out, dataset, preset).glob("*.json")]
    return sorted(records, key=lambda record: (record.cell.seed, record.cell.bag_size, record.cell.loss))


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file, and the folders it lies in, so that a kill at any moment leaves the whole file or none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content.encode() if isinstance(content, str) else content)
    except OSError as error:
        reason = f"it could not be written ({error.strerror or error})"
        raise OSError(error.errno, f"{reason}; mend that and run the same command again", str(path)) from error


def _dump(fields: dict[str, Any]) -> str:
    """One line per field: short files that a person can read and `git diff` can show."""
    lines = [f"{json.dumps(name)}: {json.dumps(value, allow_nan=False)}" for name, value in fields.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _parse(fields: dict[str, Any]) -> Record:
    selection = fields["selection"]
    candidates = tuple(Candidate(**candidate) for candidate in selection["candidates"])
    curve = Curve(**{name: tuple(_column(values)) for name, values in fields["curve"].items()})
    if len({len(column) for column in (curve.epoch, curve.train_loss, curve.test_accuracy, curve.seconds)}) != 1:
        raise ValueError("the columns of its curve differ in length")
    nested = {
        "cell": Cell(**fields["cell"]),
        "chosen": Candidate(**fields["chosen"]),
        "selection": Selection(**{**selection, "candidates": candidates}),
        "curve": curve,
        "final": Metrics(**fields["final"]),
        "provenance": Provenance(**fields["provenance"]),
    }
    return Record(**{**fields, **nested})


def _column(values: object) -> Sequence[Any]:
    if not isinstance(values, list):
        raise TypeError("the columns of its curve must be lists")
    return values
