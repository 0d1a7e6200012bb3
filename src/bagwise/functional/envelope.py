"""Losses that are the minimum of an inner problem, with the gradient that the envelope theorem gives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bagwise.functional.inputs import Inputs, reduce_bags


def envelope_loss(inputs: Inputs, values: Tensor, residual: Tensor, alpha: float, reduction: str) -> Tensor:
    """Return `values [bags]`, reduced, as a differentiable function of the logits.

    Let value(s) = min_U cost(s, U). Where the minimiser U* is unique, d value / d s is the partial derivative of
    cost at U* held fixed: nothing has to be differentiated through the solver, and only the gradient is kept. For all
    losses here it is alpha/n (F - U).

    Args:
        inputs: the arguments of the loss; their logits are the point of differentiation.
        values: `[bags]`, the minimum of each bag.
        residual: `[instances, classes]`, F - U; overwritten.
        alpha: weight of the predictions.
        reduction: "mean", "sum" or "none".
    """
    layout, dtype = inputs.layout, inputs.logits.dtype
    loss = reduce_bags(values, inputs.counted, reduction)
    weight = alpha / layout.sizes.clamp(min=1).to(values.dtype) * inputs.counted  # [bags]
    if reduction == "mean":
        weight = weight / inputs.counted.sum().clamp(min=1)
    weight = weight.to(residual.dtype).index_select(0, layout.bag_index)[:, None]
    return _Envelope.apply(inputs.logits, layout.bag_index, loss.to(dtype), residual.mul_(weight).to(dtype))


class _Envelope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, bag_index: Tensor, loss: Tensor, grad_logits: Tensor) -> Tensor:  # noqa: ARG004
        ctx.save_for_backward(bag_index, grad_logits)
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None, None]:
        if torch.is_grad_enabled():  # as under create_graph=True
            raise RuntimeError(
                "this loss has no second derivative: its gradient holds the plan fixed. "
                'For rot, gradient="unrolled" can be differentiated twice.'
            )
        (grad_loss,) = grad_outputs
        bag_index, grad_logits = ctx.saved_tensors
        if grad_loss.ndim:  # one value per bag
            grad_loss = grad_loss.index_select(0, bag_index)[:, None]
        return grad_loss * grad_logits, None, None, None
