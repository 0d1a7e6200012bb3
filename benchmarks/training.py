"""Seconds an epoch of ResNet-18 takes on 50,000 pictures of CIFAR's shape: supervised, KL and ROT on the same loop.

    python benchmarks/training.py                                          # on a GPU
    python benchmarks/training.py --record results/benchmarks/training.json
    python benchmarks/training.py --instances 2048 --network small-convnet # a try on a CPU

The recipe is the preset `fast` of `bagwise reproduce`. Supervised training has bags of one picture. The first epochs,
in which torch.compile works, do not count. Every method is trained twice, in turns, so that a slow moment shows.
"""

import argparse
import json
import statistics
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from bagwise import train
from bagwise.bags import ImageAugment, uniform_bags
from bagwise.experiments.grid import PRESETS
from bagwise.experiments.provenance import collect_provenance
from bagwise.networks import build_network

BAG_SIZES = {"supervised": 1, "kl": 16, "rot": 16}
WARM_EPOCHS = 3
console = Console(width=140)


def epoch_seconds(method, images, labels, network, epochs):
    """Seconds of each epoch after the warm ones."""
    augment = ImageAugment(mean=(0.5,) * 3, std=(0.25,) * 3, shift=PRESETS["fast"].shift, flip=True)
    result = train(
        build_network(network, images.shape[1:], num_classes=10, seed=0),
        bags=uniform_bags(images, labels, 10, BAG_SIZES[method], seed=0),
        method=method,
        recipe=replace(PRESETS["fast"].recipe, epochs=WARM_EPOCHS + epochs, learning_rate=0.1),
        augment=augment,
        progress=False,
    )
    return [entry["seconds"] for entry in result.history[WARM_EPOCHS:]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--instances", type=int, default=50_000)
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--epochs", type=int, default=8, help="measured epochs of each of the two trainings")
    parser.add_argument("--record", type=Path, help="also write the measurements to this JSON file")
    arguments = parser.parse_args()
    provenance = collect_provenance()

    rng = np.random.default_rng(0)  # the time does not depend on what the pictures show
    images = torch.from_numpy(rng.integers(256, size=(arguments.instances, 3, 32, 32), dtype=np.uint8))
    labels = torch.from_numpy(rng.integers(10, size=arguments.instances))
    seconds = {method: [] for method in BAG_SIZES}
    for _ in range(2):
        for method in BAG_SIZES:
            seconds[method] += epoch_seconds(method, images, labels, arguments.network, arguments.epochs)

    medians = {method: statistics.median(values) for method, values in seconds.items()}
    table = Table(title=f"{arguments.network}, {arguments.instances:,} pictures, {provenance.hardware}")
    for column in ("method", "bag size", "seconds an epoch", "range", "ratio to supervised"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for method, size in BAG_SIZES.items():
        span = f"{min(seconds[method]):.3f} - {max(seconds[method]):.3f}"
        ratio = medians[method] / medians["supervised"]
        table.add_row(method, str(size), f"{medians[method]:.3f}", span, f"{ratio:.3f}")
    console.print(table)
    if arguments.record:
        record = {
            "provenance": asdict(provenance),
            "network": arguments.network,
            "instances": arguments.instances,
            "recipe": asdict(PRESETS["fast"].recipe),
            "bag_sizes": BAG_SIZES,
            "epoch_seconds": {method: [round(value, 4) for value in values] for method, values in seconds.items()},
            "ratio_to_supervised": {
                method: round(medians[method] / medians["supervised"], 4) for method in ("kl", "rot")
            },
        }
        arguments.record.parent.mkdir(parents=True, exist_ok=True)
        arguments.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
