"""Contenders that start from features: the probe, and self-training."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from bagwise.bags.crops import RandomCrops
from bagwise.experiments.leaderboard.budget import FORWARD, split_budget
from bagwise.experiments.leaderboard.by_method import ByMethod
from bagwise.experiments.leaderboard.contest import Attempt, Task
from bagwise.experiments.leaderboard.pretrained import pretrain_for
from bagwise.experiments.records import Candidate, Selection
from bagwise.experiments.sweep import Announce
from bagwise.experiments.time_limit import TimeLimit
from bagwise.experiments.trials import Outcome
from bagwise.fitting import choose_held_out
from bagwise.networks import split_head
from bagwise.probe import fit_probe
from bagwise.self_training import improve, self_train
from bagwise.self_training.em import SELF_TRAINING
from bagwise.self_training.stage import without_bag_fields
from bagwise.training import Recipe
from bagwise.training.evaluation import Predictor

# one strong view forward and backward, and the teacher on a weak view forward
_PASSES_PER_EPOCH = 1 + FORWARD
# The part of the budget for KL, where that is the first stage.
_KL_SHARE = 0.7

# How a record says what became of self-training; `report.leaderboard_words` counts them.
KL_IS_KEPT = "KL is kept"
NONE_DECIDE = "with no bags left to decide by"


@dataclass(frozen=True)
class ByProbe:
    """Fits a linear head on smoothed features: of the network that self-training pretrains, or the instances' own.

    Without pretraining (tables, digits) the instances themselves are the features, and no pass is spent.
    """

    def run(self, task: Task, work: Path, limit: TimeLimit, announce: Announce) -> Attempt:
        """Pretrain where that is possible, then fit."""
        history, passes, body = [], 0.0, nn.Flatten()
        if (views := task.views.contrastive) is not None:
            pretrained = pretrain_for(task, views, work, limit, announce)
            history, passes = pretrained.history, pretrained.passes + FORWARD
            body = split_head(pretrained.network)[0]
        announce("probe", 0)
        started = time.perf_counter()
        features = Predictor(task.bags.instances, task.normalised).logits(body)
        fit = fit_probe(
            features, task.bags.layout, task.bags.proportions, seed=task.recipe.seed, device=features.device
        )
        seconds = time.perf_counter() - started
        network = nn.Sequential(body, fit.network).to(features.device).eval()
        fitted = {"loss": math.nan, "seconds": seconds, "evaluation": task.evaluator()(network)}
        taught = ", then self-taught" if fit.self_taught else ""
        criterion = f"KL of held-out bags: {fit.directions} directions{taught}"
        selection = Selection(criterion, task.bags.num_bags, 0, 0, ())
        outcome = Outcome(network, selection, Candidate(None), task.recipe, *_joined(selection, history, [fitted]))
        return Attempt(outcome, passes)


@dataclass(frozen=True)
class BySelfTraining:
    """Labels and learns by turns, from a probe on pretrained features (`self_training.self_train`).

    Without pretraining (tables, digits) it is what `ProportionClassifier` does: a training by KL, whose search also
    chooses the learning rate, and a copy of the network that learns from labels and replaces it where held-out bags
    agree (`self_training.improve`).
    """

    def run(self, task: Task, work: Path, limit: TimeLimit, announce: Announce) -> Attempt:
        """Run the stages one after the other."""
        if task.views.contrastive is None:
            return self._improve_kl(task, work, limit, announce)
        return self._from_pretrained(task.views.contrastive, task, work, limit, announce)

    def _from_pretrained(
        self, views: RandomCrops, task: Task, work: Path, limit: TimeLimit, announce: Announce
    ) -> Attempt:
        pretrained = pretrain_for(task, views, work, limit, announce)
        spent = pretrained.passes + FORWARD  # of the probe
        recipe, passes = _self_training_for(task.budget - spent, SELF_TRAINING, task)
        # named by all that decides its outcome, so that a preset that was changed finds nothing stale
        settings = repr((pretrained.key, recipe, task.views.weak, task.views.strong))
        key = hashlib.sha256(settings.encode()).hexdigest()[:12]
        limit.check(passes)
        announce("self-training", passes)
        started = time.perf_counter()
        result = self_train(
            pretrained.network,
            bags=task.bags,
            recipe=recipe,
            augment=task.views.weak,
            strong_augment=task.views.strong,
            evaluator=task.evaluator(),
            evaluate_every=max(1, round(task.evaluate_every / _PASSES_PER_EPOCH)),
            folder=None if task.checkpoint_every is None else work / f"{task.name}.self-training-{key}",
            checkpoint_every=task.checkpoint_every or 1,
            accelerator=task.accelerator,
            progress=False,
        )
        limit.note(passes * (1 - result.resumed_from / recipe.epochs), time.perf_counter() - started)
        selection = Selection("none, there is one candidate", task.bags.num_bags, 0, 0, ())
        probing = {"loss": math.nan, "seconds": result.probe_seconds}
        history, seconds = _joined(selection, pretrained.history, [probing], result.history)
        chosen = Candidate(SELF_TRAINING.learning_rate)
        return Attempt(Outcome(result.network, selection, chosen, recipe, history, seconds), spent + passes)

    def _improve_kl(self, task: Task, work: Path, limit: TimeLimit, announce: Announce) -> Attempt:
        held_out = choose_held_out(task.bags, task.held_out, task.recipe.seed)
        training = task.bags.subset(np.flatnonzero(~held_out))
        first = ByMethod("kl").run(replace(task, bags=training, budget=_KL_SHARE * task.budget), work, limit, announce)
        by_kl = first.outcome
        spent = first.passes + 2 * FORWARD  # what both networks predict, to start from and to compare
        # its learning rate goes with the task's batches, however large a batch of whole bags had to be
        like_kl = replace(by_kl.recipe, batch_instances=task.recipe.batch_instances)
        recipe, passes = _self_training_for(task.budget - spent, like_kl, task)
        limit.check(passes)
        announce("self-training", passes)
        started = time.perf_counter()
        result = improve(
            by_kl.network,
            bags=task.bags,
            held_out=held_out,
            recipe=recipe,
            augment=task.views.weak,
            strong_augment=task.views.strong,
            accelerator=task.accelerator,
            progress=False,
        )
        seconds = time.perf_counter() - started
        limit.note(passes, seconds)
        # the probe and the comparison count, too
        result.history[-1]["seconds"] += seconds - sum(entry["seconds"] for entry in result.history)
        result.history[-1]["evaluation"] = task.evaluator()(result.network)
        history, seconds = _joined(by_kl.selection, by_kl.history, result.history)
        if held_out.any():
            kept = f"labels of the {result.start} improve it" if result.improved else KL_IS_KEPT
            decision = f"by {held_out.sum()} others, {kept}"
        else:
            decision = f"{NONE_DECIDE}, the copy that learned from labels of the {result.start} is taken"
        selection = replace(by_kl.selection, criterion=f"{by_kl.selection.criterion}; then, {decision}")
        outcome = Outcome(result.network, selection, by_kl.chosen, recipe, history, seconds)
        return Attempt(outcome, spent + passes)


def _self_training_for(budget: float, recipe: Recipe, task: Task) -> tuple[Recipe, float]:
    """Return a recipe for as many epochs of self-training as the budget buys, and the passes that they take."""
    spending = split_budget(budget, _PASSES_PER_EPOCH, candidates=1, search_share=0)
    adapted = task.adapted(without_bag_fields(recipe))
    return replace(adapted, epochs=spending.epochs, ema=SELF_TRAINING.ema), spending.passes


def _joined(selection: Selection, *stages: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], float]:
    """Return the stages' histories as one, epochs counted on, and all their seconds, those of the search included."""
    history = [{**entry, "epoch": number} for number, entry in enumerate(chain(*stages), start=1)]
    searched = sum(candidate.seconds for candidate in selection.candidates)
    return history, round(searched + sum(entry["seconds"] for entry in history), 2)
