"""Many records -> the numbers of a figure or table: the mean over seeds and its spread."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from bagwise.experiments.records import Record

LOSS_LABELS = {"avg-kl": "AvgKL", "kl": "KL", "rot": "ROT"}
DATASET_LABELS = {
    "digits": "Digits",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "adult": "Adult",
}


@dataclass(frozen=True)
class Accuracy:
    """Final test accuracy of one loss at one bag size, over the seeds that have a record.

    `spread` is the standard deviation over seeds (n - 1 in the denominator), None for a single seed.
    """

    mean: float
    spread: float | None
    seeds: int

    def __str__(self) -> str:
        spread = "" if self.spread is None else f" ± {100 * self.spread:.1f}"
        return f"{100 * self.mean:.1f}{spread}"


@dataclass(frozen=True)
class Summary:
    """What a set of records of one data set and preset says.

    Attributes:
        accuracy: loss -> bag size -> accuracy; losses in the paper's order, sizes ascending.
        curves: loss -> bag size -> (epochs, test accuracy), the mean over seeds.
        missing: the (loss, bag size) pairs without any record.
    """

    dataset: str
    preset: str
    chance: float
    losses: tuple[str, ...]
    bag_sizes: tuple[int, ...]
    accuracy: dict[str, dict[int, Accuracy]]
    curves: dict[str, dict[int, tuple[list[int], list[float]]]]
    missing: tuple[tuple[str, int], ...]

    @property
    def title(self) -> str:
        """The data set as people write it."""
        return DATASET_LABELS.get(self.dataset, self.dataset)

    @property
    def measured_sizes(self) -> tuple[int, ...]:
        """The bag sizes with a record of at least one loss."""
        return tuple(size for size in self.bag_sizes if any(size in points for points in self.accuracy.values()))

    @property
    def max_seeds(self) -> int:
        """The largest number of seeds behind a number."""
        return max(point.seeds for points in self.accuracy.values() for point in points.values())


def summarise(records: Sequence[Record], bag_sizes: Sequence[int], losses: Sequence[str]) -> Summary:
    """Summarise the records of one data set and preset; `bag_sizes` and `losses` say what was planned."""
    if not records:
        raise ValueError("there is no record to summarise; run the sweep first, without --report-only.")
    groups: dict[tuple[str, int], list[Record]] = defaultdict(list)
    for record in records:
        groups[record.cell.loss, record.cell.bag_size].append(record)
    planned = {(loss, size) for loss in losses for size in bag_sizes} | set(groups)
    all_losses = tuple(loss for loss in LOSS_LABELS if any(loss == key[0] for key in planned))
    all_sizes = tuple(sorted({size for _, size in planned}))
    first = records[0]
    return Summary(
        dataset=first.cell.dataset,
        preset=first.cell.preset,
        chance=1 / first.num_classes,
        losses=all_losses,
        bag_sizes=all_sizes,
        accuracy={
            loss: {size: _accuracy(groups[loss, size]) for size in all_sizes if (loss, size) in groups}
            for loss in all_losses
        },
        curves={
            loss: {size: _mean_curve(groups[loss, size]) for size in all_sizes if (loss, size) in groups}
            for loss in all_losses
        },
        missing=tuple((loss, size) for loss in all_losses for size in all_sizes if (loss, size) not in groups),
    )


def _accuracy(records: list[Record]) -> Accuracy:
    values = [record.final.accuracy or 0.0 for record in records]
    spread = statistics.stdev(values) if len(values) > 1 else None
    return Accuracy(statistics.fmean(values), spread, len(values))


def _mean_curve(records: list[Record]) -> tuple[list[int], list[float]]:
    """Average over seeds, at the epochs that every seed evaluated."""
    per_seed = [
        {e: a for e, a in zip(r.curve.epoch, r.curve.test_accuracy, strict=True) if a is not None} for r in records
    ]
    epochs = sorted(set.intersection(*(set(curve) for curve in per_seed)))
    return epochs, [statistics.fmean(curve[epoch] for curve in per_seed) for epoch in epochs]
