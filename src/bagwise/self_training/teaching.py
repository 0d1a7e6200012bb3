"""The stage that labels and learns by turns: students, their teachers, and the bank of probabilities."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bagwise.bags import Augment, Bags
from bagwise.bags.data import take
from bagwise.bags.randomness import private_randomness
from bagwise.bags.seeds import derived_seed
from bagwise.functional.labelling import Labelling, apportioned, is_sure, mixed, sharpened
from bagwise.metrics import bag_metrics
from bagwise.self_training.instances import ShuffledInstances
from bagwise.training.checkpoint import Checkpoint
from bagwise.training.evaluation import evaluation_mode
from bagwise.training.recipe import Recipe
from bagwise.training.schedule import learning_rate
from bagwise.training.state import TrainingState

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_INSTANCES_PER_PREDICTION = 2048


class Teaching:
    """Labels every instance and learns from the labels, epoch by epoch; a `stage.Stage`.

    An epoch apportions the proportions of every bag among its instances, by the bank of their probabilities; trains
    each student on strong views of its instances, in ordinary shuffled batches; and mixes the predictions of the
    student's averaged weights, on weak views, into the bank. So no bag has to fit into a batch.

    The epochs are divided into rounds, each of which starts from the initial weights with the last bank, so that what
    was learned from early mistakes is forgotten. With `crossed`, each round but the last has two students: one learns
    from one half of the instances and predicts the other half. So nobody is asked about labels it has learned by
    heart, and a mistake is not confirmed by the one who was taught it.

    Args:
        network: is left with the weights of the last round's student.
        bags: what to learn from.
        start: `[instances, classes]` probabilities to start from.
        augment: weak views, for the teacher; None for the instances as they are.
        strong_augment: strong views, for the students; None for weak ones.
        labelling: how the bank becomes labels.
        rounds: how many.
        crossed: whether rounds before the last have two students.
        recipe: optimizer, schedule (of each round), batch size; `ema` makes the teacher.
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
        rounds: int,
        crossed: bool,
        recipe: Recipe,
        fabric: Fabric,
    ) -> None:
        self.network, self.num_instances = network, bags.num_instances
        self.bank = start.to(fabric.device, torch.float32)
        self._layout, self._proportions = bags.layout.to(fabric.device), bags.proportions.to(fabric.device)
        self._bags, self._crossed = bags, crossed
        self._augment, self._strong_augment = augment, strong_augment or augment
        self._labelling, self._recipe, self._fabric = labelling, recipe, fabric
        self._initial = copy.deepcopy(network.state_dict())
        self._starts = [round(number * recipe.epochs / rounds) for number in range(rounds + 1)]
        self._round = -1
        self._students: list[_Student] = []

    @property
    def labels(self) -> Tensor:
        """The plan of the present bank, `[instances, classes]`."""
        return apportioned(self.bank, self._layout, self._proportions)

    @property
    def best_network(self) -> nn.Module:
        """The network to evaluate: the averaged weights of the (first) student."""
        return self._students[0].state.best_network

    def epoch(self, number: int) -> dict[str, Any]:
        """Label, learn, and ask the teacher; return what to log."""
        self._enter_round_of(number)
        first, end = self._starts[self._round : self._round + 2]
        targets = sharpened(self.labels, self._labelling.temperature)
        weights = is_sure(targets, self._labelling.cut, self._labelling.least).float()
        losses: list[Tensor] = []
        with private_randomness(derived_seed(self._recipe.seed, "network", number), self._fabric.device):
            for student in self._students:
                losses += self._teach(student, targets, weights, number, place=number - first, length=end - first)
        agreement = bag_metrics(self.bank.clamp(min=1e-12).log(), self._layout, self._proportions)
        if number + 1 - first > self._labelling.warmup * (end - first):
            self.bank = mixed(self.bank, self._predictions(number), self._labelling.memory)
        return {
            "loss": float(torch.stack(losses).mean()),
            "learning_rate": self._students[0].state.learning_rate,
            "round": self._round + 1,
            "sure": float(weights.mean()),  # share of the instances that were learned from
            "bag_kl": agreement["kl"],  # of the bank against the known proportions, before they were apportioned
        }

    def checkpoint(self, run: Mapping[str, Any], epochs: int) -> Checkpoint:
        """Return the state after `epochs` epochs of `run`: the students, the bank and where rounds start from."""
        tensors = {"bank": self.bank, **{f"initial.{name}": value for name, value in self._initial.items()}}
        for number, student in enumerate(self._students):
            state = student.state.checkpoint(run, epochs)
            tensors |= {f"student{number}.{name}": value for name, value in state.tensors.items()}
            tensors[f"updates.{number}"] = torch.tensor(state.updates)
        return Checkpoint(run=run, epochs=epochs, updates=0, tensors=tensors)

    def load(self, checkpoint: Checkpoint) -> None:
        """Go back to the state of `checkpoint`."""
        self._initial = checkpoint.part("initial")
        self._enter_round_of(checkpoint.epochs - 1)
        for number, student in enumerate(self._students):
            updates = int(checkpoint.tensors[f"updates.{number}"])
            student.state.load(replace(checkpoint, updates=updates, tensors=checkpoint.part(f"student{number}")))
        self.bank = checkpoint.tensors["bank"].to(self._fabric.device)

    def finish(self) -> None:
        """Leave the network with the weights that are to be used, in evaluation mode."""
        self._students[0].state.finish()

    def _enter_round_of(self, epoch: int) -> None:
        wanted = int(np.searchsorted(self._starts, epoch, side="right")) - 1
        if wanted == self._round:
            return
        self._round = wanted
        is_last = wanted == len(self._starts) - 2
        seed = derived_seed(self._recipe.seed, "halves", wanted)
        everyone = np.random.default_rng(seed).permutation(self.num_instances)
        parts = np.array_split(everyone, 2) if self._crossed and not is_last else [np.arange(self.num_instances)]
        self._students = []  # two rounds need not fit into memory at once
        for number, rows in enumerate(parts):
            network = self.network if is_last else copy.deepcopy(self.network)
            network.load_state_dict(self._initial)
            network.train()
            self._students.append(self._student(network, rows, number))

    def _student(self, network: nn.Module, rows: np.ndarray, number: int) -> _Student:
        recipe, device = self._recipe, self._fabric.device
        # two networks that take turns would each overwrite the other's CUDA graph: none for them
        state = TrainingState(network, recipe, self._fabric, equal_bags=not self._crossed)
        own = take(self._bags.instances, rows) if len(rows) < self.num_instances else self._bags.instances
        seed = derived_seed(recipe.seed, "student", self._round, number)
        batches = ShuffledInstances(own, recipe.batch_instances, seed=seed, device=device)
        return _Student(state, torch.from_numpy(rows).to(device), batches)

    def _teach(
        self, student: _Student, targets: Tensor, weights: Tensor, epoch: int, place: int, length: int
    ) -> list[Tensor]:
        """Train one student for an epoch, the round's `place` of `length`; return the losses of its batches."""
        batches, losses = student.batches, []
        generator = batches.generator("strong views", epoch)
        for step, (chosen, instances) in enumerate(batches.epoch(epoch)):
            rows = student.rows[chosen]
            views = instances if self._strong_augment is None else self._strong_augment(instances, generator)
            per_instance = F.cross_entropy(student.state.model(views), targets[rows], reduction="none")
            loss = (per_instance * weights[rows]).mean()
            self._fabric.backward(loss)
            student.state.step(learning_rate(self._recipe, (place + (step + 0.5) / batches.num_batches) / length))
            losses.append(loss.detach())
        return losses

    @torch.no_grad()
    def _predictions(self, epoch: int) -> Tensor:
        """Probabilities `[instances, classes]` by the students' averaged weights, on weak views."""
        predictions = torch.empty_like(self.bank)
        # of two students each predicts what the other has learned
        for student, asked in zip(self._students, self._students[::-1], strict=True):
            generator = asked.batches.generator("weak views", epoch)
            network = student.state.best_network
            with evaluation_mode(network), self._fabric.autocast():
                for place, instances in asked.batches.in_order(_INSTANCES_PER_PREDICTION):
                    views = instances if self._augment is None else self._augment(instances, generator)
                    predictions[asked.rows[place]] = network(views).float().softmax(dim=1)
        return predictions


class _Student:
    """One network, the instances it learns from, and where they lie among all."""

    def __init__(self, state: TrainingState, rows: Tensor, batches: ShuffledInstances) -> None:
        self.state, self.rows, self.batches = state, rows, batches
