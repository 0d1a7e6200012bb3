"""Everything that changes while training: weights, optimizer, averaged weights, what the method remembers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bagwise.training.averaging import AveragedNetwork
from bagwise.training.checkpoint import Checkpoint
from bagwise.training.optimizer import build_optimizer, load_optimizer_tensors, optimizer_tensors
from bagwise.training.recipe import Recipe

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class TrainingState:
    """A network on its device with its optimizer.

    Attributes:
        network: the caller's network.
        model: the same network as Fabric and `torch.compile` wrap it; this is what a training step calls.
        method_state: what the method remembers from step to step, by name.
    """

    def __init__(
        self,
        network: nn.Module,
        recipe: Recipe,
        fabric: Fabric,
        *,
        equal_bags: bool,
        method_state: Mapping[str, Tensor] | None = None,
        one_pass_per_step: bool = True,
    ) -> None:
        self.network = network.to(fabric.device)
        if recipe.channels_last:
            network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self._optimizer = build_optimizer(network, recipe, fabric.device)
        compiled = _compiled(network, recipe, equal_bags, one_pass_per_step) if recipe.compile else network
        self.model, self._wrapped_optimizer = fabric.setup(compiled, self._optimizer)
        self._average = None if recipe.ema is None else AveragedNetwork(network, recipe.ema)
        self.method_state = {name: tensor.to(fabric.device) for name, tensor in (method_state or {}).items()}

    @property
    def best_network(self) -> nn.Module:
        """The network to evaluate: with averaged weights where there are any."""
        return self.network if self._average is None else self._average.network

    @property
    def learning_rate(self) -> float:
        """The learning rate of the last step."""
        return self._optimizer.param_groups[0]["lr"]

    def step(self, learning_rate: float) -> None:
        """Follow the gradients, and forget them."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._wrapped_optimizer.step()
        self._wrapped_optimizer.zero_grad(set_to_none=True)
        if self._average is not None:
            self._average.update()

    def checkpoint(self, run: Mapping[str, Any], epochs: int) -> Checkpoint:
        """Return the state after `epochs` epochs of `run`."""
        parts = {
            "network": self.network.state_dict(),
            "optimizer": optimizer_tensors(self._optimizer),
            "method": self.method_state,
        }
        parts["buffers"] = _buffers_without_state(self.network)
        if self._average is not None:
            parts["average"] = self._average.network.state_dict()
            parts["average_buffers"] = _buffers_without_state(self._average.network)
        tensors = {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}
        updates = 0 if self._average is None else self._average.updates
        return Checkpoint(run=run, epochs=epochs, updates=updates, tensors=tensors)

    def load(self, checkpoint: Checkpoint) -> None:
        """Go back to the state of `checkpoint`, which must be of the same run."""
        self.network.load_state_dict(checkpoint.part("network"))
        _load_buffers(self.network, checkpoint.part("buffers"))
        load_optimizer_tensors(self._optimizer, checkpoint.part("optimizer"))
        for name, value in checkpoint.part("method").items():
            self.method_state[name].copy_(value)
        if self._average is not None:
            self._average.network.load_state_dict(checkpoint.part("average"))
            _load_buffers(self._average.network, checkpoint.part("average_buffers"))
            self._average.updates = checkpoint.updates

    def finish(self) -> None:
        """Leave the network with the weights that are to be used, in evaluation mode."""
        if self._average is not None:
            average = self._average.network
            self.network.load_state_dict(average.state_dict())
            _load_buffers(self.network, _buffers_without_state(average))
        self.network.eval()


def _buffers_without_state(network: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that are not part of the network's state (`persistent=False`): training may change them."""
    state = network.state_dict()
    return {name: buffer for name, buffer in network.named_buffers() if name not in state}


def _load_buffers(network: nn.Module, values: Mapping[str, Tensor]) -> None:
    buffers = dict(network.named_buffers())
    for name, value in values.items():
        buffers[name].copy_(value)


def _compiled(network: nn.Module, recipe: Recipe, equal_bags: bool, one_pass_per_step: bool) -> Any:
    if not equal_bags:
        return torch.compile(network)  # batches of unequal bags have any shape: one set of kernels must do
    # Batches of equal bags have two shapes at most (the last may differ), worth kernels of their own, replayed as one
    # CUDA graph, since a small network's step is bound by its many launches. A replay overwrites the gradients of the
    # one before it, though, so no graph where a step adds up several backward passes (pytorch issue 169545), or where
    # a method may run the network several times.
    one_pass_per_step = one_pass_per_step and recipe.accumulate == 1 and recipe.chunk_instances is None
    return torch.compile(network, dynamic=False, mode="reduce-overhead" if one_pass_per_step else "default")
