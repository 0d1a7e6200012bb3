"""Try settings on held-out bags, train on all bags with the best of them, and keep what is done through a kill."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bagwise.bags import Augment, Bags
from bagwise.experiments.records import Candidate, Curve, RecordError, Selection, rounded, write_file
from bagwise.experiments.sweep import Announce
from bagwise.experiments.time_limit import TimeLimit
from bagwise.methods import get_method
from bagwise.networks import build_network
from bagwise.training import NonFiniteLossError, Recipe, TrainingResult, train

# A single held-out bag has nothing to average over: its KL is closer to a coin than to a criterion.
_FEWEST_HELD_OUT = 2


@dataclass(frozen=True, eq=False)
class Trials:
    """What the runs of a cell share, and which settings they try.

    Attributes:
        name: the cell's, which names its files in the work folder.
        bags: what is learned from. Instance labels are nowhere here but inside of what `evaluator` returns.
        method: the name of a method.
        network: the name of a network, built anew for every run from the recipe's seed.
        input_shape: of one instance.
        recipe: of the final run; every run has its own learning rate, and a candidate fewer epochs.
        candidates: the settings to try; a single one is not tried, but taken.
        search_epochs: epochs of each candidate.
        held_out: share of the bags that the candidates are judged on; with too few bags, the training bags judge.
        augment: the view of the instances that is trained on.
        strong_augment: a second view, for methods that need one.
        evaluator: builds what scores the network of the final run; called only after the choice is made.
        evaluate_every: epochs of the final run between its evaluations; the last epoch always has one.
        checkpoint_every: epochs between checkpoints of the final run; None for none.
        is_small: the network is too small for a GPU.
        passes_per_epoch: the work of an epoch, as the time limit and the display count it.
    """

    name: str
    bags: Bags
    method: str
    network: str
    input_shape: tuple[int, ...]
    recipe: Recipe
    candidates: tuple[Candidate, ...]
    search_epochs: int
    held_out: float
    augment: Augment | None
    strong_augment: Augment | None
    evaluator: Callable[[], Callable[[nn.Module], dict[str, float]]]
    evaluate_every: int = 1
    checkpoint_every: int | None = None
    is_small: bool = False
    passes_per_epoch: float = 1.0

    def recipe_of(self, candidate: Candidate, epochs: int) -> Recipe:
        """Return the recipe of a run."""
        rate = self.recipe.learning_rate if candidate.learning_rate is None else candidate.learning_rate
        return replace(self.recipe, epochs=epochs, learning_rate=rate)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What the runs of a cell gave: the trained network, how its setting was chosen, the history of its training.

    `seconds` are those of all runs, also of earlier processes that were killed.
    """

    network: nn.Module
    selection: Selection
    chosen: Candidate
    recipe: Recipe
    history: list[dict[str, Any]]
    seconds: float

    def curve(self) -> Curve:
        """Return the final run as a record keeps it."""
        return Curve(
            epoch=tuple(entry["epoch"] for entry in self.history),
            train_loss=tuple(rounded(entry["loss"]) for entry in self.history),
            test_accuracy=tuple(
                rounded(entry["evaluation"]["accuracy"]) if "evaluation" in entry else None for entry in self.history
            ),
            seconds=tuple(round(entry["seconds"], 3) for entry in self.history),
        )


def run_trials(trials: Trials, work: Path, limit: TimeLimit, announce: Announce) -> Outcome:
    """Choose a setting and train with it.

    Each candidate is kept in the folder `work` as soon as it is done, so that a kill loses one run at most.
    """
    runs = _Runs(trials, work, limit, announce)
    with one_thread() if trials.is_small else contextlib.nullcontext():
        selection = runs.select()
        chosen, result, seconds = runs.train_final(selection)
    return Outcome(
        network=result.network,
        selection=selection,
        chosen=chosen,
        recipe=trials.recipe_of(chosen, trials.recipe.epochs),
        history=result.history,
        seconds=round(sum(candidate.seconds for candidate in selection.candidates) + seconds, 2),
    )


