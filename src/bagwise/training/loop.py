"""The training loop."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bagwise.bags import Augment, BagLoader, Bags
from bagwise.bags.randomness import private_randomness
from bagwise.bags.seeds import derived_seed
from bagwise.bags.setting_checks import check_count
from bagwise.bags.validation import check_losses
from bagwise.methods import KeepsState, Method, Step, StepMethod, get_method, method_name, told_prior
from bagwise.training.checkpoint import check_can_be_saved
from bagwise.training.devices import launch_fabric, tuned_convolutions
from bagwise.training.evaluation import INSTANCES_PER_PASS, BagEvaluator
from bagwise.training.folder import RunFolder
from bagwise.training.progress import progress_bar
from bagwise.training.recipe import Recipe
from bagwise.training.run import check_parts, describe_run
from bagwise.training.schedule import learning_rate
from bagwise.training.state import TrainingState
from bagwise.training.tally import LossTally, NonFiniteLossError
from bagwise.training.two_pass import backward_in_pieces

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# How often the host waits for the GPU to show the loss and to see that it is finite.
_STEPS_PER_LOOK = 100


@dataclass(frozen=True)
class TrainingResult:
    """What a training gives back.

    Attributes:
        network: the trained network, in evaluation mode; with averaged weights where the recipe asks for them.
        history: one entry per epoch: "epoch" (from 1), "loss" (mean over bags), "learning_rate" (of its last step),
            "seconds" and "instances_per_second" (of the training alone), and where asked for "held_out"
            ({"kl", "l1"}) and "evaluation" (what the evaluator returned).
        resumed_from: how many epochs had been done before, by an earlier run in the same folder.
    """

    network: nn.Module
    history: list[dict[str, Any]]
    resumed_from: int


def train(
    network: nn.Module,
    *,
    bags: Bags,
    method: str | Method = "kl",
    recipe: Recipe = Recipe(),  # noqa: B008  (frozen)
    augment: Augment | None = None,
    strong_augment: Augment | None = None,
    held_out: Bags | Callable[[nn.Module], dict[str, float]] | None = None,
    evaluator: Callable[[nn.Module], dict[str, float]] | None = None,
    evaluate_every: int = 1,
    folder: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 1,
    accelerator: str = "auto",
    devices: int | None = None,
    workers: int = 0,
    progress: bool = True,
) -> TrainingResult:
    """Train `network` in place from the label proportions of bags.

    With a `folder`, a run that was stopped, in whatever way, goes on where it was when it is started again.

    Args:
        network: from a batch of instances `[n, ...]` to logits `[n, classes]`.
        bags: what to learn from.
        method: a name of `bagwise.methods`, or a method with its hyper-parameters: `get_method("rot", alpha=0.3)`.
        recipe: optimizer, schedule, batch size and all else that decides the final weights.
        augment: random variants of the instances, drawn on the device.
        strong_augment: a second, stronger view of them for methods that compare the two (`RandomChanges` for images,
            `SwappedColumns` for tables); other methods leave it unused.
        held_out: other bags, scored after an epoch by the KL and L1 distance of proportions, or a function that
            scores a network on them; nothing is learned from them but, with `Recipe.patience`, when to stop.
        evaluator: called with the network after an epoch, e.g. `Evaluator`, the one place for instance labels.
        evaluate_every: epochs between evaluations; the last epoch is always evaluated.
        folder: where the checkpoint and the log are kept, visible to all processes; None keeps none.
        checkpoint_every: epochs between checkpoints; the last epoch always has one.
        accelerator: "auto", "cpu", "cuda" or another of Lightning Fabric's.
        devices: number of devices on this machine; None is one, or what `torchrun` or `fabric run` started.
            Several learn what one does, but for batch norm, whose statistics are those of each process's share.
        workers: processes that read the instances, where they are a dataset.
        progress: whether to show a progress bar when run in a terminal.

    Example:
        >>> import torch
        >>> bags = Bags(torch.randn(64, 4), torch.arange(64) // 8, torch.full((8, 2), 0.5))
        >>> result = train(nn.Linear(4, 2), bags=bags, recipe=Recipe(epochs=2, batch_instances=32))
        >>> len(result.history)
        2
    """
    check_parts(network, recipe, bags)
    check_count("evaluate_every", evaluate_every)
    check_count("checkpoint_every", checkpoint_every)
    method = told_prior(get_method(method) if isinstance(method, str) else _checked_method(method), bags)
    if bool(bags.proportions.isnan().all()):
        raise ValueError("there is nothing to learn from: the proportions of all bags are unknown (NaN).")
    strong_augment = _checked_strong_view(method, strong_augment, recipe)
    normalise = None if augment is None else augment.normalise
    chunk = recipe.chunk_instances or INSTANCES_PER_PASS
    score_bags = BagEvaluator(held_out, normalise, chunk) if isinstance(held_out, Bags) else held_out
    if recipe.patience is not None and score_bags is None:
        raise ValueError("patience is counted on held-out bags, but there are none. Pass held_out=, or no patience.")
    run = describe_run(network, method, bags, recipe, augment, strong_augment)
    equal_bags = bags.layout.common_size is not None

    fabric = launch_fabric(accelerator, devices, recipe.precision)
    loader = BagLoader(
        bags,
        recipe.batch_instances,
        seed=recipe.seed,
        device=fabric.device,
        augment=augment,
        strong_augment=strong_augment,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
        drop_last=recipe.drop_last,
        chunk_instances=recipe.chunk_instances,
        workers=workers,
    )
    remembered = method.initial_state(bags.num_classes) if isinstance(method, KeepsState) else {}
    runs_once = not isinstance(method, StepMethod)
    state = TrainingState(
        network, recipe, fabric, equal_bags=equal_bags, method_state=remembered, one_pass_per_step=runs_once
    )
    history: list[dict[str, Any]] = []
    run_folder = None if folder is None else RunFolder(folder)
    if run_folder is not None:
        check_can_be_saved(network)
        if fabric.is_global_zero:
            run_folder.prepare(run)
        fabric.barrier()
        if (checkpoint := run_folder.checkpoint_so_far()) is not None:
            state.load(checkpoint)
            history = run_folder.history()
    resumed_from = len(history)

    network.train()
    with (
        tuned_convolutions(few_shapes=equal_bags),
        progress_bar(recipe.epochs, progress and fabric.is_global_zero) as bar,
        _told_how_to_resume(run_folder),
    ):
        for epoch in range(resumed_from, recipe.epochs):
            if _has_stalled(history, recipe.patience):
                break
            plan = loader.plan(epoch)
            num_batches = len(plan.batches)
            tally = LossTally(bags, fabric, epoch + 1)
            started = time.perf_counter()
            network_seed = derived_seed(recipe.seed, "network", epoch, fabric.global_rank)
            method_seed = derived_seed(recipe.seed, "method", epoch, fabric.global_rank)
            generator = torch.Generator(fabric.device).manual_seed(method_seed)
            with private_randomness(network_seed, fabric.device):
                for i, batch in enumerate(loader.epoch(epoch)):
                    # one step follows the mean over the bags of `accumulate` batches, in all processes:
                    # the processes' gradients are averaged, hence the factor
                    first = i - i % recipe.accumulate
                    last = min(first + recipe.accumulate, num_batches) - 1
                    scale = fabric.world_size / max(1, int(plan.known_bags[first : last + 1].sum()))
                    step = Step(
                        model=state.model,
                        network=network,
                        batch=batch,
                        progress=(epoch + i / num_batches) / recipe.epochs,
                        generator=generator,
                        state=state.method_state,
                        total=partial(fabric.all_reduce, reduce_op="sum"),  # pyright: ignore[reportArgumentType]
                    )
                    losses = _backward(fabric, method, step, scale, synchronise=i == last)
                    tally.add(batch.bag_numbers, losses)
                    if i == last:
                        middle_of_step = epoch + (first + last + 1) / (2 * num_batches)
                        state.step(learning_rate(recipe, middle_of_step / recipe.epochs))
                    if (i + 1) % _STEPS_PER_LOOK == 0:
                        loss = tally.mean(plan.known_bags[: i + 1].sum())
                        pace = plan.instances[: i + 1].sum() / (time.perf_counter() - started)
                        bar.show(epoch + (i + 1) / num_batches, loss, pace)
            loss = tally.mean(plan.known_bags.sum())
            seconds = time.perf_counter() - started
            pace = float(plan.instances.sum() / seconds)
            bar.show(epoch + 1, loss, pace)
            tally.check_finite_weights(network)

            entry = {
                "epoch": epoch + 1,
                "loss": loss,
                "learning_rate": state.learning_rate,
                "seconds": seconds,
                "instances_per_second": pace,
            }
            is_last = epoch + 1 == recipe.epochs
            if is_last or (epoch + 1) % evaluate_every == 0:
                with fabric.autocast():
                    if score_bags is not None:
                        # one process speaks for all: where they stop may not hang on the rounding of each
                        entry["held_out"] = fabric.broadcast(score_bags(state.best_network))
                        _check_counts_for_patience(entry["held_out"], recipe.patience)
                    if evaluator is not None:
                        entry["evaluation"] = evaluator(state.best_network)
            history.append(entry)
            is_last = is_last or _has_stalled(history, recipe.patience)
            if run_folder is not None and fabric.is_global_zero:
                run_folder.record(entry)
                if is_last or (epoch + 1) % checkpoint_every == 0:
                    run_folder.save(state.checkpoint(run, epochs=epoch + 1))
    state.finish()
    return TrainingResult(network, history, resumed_from)


def _backward(fabric: Fabric, method: Method, step: Step, scale: float, synchronise: bool) -> Tensor:
    """Add the gradient of `scale` times the sum of the bags' losses; return the losses, `[bags]`."""
    model, batch = step.model, step.batch
    if batch.is_in_pieces and not isinstance(method, StepMethod):
        return backward_in_pieces(fabric, model, method, batch, scale, synchronise)
    with fabric.no_backward_sync(model, enabled=not synchronise):  # pyright: ignore[reportArgumentType]
        if isinstance(method, StepMethod):
            losses = method.bag_losses(step)
        else:
            losses = method.loss(model(batch.instances), batch.layout, batch.proportions)
        check_losses(losses, batch.layout.num_bags)
        fabric.backward(losses.sum() * scale)
    return losses.detach()


def _checked_method(method: Method) -> Method:
    if isinstance(method, StepMethod) or callable(getattr(method, "loss", None)):
        return method
    raise TypeError(
        f"method must be a name such as 'rot', or a method as get_method('rot', alpha=0.3) gives it, but got "
        f"{method!r:.80}. A loss of bagwise.losses or bagwise.functional is for a loop of your own."
    )


def _checked_strong_view(method: Method, strong_augment: Augment | None, recipe: Recipe) -> Augment | None:
    """Return the strong view if `method` uses one; raise where it lacks one, or cannot do what the recipe asks for."""
    if not isinstance(method, StepMethod):
        return None
    if recipe.chunk_instances is not None:
        raise ValueError(
            f"chunk_instances cuts bags into pieces, but method {method_name(method)!r} runs the network on whole "
            "bags. Leave chunk_instances out, or use a method that needs the logits alone, such as 'kl' or 'rot'."
        )
    if method.needs_strong_view and strong_augment is None:
        raise ValueError(
            f"method {method_name(method)!r} compares each instance with a strong view of it, but there is none. Pass "
            "strong_augment=: bagwise.bags.RandomChanges for images, bagwise.bags.SwappedColumns for tables."
        )
    return strong_augment if method.needs_strong_view else None


def _has_stalled(history: list[dict[str, Any]], patience: int | None) -> bool:
    """Whether the last `patience` evaluations were all no better than the best before them."""
    if patience is None:
        return False
    logged = [entry["held_out"]["kl"] for entry in history if "held_out" in entry]
    # what is not finite is no improvement; the log has null for it
    scores = [kl if kl is not None and math.isfinite(kl) else math.inf for kl in logged]
    return len(scores) > patience and min(scores[-patience:]) >= min(scores[:-patience])


def _check_counts_for_patience(scores: dict[str, float], patience: int | None) -> None:
    if patience is not None and "kl" not in scores:
        raise ValueError(
            f"patience is counted on a score named 'kl', but held_out returned {sorted(scores)}. Return it under that "
            "name (lower is better), or leave patience out."
        )


@contextmanager
def _told_how_to_resume(folder: RunFolder | None) -> Iterator[None]:
    """Add to what stops a training what is left of it, and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        left = _what_is_left(folder)
        way_on = "; the same training, run again, goes on from there" if folder else ""
        raise KeyboardInterrupt(f"training was interrupted. {left}{way_on}.") from None
    except NonFiniteLossError as error:
        raise NonFiniteLossError(f"{error} {_what_is_left(folder)}.") from None


def _what_is_left(folder: RunFolder | None) -> str:
    if folder is None:
        return "Nothing was saved: no folder was given"
    if not folder.checkpoint.exists():
        return f"No epoch had been saved in {folder.path}"
    return f"The last good state is in {folder.checkpoint}"
