"""Synthetic records of a leaderboard."""

from __future__ import annotations

from bagwise.experiments.leaderboard.presets import BenchmarkCell
from bagwise.experiments.records import Candidate, Compute, Curve, Metrics, Provenance, Record, Selection


def make_benchmark_record(
    contender: str,
    accuracy: float,
    *,
    bag_kind: str = "uniform",
    bag_size: int = 16,
    seed: int = 0,
    dataset: str = "cifar10",
    preset: str = "fast",
    budget: float = 150,
    num_test: int = 10_000,
) -> Record[BenchmarkCell]:
    """Return a record whose final run climbs to `accuracy` in 4 epochs, every second one of them evaluated."""
    candidates = tuple(Candidate(rate, criterion=2.5 * rate, seconds=5.0) for rate in (0.02, 0.1))
    return Record(
        cell=BenchmarkCell(dataset, preset, contender, bag_kind, bag_size, seed),
        num_classes=10,
        num_bags=50_000 // bag_size,
        network="resnet18",
        chosen=candidates[0],
        recipe={"epochs": 4, "learning_rate": 0.02, "seed": seed, "schedule": "one-cycle", "compile": True},
        selection=Selection("KL of held-out bags", 90, 10, 2, candidates),
        curve=Curve(
            epoch=(1, 2, 3, 4),
            train_loss=(2.2, 2.1, 2.0, 1.9),
            test_accuracy=(None, accuracy / 2, None, accuracy),
            seconds=(1.0, 1.0, 1.0, 1.0),
        ),
        final=Metrics(accuracy, accuracy, 1 - accuracy, 0.03),
        seconds=15.0,
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
        num_test=num_test,
        compute=Compute(budget, budget - 1),
    )
