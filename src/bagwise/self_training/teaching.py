"""The stage that labels and learns by turns: a student, its teacher, and the bank of probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bagwise.bags import Augment, Bags
from bagwise.bags.randomness import private_randomness
from bagwise.bags.seeds import derived_seed
from bagwise.functional.labelling import Labelling, apportioned, is_sure, mixed, sharpened
from bagwise.metrics import bag_metrics
from bagwise.self_training.instances import ShuffledInstances
from bagwise.training.checkpoint import Checkpoint
from bagwise.training.evaluation import INSTANCES_PER_PASS, evaluation_mode
from bagwise.training.recipe import Recipe
from bagwise.training.schedule import learning_rate
from bagwise.training.state import TrainingState

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Teaching:
    """Labels every instance and learns from the labels, epoch by epoch; a `stage.Stage`.

    An epoch apportions the proportions of every bag among its instances, by the bank of their probabilities; trains
    the student on strong views of the instances, in ordinary shuffled batches; and mixes the predictions of the
    student's averaged weights, on weak views, into the bank. So no bag has to fit into a batch.

    Args:
        network: the student.
        bags: what to learn from.
        start: `[instances, classes]` probabilities to start from.
        augment: weak views, for the teacher; None for the instances as they are.
        strong_augment: strong views, for the student; None for weak ones.
        labelling: how the bank becomes labels.
        recipe: optimizer, schedule, batch size; `ema` makes the teacher.
        fabric: where it all happens.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        bags: Bags,
        start: Tensor,
        augment: Augment | None,
        strong_augment: Augment | None,
        labelling: Labelling,
        recipe: Recipe,
        fabric: Fabric,
    ) -> None:
        self.network, self.num_instances = network.train(), bags.num_instances
        self.bank = start.to(fabric.device, torch.float32)
        self._layout, self._proportions = bags.layout.to(fabric.device), bags.proportions.to(fabric.device)
        self._augment, self._strong_augment = augment, strong_augment or augment
        self._labelling, self._recipe, self._fabric = labelling, recipe, fabric
        self._state = TrainingState(network, recipe, fabric, equal_bags=True)
        seed = derived_seed(recipe.seed, "student", 0, 0)  # the zeros: so that records can still be reproduced
        self._batches = ShuffledInstances(bags.instances, recipe.batch_instances, seed=seed, device=fabric.device)

    @property
    def labels(self) -> Tensor:
        """The plan of the present bank, `[instances, classes]`."""
        return apportioned(self.bank, self._layout, self._proportions)

    @property
    def best_network(self) -> nn.Module:
        """The network to evaluate: the student's averaged weights."""
        return self._state.best_network

    def epoch(self, number: int) -> dict[str, Any]:
        """Label, learn, and ask the teacher; return what to log."""
        targets = sharpened(self.labels, self._labelling.temperature)
        weights = is_sure(targets, self._labelling.cut, self._labelling.least).float()
        with private_randomness(derived_seed(self._recipe.seed, "network", number), self._fabric.device):
            losses = self._teach(targets, weights, number)
        agreement = bag_metrics(self.bank.clamp(min=1e-12).log(), self._layout, self._proportions)
        if number + 1 > self._labelling.warmup * self._recipe.epochs:
            self.bank = mixed(self.bank, self._predictions(number), self._labelling.memory)
        return {
            "loss": float(torch.stack(losses).mean()),
            "learning_rate": self._state.learning_rate,
            "sure": float(weights.mean()),  # share of the instances that were learned from
            "bag_kl": agreement["kl"],  # of the bank against the known proportions, before they were apportioned
        }

    def checkpoint(self, run: Mapping[str, Any], epochs: int) -> Checkpoint:
        """Return the state after `epochs` epochs of `run`: the student's and the bank."""
        student = self._state.checkpoint(run, epochs)
        return replace(student, tensors={**student.tensors, "bank": self.bank})

    def load(self, checkpoint: Checkpoint) -> None:
        """Go back to the state of `checkpoint`."""
        self._state.load(checkpoint)
        self.bank = checkpoint.tensors["bank"].to(self._fabric.device)

    def finish(self) -> None:
        """Leave the network with the weights that are to be used, in evaluation mode."""
        self._state.finish()

    def _teach(self, targets: Tensor, weights: Tensor, epoch: int) -> list[Tensor]:
        """Train the student for an epoch; return the losses of its batches."""
        batches, recipe = self._batches, self._recipe
        losses: list[Tensor] = []
        generator = batches.generator("strong views", epoch)
        for step, (rows, instances) in enumerate(batches.epoch(epoch)):
            views = instances if self._strong_augment is None else self._strong_augment(instances, generator)
            per_instance = F.cross_entropy(self._state.model(views), targets[rows], reduction="none")
            loss = (per_instance * weights[rows]).mean()
            self._fabric.backward(loss)
            self._state.step(learning_rate(recipe, (epoch + (step + 0.5) / batches.num_batches) / recipe.epochs))
            losses.append(loss.detach())
        return losses

    @torch.no_grad()
    def _predictions(self, epoch: int) -> Tensor:
        """Probabilities `[instances, classes]` by the student's averaged weights, on weak views."""
        predictions = torch.empty_like(self.bank)
        generator, network = self._batches.generator("weak views", epoch), self.best_network
        with evaluation_mode(network), self._fabric.autocast():
            for place, instances in self._batches.in_order(INSTANCES_PER_PASS):
                views = instances if self._augment is None else self._augment(instances, generator)
                predictions[place] = network(views).float().softmax(dim=1)
        return predictions
