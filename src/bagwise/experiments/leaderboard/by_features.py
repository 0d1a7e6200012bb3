"""Contenders that start from features: the probe, and self-training."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from bagwise.experiments.leaderboard.budget import FORWARD, split_budget
from bagwise.experiments.leaderboard.by_method import ByMethod
from bagwise.experiments.leaderboard.contest import Attempt, Task
from bagwise.experiments.leaderboard.pretrained import pretrain_within
from bagwise.experiments.records import Candidate, Selection
from bagwise.experiments.sweep import Announce
from bagwise.experiments.time_limit import TimeLimit
from bagwise.experiments.trials import Outcome
from bagwise.networks import split_head
from bagwise.probe import fit_probe
from bagwise.self_training import probabilities_by_probe, self_train
from bagwise.self_training.em import SELF_TRAINING
from bagwise.training import Recipe
from bagwise.training.evaluation import Predictor

# one strong view forward and backward, and the teacher on a weak view forward
_PASSES_PER_EPOCH = 1 + FORWARD
_INSTANCES_PER_PREDICTION = 2048


@dataclass(frozen=True)
class ByProbe:
    """Fits a linear head on smoothed features: of a network that all of the budget pretrains, or the instances' own.

    Without pretraining (tables, digits) the instances themselves are the features, and no pass is spent.
    """

    def run(self, task: Task, work: Path, limit: TimeLimit, announce: Announce) -> Attempt:
        """Pretrain where that is possible, then fit."""
        history, passes, body = [], 0.0, nn.Flatten()
        if task.views.contrastive is not None:
            pretrained = pretrain_within(task.budget - FORWARD, task.views.contrastive, task, work, limit, announce)
            history, passes = pretrained.history, pretrained.passes + FORWARD
            body = split_head(pretrained.network)[0]
        announce("probe", 0)
        started = time.perf_counter()
        features = Predictor(task.bags.instances, task.normalised, _INSTANCES_PER_PREDICTION).logits(body)
        fit = fit_probe(
            features, task.bags.layout, task.bags.proportions, seed=task.recipe.seed, device=features.device
        )
        seconds = time.perf_counter() - started
        network = nn.Sequential(body, fit.network).to(features.device).eval()
        fitted = {"loss": math.nan, "seconds": seconds, "evaluation": task.evaluator()(network)}
        criterion = f"KL of held-out bags: {fit.directions} directions"
        selection = Selection(criterion, task.bags.num_bags, 0, 0, ())
        outcome = Outcome(network, selection, Candidate(None), task.recipe, *_joined(selection, history, [fitted]))
        return Attempt(outcome, passes)


@dataclass(frozen=True)
class BySelfTraining:
    """Labels and learns by turns (`self_training.self_train`), from a probe on pretrained features or from KL.

    Attributes:
        first_share: the part of the budget for the first stage: contrastive pretraining, or without it (tables,
            digits) a training by KL, whose search also chooses the learning rate.
    """

    first_share: float = 0.7

    def run(self, task: Task, work: Path, limit: TimeLimit, announce: Announce) -> Attempt:
        """Run the stages one after the other."""
        budget = self.first_share * task.budget
        if task.views.contrastive is None:
            first = ByMethod("kl").run(replace(task, budget=budget), work, limit, announce)
            known = first.outcome
            predictor = Predictor(task.bags.instances, task.normalised, _INSTANCES_PER_PREDICTION)
            start = predictor.logits(known.network).softmax(dim=1)
            stage = _Start(known.network, start, known.history, first.passes, known.selection, known.chosen)
            return _self_train(stage, task.adapted(known.recipe), task, work, limit, announce)
        pretrained = pretrain_within(budget, task.views.contrastive, task, work, limit, announce)
        announce("probe", 0)
        started = time.perf_counter()
        start = probabilities_by_probe(pretrained.network, task.bags, task.normalised, task.recipe.seed)
        probing = {"loss": math.nan, "seconds": time.perf_counter() - started}
        stage = _Start(
            pretrained.network,
            start,
            [*pretrained.history, probing],
            pretrained.passes,
            Selection("none, there is one candidate", task.bags.num_bags, 0, 0, ()),
            Candidate(SELF_TRAINING.learning_rate),
        )
        return _self_train(stage, task.adapted(SELF_TRAINING), task, work, limit, announce)


@dataclass(frozen=True, eq=False)
class _Start:
    """What self-training starts from: weights, probabilities `[instances, classes]`, and what they have cost."""

    network: nn.Module
    probabilities: Tensor
    history: list[dict[str, Any]]
    passes: float
    selection: Selection
    chosen: Candidate


def _self_train(start: _Start, recipe: Recipe, task: Task, work: Path, limit: TimeLimit, announce: Announce) -> Attempt:
    """Spend what the first stage has left."""
    left = task.budget - start.passes - FORWARD  # of the predictions to start from
    spending = split_budget(left, _PASSES_PER_EPOCH, candidates=1, search_share=0)
    recipe = replace(recipe, epochs=spending.epochs, ema=SELF_TRAINING.ema)
    limit.check(spending.passes)
    announce("self-training", spending.passes)
    started = time.perf_counter()
    result = self_train(
        start.network,
        bags=task.bags,
        recipe=recipe,
        augment=task.views.weak,
        strong_augment=task.views.strong,
        start=start.probabilities,
        evaluator=task.evaluator(),
        evaluate_every=max(1, round(task.evaluate_every / _PASSES_PER_EPOCH)),
        folder=None if task.checkpoint_every is None else work / f"{task.name}.self-training",
        checkpoint_every=task.checkpoint_every or 1,
        accelerator=task.accelerator,
        progress=False,
    )
    limit.note(spending.passes * (1 - result.resumed_from / spending.epochs), time.perf_counter() - started)
    history, seconds = _joined(start.selection, start.history, result.history)
    outcome = Outcome(result.network, start.selection, start.chosen, recipe, history, seconds)
    return Attempt(outcome, start.passes + FORWARD + spending.passes)


def _joined(selection: Selection, *stages: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], float]:
    """Return the stages' histories as one, epochs counted on, and all their seconds, those of the search included."""
    history = [{**entry, "epoch": number} for number, entry in enumerate(chain(*stages), start=1)]
    searched = sum(candidate.seconds for candidate in selection.candidates)
    return history, round(searched + sum(entry["seconds"] for entry in history), 2)
