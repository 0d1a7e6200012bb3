"""Train a network on bags, keep its best epoch by held-out bags, and compare it with every bag."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bagwise.bags import Bags
from bagwise.bags.seeds import derived_seed
from bagwise.bags.validation import check_between
from bagwise.methods import Method
from bagwise.training import BagEvaluator, Recipe, train

# With fewer bags than this, held-out bags would say little and be missed in the training.
FEWEST_BAGS_TO_HOLD_OUT_FROM = 20

_ROWS_PER_PASS = 8192


@dataclass(frozen=True)
class FittedNetwork:
    """A network with the weights of its best epoch.

    Attributes:
        network: on the CPU, in evaluation mode.
        history: one dict per epoch, as `TrainingResult.history`.
        best_epoch: the epoch whose weights it has: the best on held-out bags, or the last where there are none.
    """

    network: nn.Module
    history: list[dict[str, Any]]
    best_epoch: int


def choose_held_out(bags: Bags, share: float, seed: int) -> np.ndarray:
    """Return which bags are held out, `[bags]` booleans: a share of those with known proportions, or none."""
    known = np.flatnonzero(~bags.proportions[:, 0].isnan().numpy())
    held_out = np.zeros(bags.num_bags, dtype=bool)
    if share > 0 and len(known) >= FEWEST_BAGS_TO_HOLD_OUT_FROM:
        order = np.random.default_rng(derived_seed(seed, "held out")).permutation(known)
        held_out[order[: max(1, round(share * len(known)))]] = True
    return held_out


def fit_network(
    network: nn.Module,
    bags: Bags,
    method: Method,
    recipe: Recipe,
    *,
    held_out: np.ndarray,
    accelerator: str,
    progress: bool,
) -> FittedNetwork:
    """Train on the bags that are not held out; `held_out [bags]` booleans."""
    best = None
    training = bags
    if held_out.any():
        training = bags.subset(np.flatnonzero(~held_out))
        best = _BestEpoch(BagEvaluator(bags.subset(np.flatnonzero(held_out))))
    result = train(
        network,
        bags=training,
        method=method,
        recipe=recipe,
        evaluator=best,
        accelerator=accelerator,
        progress=progress,
    )
    if best is None:
        return FittedNetwork(network.cpu(), result.history, len(result.history))
    network.load_state_dict(best.weights)
    history = [
        {("held_out" if name == "evaluation" else name): value for name, value in entry.items()}
        for entry in result.history
    ]
    return FittedNetwork(network.cpu(), history, best.epoch)


class _BestEpoch:
    """Called after each epoch; keeps the weights of the one whose KL on held-out bags is lowest."""

    def __init__(self, evaluator: BagEvaluator) -> None:
        self._evaluator = evaluator
        self._lowest = float("inf")
        self._epochs = 0
        self.epoch = 0
        self.weights: dict[str, Tensor] = {}

    def __call__(self, network: nn.Module) -> dict[str, float]:
        self._epochs += 1
        scores = self._evaluator(network)
        if scores["kl"] < self._lowest or not self.weights:
            self._lowest, self.epoch = scores["kl"], self._epochs
            self.weights = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        return scores


@torch.no_grad()
def predict_probabilities(network: nn.Module, instances: Any, device: torch.device) -> np.ndarray:
    """Return the probabilities `[instances, classes]`, float64, of a tensor or a dataset of instances.

    In double precision, so that an instance's probabilities do not depend on the others in its batch.
    """
    network = copy.deepcopy(network).double().to(device).eval()
    parts = []
    for start in range(0, len(instances), _ROWS_PER_PASS):
        stop = min(start + _ROWS_PER_PASS, len(instances))
        if isinstance(instances, Tensor):
            batch = instances[start:stop]
        else:
            batch = instances.__getitems__(list(range(start, stop)))
        parts.append(network(batch.to(device).double()).softmax(dim=1).cpu())
    return torch.cat(parts).numpy()


def bag_report(
    bags: Bags, probabilities: np.ndarray, classes: Sequence[Any] | np.ndarray, held_out: np.ndarray
) -> dict[str, np.ndarray]:
    """Compare known and predicted proportions: columns by name, one row per bag."""
    index, sizes = bags.layout.bag_index.numpy(), bags.layout.host_sizes
    sums = [np.bincount(index, weights=column, minlength=bags.num_bags) for column in probabilities.T]
    predicted = np.stack(sums, axis=1) / sizes[:, None]
    known = bags.proportions.numpy().astype(np.float64)
    names = np.empty(bags.num_bags, dtype=object)
    names[:] = bags.bag_names
    report: dict[str, np.ndarray] = {"bag": names, "size": np.array(sizes), "held_out": held_out}
    report |= {f"known {label}": known[:, place] for place, label in enumerate(classes)}
    report |= {f"predicted {label}": predicted[:, place] for place, label in enumerate(classes)}
    report["l1"] = np.abs(known - predicted).sum(axis=1)
    return report


def seed_of(random_state: int | np.random.RandomState | None) -> int:
    """Return a seed without touching global random state, which scikit-learn's check_random_state would."""
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    check_between("random_state", random_state, 0, float("inf"))
    return int(random_state)