class _Runs:
    """The training runs of one cell."""

    def __init__(self, trials: Trials, work: Path, limit: TimeLimit, announce: Announce) -> None:
        self._trials, self._work = trials, work
        self._limit, self._announce = limit, announce

    def select(self) -> Selection:
        """Judge every candidate on bags that it was not trained on, or, with too few bags, on those it was."""
        trials, bags = self._trials, self._trials.bags
        candidates = trials.candidates
        if len(candidates) == 1:
            return Selection("none, there is one candidate", bags.num_bags, 0, 0, candidates)
        training, judging, num_held_out = bags, bags, 0
        criterion = "KL(known | predicted proportions) of the training bags, too few to hold any out"
        if round(trials.held_out * bags.num_bags) >= _FEWEST_HELD_OUT:
            training, judging = bags.hold_out(trials.held_out, seed=trials.recipe.seed)
            num_held_out = judging.num_bags
            criterion = "KL(known | predicted proportions) of held-out bags"
        judged = tuple(
            self._judge(candidate, training, judging, f"candidate {number} of {len(candidates)}")
            for number, candidate in enumerate(candidates, start=1)
        )
        return Selection(criterion, training.num_bags, num_held_out, trials.search_epochs, judged)

    def train_final(self, selection: Selection) -> tuple[Candidate, TrainingResult, float]:
        """Train on all bags with the best candidate; where that diverges after all, with the next best."""
        # stable: of equal candidates the first; those that diverged in the search come last
        ranked = sorted(selection.candidates, key=lambda c: float("inf") if c.criterion is None else c.criterion)
        diverged = 0.0
        for candidate in ranked:
            evaluator = self._trials.evaluator()
            started = time.perf_counter()
            try:
                result, seconds = self._train(candidate, self._trials.bags, "final run", evaluator=evaluator)
            except NonFiniteLossError:
                diverged += time.perf_counter() - started
                continue
            return candidate, result, diverged + seconds
        raise NonFiniteLossError(
            f"training diverged with every candidate ({len(ranked)} were tried). "
            "Add smaller learning rates to the preset."
        )

    def _judge(self, candidate: Candidate, training: Bags, judging: Bags, what: str) -> Candidate:
        """Return the candidate with its criterion, from the work folder when it was judged before."""
        path = self._work / f"{self._trials.name}.{self._fingerprint(candidate, self._trials.search_epochs)}.json"
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
        evaluator: Callable[[nn.Module], dict[str, float]] | None = None,
    ) -> tuple[TrainingResult, float]:
        """Train once; return the result and its seconds. Only the final run has an evaluator and checkpoints."""
        trials = self._trials
        is_final = evaluator is not None
        epochs = trials.recipe.epochs if is_final else trials.search_epochs
        folder = None
        if is_final and trials.checkpoint_every:
            folder = self._work / f"{trials.name}.{self._fingerprint(candidate, epochs)}"
        self._limit.check(epochs * trials.passes_per_epoch)
        self._announce(f"{what}: {candidate}", epochs * trials.passes_per_epoch)
        start = time.perf_counter()
        result = train(
            build_network(trials.network, trials.input_shape, trials.bags.num_classes, trials.recipe.seed),
            method=get_method(trials.method)
            if candidate.alpha is None
            else get_method(trials.method, alpha=candidate.alpha),
            bags=bags,
            recipe=trials.recipe_of(candidate, epochs),
            augment=trials.augment,
            strong_augment=trials.strong_augment,
            held_out=held_out,
            evaluator=evaluator,
            evaluate_every=trials.evaluate_every if is_final else epochs,
            folder=folder,
            checkpoint_every=trials.checkpoint_every or 1,
            accelerator="cpu" if trials.is_small else "auto",
            progress=False,
        )
        seconds = time.perf_counter() - start
        self._limit.note((epochs - result.resumed_from) * trials.passes_per_epoch, seconds)
        return result, seconds + sum(entry["seconds"] for entry in result.history[: result.resumed_from])

    def _fingerprint(self, candidate: Candidate, epochs: int) -> str:
        """Name a run by all that decides its outcome, so that a preset that was changed finds nothing stale."""
        trials = self._trials
        settings = [
            trials.network,
            asdict(trials.recipe_of(candidate, epochs)),
            candidate.alpha,
            trials.held_out,
            repr(trials.augment),
            repr(trials.strong_augment),
        ]
        return hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:12]


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run the block on one thread, as a small network wants it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _read_candidate(path: Path) -> Candidate:
    try:
        return Candidate(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise RecordError(f"{path} is not a valid candidate ({error}). Delete it to have it run again.") from error
