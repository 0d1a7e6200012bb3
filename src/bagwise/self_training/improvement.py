"""Self-training where nothing is pretrained, as on tables: improve a trained network, if held-out bags agree."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bagwise.bags import Augment, Bags
from bagwise.functional.labelling import Labelling
from bagwise.functional.proportion import bag_kl
from bagwise.probe import fit_probe
from bagwise.self_training.em import self_train
from bagwise.self_training.instances import rows_in_memory
from bagwise.self_training.stage import launch_stage
from bagwise.training.evaluation import Normalise, Predictor
from bagwise.training.recipe import Recipe
from bagwise.training.run import check_parts


@dataclass(frozen=True, eq=False)
class Improvement:
    """What came of it.

    Attributes:
        network: the better of two, in evaluation mode: the one that was handed in, or one that learned from labels.
        improved: whether it is the latter.
        taught: the one that learned from labels, kept or not.
        start: whose labels were learned from, "network" or "probe".
        criterion: mean KL(known | predicted) of the held-out bags, by "network", "probe" and "self-training"; empty
            where no bags are held out.
        history: of self-training, one entry per epoch.
    """

    network: nn.Module
    improved: bool
    taught: nn.Module
    start: str
    criterion: dict[str, float]
    history: list[dict[str, Any]]


def improve(
    network: nn.Module,
    *,
    bags: Bags,
    held_out: np.ndarray,
    recipe: Recipe,
    augment: Augment | None = None,
    strong_augment: Augment | None = None,
    labelling: Labelling = Labelling(),  # noqa: B008  (frozen)
    accelerator: str = "auto",
    progress: bool = True,
) -> Improvement:
    """Let a copy of a trained network learn from its own labels, or from a probe's, and keep the better of the two.

    Labels start from the predictions of the network, or from those of `fit_probe` on the instances as they are where
    these fit held-out bags better. The copy that learned from them replaces the network only if it, too, fits them
    better. Better means by more than a standard error: as far as bags can tell, self-training is never a loss.
    Where no bags are held out, labels start from the probe, which chooses by folds of its own, and the copy is kept.

    Args:
        network: from instances to logits, trained on the bags that are not held out, e.g. by KL. It is left as it is.
        bags: all bags. Of those held out, only the instances are learned from.
        held_out: `[bags]` booleans; there may be none. Those with unknown proportions decide nothing.
        recipe: as for `self_train`.
        augment: weak views, as for `self_train`; None for the instances as they are.
        strong_augment: strong views, e.g. `bags.SwappedColumns`; None for weak ones.
        labelling: as for `self_train`.
        accelerator: "auto", "cpu", "cuda" or another of Lightning Fabric's.
        progress: whether to show a progress bar when run in a terminal.

    Example:
        >>> bags = Bags(torch.randn(64, 4), torch.arange(64) // 8, torch.full((8, 2), 0.5))
        >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> recipe = Recipe(epochs=2, batch_instances=32, ema=0.9)
        >>> result = improve(network, bags=bags, held_out=np.zeros(8, dtype=bool), recipe=recipe)
        >>> result.improved, result.start
        (True, 'probe')
    """
    check_parts(network, recipe, bags)
    launch_stage("self-training", recipe, accelerator)  # what it refuses, it refuses before the probe takes its time
    normalise = None if augment is None else augment.normalise
    held_out = held_out & ~bags.proportions[:, 0].isnan().numpy()  # the others have nothing to decide by
    shown = bags.proportions.clone()
    shown[torch.from_numpy(held_out)] = torch.nan
    training = Bags(bags.instances, bags.layout.bag_index, shown)
    logits = {
        "network": _logits(network, bags, normalise),
        "probe": fit_probe(rows_in_memory(bags.instances), bags.layout, shown, seed=recipe.seed).logits,
    }
    start = _better(logits, "network", "probe", bags, held_out)
    student = copy.deepcopy(network)
    result = self_train(
        student,
        bags=training,
        recipe=recipe,
        augment=augment,
        strong_augment=strong_augment,
        labelling=labelling,
        start=logits[start].softmax(dim=1),
        accelerator=accelerator,
        progress=progress,
    )
    logits["self-training"] = _logits(student, bags, normalise)
    improved = _better(logits, "network", "self-training", bags, held_out) == "self-training"
    divergences = {name: _divergences(values, bags, held_out) for name, values in logits.items()}
    return Improvement(
        network=student if improved else network.eval(),
        improved=improved,
        taught=student,
        start=start,
        criterion={name: float(values.mean()) for name, values in divergences.items()} if held_out.any() else {},
        history=result.history,
    )


def _better(logits: dict[str, Tensor], first: str, second: str, bags: Bags, held_out: np.ndarray) -> str:
    """Return `second` unless `first` is about as good on the held-out bags, or better."""
    if not held_out.any():
        return second
    gain = _divergences(logits[first], bags, held_out) - _divergences(logits[second], bags, held_out)
    error = float(gain.std(correction=0)) / len(gain) ** 0.5
    return second if float(gain.mean()) > error else first


def _divergences(logits: Tensor, bags: Bags, held_out: np.ndarray) -> Tensor:
    """KL(known | predicted) of the held-out bags."""
    known = bags.proportions.double()
    losses = bag_kl(logits.cpu().double(), bags.layout, known, reduction="none")  # without the entropy of the known
    return (losses + torch.xlogy(known, known).sum(dim=1))[torch.from_numpy(held_out)]


def _logits(network: nn.Module, bags: Bags, normalise: Normalise | None) -> Tensor:
    return Predictor(bags.instances, normalise).logits(network)
