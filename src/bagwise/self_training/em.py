"""Self-training: from a network's features, or from given probabilities, to a trained network."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bagwise.bags import Augment, Bags
from bagwise.bags.setting_checks import check_count
from bagwise.bags.validation import check_probabilities
from bagwise.functional.labelling import Labelling
from bagwise.networks import split_head
from bagwise.probe import Probe, fit_probe
from bagwise.self_training.stage import History, describe, launch_stage, run_stage
from bagwise.self_training.teaching import Teaching
from bagwise.training.devices import tuned_convolutions
from bagwise.training.evaluation import Predictor
from bagwise.training.recipe import Recipe
from bagwise.training.run import check_parts, contents_digest, digest

SELF_TRAINING = Recipe(epochs=120, learning_rate=0.1, weight_decay=5e-4, ema=0.995)


@dataclass(frozen=True, eq=False)
class SelfTrainingResult:
    """What self-training gives back.

    Attributes:
        network: the trained network, in evaluation mode.
        history: one entry per epoch: "epoch" (from 1), "loss", "learning_rate", "seconds", "sure" (share of the
            instances that were learned from), "bag_kl" (of the predictions against the known proportions), and where
            asked for "evaluation" and "labels".
        resumed_from: how many epochs had been done before, by an earlier run in the same folder.
        labels: `[instances, classes]` the last labels of the training instances; they meet the proportions to about a
            percent.
        probe_seconds: what the probe took that the labels started from; 0 where `start` was given.
    """

    network: nn.Module
    history: History
    resumed_from: int
    labels: Tensor
    probe_seconds: float


def self_train(
    network: nn.Module,
    *,
    bags: Bags,
    recipe: Recipe = SELF_TRAINING,
    augment: Augment | None = None,
    strong_augment: Augment | None = None,
    labelling: Labelling = Labelling(),  # noqa: B008  (frozen)
    start: Tensor | np.ndarray | None = None,
    evaluator: Callable[[nn.Module], dict[str, float]] | None = None,
    label_evaluator: Callable[[Tensor], dict[str, float]] | None = None,
    evaluate_every: int = 1,
    folder: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 10,
    accelerator: str = "auto",
    progress: bool = True,
) -> SelfTrainingResult:
    """Train `network` in place by labelling and learning in turns (see `teaching.Teaching`).

    The time and the memory of an epoch do not depend on the size of the bags: instances are learned from in ordinary
    batches, and a bag is whole only when its proportions are apportioned, by numbers per instance and class.

    It runs in one process, on one device. With a `folder`, a run that was stopped, in whatever way, goes on where it
    was when it is started again.

    Args:
        network: ends with an `nn.Linear`; pretrained where that helps (see `pretrain`).
        bags: what to learn from; instances of bags with unknown proportions help, too.
        recipe: optimizer, schedule, batch size; `ema` makes the teacher. `patience`, `accumulate` and `chunk_instances`
            have no part here and are refused.
        augment: weak views, for the teacher; None for the instances as they are.
        strong_augment: strong views, for the student; None for weak ones.
        labelling: how probabilities become labels to learn from.
        start: `[instances, classes]` probabilities to start from, tensor or array; None: those of `fit_probe` on the
            network's features.
        evaluator: called with the network after an epoch, e.g. `training.Evaluator`, the one place for labels.
        label_evaluator: called with the labels `[instances, classes]` of the training instances after an epoch.
        evaluate_every: epochs between evaluations; the last epoch is always evaluated.
        folder: where the checkpoint and the log are kept; None keeps none.
        checkpoint_every: epochs between checkpoints; the last epoch always has one.
        accelerator: "auto", "cpu", "cuda" or another of Lightning Fabric's.
        progress: whether to show a progress bar when run in a terminal.

    Example:
        >>> import torch
        >>> bags = Bags(torch.randn(64, 4), torch.arange(64) // 8, torch.full((8, 2), 0.5))
        >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> result = self_train(network, bags=bags, recipe=Recipe(epochs=2, batch_instances=32))
        >>> result.labels.shape
        torch.Size([64, 2])
    """
    check_parts(network, recipe, bags)
    check_count("evaluate_every", evaluate_every)
    check_count("checkpoint_every", checkpoint_every)
    if start is not None:
        if isinstance(start, np.ndarray):
            start = torch.from_numpy(np.ascontiguousarray(start))
        check_probabilities("start", start, num_instances=bags.num_instances, num_classes=bags.num_classes)
    fabric = launch_stage("self-training", recipe, accelerator)
    network.to(fabric.device)
    # not the digest of a probe: on a GPU the same probe is never quite the same
    start_of_run = "probe" if start is None else digest(start)
    started = time.perf_counter()
    if start is None:
        start = probabilities_by_probe(network, bags, None if augment is None else augment.normalise, recipe.seed)
    probe_seconds = time.perf_counter() - started
    run = describe(
        network,
        stage="self-training",
        start=start_of_run,
        bags=[
            *(bags.num_bags, bags.num_instances, bags.num_classes),
            digest(bags.proportions, bags.layout.bag_index),
            contents_digest(bags.instances),
        ],
        labelling=labelling,
        recipe=recipe,
        augment=augment,
        strong_augment=strong_augment,
    )
    teaching = Teaching(
        network,
        bags=bags,
        start=start,
        augment=augment,
        strong_augment=strong_augment,
        labelling=labelling,
        recipe=recipe,
        fabric=fabric,
    )

    def evaluate(entry: Mapping[str, Any]) -> dict[str, Any]:
        if entry["epoch"] % evaluate_every and entry["epoch"] != recipe.epochs:
            return {}
        scores: dict[str, Any] = {}
        if evaluator is not None:
            with fabric.autocast():
                scores["evaluation"] = evaluator(teaching.best_network)
        if label_evaluator is not None:
            scores["labels"] = label_evaluator(teaching.labels)
        return scores

    with tuned_convolutions(few_shapes=True):
        history, resumed_from = run_stage(
            teaching,
            epochs=recipe.epochs,
            run=run,
            folder=folder,
            checkpoint_every=checkpoint_every,
            progress=progress,
            after_epoch=evaluate,
        )
    teaching.finish()
    return SelfTrainingResult(network, history, resumed_from, teaching.labels.cpu(), probe_seconds)


def probabilities_by_probe(
    network: nn.Module, bags: Bags, normalise: Callable[[Tensor], Tensor] | None, seed: int
) -> Tensor:
    """Return the probabilities `[instances, classes]` of a probe on the features of `network`'s body."""
    device = next(network.parameters()).device
    features = Predictor(bags.instances, normalise).logits(split_head(network)[0])
    # what follows rests on labels of its own in any case
    probe = Probe(self_taught=True)
    fit = fit_probe(features, bags.layout, bags.proportions, probe=probe, seed=seed, device=device)
    return fit.logits.softmax(dim=1)
