"""The paper's grid as data: bag sizes, losses, learning rates, alphas, and three presets to run it with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bagwise.bags.setting_checks import check_choice, check_count
from bagwise.experiments.records import Candidate, Cell
from bagwise.training import Recipe

BAG_SIZES = tuple(2**power for power in range(11))  # 1, 2, 4, ..., 1024
LOSSES = ("avg-kl", "kl", "rot")
LEARNING_RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
ALPHAS = (0.1, 0.3, 0.5, 0.7, 0.9)


@dataclass(frozen=True)
class Preset:
    """One way to run the grid.

    Attributes:
        recipe: how the final run of a cell is trained; its learning rate and seed are replaced by the cell's.
        search_epochs: epochs of each candidate; its schedule is the recipe's, shortened.
        held_out: share of the bags that the candidates are judged on; with too few bags, the training bags judge.
        shift: training images are shifted at random by up to this many pixels.
        evaluate_every: epochs between points of the accuracy curve; the last epoch is always evaluated.
        checkpoint_every: epochs between checkpoints of the final run, for runs too long to lose; None for none.
        is_small: the network is too small for several threads or a GPU: cells run on one core each, side by side.
    """

    network: str
    recipe: Recipe
    search_epochs: int
    learning_rates: tuple[float, ...] = LEARNING_RATES
    alphas: tuple[float, ...] = ALPHAS
    bag_sizes: tuple[int, ...] = BAG_SIZES
    seeds: int = 1
    held_out: float = 0.1
    shift: int = 1
    evaluate_every: int = 1
    checkpoint_every: int | None = None
    is_small: bool = False

    def candidates(self, loss: str) -> list[Candidate]:
        """Return every setting to try for a loss; only ROT has an alpha."""
        alphas = self.alphas if loss == "rot" else (None,)
        return [Candidate(rate, alpha) for rate in self.learning_rates for alpha in alphas]


PRESETS = {
    # Minutes on two CPU cores, with the digits of scikit-learn.
    "demo": Preset(
        network="small-convnet",
        recipe=Recipe(epochs=20, batch_instances=64, schedule="one-cycle", weight_decay=5e-4),
        search_epochs=8,
        learning_rates=(0.1, 0.3),
        alphas=(0.3, 0.7),
        bag_sizes=BAG_SIZES[:9],  # 256 leaves 5 bags of digits
        seeds=2,
        held_out=0.2,
        shift=0,  # digits of 8x8 pixels are centred, and a pixel is much of their width
        is_small=True,
    ),
    # The paper's figures within an hour of one GPU.
    "fast": Preset(
        network="resnet18",
        recipe=Recipe(
            epochs=80,
            batch_instances=512,
            schedule="one-cycle",
            weight_decay=5e-4,
            ema=0.999,
            precision="bf16-mixed",
            compile=True,
            channels_last=True,
            drop_last=True,
        ),
        search_epochs=10,
        # no lower rates: ten epochs are too few to see that they fall behind in eighty
        learning_rates=(0.1, 0.2, 0.4),
        alphas=(0.1, 0.5),
        shift=2,
        evaluate_every=2,
    ),
    # What the paper says; what it leaves open (the batch size) is a common choice.
    "paper": Preset(
        network="resnet18",
        recipe=Recipe(
            epochs=400,
            batch_instances=512,
            momentum=0.9,
            nesterov=False,
            schedule="step",
            weight_decay=0.005,
            precision="bf16-mixed",
            compile=True,
            channels_last=True,
        ),
        search_epochs=10,
        evaluate_every=4,
        checkpoint_every=20,
    ),
}


def default_preset(dataset: str) -> str:
    """Return the preset to use when none is named: the embedded digits are for a laptop."""
    return "demo" if dataset == "digits" else "fast"


def plan_cells(
    dataset: str,
    preset: str,
    *,
    losses: Sequence[str] = LOSSES,
    bag_sizes: Iterable[int] | None = None,
    seeds: int | None = None,
) -> list[Cell]:
    """List the cells of a sweep, seed by seed, so that whatever is done first already makes a figure.

    Example:
        >>> [cell.name for cell in plan_cells("digits", "demo", losses=["kl"], bag_sizes=[1, 16], seeds=2)]
        ['kl-1-seed0', 'kl-16-seed0', 'kl-1-seed1', 'kl-16-seed1']
    """
    check_choice("preset", preset, PRESETS)
    sizes = sorted(set(PRESETS[preset].bag_sizes if bag_sizes is None else bag_sizes))
    seeds = PRESETS[preset].seeds if seeds is None else seeds
    check_count("seeds", seeds)
    for size in sizes:
        check_count("bag_sizes", size)
    for loss in losses:
        check_choice("losses", loss, LOSSES)
    chosen = [loss for loss in LOSSES if loss in losses]
    return [Cell(dataset, preset, loss, size, seed) for seed in range(seeds) for size in sizes for loss in chosen]
