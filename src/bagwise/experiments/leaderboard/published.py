"""Numbers that others have published, as data. They are not ours: other networks, budgets and rules of selection."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True)
class Published:
    """One published test accuracy.

    Attributes:
        method: as its authors call it.
        contender: the contender here that is the same method, or "".
        accuracy: between 0 and 1.
        backbone: the network, or "" where we do not know it.
        epochs: or None where we do not know them.
        note: what a reader must know before comparing.
        source: the paper of the method, or "".
    """

    method: str
    contender: str
    dataset: str
    bag_kind: str
    bag_size: int
    accuracy: float
    backbone: str
    epochs: int | None
    note: str
    source: str

    @property
    def terms(self) -> str:
        """Network, epochs and what else differs, in words."""
        epochs = "" if self.epochs is None else f"{self.epochs} epochs"
        return ", ".join(part for part in (self.backbone or "network not noted", epochs, self.note) if part)


def read_published(dataset: str) -> list[Published]:
    """Return what is published for a data set, in the order of the file.

    Example:
        >>> [entry.accuracy for entry in read_published("cifar10") if entry.method == "L2P-AHIL"]
        [0.9496, 0.95, 0.9458, 0.9364, 0.9288]
    """
    text = files("bagwise.experiments.leaderboard").joinpath("published.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return [
        Published(
            method=row["method"],
            contender=row["contender"],
            dataset=row["dataset"],
            bag_kind=row["bag_kind"],
            bag_size=int(row["bag_size"]),
            accuracy=round(float(row["percent"]) / 100, 4),
            backbone=row["backbone"],
            epochs=int(row["epochs"]) if row["epochs"] else None,
            note=row["note"],
            source=row["source"],
        )
        for row in rows
        if row["dataset"] == dataset
    ]
