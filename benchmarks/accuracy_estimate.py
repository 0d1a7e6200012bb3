"""The estimate of instance accuracy from bags alone, against the truth that only this script can see.

    python benchmarks/accuracy_estimate.py --adult FOLDER --fashion FOLDER
    python benchmarks/accuracy_estimate.py ... --record results/benchmarks/accuracy_estimate.json

Every cell cross-validates `ProportionClassifier` (two hidden layers, KL) on five folds of whole bags and estimates
the accuracy of the held-out predictions in two ways. The labels are then used to say how many were right. The last
row has bags by a real column, where the assumption of "residuals", errors that are independent within a bag, does
not hold. The default, "auto", tells by the spread of the proportions: "residuals" in all rows but the last.
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from bagwise.estimator import ProportionClassifier
from bagwise.experiments.datasets import load_dataset
from bagwise.experiments.datasets.adult import COLUMNS, NUMBERS, read_people
from bagwise.experiments.provenance import collect_provenance
from bagwise.model_selection import WholeBags, cross_validate, identifiability_warnings

BAG_SIZES = (8, 32, 128)
LIMIT = 0.03
EPOCHS = {"digits": 150, "adult": 20, "fashion-mnist": 8}
console = Console(width=140)


@dataclass(frozen=True)
class Row:
    """One line of the table; shares, not percentages."""

    dataset: str
    bags: str
    num_bags: int
    truth: float
    residuals: tuple[float, float, float]  # estimate, low, high
    temperature: tuple[float, float, float]
    confidence: float  # mean top probability as predicted: what one would believe without calibration
    chi_square: float
    warnings: tuple[str, ...]
    seconds: float

    def miss(self, method: str) -> float:
        """Estimate minus truth."""
        return getattr(self, method)[0] - self.truth


def images(name, folder):
    data = load_dataset(name, folder)
    return data.train_images.flatten(1).numpy() / 255, data.train_labels.numpy()


def adult(folder):
    """The training part: features, labels, and occupation x education as a real column of bags."""
    people = read_people(folder, "data")
    cells = {name: np.array([person[name] for person in people]) for name in COLUMNS}
    numbers = np.stack([cells[name].astype(np.float64) for name in NUMBERS], axis=1)
    categories = [name for name in COLUMNS[:-1] if name not in (*NUMBERS, "education")]  # that is a number, too
    one_hot = [cells[name][:, None] == np.unique(cells[name]) for name in categories]
    groups = np.char.add(np.char.add(cells["occupation"], " x "), cells["education"])
    return np.concatenate([numbers, *one_hot], axis=1), (cells["income"] == ">50K").astype(np.int64), groups


def random_bags(num_instances, size, seed):
    """Rows in random order, as many as fill their bags, and the bag of each."""
    rows = np.random.default_rng(seed).permutation(num_instances)[: num_instances // size * size]
    return rows, np.arange(len(rows)) // size


def measure(dataset, described, X, labels, bags, seed):
    started = time.perf_counter()
    names, index = np.unique(bags, return_inverse=True)
    counts = np.zeros((len(names), labels.max() + 1))
    np.add.at(counts, (index, labels), 1)
    sizes = counts.sum(axis=1)
    classifier = ProportionClassifier(
        epochs=EPOCHS[dataset], learning_rate=0.002, validation_fraction=0, device="cpu", random_state=seed
    )
    shares = counts / sizes[:, None]
    result = cross_validate(classifier, X, index, shares, splitter=WholeBags(folds=5, seed=seed))
    estimates = {name: result.accuracy(name) for name in ("residuals", "temperature")}
    return Row(
        dataset,
        described,
        len(names),
        truth=float((result.probabilities.argmax(axis=1) == labels).mean()),
        **{name: (found.accuracy, found.low, found.high) for name, found in estimates.items()},
        confidence=float(result.probabilities.max(axis=1).mean()),
        chi_square=result.mean("chi-square"),
        warnings=tuple(identifiability_warnings(shares, sizes)),
        seconds=time.perf_counter() - started,
    )


def cells(arguments):
    sources = {"digits": lambda: images("digits", None)}
    if arguments.adult:
        sources["adult"] = lambda: adult(arguments.adult)[:2]
    if arguments.fashion:
        sources["fashion-mnist"] = lambda: images("fashion-mnist", arguments.fashion)
    for name, load in sources.items():
        X, labels = load()
        for size in BAG_SIZES:
            for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
                rows, bags = random_bags(len(labels), size, seed)
                yield name, f"random, {size}", X[rows], labels[rows], bags, seed
    if arguments.adult:
        X, labels, groups = adult(arguments.adult)
        yield "adult", "occupation x education", X, labels, groups, 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--adult", type=Path, help="folder with adult.data or adult.data.xz")
    parser.add_argument("--fashion", type=Path, help="folder with the official files of Fashion-MNIST")
    parser.add_argument("--seeds", type=int, default=1, help="partitions into bags per cell")
    parser.add_argument("--first-seed", type=int, default=1, help="the estimate was designed on seed 0")
    parser.add_argument("--record", type=Path, help="also write the measurements to this JSON file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # small layers: a second thread mostly waits
    provenance = collect_provenance()

    table = Table(title="accuracy of held-out predictions, in %: the truth, and estimates from bags alone")
    for column in ("data", "bags", "number", "truth", "residuals", "95 %", "miss", "temperature", "miss"):
        table.add_column(column, justify="left" if column in ("data", "bags") else "right")
    for column in ("confidence", "miss", "chi-square"):
        table.add_column(column, justify="right")
    rows = []
    for cell in cells(arguments):
        row = measure(*cell)
        rows.append(row)
        estimate, low, high = (100 * value for value in row.residuals)
        misses = [row.miss("residuals"), row.miss("temperature"), row.confidence - row.truth]
        signed = [f"{100 * miss:+.1f}{'' if abs(miss) <= LIMIT else ' !'}" for miss in misses]
        table.add_row(
            *(row.dataset, row.bags, str(row.num_bags), f"{100 * row.truth:.1f}"),
            *(f"{estimate:.1f}", f"{low:.1f} - {high:.1f}", signed[0]),
            *(f"{100 * row.temperature[0]:.1f}", signed[1]),
            *(f"{100 * row.confidence:.1f}", signed[2], f"{row.chi_square:.2f}"),
        )
        console.print(f"[dim]{row.dataset}, {row.bags}: {row.seconds:.0f} s[/dim]")
    console.print(table)
    if arguments.record:
        record = {
            "provenance": asdict(provenance),
            "first_seed": arguments.first_seed,
            "epochs": EPOCHS,
            "limit": LIMIT,
            "rows": [asdict(row) for row in rows],
        }
        arguments.record.parent.mkdir(parents=True, exist_ok=True)
        arguments.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
