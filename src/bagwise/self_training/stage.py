"""What all stages of self-training share: epochs that are logged, saved, and gone on with after a kill."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn

from bagwise.training.checkpoint import Checkpoint, check_can_be_saved
from bagwise.training.devices import launch_fabric
from bagwise.training.folder import RunFolder
from bagwise.training.progress import progress_bar
from bagwise.training.recipe import Recipe
from bagwise.training.run import as_json, describe_network, describe_part
from bagwise.training.tally import check_finite_weights

if TYPE_CHECKING:
    from lightning_fabric import Fabric

History = list[dict[str, Any]]

# What a recipe says about whole bags and about stopping early; a stage does neither.
_WITHOUT_EFFECT = ("patience", "accumulate", "chunk_instances")


class Stage(Protocol):
    """A training that goes epoch by epoch; all that is random in an epoch follows from its number."""

    @property
    def network(self) -> nn.Module:
        """What is trained."""
        ...

    @property
    def num_instances(self) -> int:
        """How many instances an epoch sees."""
        ...

    def epoch(self, number: int) -> dict[str, Any]:
        """Train for one epoch; return what is worth logging, "loss" at least."""
        ...

    def checkpoint(self, run: Mapping[str, Any], epochs: int) -> Checkpoint:
        """Return the state after `epochs` epochs of `run`."""
        ...

    def load(self, checkpoint: Checkpoint) -> None:
        """Go back to the state of `checkpoint`."""
        ...


def without_bag_fields(recipe: Recipe) -> Recipe:
    """Return `recipe` with the fields that have no effect in a stage as they are by default."""
    defaults = Recipe()
    return dataclasses.replace(recipe, **{name: getattr(defaults, name) for name in _WITHOUT_EFFECT})


def launch_stage(stage: str, recipe: Recipe, accelerator: str) -> Fabric:
    """Return the Fabric of a stage; refuse a recipe that it would not follow, and more processes than one."""
    defaults = Recipe()
    for name in _WITHOUT_EFFECT:
        value, default = getattr(recipe, name), getattr(defaults, name)
        if value != default:
            raise ValueError(
                f"recipe.{name} must be {default} in {stage}, which takes ordinary batches for all its epochs, but is "
                f"{value}. Leave it out."
            )
    fabric = launch_fabric(accelerator, 1, recipe.precision)
    if fabric.world_size > 1:
        raise ValueError(
            f"{stage} must run in one process, but {fabric.world_size} were launched: each would learn from all "
            "batches. Start it without a launcher (torchrun, fabric run); `train` is what shares bags among processes."
        )
    return fabric


def run_stage(
    stage: Stage,
    *,
    epochs: int,
    run: Mapping[str, Any],
    folder: str | os.PathLike[str] | None,
    checkpoint_every: int,
    progress: bool,
    after_epoch: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
) -> tuple[History, int]:
    """Train `stage` for `epochs` epochs; return one log entry per epoch and how many had been done before.

    Args:
        stage: what is trained.
        epochs: how many there are in all.
        run: what decides the outcome, as JSON; a folder that holds another run is refused.
        folder: where the checkpoint and the log are kept; None keeps none.
        checkpoint_every: epochs between checkpoints; the last epoch always has one.
        progress: whether to show a progress bar when run in a terminal.
        after_epoch: called with the entry of an epoch; returns what to add to it, e.g. scores.
    """
    history: History = []
    run_folder = None if folder is None else RunFolder(folder)
    if run_folder is not None:
        check_can_be_saved(stage.network)
        run_folder.prepare(run)
        if (checkpoint := run_folder.checkpoint_so_far()) is not None:
            stage.load(checkpoint)
            history = run_folder.history()
    resumed_from = len(history)
    with progress_bar(epochs, progress) as bar:
        for epoch in range(resumed_from, epochs):
            started = time.perf_counter()
            entry = {"epoch": epoch + 1, **stage.epoch(epoch)}
            entry["seconds"] = time.perf_counter() - started
            bar.show(epoch + 1, entry["loss"], stage.num_instances / entry["seconds"])
            check_finite_weights(stage.network, epoch + 1)
            if after_epoch is not None:
                entry |= after_epoch(entry)
            history.append(entry)
            if run_folder is not None:
                run_folder.record(entry)
                if epoch + 1 == epochs or (epoch + 1) % checkpoint_every == 0:
                    run_folder.save(stage.checkpoint(run, epoch + 1))
    return history, resumed_from


def describe(network: nn.Module, **parts: Any) -> dict[str, Any]:
    """Describe a run as JSON by its network and its parts: settings, augmentations, digests."""
    described = {name: describe_part(part) for name, part in parts.items()}
    return as_json({"network": describe_network(network), **described})
