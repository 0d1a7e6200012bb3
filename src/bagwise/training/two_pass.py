"""Exact gradients of bags that are larger than memory.

Every loss depends on the network only through the logits of the bag, `[instances, classes]`, which are small. So:

1. forward in chunks without a graph, and keep the logits s;
2. solve the bags on them: the loss, and its derivative d loss / d s;
3. forward again in chunks, and backpropagate that fixed derivative.

The gradient is that of the whole bag in one pass, in the memory of one chunk, for the price of one more forward pass.
It is exact when both passes give the same logits: dropout draws the same masks in both, and batch norm uses its
running statistics (statistics of a chunk would not be those of the bag), which therefore stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bagwise.bags import Batch
from bagwise.bags.randomness import forked_randomness
from bagwise.bags.validation import check_logits, check_losses
from bagwise.methods import LossMethod

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def backward_in_pieces(
    fabric: Fabric, model: nn.Module, method: LossMethod, batch: Batch, scale: float, synchronise: bool
) -> Tensor:
    """Add the gradient of `scale` times the sum of the bags' losses; return the losses, `[bags]`.

    Args:
        fabric: where the model was set up.
        model: the network as Fabric wraps it.
        method: gives the loss of each bag.
        batch: whole bags, their instances in pieces.
        scale: factor of the sum.
        synchronise: whether the last piece averages the gradients over the processes.
    """
    with running_statistics(model):
        with torch.no_grad(), forked_randomness(fabric.device):
            logits = _logits(model, batch)
        logits.requires_grad_()
        per_bag = method.loss(logits, batch.layout, batch.proportions)
        check_losses(per_bag, batch.layout.num_bags)
        (derivative,) = torch.autograd.grad(per_bag.sum() * scale, logits)
        start = 0
        for piece in batch.pieces:
            stop = start + len(piece)
            wait = not synchronise or stop < len(logits)
            with fabric.no_backward_sync(model, enabled=wait):  # pyright: ignore[reportArgumentType]
                fabric.backward(model(piece), derivative[start:stop])
            start = stop
    return per_bag.detach()


def _logits(model: nn.Module, batch: Batch) -> Tensor:
    logits, start = torch.empty(0), 0
    for piece in batch.pieces:
        part = model(piece)
        check_logits(part)
        if start == 0:
            # one buffer: many small tensors kept between large ones that come and go would fragment the memory
            logits = part.new_empty(batch.layout.num_instances, part.shape[1])
        logits[start : start + len(part)] = part
        start += len(part)
    return logits


@contextmanager
def running_statistics(network: nn.Module) -> Iterator[None]:
    """Let batch norm use its running statistics, and leave them alone, inside the block."""
    layers = [module for module in network.modules() if isinstance(module, _BatchNorm) and module.training]
    if any(layer.running_mean is None for layer in layers):
        raise ValueError(
            "chunk_instances needs batch norm with running statistics, but a layer keeps none; build it with "
            "track_running_stats=True, or use another norm."
        )
    for layer in layers:
        layer.training = False
    try:
        yield
    finally:
        for layer in layers:
            layer.training = True
