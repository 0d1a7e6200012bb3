"""Synthetic records with the shape of the paper's result."""

from __future__ import annotations

import math
from collections.abc import Iterable

from bagwise.experiments.records import Candidate, Cell, Curve, Metrics, Provenance, Record, Selection

BAG_SIZES = tuple(2**k for k in range(11))
LOSSES = ("avg-kl", "kl", "rot")


def final_accuracy(loss: str, bag_size: int, seed: int) -> float:
    """Flat to 16, then down to chance; AvgKL falls at once. Seeds differ by 0.4 points."""
    middle = {"avg-kl": 3.5, "kl": 7.5, "rot": 7.7}[loss]
    return 0.1 + 0.85 / (1 + math.exp(1.1 * (math.log2(bag_size) - middle))) + 0.004 * (seed - 1)


def make_record(
    loss: str, bag_size: int, seed: int = 0, *, dataset: str = "cifar10", accuracy: float | None = None
) -> Record:
    """Return a record of the preset `fast`; the accuracy follows `final_accuracy` unless given."""
    top = final_accuracy(loss, bag_size, seed) if accuracy is None else accuracy
    epochs = 6
    curve = [0.1 + (top - 0.1) * epoch / epochs for epoch in range(1, epochs + 1)]
    alphas = (0.3, 0.7) if loss == "rot" else (None,)
    candidates = tuple(Candidate(rate, alpha, 2.5 * rate, 12.0) for rate in (0.1, 0.3) for alpha in alphas)
    return Record(
        cell=Cell(dataset, "fast", loss, bag_size, seed),
        num_classes=10,
        num_bags=50_000 // bag_size,
        network="resnet18",
        chosen=candidates[0],
        recipe={"epochs": epochs, "learning_rate": 0.1, "schedule": "one-cycle", "compile": True, "ema": None},
        selection=Selection("KL of held-out bags", 90, 10, 2, candidates),
        curve=Curve(
            epoch=tuple(range(1, epochs + 1)),
            train_loss=tuple(2.3 - a for a in curve),
            test_accuracy=tuple(curve),
            seconds=(1.0,) * epochs,
        ),
        final=Metrics(top, top, 1 - top, 0.03),
        seconds=80.0,
        provenance=Provenance(
            started="2025-01-01T10:00:00+00:00",
            commit="0123456789abcdef0123456789abcdef01234567",
            dirty=False,
            bagwise="0.1.0",
            python="3.12.3",
            torch="2.11.0",
            cuda="12.8",
            hardware="NVIDIA H200",
            cores=16,
        ),
    )


def make_grid(losses: Iterable[str] = LOSSES, bag_sizes: Iterable[int] = BAG_SIZES, seeds: int = 3) -> list[Record]:
    """Return a record for every combination."""
    return [make_record(loss, size, seed) for seed in range(seeds) for size in bag_sizes for loss in losses]
