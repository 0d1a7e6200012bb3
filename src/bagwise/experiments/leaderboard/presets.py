"""The leaderboard as data: presets, cells, and the plan of a sweep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bagwise.bags.setting_checks import check_choice, check_count
from bagwise.experiments.leaderboard.bag_kinds import BAG_KINDS
from bagwise.experiments.leaderboard.contenders import CONTENDERS
from bagwise.training import Recipe


@dataclass(frozen=True)
class BenchmarkCell:
    """One run of a contender: on which data, in which bags, from which seed.

    Example:
        >>> BenchmarkCell("cifar10", "fast", "kl", "uniform", bag_size=16, seed=0).name
        'kl-uniform-16-seed0'
    """

    dataset: str
    preset: str
    contender: str
    bag_kind: str
    bag_size: int
    seed: int

    @property
    def name(self) -> str:
        """The name of the cell among those of its data set and preset, and of its file."""
        return f"{self.contender}-{self.bag_kind}-{self.bag_size}-seed{self.seed}"

    @property
    def place(self) -> Path:
        """Where its record lies: DATASET/benchmark/PRESET/NAME.json."""
        return Path(self.dataset, "benchmark", self.preset, f"{self.name}.json")


@dataclass(frozen=True)
class Setup:
    """The network and the training that all contenders share on one kind of data.

    Attributes:
        recipe: its epochs, learning rate and seed are replaced by the cell's.
        learning_rates: what the search tries.
    """

    network: str
    recipe: Recipe
    learning_rates: tuple[float, ...]


@dataclass(frozen=True)
class BenchmarkPreset:
    """One way to run the leaderboard.

    Attributes:
        images: the set-up for images.
        tables: the set-up for tables.
        budget: passes per training instance for everything that a cell does; see `leaderboard.budget`.
        search_share: the part of it for the choice of a learning rate, at most.
        held_out: share of the bags that the choice is made on.
        evaluate_every: passes between points of the accuracy curve.
        checkpoint_every: epochs between checkpoints of the final run; None for none.
        is_small: networks are too small for several threads or a GPU: cells run on one core each, side by side.
    """

    images: Setup
    tables: Setup
    budget: float
    bag_kinds: tuple[str, ...]
    bag_sizes: tuple[int, ...]
    seeds: int
    search_share: float = 0.3
    held_out: float = 0.2
    evaluate_every: int = 1
    checkpoint_every: int | None = None
    is_small: bool = False


_TABLES = Setup(
    network="mlp",
    recipe=Recipe(batch_instances=256, optimizer="adam", schedule="cosine", weight_decay=1e-4),
    learning_rates=(0.0003, 0.001, 0.003),
)

_FAST = BenchmarkPreset(
    images=Setup(
        network="resnet18",
        recipe=Recipe(
            batch_instances=512,
            schedule="one-cycle",
            weight_decay=5e-4,
            ema=0.999,
            precision="bf16-mixed",
            compile=True,
            channels_last=True,
            drop_last=True,
        ),
        learning_rates=(0.02, 0.1, 0.3),
    ),
    tables=_TABLES,
    budget=150,
    bag_kinds=("uniform",),
    bag_sizes=(16, 64, 256, 1024),
    seeds=1,
    held_out=0.1,
    evaluate_every=5,
    checkpoint_every=25,
)

PRESETS = {
    # Minutes on two CPU cores, with the digits of scikit-learn; Adult takes longer.
    "demo": BenchmarkPreset(
        images=Setup(
            network="small-convnet",
            # Adam: its steps do not depend on the scale of a loss, and the losses' scales differ a hundredfold
            recipe=Recipe(batch_instances=64, optimizer="adam", schedule="one-cycle", weight_decay=1e-4),
            learning_rates=(0.003, 0.01, 0.03),
        ),
        tables=_TABLES,
        budget=60,
        bag_kinds=("uniform",),
        bag_sizes=(16, 64),
        seeds=2,
        is_small=True,
    ),
    # Meant for about two minutes of one H200 a cell; not measured yet.
    "fast": _FAST,
    # Just under ten minutes of one H200 a cell: self-training takes 528 to 541 s (results/cifar10/benchmark/full).
    "full": replace(_FAST, budget=700, evaluate_every=20, checkpoint_every=100),
}


def default_preset(dataset: str) -> str:
    """Return the preset to use when none is named: digits and tables are for a laptop."""
    return "demo" if dataset in ("digits", "adult") else "fast"


def plan_benchmark(
    datasets: Sequence[str],
    preset: str | None,
    *,
    contenders: Sequence[str],
    bag_kinds: Sequence[str] | None = None,
    bag_sizes: Iterable[int] | None = None,
    seeds: int | None = None,
) -> list[BenchmarkCell]:
    """List the cells of a sweep, seed by seed, so that whatever is done first already makes a table.

    Within a seed all contenders of one kind and size of bags come together, in the order of `CONTENDERS`. Without a
    preset each data set has its default one, and that one's kinds and sizes of bags and seeds.

    Example:
        >>> cells = plan_benchmark(["digits"], "demo", contenders=["rot", "kl"], bag_sizes=[16], seeds=1)
        >>> [cell.name for cell in cells]
        ['kl-uniform-16-seed0', 'rot-uniform-16-seed0']
    """
    cells = []
    for dataset in dict.fromkeys(datasets):
        name = default_preset(dataset) if preset is None else preset
        check_choice("preset", name, PRESETS)
        chosen = PRESETS[name]
        sizes = sorted(set(chosen.bag_sizes if bag_sizes is None else bag_sizes))
        kinds = chosen.bag_kinds if bag_kinds is None else bag_kinds
        num_seeds = chosen.seeds if seeds is None else seeds
        check_count("seeds", num_seeds)
        for size in sizes:
            check_count("bag_sizes", size)
        for kind in kinds:
            check_choice("bag_kinds", kind, BAG_KINDS)
        for contender in contenders:
            check_choice("contenders", contender, CONTENDERS)
        cells += [
            BenchmarkCell(dataset, name, contender, kind, size, seed)
            for seed in range(num_seeds)
            for kind in BAG_KINDS
            if kind in kinds
            for size in sizes
            for contender in CONTENDERS
            if contender in contenders
        ]
    return sorted(cells, key=lambda cell: cell.seed)  # stable: within a seed, one data set after the other
