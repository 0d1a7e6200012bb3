"""Train a network on bags, keep a good epoch by held-out bags, and compare it with every bag."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bagwise.bags import Augment, Bags
from bagwise.bags.seeds import derived_seed
from bagwise.bags.setting_checks import check_random_state
from bagwise.functional import bag_kl
from bagwise.functional.noise import ProportionNoise, noisy_bag_kl
from bagwise.methods import Method, NoisyKL, get_method
from bagwise.metrics import bag_metrics
from bagwise.probe import Probe, fit_probe
from bagwise.self_training import Labelling, improve
from bagwise.self_training.instances import rows_in_memory
from bagwise.self_training.stage import launch_stage, without_bag_fields
from bagwise.training import Recipe, train
from bagwise.training.evaluation import Predictor

# With fewer bags than this, held-out bags would say little and be missed in the training.
FEWEST_BAGS_TO_HOLD_OUT_FROM = 20

_ROWS_PER_PASS = 8192

# Of the weights of a self-trained network.
_AVERAGING = 0.99

# How much worse than the best a later epoch may be, in standard errors of the difference.
_HELD_OUT_SLACK = 0.5


@dataclass(frozen=True)
class FittedNetwork:
    """A network with the weights of its best epoch.

    Attributes:
        network: on the CPU, in evaluation mode.
        history: one dict per epoch, as `TrainingResult.history`.
        best_epoch: the epoch whose weights it has: the last that is about as good on held-out bags as the best one, or
            the last of all where no bags are held out.
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
    strong_augment: Augment,
    held_out: np.ndarray,
    accelerator: str,
    progress: bool,
) -> FittedNetwork:
    """Train on the bags that are not held out; `held_out [bags]` booleans. Without any there is no early stop.

    `strong_augment` is for methods that compare two views of an instance; others do not use it.
    """
    best = None
    training = bags
    if held_out.any():
        training = bags.subset(np.flatnonzero(~held_out))
        noise = method.noise if isinstance(method, NoisyKL) else None
        best = _BestEpoch(HeldOutBags(bags.subset(np.flatnonzero(held_out)), noise))
    else:
        recipe = dataclasses.replace(recipe, patience=None)
    result = train(
        network,
        bags=training,
        method=method,
        recipe=recipe,
        strong_augment=strong_augment,
        held_out=best,
        accelerator=accelerator,
        progress=progress,
    )
    if best is None:
        return FittedNetwork(network.cpu(), result.history, len(result.history))
    network.load_state_dict(best.weights)
    return FittedNetwork(network.cpu(), result.history, best.epoch)


def fit_probe_network(
    bags: Bags, probe: Probe, *, held_out: np.ndarray, seed: int, device: torch.device
) -> FittedNetwork:
    """Fit a probe on the bags that are not held out; `held_out [bags]` booleans.

    The rows of held-out bags are neighbours like all others: only their proportions are kept from it. The inputs of
    all rows are in memory at once. The history has one entry, which also tells the "rounds" of smoothing, the number of
    "directions", whether the head is "self_taught", and the divergences of held-out folds that chose all this
    ("candidates").
    """
    proportions = bags.proportions.clone()
    proportions[torch.from_numpy(held_out)] = torch.nan
    rows = rows_in_memory(bags.instances)
    fit = fit_probe(rows, bags.layout, proportions, probe=probe, seed=seed, device=device)
    entry: dict[str, Any] = {
        "epoch": 1,
        "loss": float(bag_kl(fit.logits, bags.layout, proportions)),
        "rounds": fit.rounds,
        "directions": fit.directions,
        "self_taught": fit.self_taught,
        "candidates": [
            {"rounds": rounds, "directions": count, "kl": divergence}
            for (rounds, count), divergence in fit.criterion.items()
        ],
        "kl_self_taught": fit.self_taught_criterion,
    }
    if held_out.any():
        hidden = torch.where(torch.from_numpy(held_out)[:, None], bags.proportions, torch.nan)
        entry["held_out"] = bag_metrics(fit.logits, bags.layout, hidden)
    return FittedNetwork(fit.network, [entry], 1)


def fit_self_training(
    network: nn.Module,
    bags: Bags,
    labelling: Labelling,
    recipe: Recipe,
    *,
    strong_augment: Augment,
    held_out: np.ndarray,
    accelerator: str,
    progress: bool,
) -> FittedNetwork:
    """Train by KL, then let the network learn from labels that fit the bags, if held-out bags agree: see `improve`.

    The history holds the epochs of both, numbered through. The last entry tells the divergences of held-out bags that
    decided ("candidates"); its "held_out" is of the network that learned from labels, whether it was kept or not.
    """
    teaching = dataclasses.replace(without_bag_fields(recipe), ema=_AVERAGING)
    launch_stage("self-training", teaching, accelerator)  # several processes are refused before KL takes its time
    by_kl = fit_network(
        network,
        bags,
        get_method("kl"),
        recipe,
        strong_augment=strong_augment,
        held_out=held_out,
        accelerator=accelerator,
        progress=progress,
    )
    result = improve(
        by_kl.network,
        bags=bags,
        held_out=held_out,
        recipe=teaching,
        strong_augment=strong_augment,
        labelling=labelling,
        accelerator=accelerator,
        progress=progress,
    )
    done = len(by_kl.history)
    history = by_kl.history + [entry | {"epoch": done + entry["epoch"]} for entry in result.history]
    history[-1]["candidates"] = [{"start": name, "kl": divergence} for name, divergence in result.criterion.items()]
    if held_out.any():
        divergences, l1 = HeldOutBags(bags.subset(np.flatnonzero(held_out)), None)(result.taught)
        history[-1]["held_out"] = {"kl": float(divergences.mean()), "l1": l1}
    return FittedNetwork(result.network.cpu(), history, len(history) if result.improved else by_kl.best_epoch)


