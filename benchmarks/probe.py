"""What a probe makes of frozen features and bags of 16 to 4096: accuracy on new rows and seconds.

    python benchmarks/probe.py --dataset fashion-mnist --data FOLDER                          # the pixels themselves
    python benchmarks/probe.py --dataset cifar10 --data FOLDER --features FOLDER2             # of a pretrained network
    python benchmarks/probe.py ... --record results/benchmarks/probe.json

FOLDER2 holds features-train-N.safetensors and features-test-N.safetensors, as `benchmarks/self_training.py pretrain`
writes them. Three draws of uniform bags for each size; the settings are the defaults, whatever the size. The labels of
the training images make the bags; those of the test images score, and nothing else. Seconds are those of the whole fit
on one thread (or `--threads`), neighbours and choice included.

    python benchmarks/probe.py --random 50000 512        # seconds and memory of random rows, in bags of 1,000
    python benchmarks/probe.py --random 1000000 64
"""

import argparse
import json
import os
import resource
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file

from bagwise.bags import BagLayout, uniform_bags
from bagwise.experiments.datasets import DATASET_NAMES, load_dataset
from bagwise.experiments.provenance import collect_provenance
from bagwise.metrics import accuracy
from bagwise.probe import fit_probe

BAG_SIZES = (16, 64, 128, 256, 512, 1024, 2048, 4096)
console = Console(width=120)


@dataclass(frozen=True)
class Row:
    """One fit."""

    bag_size: int
    draw: int
    num_bags: int
    accuracy: float
    rounds: int
    directions: int
    seconds: float
    cpu_seconds: float


def read_features(folder, split):
    paths = sorted(folder.glob(f"features-{split}-*.safetensors"), key=lambda path: int(path.stem.split("-")[-1]))
    if not paths:
        raise SystemExit(f"{folder} holds no features-{split}-N.safetensors; write them by self_training.py pretrain.")
    return torch.cat([load_file(path)["features"] for path in paths]).float()


def measure(train, test, num_classes, bag_size, draw):
    bags = uniform_bags(*train, num_classes, bag_size, seed=draw)
    started, cpu_started = time.perf_counter(), time.process_time()
    fit = fit_probe(bags.instances, bags.layout, bags.proportions, seed=draw)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    return Row(
        bag_size,
        draw,
        bags.num_bags,
        accuracy=float(accuracy(fit.network(test[0]), test[1])),
        rounds=fit.rounds,
        directions=fit.directions,
        seconds=round(seconds, 2),
        cpu_seconds=round(cpu_seconds, 2),
    )


def summary(title, rows):
    table = Table(title=title)
    for column in ("bags of", "bags", "accuracy", "range", "directions", "smoothed", "seconds", "CPU seconds"):
        table.add_column(column, justify="right")
    for size in dict.fromkeys(row.bag_size for row in rows):
        cell = [row for row in rows if row.bag_size == size]
        found = [100 * row.accuracy for row in cell]
        table.add_row(
            *(str(size), str(cell[0].num_bags), f"{np.mean(found):.1f}", f"{min(found):.1f} - {max(found):.1f}"),
            " ".join(str(row.directions) for row in cell),
            " ".join("yes" if row.rounds else "no" for row in cell),
            f"{np.mean([row.seconds for row in cell]):.1f}",
            f"{np.mean([row.cpu_seconds for row in cell]):.1f}",
        )
    console.print(table)


def measure_random(rows, width):
    """Ten clouds of rows, in bags of 1,000, by as many threads as there are cores."""
    torch.set_num_threads(os.cpu_count() or 1)
    rows -= rows % 1000
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(10, width, generator=generator)
    labels = torch.randint(10, (rows,), generator=generator)
    features = torch.randn(rows, width, generator=generator).add_(centres[labels])
    layout = BagLayout.from_sizes([1000] * (rows // 1000))
    proportions = torch.zeros(rows // 1000, 10).index_add_(0, layout.bag_index, torch.eye(10)[labels]) / 1000
    started = time.perf_counter()
    fit = fit_probe(features, layout, proportions)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    console.print(
        f"{rows:,} rows of {width}: {seconds:.0f} s, at most {peak:.1f} GB of memory with the features, "
        f"accuracy {float(accuracy(fit.logits, labels)):.1%}"
    )
    return {
        "rows": rows,
        "width": width,
        "threads": torch.get_num_threads(),
        "seconds": round(seconds, 1),
        "peak_gigabytes": round(peak, 2),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", choices=DATASET_NAMES, default="digits")
    parser.add_argument("--data", type=Path, help="folder with the official files of the data set")
    parser.add_argument("--features", type=Path, help="folder with features of its images; else its pixels")
    parser.add_argument("--sizes", type=int, nargs="+", default=BAG_SIZES, help="of the bags")
    parser.add_argument("--draws", type=int, default=3, help="of bags, for each size")
    # a second thread mostly waits, and slows the first where the machine is shared
    parser.add_argument("--threads", type=int, default=1, help="to compute with")
    parser.add_argument("--random", type=int, nargs=2, metavar=("ROWS", "WIDTH"), help="only time random rows")
    parser.add_argument("--record", type=Path, help="also write the measurements to this JSON file, beside others")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    provenance = collect_provenance()
    if arguments.random:
        rows, width = arguments.random
        name, measured = f"{rows:,} random rows of {width}", measure_random(rows, width)
    else:
        dataset = load_dataset(arguments.dataset, arguments.data)
        if arguments.features is None:
            parts = [images.flatten(1).float() / 255 for images in (dataset.train_images, dataset.test_images)]
        else:
            parts = [read_features(arguments.features, split) for split in ("train", "test")]
        train, test = (parts[0], dataset.train_labels), (parts[1], dataset.test_labels)
        rows = []
        for size in (size for size in arguments.sizes if 2 * size <= len(train[1])):
            for draw in range(arguments.draws):
                rows.append(measure(train, test, dataset.num_classes, size, draw))
                console.print(f"[dim]{rows[-1]}[/dim]")
        name = f"{arguments.dataset}, {'pixels' if arguments.features is None else 'pretrained features'}"
        if arguments.threads > 1:
            name += f", {arguments.threads} threads"
        summary(name, rows)
        measured = [asdict(row) for row in rows]
    if arguments.record:
        arguments.record.parent.mkdir(parents=True, exist_ok=True)
        record = json.loads(arguments.record.read_text()) if arguments.record.exists() else {}
        record[name] = {"provenance": asdict(provenance), "measured": measured}
        arguments.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
