"""Contrastive pretraining: features from the instances alone, without any proportions."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bagwise.bags import Augment
from bagwise.bags.data import as_instances
from bagwise.bags.randomness import private_randomness
from bagwise.bags.seeds import derived_seed
from bagwise.bags.setting_checks import check_between, check_count
from bagwise.networks import split_head
from bagwise.self_training.contrast import ContrastiveNetwork, contrastive_loss
from bagwise.self_training.instances import ShuffledInstances
from bagwise.self_training.stage import describe, launch_stage, run_stage
from bagwise.training.checkpoint import Checkpoint
from bagwise.training.devices import tuned_convolutions
from bagwise.training.loop import TrainingResult
from bagwise.training.recipe import Recipe
from bagwise.training.run import check_parts, contents_digest
from bagwise.training.schedule import learning_rate
from bagwise.training.state import TrainingState

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# `ema` is the teacher's; `learning_rate` goes with batches of 512 images.
PRETRAINING = Recipe(epochs=240, learning_rate=0.2, weight_decay=5e-4, warmup=0.03, ema=0.99)


@dataclass(frozen=True)
class Contrast:
    """What is asked of the features.

    Attributes:
        temperature: of the contrastive loss; the lower, the more the most similar other images count.
        small_share: share of the epochs, from the first on, that see the small views, where there are any.
    """

    temperature: float = 0.2
    small_share: float = 0.7

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"temperature must be positive and finite, but got {self.temperature}.")
        check_between("small_share", self.small_share, 0, 1)


def pretrain(
    network: nn.Module,
    instances: Any,
    *,
    augment: Augment,
    small_augment: Augment | None = None,
    contrast: Contrast = Contrast(),  # noqa: B008  (frozen)
    recipe: Recipe = PRETRAINING,
    after_epoch: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
    folder: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 10,
    accelerator: str = "auto",
    progress: bool = True,
) -> TrainingResult:
    """Train the body of `network` in place to tell images apart, whatever the view; its head is left alone.

    MoCo v3 (Chen, Xie, He, 2021): the student predicts, from one random view of an image, how the teacher projects
    another view of it, among the views of all images of the batch. The teacher is the moving average of the student,
    running statistics of batch norm included, and uses those (EMAN: Cai et al., 2021); the network ends with its
    weights. No bag and no proportion plays a part, so that one pretrained network serves all bag sizes.

    It runs in one process, on one device. With a `folder`, a run that was stopped goes on where it was when it is
    started again.

    Args:
        network: ends with an `nn.Linear` (see `networks.split_head`).
        instances: `[instances, ...]`, tensor, array or map-style dataset.
        augment: makes the views, e.g. `bags.RandomCrops`.
        small_augment: makes smaller views for the first epochs, which are cheaper; the network must take any size.
        contrast: temperature and the share of the epochs with small views.
        recipe: optimizer, schedule, batch size; `ema` is the teacher's decay. `patience`, `accumulate` and
            `chunk_instances` have no part here and are refused.
        after_epoch: called with the entry of an epoch in the history; returns what to add to it.
        folder: where the checkpoint and the log are kept; None keeps none.
        checkpoint_every: epochs between checkpoints; the last epoch always has one.
        accelerator: "auto", "cpu", "cuda" or another of Lightning Fabric's.
        progress: whether to show a progress bar when run in a terminal.

    Example:
        >>> from bagwise.bags.crops import RandomCrops
        >>> from bagwise.networks import build_network
        >>> network = build_network("small-convnet", (1, 8, 8), num_classes=10, seed=0)
        >>> images = torch.randint(0, 256, (64, 1, 8, 8), dtype=torch.uint8)
        >>> views = RandomCrops(mean=(0.5,), std=(0.25,))
        >>> result = pretrain(network, images, augment=views, recipe=Recipe(epochs=2, batch_instances=32, ema=0.9))
        >>> len(result.history)
        2
    """
    check_parts(network, recipe)
    check_count("checkpoint_every", checkpoint_every)
    if recipe.ema is None:
        raise ValueError(
            "pretraining has a teacher with averaged weights, but recipe.ema is None. Set it, e.g. to 0.99."
        )
    instances = as_instances(instances)
    if len(instances) < 2:
        raise ValueError("to tell images apart there must be at least 2 of them.")
    body, head = split_head(network)
    student = ContrastiveNetwork(body, head.in_features, seed=derived_seed(recipe.seed, "projector"))
    fabric = launch_stage("pretraining", recipe, accelerator)
    stage = _Pretraining(student, instances, augment, small_augment, contrast, recipe, fabric)
    run = describe(
        network,
        stage="pretraining",
        instances=[len(instances), contents_digest(instances)],
        augment=augment,
        small_augment=small_augment,
        contrast=contrast,
        recipe=recipe,
    )
    student.train()  # not the network: its body is a copy of the outermost module, with a mode of its own
    with tuned_convolutions(few_shapes=True):
        history, resumed_from = run_stage(
            stage,
            epochs=recipe.epochs,
            run=run,
            folder=folder,
            checkpoint_every=checkpoint_every,
            progress=progress,
            after_epoch=after_epoch,
        )
    stage.state.finish()
    network.to(fabric.device).eval()  # the head, too
    return TrainingResult(network, history, resumed_from)


class _Pretraining:
    """The stage: see `stage.Stage`."""

    def __init__(
        self,
        student: ContrastiveNetwork,
        instances: Any,
        augment: Augment,
        small_augment: Augment | None,
        contrast: Contrast,
        recipe: Recipe,
        fabric: Fabric,
    ) -> None:
        self.network, self.num_instances = student, len(instances)
        self.state = TrainingState(student, recipe, fabric, equal_bags=True)
        teacher = self.state.best_network
        assert isinstance(teacher, ContrastiveNetwork)
        projecting: nn.Module = nn.Sequential(teacher.body, teacher.projector)
        # without a CUDA graph of its own: the student's would overwrite what this one returns
        self._teacher: Callable[[Tensor], Tensor] = (
            torch.compile(projecting, dynamic=False) if recipe.compile else projecting  # pyright: ignore[reportAssignmentType]
        )
        self._batches = ShuffledInstances(instances, recipe.batch_instances, seed=recipe.seed, device=fabric.device)
        self._augment, self._small_augment, self._contrast = augment, small_augment, contrast
        self._recipe, self._fabric = recipe, fabric

    def epoch(self, number: int) -> dict[str, Any]:
        recipe, num_batches = self._recipe, self._batches.num_batches
        is_small = number < round(self._contrast.small_share * recipe.epochs)
        augment = self._small_augment if self._small_augment is not None and is_small else self._augment
        generator = self._batches.generator("views", number)
        losses: list[Tensor] = []
        with private_randomness(derived_seed(recipe.seed, "network", number), self._fabric.device):
            for step, (_, images) in enumerate(self._batches.epoch(number)):
                views = augment(torch.cat([images, images]), generator)
                with torch.no_grad(), self._fabric.autocast():
                    projections = self._teacher(views).float()
                loss = contrastive_loss(self.state.model(views), projections, self._contrast.temperature)
                self._fabric.backward(loss)
                self.state.step(learning_rate(recipe, (number + (step + 0.5) / num_batches) / recipe.epochs))
                losses.append(loss.detach())
        return {"loss": float(torch.stack(losses).mean()), "learning_rate": self.state.learning_rate}

    def checkpoint(self, run: Mapping[str, Any], epochs: int) -> Checkpoint:
        return self.state.checkpoint(run, epochs)

    def load(self, checkpoint: Checkpoint) -> None:
        self.state.load(checkpoint)
