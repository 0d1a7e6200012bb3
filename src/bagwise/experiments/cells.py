"""Run one cell of the paper's grid: choose its setting on held-out bags, train with it, look at the test set once."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from bagwise.bags import ImageAugment, uniform_bags
from bagwise.experiments.datasets import MIRRORED_DATASETS
from bagwise.experiments.datasets.dataset import Dataset
from bagwise.experiments.grid import PRESETS
from bagwise.experiments.provenance import collect_provenance
from bagwise.experiments.records import Cell, Metrics, Record
from bagwise.experiments.sweep import Announce
from bagwise.experiments.time_limit import TimeLimit
from bagwise.experiments.trials import Trials, run_trials
from bagwise.training import Evaluator


def run_cell(cell: Cell, work: Path, limit: TimeLimit, announce: Announce, *, dataset: Dataset) -> Record[Cell]:
    """Compute the record of a cell. Instance labels make the bags and the final evaluator, nothing else."""
    preset = PRESETS[cell.preset]
    provenance = collect_provenance(is_small=preset.is_small)
    augment = ImageAugment(
        mean=tuple(dataset.pixel_mean.tolist()),
        std=tuple(dataset.pixel_std.tolist()),
        shift=preset.shift,
        flip=dataset.name in MIRRORED_DATASETS,
    )
    trials = Trials(
        name=cell.name,
        # the same bags for every loss: losses are compared on equal terms
        bags=uniform_bags(dataset.train_images, dataset.train_labels, dataset.num_classes, cell.bag_size, cell.seed),
        method=cell.loss,
        network=preset.network,
        input_shape=dataset.input_shape,
        recipe=replace(
            preset.recipe,
            batch_instances=max(preset.recipe.batch_instances, cell.bag_size),  # at least one bag
            seed=cell.seed,
        ),
        candidates=tuple(preset.candidates(cell.loss)),
        search_epochs=preset.search_epochs,
        held_out=preset.held_out,
        augment=augment,
        strong_augment=None,
        evaluator=lambda: Evaluator(dataset.test_images, dataset.test_labels, normalise=augment.normalise),
        evaluate_every=preset.evaluate_every,
        checkpoint_every=preset.checkpoint_every,
        is_small=preset.is_small,
    )
    outcome = run_trials(trials, work, limit, announce)
    return Record(
        cell=cell,
        num_classes=dataset.num_classes,
        num_bags=trials.bags.num_bags,
        network=preset.network,
        chosen=outcome.chosen,
        recipe=asdict(outcome.recipe),
        selection=outcome.selection,
        curve=outcome.curve(),
        final=Metrics.rounded(outcome.history[-1]["evaluation"]),
        seconds=outcome.seconds,
        provenance=provenance,
        num_test=len(dataset.test_labels),
    )


def cell_epochs(cell: Cell) -> int:
    """Return how many epochs the runs of a cell take together."""
    preset = PRESETS[cell.preset]
    searched = len(preset.candidates(cell.loss))
    return preset.recipe.epochs + (searched * preset.search_epochs if searched > 1 else 0)
