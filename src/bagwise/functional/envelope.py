"""Losses that are the minimum of an inner problem, with the gradient that the envelope theorem gives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bagwise.bags.layout import BagLayout


def envelope_loss(logits: Tensor, layout: BagLayout, values: Tensor, grad_logits: Tensor) -> Tensor:
    """Return `values [bags]` as a differentiable function of the logits.

    Let value(s) = min_U cost(s, U). Where the minimiser U* is unique, d value / d s is the partial derivative of
    cost at U* held fixed: nothing has to be differentiated through the solver, and only the gradient is kept.

    Args:
        logits: `[instances, classes]`, the point of differentiation.
        layout: which instance lies in which bag.
        values: `[bags]`, the minimum of each bag.
        grad_logits: `[instances, classes]`, derivative of an instance's bag value with respect to its logits.
    """
    return _Envelope.apply(logits, layout.bag_index, values.to(logits.dtype), grad_logits.to(logits.dtype))


class _Envelope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, bag_index: Tensor, values: Tensor, grad_logits: Tensor) -> Tensor:  # noqa: ARG004
        ctx.save_for_backward(bag_index, grad_logits)
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None, None]:
        if torch.is_grad_enabled():  # as under create_graph=True
            raise RuntimeError(
                "this loss has no second derivative: its gradient holds the plan fixed. "
                'For rot, gradient="unrolled" can be differentiated twice.'
            )
        (grad_values,) = grad_outputs
        bag_index, grad_logits = ctx.saved_tensors
        return grad_values.index_select(0, bag_index)[:, None] * grad_logits, None, None, None
