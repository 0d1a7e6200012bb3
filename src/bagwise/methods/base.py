"""What a method is: a loss of the logits, or a loss of a whole training step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn

from bagwise.bags.data import Bags
from bagwise.bags.layout import BagLayout
from bagwise.bags.loader import Batch


class LossMethod(Protocol):
    """A way to learn from bags: a frozen dataclass of hyper-parameters with one function.

    It needs nothing of the network but its logits, which is what lets the training loop cut bags larger than memory
    into chunks.
    """

    def loss(self, logits: Tensor, layout: BagLayout, proportions: Tensor) -> Tensor:
        """Return the loss of each bag of a batch, `[bags]`.

        Args:
            logits: `[instances, classes]`.
            layout: which instance lies in which bag.
            proportions: `[bags, classes]`; a row of NaN is a bag with unknown proportions and gives no loss.
        """
        ...


@dataclass(frozen=True, eq=False)
class Step:
    """What a `StepMethod` sees of one training step.

    Attributes:
        model: from instances to logits. What trains goes through it, in one call: with several processes, a second
            call before the backward pass would disturb batch norm. Concatenate what is to go through.
        network: the caller's network, for passes that train nothing: in full precision and unknown to other processes.
        batch: whole bags, never in pieces; `batch.strong` is their strong view where the method asks for one.
        progress: share of the training that is done, 0 at the first step.
        generator: for all that is random, on the device of the batch.
        state: the method's own tensors (`KeepsState`), to be changed in place; they are part of the checkpoint.
        total: adds a tensor up over all processes. All of them must call it equally often.
    """

    model: nn.Module
    network: nn.Module
    batch: Batch
    progress: float
    generator: torch.Generator
    state: Mapping[str, Tensor]
    total: Callable[[Tensor], Tensor]


@runtime_checkable
class StepMethod(Protocol):
    """A way to learn from bags that runs the network itself, for a second view of the instances or a search.

    Like any method it is a frozen dataclass of hyper-parameters. Its bags must fit into memory.
    """

    needs_strong_view: ClassVar[bool]

    def bag_losses(self, step: Step) -> Tensor:
        """Return the loss of each bag of the step, `[bags]`: 0 for a bag with unknown proportions."""
        ...


@runtime_checkable
class KeepsState(Protocol):
    """A step method that remembers something from one step to the next."""

    def initial_state(self, num_classes: int) -> dict[str, Tensor]:
        """Return what is remembered before the first step, by name."""
        ...


Method: TypeAlias = LossMethod | StepMethod


def compares_bags(method: object) -> bool:
    """Whether a method learns from several bags of a batch together (its class says so), not from each by itself."""
    return getattr(method, "compares_bags", False)


def fewest_instances(method: object, bags: Bags) -> int:
    """Return how many instances a batch should hold at least: about as many bags as classes where bags are compared."""
    return bags.num_classes * bags.num_instances // bags.num_bags if compares_bags(method) else 1