class HeldOutBags:
    """Scores a network on each of some bags by the KL divergence of its mean prediction; noise is allowed for.

    The plain KL of a small bag with noisy counts is mostly noise, and would drown what the large bags say.
    """

    def __init__(self, bags: Bags, noise: ProportionNoise | None) -> None:
        self._bags = bags
        self._noise = noise or ProportionNoise("gaussian", 0.0)
        self._predictor = Predictor(bags.instances)

    def __call__(self, network: nn.Module) -> tuple[np.ndarray, float]:
        """Return the divergence of each bag, `[bags]`, and the mean L1 distance."""
        logits = self._predictor.logits(network).cpu()
        layout, known = self._bags.layout, self._bags.proportions
        losses = noisy_bag_kl(logits, layout, known, self._noise, reduction="none")
        divergences = losses + torch.xlogy(known, known).sum(dim=1)
        return divergences.double().numpy(), bag_metrics(logits, layout, known)["l1"]


class _BestEpoch:
    """Called after each epoch; keeps the weights of the last epoch that is about as good as the best.

    A few dozen held-out bags often favour an early epoch by chance, while later ones are better for their smaller
    steps. So a later epoch is kept unless it is worse than the best by more than half a standard error of their
    difference. (On Adult, epochs chosen so were as good as the best ones on average, and rarely bad ones.)
    """

    def __init__(self, score: Callable[[nn.Module], tuple[np.ndarray, float]]) -> None:
        self._score = score
        self._best: np.ndarray | None = None  # divergences at the best epoch
        self._epochs = 0
        self.epoch = 0
        self.weights: dict[str, Tensor] = {}

    def __call__(self, network: nn.Module) -> dict[str, float]:
        self._epochs += 1
        divergences, l1 = self._score(network)
        if self._best is None or divergences.mean() < self._best.mean():
            self._best = divergences
        worse = divergences - self._best
        if not self.weights or worse.mean() <= _HELD_OUT_SLACK * worse.std() / np.sqrt(len(worse)):
            self.epoch = self._epochs
            self.weights = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        return {"kl": float(divergences.mean()), "l1": l1}


@torch.no_grad()
def predict_probabilities(network: nn.Module, instances: Any, device: torch.device) -> np.ndarray:
    """Return the probabilities `[instances, classes]`, float64, of a tensor or a dataset of instances.

    In double precision, so that an instance's probabilities do not depend on the others in its batch.
    """
    return torch.cat([part for _, part in _passes(network, instances, device)]).numpy()


@torch.no_grad()
def predict_proportions(network: nn.Module, bags: Bags, device: torch.device) -> np.ndarray:
    """Return the mean probabilities of each bag, `[bags, classes]` float64; those of all instances are never kept."""
    sums = torch.zeros(bags.num_bags, bags.num_classes, dtype=torch.float64)
    for start, part in _passes(network, bags.instances, device):
        sums.index_add_(0, bags.layout.bag_index[start : start + len(part)], part)
    return sums.numpy() / bags.layout.host_sizes[:, None]


def _passes(network: nn.Module, instances: Any, device: torch.device) -> Iterator[tuple[int, Tensor]]:
    """Yield where a stretch of instances starts, and its probabilities `[some, classes]`, on the CPU."""
    network = copy.deepcopy(network).double().to(device).eval()
    for start, batch in _stretches(instances):
        yield start, network(batch.to(device).double()).softmax(dim=1).cpu()


def _stretches(instances: Any) -> Iterator[tuple[int, Tensor]]:
    """Yield where a stretch of instances starts, and the instances `[some, ...]`."""
    for start in range(0, len(instances), _ROWS_PER_PASS):
        stop = min(start + _ROWS_PER_PASS, len(instances))
        if isinstance(instances, Tensor):
            yield start, instances[start:stop]
        else:
            yield start, instances.__getitems__(list(range(start, stop)))


def bag_report(
    bags: Bags, predicted: np.ndarray, classes: Sequence[Any] | np.ndarray, held_out: np.ndarray
) -> dict[str, np.ndarray]:
    """Compare known with `predicted [bags, classes]` proportions: columns by name, one row per bag."""
    known = bags.proportions.numpy().astype(np.float64)
    names = np.empty(bags.num_bags, dtype=object)
    names[:] = bags.bag_names
    report: dict[str, np.ndarray] = {"bag": names, "size": np.array(bags.layout.host_sizes), "held_out": held_out}
    report |= {f"known {label}": known[:, place] for place, label in enumerate(classes)}
    report |= {f"predicted {label}": predicted[:, place] for place, label in enumerate(classes)}
    report["l1"] = np.abs(known - predicted).sum(axis=1)
    return report


def seed_of(random_state: int | np.random.RandomState | None) -> int:
    """Return a seed without touching global random state, which scikit-learn's check_random_state would."""
    check_random_state(random_state)
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    return int(random_state)
