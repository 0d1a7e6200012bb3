"""What a contender is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

from bagwise.bags import Bags
from bagwise.experiments.leaderboard.data import Views
from bagwise.experiments.sweep import Announce
from bagwise.experiments.time_limit import TimeLimit
from bagwise.experiments.trials import Outcome
from bagwise.training import Recipe


@dataclass(frozen=True, eq=False)
class Task:
    """All that a contender may know. No label is in it: `evaluator` keeps those of the test set to itself.

    Attributes:
        name: the cell's, which names the files that a run keeps while it is going on.
        bags: what to learn from.
        instances: all training instances, also those that are in no bag, without proportions.
        views: how instances may be changed.
        network: the name of the network to train.
        recipe: how to train it: optimizer, schedule, batches, seed; epochs and learning rate are the contender's.
        learning_rates: those that a contender may try.
        budget: passes per training instance, for all that it does.
        search_share: the part of the budget for the choice of a setting, at most.
        held_out: share of the bags to choose on.
        evaluator: builds what scores the final network; nothing may be chosen by it.
        evaluate_every: passes between the scores of the final run.
        checkpoint_every: epochs between its checkpoints; None for none.
        is_small: the network is too small for a GPU.
    """

    name: str
    bags: Bags
    instances: Tensor
    views: Views
    network: str
    recipe: Recipe
    learning_rates: tuple[float, ...]
    budget: float
    search_share: float
    held_out: float
    evaluator: Callable[[], Callable[[nn.Module], dict[str, float]]]
    evaluate_every: int = 1
    checkpoint_every: int | None = None
    is_small: bool = False

    @property
    def accelerator(self) -> str:
        """Where to train, as `train` takes it."""
        return "cpu" if self.is_small else "auto"

    def adapted(self, recipe: Recipe) -> Recipe:
        """Return another recipe with the precision, the compilation and the seed of the task's own."""
        return replace(
            recipe,
            precision=self.recipe.precision,
            compile=self.recipe.compile,
            channels_last=self.recipe.channels_last,
            seed=self.recipe.seed,
        )

    def normalised(self, instances: Tensor) -> Tensor:
        """Return instances as the network takes them, unchanged otherwise."""
        return instances if self.views.weak is None else self.views.weak.normalise(instances)


@dataclass(frozen=True)
class Attempt:
    """What a contender did: the outcome of its runs, and the passes per training instance that they took."""

    outcome: Outcome
    passes: float


class Contender(Protocol):
    """A way to spend a budget on bags."""

    def run(self, task: Task, work: Path, limit: TimeLimit, announce: Announce) -> Attempt:
        """Learn from `task.bags` within `task.budget`; keep in the folder `work` what should survive a kill."""
        ...
