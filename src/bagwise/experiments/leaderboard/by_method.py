"""Contenders that train a network with a registered method."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from bagwise.experiments.leaderboard.budget import split_budget
from bagwise.experiments.leaderboard.contest import Attempt, Task
from bagwise.experiments.records import Candidate
from bagwise.experiments.sweep import Announce
from bagwise.experiments.time_limit import TimeLimit
from bagwise.experiments.trials import Trials, run_trials
from bagwise.methods import fewest_instances, get_method


@dataclass(frozen=True)
class ByMethod:
    """Trains with a method at its default hyper-parameters; held-out bags choose the learning rate.

    Attributes:
        method: its registered name.
        passes_per_epoch: forward and backward passes of an instance in an epoch.
    """

    method: str
    passes_per_epoch: float = 1.0

    def run(self, task: Task, work: Path, limit: TimeLimit, announce: Announce) -> Attempt:
        """Search, then train on all bags."""
        least = fewest_instances(get_method(self.method), task.bags)
        spending = split_budget(task.budget, self.passes_per_epoch, len(task.learning_rates), task.search_share)
        trials = Trials(
            name=task.name,
            bags=task.bags,
            method=self.method,
            network=task.network,
            input_shape=tuple(task.instances.shape[1:]),
            recipe=replace(
                task.recipe,
                epochs=spending.epochs,
                # at least one bag
                batch_instances=max(task.recipe.batch_instances, least, int(task.bags.layout.sizes.max())),
            ),
            candidates=tuple(Candidate(rate) for rate in task.learning_rates),
            search_epochs=spending.search_epochs,
            held_out=task.held_out,
            augment=task.views.weak,
            strong_augment=task.views.strong,
            evaluator=task.evaluator,
            evaluate_every=max(1, round(task.evaluate_every / self.passes_per_epoch)),
            checkpoint_every=task.checkpoint_every,
            is_small=task.is_small,
            passes_per_epoch=self.passes_per_epoch,
        )
        return Attempt(run_trials(trials, work, limit, announce), spending.passes)
