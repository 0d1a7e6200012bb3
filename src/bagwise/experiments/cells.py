"""Run one cell: choose its setting on held-out bags, train on all bags with it, and look at the test set once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from bagwise.bags import Bags, ImageAugment, uniform_bags
from bagwise.experiments.datasets.dataset import Dataset
from bagwise.experiments.grid import MIRRORED_DATASETS, PRESETS
from bagwise.experiments.provenance import collect_provenance
from bagwise.experiments.records import (
    Candidate,
    Cell,
    Curve,
    Metrics,
    Record,
    RecordError,
    Selection,
    rounded,
    write_file,
)
from bagwise.experiments.time_limit import TimeLimit
from bagwise.methods import get_method
from bagwise.networks import build_network
from bagwise.training import Evaluator, NonFiniteLossError, Recipe, TrainingResult, train

# A single held-out bag has nothing to average over: its KL is closer to a coin than to a criterion.
_FEWEST_HELD_OUT = 2

# called at the start of each run with what it is and its number of epochs
Announce = Callable[[str, int], None]


def run_cell(cell: Cell, dataset: Dataset, work: Path, limit: TimeLimit, announce: Announce) -> Record:
    """Compute the record of a cell.

    Each candidate is kept in the folder `work` as soon as it is done, so that a kill loses one run at most.
    """
    provenance = collect_provenance()
    runs = _CellRuns(cell, dataset, work, limit, announce)
    with _one_thread() if runs.preset.is_small else contextlib.nullcontext():
        selection = runs.select()
        chosen, result, seconds = runs.train_final(selection)
    return Record(
        cell=cell,
        num_classes=dataset.num_classes,
        num_bags=runs.bags.num_bags,
        network=runs.preset.network,
        chosen=chosen,
        recipe=asdict(runs.recipe(chosen, runs.preset.recipe.epochs)),
        selection=selection,
        curve=_curve(result.history),
        final=Metrics(**{name: rounded(value) for name, value in result.history[-1]["evaluation"].items()}),
        seconds=round(sum(candidate.seconds for candidate in selection.candidates) + seconds, 2),
        provenance=provenance,
    )


def cell_epochs(cell: Cell) -> int:
    """Return how many epochs the runs of a cell take together."""
    preset = PRESETS[cell.preset]
    searched = len(preset.candidates(cell.loss))
    return preset.recipe.epochs + (searched * preset.search_epochs if searched > 1 else 0)


def clear_work(cell: Cell, work: Path) -> None:
    """Remove what a cell kept while it was computed; its record holds all of it."""
    for path in work.glob(f"{cell.name}.*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


class _CellRuns:
    """The training runs of one cell. Instance labels make the bags and the final evaluator, nothing else."""

    def __init__(self, cell: Cell, dataset: Dataset, work: Path, limit: TimeLimit, announce: Announce) -> None:
        self.preset = PRESETS[cell.preset]
        # the same bags for every loss: losses are compared on equal terms
        self.bags = uniform_bags(
            dataset.train_images, dataset.train_labels, dataset.num_classes, cell.bag_size, cell.seed
        )
        self._augment = ImageAugment(
            mean=tuple(dataset.pixel_mean.tolist()),
            std=tuple(dataset.pixel_std.tolist()),
            shift=self.preset.shift,
            flip=dataset.name in MIRRORED_DATASETS,
        )
        self._cell, self._dataset, self._work = cell, dataset, work
        self._limit, self._announce = limit, announce

    def select(self) -> Selection:
        """Judge every candidate on bags that it was not trained on, or, with too few bags, on those it was."""
        candidates = self.preset.candidates(self._cell.loss)
        if len(candidates) == 1:
            return Selection("none, there is one candidate", self.bags.num_bags, 0, 0, tuple(candidates))
        training, judging, num_held_out = self.bags, self.bags, 0
        criterion = "KL(known | predicted proportions) of the training bags, too few to hold any out"
        if round(self.preset.held_out * self.bags.num_bags) >= _FEWEST_HELD_OUT:
            training, judging = self.bags.hold_out(self.preset.held_out, seed=self._cell.seed)
            num_held_out = judging.num_bags
            criterion = "KL(known | predicted proportions) of held-out bags"
        judged = tuple(
            self._judge(candidate, training, judging, f"candidate {number} of {len(candidates)}")
            for number, candidate in enumerate(candidates, start=1)
        )
        return Selection(criterion, training.num_bags, num_held_out, self.preset.search_epochs, judged)

    def train_final(self, selection: Selection) -> tuple[Candidate, TrainingResult, float]:
        """Train on all bags with the best candidate; where that diverges after all, with the next best."""
        # stable: of equal candidates the first; those that diverged in the search come last
        ranked = sorted(selection.candidates, key=lambda c: float("inf") if c.criterion is None else c.criterion)
        augment, dataset = self._augment, self._dataset
        for candidate in ranked:
            evaluator = Evaluator(dataset.test_images, dataset.test_labels, normalise=augment.normalise)
            try:
                result, seconds = self._train(candidate, self.bags, "final run", evaluator=evaluator)
            except NonFiniteLossError:
                continue
            return candidate, result, seconds
        raise NonFiniteLossError(
            f"training diverged with every candidate of {self._cell.name} ({len(ranked)} were tried). "
            f"Add smaller learning rates to the preset {self._cell.preset!r}."
        )

    def recipe(self, candidate: Candidate, epochs: int) -> Recipe:
        """Return the preset's recipe with the candidate's learning rate and the cell's seed."""
        recipe = self.preset.recipe
        return replace(
            recipe,
            epochs=epochs,
            learning_rate=candidate.learning_rate,
            batch_instances=max(recipe.batch_instances, self._cell.bag_size),  # at least one bag
            seed=self._cell.seed,
        )

    def _judge(self, candidate: Candidate, training: Bags, judging: Bags, what: str) -> Candidate:
        """Return the candidate with its criterion, from the work folder when it was judged before."""
        path = self._work / f"{self._cell.name}.{self._fingerprint(candidate, self.preset.search_epochs)}.json"
        if path.exists():
            return _read_candidate(path)
        start = time.perf_counter()
        try:
            result, _ = self._train(candidate, training, what, held_out=judging)
            criterion = rounded(result.history[-1]["held_out"]["kl"])
        except NonFiniteLossError:
            criterion = None
        judged = replace(candidate, criterion=criterion, seconds=round(time.perf_counter() - start, 2))
        write_file(path, json.dumps(asdict(judged), allow_nan=False))
        return judged

    def _train(
        self,
        candidate: Candidate,
        bags: Bags,
        what: str,
        *,
        held_out: Bags | None = None,
        evaluator: Evaluator | None = None,
    ) -> tuple[TrainingResult, float]:
        """Train once; return the result and its seconds. Only the final run has an evaluator and checkpoints."""
        preset, cell = self.preset, self._cell
        is_final = evaluator is not None
        epochs = preset.recipe.epochs if is_final else preset.search_epochs
        folder = None
        if is_final and preset.checkpoint_every:
            folder = self._work / f"{cell.name}.{self._fingerprint(candidate, epochs)}"
        self._limit.check(epochs)
        self._announce(f"{what}: {_describe(candidate)}", epochs)
        start = time.perf_counter()
        result = train(
            build_network(preset.network, self._dataset.input_shape, self._dataset.num_classes, cell.seed),
            method=get_method(cell.loss) if candidate.alpha is None else get_method(cell.loss, alpha=candidate.alpha),
            bags=bags,
            recipe=self.recipe(candidate, epochs),
            augment=self._augment,
            held_out=held_out,
            evaluator=evaluator,
            evaluate_every=preset.evaluate_every if is_final else epochs,
            folder=folder,
            checkpoint_every=preset.checkpoint_every or 1,
            accelerator="cpu" if preset.is_small else "auto",
            progress=False,
        )
        seconds = time.perf_counter() - start
        self._limit.note(epochs - result.resumed_from, seconds)
        return result, seconds + sum(entry["seconds"] for entry in result.history[: result.resumed_from])

    def _fingerprint(self, candidate: Candidate, epochs: int) -> str:
        """Name a run by all that decides its outcome, so that a preset that was changed finds nothing stale."""
        settings = [
            self.preset.network,
            asdict(self.recipe(candidate, epochs)),
            candidate.alpha,
            self.preset.held_out,
            asdict(self._augment),
        ]
        return hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:12]


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _describe(candidate: Candidate) -> str:
    alpha = "" if candidate.alpha is None else f", alpha {candidate.alpha:g}"
    return f"learning rate {candidate.learning_rate:g}{alpha}"


def _read_candidate(path: Path) -> Candidate:
    try:
        return Candidate(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise RecordError(f"{path} is not a valid candidate ({error}). Delete it to have it run again.") from error


def _curve(history: list[dict[str, Any]]) -> Curve:
    return Curve(
        epoch=tuple(entry["epoch"] for entry in history),
        train_loss=tuple(rounded(entry["loss"]) for entry in history),
        test_accuracy=tuple(
            rounded(entry["evaluation"]["accuracy"]) if "evaluation" in entry else None for entry in history
        ),
        seconds=tuple(round(entry["seconds"], 3) for entry in history),
    )
