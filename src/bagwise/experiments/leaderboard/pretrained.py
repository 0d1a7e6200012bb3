"""A network with features that were learned without proportions: made once for all bags of a data set and seed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from bagwise.bags.crops import RandomCrops
from bagwise.experiments.leaderboard.budget import FORWARD
from bagwise.experiments.leaderboard.contest import Task
from bagwise.experiments.locking import locked
from bagwise.experiments.sweep import Announce
from bagwise.experiments.time_limit import TimeLimit
from bagwise.networks import build_network
from bagwise.self_training import Contrast, pretrain
from bagwise.self_training.pretraining import PRETRAINING
from bagwise.training import Recipe
from bagwise.training.folder import RunFolder

# two views of an instance through the student, forward and backward, and through the teacher, forward
PASSES_PER_EPOCH = 2 + 2 * FORWARD
# The part of a budget for it. The probe leaves the rest to self-training: one pretraining serves both.
SHARE = 5 / 8
# the first epochs see views of 3/4 of the side, which cost by their area, where the network takes images of any size
_SMALLER = 3 / 4
_TAKES_ANY_SIZE = frozenset({"resnet18"})


@dataclass(frozen=True, eq=False)
class Pretrained:
    """The network, how it was trained, its history (an entry per epoch), and the passes that it took.

    `key` names all that decided it.
    """

    key: str
    network: nn.Module
    recipe: Recipe
    history: list[dict[str, Any]]
    passes: float


def pretraining_passes(epochs: int, *, starts_small: bool) -> float:
    """Return the passes per instance of so many epochs."""
    small = round(Contrast().small_share * epochs) if starts_small else 0
    return PASSES_PER_EPOCH * (small * _SMALLER**2 + epochs - small)


def pretrain_for(task: Task, views: RandomCrops, work: Path, limit: TimeLimit, announce: Announce) -> Pretrained:
    """Pretrain the task's network on all its instances for as many epochs as its share of the budget buys.

    The checkpoint stays in `work`, where other cells with the same seed find it: no bag has a part in it. Its seconds
    and passes are those of every cell that uses it.
    """
    starts_small = task.network in _TAKES_ANY_SIZE
    budget, epochs = SHARE * task.budget, 0
    while pretraining_passes(epochs + 1, starts_small=starts_small) <= budget:
        epochs += 1
    if epochs == 0:
        raise ValueError(f"{budget:g} passes for pretraining do not buy one epoch of it. Raise the budget.")
    passes = pretraining_passes(epochs, starts_small=starts_small)
    recipe = replace(task.adapted(PRETRAINING), epochs=epochs)
    _, height, _ = task.instances.shape[1:]
    network = build_network(task.network, task.instances.shape[1:], task.bags.num_classes, recipe.seed)
    key = hashlib.sha256(repr((task.network, recipe, views)).encode()).hexdigest()[:12]
    folder = work / f"pretrained-seed{recipe.seed}-{key}"
    with locked(work / f"{folder.name}.lock", wait=True):
        log = RunFolder(folder).log
        done = len(log.read_bytes().splitlines()) if log.exists() else 0
        if done < epochs:
            limit.check(passes * (1 - done / epochs))
        announce("pretraining", passes)
        result = pretrain(
            network,
            task.instances,
            augment=views,
            small_augment=replace(views, size=round(_SMALLER * height)) if starts_small else None,
            recipe=recipe,
            folder=folder,
            checkpoint_every=task.checkpoint_every or 10,
            accelerator=task.accelerator,
            progress=False,
        )
    new = result.history[result.resumed_from :]
    limit.note(passes * len(new) / epochs, sum(entry["seconds"] for entry in new))
    return Pretrained(key, result.network, recipe, result.history, passes)
