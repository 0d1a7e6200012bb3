"""The record of one cell: one small JSON file, the evidence for one published number."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from bagwise.training.checkpoint import write_atomically

SCHEMA = 1
_FIX = "Delete it and run the command again: only this cell is computed anew."


class RecordError(ValueError):
    """A record on disk cannot be trusted; the message names the file and the fix."""


class AnyCell(Protocol):
    """What a sweep and a record need to know of a cell, whatever it is a cell of."""

    @property
    def dataset(self) -> str:
        """The name of its data set."""
        ...

    @property
    def name(self) -> str:
        """Its name among the cells in one folder."""
        ...

    @property
    def place(self) -> Path:
        """Where its record lies, seen from the folder of all records."""
        ...


CellType = TypeVar("CellType", bound=AnyCell)


@dataclass(frozen=True)
class Cell:
    """One point of the paper's grid: what is trained on which bags.

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

    @property
    def place(self) -> Path:
        """Where its record lies: DATASET/PRESET/NAME.json."""
        return Path(self.dataset, self.preset, f"{self.name}.json")


@dataclass(frozen=True)
class Candidate:
    """A setting that was tried; `criterion` is None when its training diverged (or nothing was tried)."""

    learning_rate: float | None  # None: there was none to choose
    alpha: float | None = None  # only ROT has one
    criterion: float | None = None
    seconds: float = 0.0

    def __str__(self) -> str:
        values = {"learning rate": self.learning_rate, "alpha": self.alpha}
        return ", ".join(f"{name} {value:g}" for name, value in values.items() if value is not None) or "as it comes"


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

    @staticmethod
    def rounded(values: Mapping[str, float | None]) -> Metrics:
        """Return what an evaluator said, as a record keeps it."""
        return Metrics(**{name: rounded(value) for name, value in values.items()})


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
class Compute:
    """What a cell was allowed to compute and what its runs took, the search included.

    Both count passes per training instance: one forward and backward through the network is 1, a forward alone 1/3.
    """

    budget: float
    passes: float


@dataclass(frozen=True)
class Record(Generic[CellType]):
    """Everything that is kept of a cell.

    Newer than the rest, and None in old records: `num_test`, the instances behind `final`; and `compute` and
    `largest_class`, the share of the most frequent class among those instances, which only the cells of a benchmark
    have.
    """

    cell: CellType
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
    num_test: int | None = None
    compute: Compute | None = None
    largest_class: float | None = None


def rounded(value: float | None) -> float | None:
    """Return `value` with five significant digits, or None when it is not finite (JSON has no NaN).

    None stays None: that is what the log of a run that was resumed has for it.
    """
    return float(f"{value:.5g}") if value is not None and math.isfinite(value) else None


def cell_folder(out: Path, dataset: str, preset: str) -> Path:
    """Return where the records of the paper's grid lie, for a data set and preset."""
    return out / dataset / preset


def record_path(out: Path, cell: AnyCell) -> Path:
    """Return the file of a cell, e.g. `results/cifar10/fast/kl-16-seed0.json`."""
    return out / cell.place


def write_record(out: Path, record: Record[CellType]) -> Path:
    """Write a record and return its path."""
    path = record_path(out, record.cell)
    fields = {name: value for name, value in asdict(record).items() if value is not None}
    write_file(path, _dump({"schema": SCHEMA, **fields}))
    return path


def read_record(path: Path, cell_type: type[CellType]) -> Record[CellType]:
    """Read and check one record; raise a `RecordError` that names the file when it is not one."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(fields, dict):
            raise TypeError(f"it holds a {type(fields).__name__}, not an object")
        schema = fields.pop("schema", None)
        if schema != SCHEMA:
            raise ValueError(f"its schema is {schema!r}, this version of bagwise reads {SCHEMA}")
        record = _parse(fields, cell_type)
    except (ValueError, TypeError) as error:
        raise RecordError(f"{path} is not a valid record ({error}). {_FIX}") from error
    except KeyError as error:
        raise RecordError(f"{path} is not a valid record (it lacks {error}). {_FIX}") from error
    place = record.cell.place
    if path.parts[-len(place.parts) :] != place.parts:
        raise RecordError(
            f"{path} holds the record of another cell, which belongs at {place}. Put it back there, or delete it."
        )
    return record


def read_records(out: Path, dataset: str, preset: str) -> list[Record[Cell]]:
    """Read every record of the paper's grid for a data set and preset, ordered by seed, bag size and loss."""
    records = [read_record(path, Cell) for path in cell_folder(out, dataset, preset).glob("*.json")]
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


def _parse(fields: dict[str, Any], cell_type: type[CellType]) -> Record[CellType]:
    selection = fields["selection"]
    candidates = tuple(Candidate(**candidate) for candidate in selection["candidates"])
    curve = Curve(**{name: tuple(_column(values)) for name, values in fields["curve"].items()})
    if len({len(column) for column in (curve.epoch, curve.train_loss, curve.test_accuracy, curve.seconds)}) != 1:
        raise ValueError("the columns of its curve differ in length")
    compute = fields.get("compute")
    nested = {
        "cell": cell_type(**fields["cell"]),
        "chosen": Candidate(**fields["chosen"]),
        "selection": Selection(**{**selection, "candidates": candidates}),
        "curve": curve,
        "final": Metrics(**fields["final"]),
        "provenance": Provenance(**fields["provenance"]),
        "compute": None if compute is None else Compute(**compute),
    }
    return Record(**{**fields, **nested})


def _column(values: object) -> Sequence[Any]:
    if not isinstance(values, list):
        raise TypeError("the columns of its curve must be lists")
    return values
