"""The fused losses as PyTorch operators, so that torch.compile and CUDA graphs take them as they are.

An operator gives the loss together with its gradient at the logits, unscaled; the backward pass multiplies that by the
incoming cotangent in one launch. Whether the loss is a mean, a sum or one value per bag is decided inside, since every
PyTorch operation more would cost as much as the whole solve. They are registered by hand: `torch.library.custom_op`
would cost each call several times as much.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from bagwise.kernels.proportion import launch_large_proportion, launch_proportion
from bagwise.kernels.reduction import reduce_bags, scale_rows
from bagwise.kernels.rot import launch_rot
from bagwise.kernels.rot_large import launch_large_rot
from bagwise.kernels.streams import run_side_by_side
from bagwise.kernels.tiles import plan_launches

# logits [instances, classes] in float32, bfloat16 or float16
# proportions [bags, classes]; a row of NaN is a bag with unknown proportions
# order [instances]: the instances sorted by bag, or None when they are; offsets [bags + 1]: where each bag starts there
# bags, widths, counts: the bags sorted by size, see `bags.size_classes`
# -> the loss, a scalar or [bags]; the derivative of each bag's loss at its logits [instances, classes], in float32;
#    and the factor between that and the derivative of the loss, a scalar
_BAGS = (
    "Tensor logits, Tensor proportions, Tensor? order, Tensor offsets, Tensor bags, SymInt[] widths, SymInt[] counts"
)
_LIBRARY = torch.library.Library("bagwise", "DEF")
_LIBRARY.define(f"rot({_BAGS}, float alpha, float epsilon, str reduction) -> (Tensor, Tensor, Tensor)")
_LIBRARY.define(f"proportion_loss({_BAGS}, str divergence, str reduction) -> (Tensor, Tensor, Tensor)")
_LIBRARY.define(
    "scale_gradient(Tensor gradient, Tensor cotangent, Tensor scale, Tensor bag_index, ScalarType dtype) -> Tensor"
)


def rot(
    logits: Tensor,
    proportions: Tensor,
    bag_index: Tensor,
    order: Tensor | None,
    offsets: Tensor,
    bags: Tensor,
    widths: list[int],
    counts: list[int],
    alpha: float,
    epsilon: float,
    reduction: str,
) -> Tensor:
    """ROT as a differentiable function of the logits; `bag_index [instances]` is for the backward pass."""
    arguments = proportions, order, offsets, bags, widths, counts, alpha, epsilon, reduction
    return _FusedLoss.apply(logits, bag_index, torch.ops.bagwise.rot.default, *arguments)


def proportion_loss(
    logits: Tensor,
    proportions: Tensor,
    bag_index: Tensor,
    order: Tensor | None,
    offsets: Tensor,
    bags: Tensor,
    widths: list[int],
    counts: list[int],
    divergence: str,
    reduction: str,
) -> Tensor:
    """The loss on the mean prediction with divergence "kl", "l1" or "l2", or "avg_kl", as a function of the logits."""
    arguments = proportions, order, offsets, bags, widths, counts, divergence, reduction
    return _FusedLoss.apply(logits, bag_index, torch.ops.bagwise.proportion_loss.default, *arguments)


class _FusedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, bag_index: Tensor, operator: Any, *arguments: Any) -> Tensor:
        loss, gradient, scale = operator(logits, *arguments)
        ctx.save_for_backward(gradient, scale, bag_index)
        ctx.dtype = logits.dtype
        ctx.num_constants = 2 + len(arguments)
        return loss

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # as under create_graph=True
            raise RuntimeError(
                "this loss has no second derivative on a GPU: its gradient comes from a fused kernel. Losses of "
                'float64 logits can be differentiated twice, except rot, which needs gradient="unrolled".'
            )
        gradient, scale, bag_index = ctx.saved_tensors
        scaled = torch.ops.bagwise.scale_gradient.default(gradient, *grad_outputs, scale, bag_index, ctx.dtype)
        return (scaled, *[None] * ctx.num_constants)


def _rot(
    logits: Tensor,
    proportions: Tensor,
    order: Tensor | None,
    offsets: Tensor,
    bags: Tensor,
    widths: list[int],
    counts: list[int],
    alpha: float,
    epsilon: float,
    reduction: str,
) -> tuple[Tensor, Tensor, Tensor]:
    logits, proportions = logits.contiguous(), proportions.contiguous()
    values, gradient = _empty_outputs(logits, proportions)
    large, launches = plan_launches(tuple(widths), tuple(counts), logits.shape[1])
    arguments = logits, proportions, order, offsets, bags, alpha, epsilon, values, gradient
    all_of_them = [partial(launch_rot, launch, *arguments) for launch in launches]
    if large:
        all_of_them.insert(0, partial(launch_large_rot, widths[:large], counts[:large], *arguments))
    run_side_by_side(all_of_them, logits.device)
    return _reduced(values, gradient, proportions, offsets, reduction)


def _proportion_loss(
    logits: Tensor,
    proportions: Tensor,
    order: Tensor | None,
    offsets: Tensor,
    bags: Tensor,
    widths: list[int],
    counts: list[int],
    divergence: str,
    reduction: str,
) -> tuple[Tensor, Tensor, Tensor]:
    logits, proportions = logits.contiguous(), proportions.contiguous()
    values, gradient = _empty_outputs(logits, proportions)
    large, launches = plan_launches(tuple(widths), tuple(counts), logits.shape[1])
    arguments = logits, proportions, order, offsets, bags, divergence, values, gradient
    all_of_them = [partial(launch_proportion, launch, *arguments) for launch in launches]
    if large:
        all_of_them.insert(0, partial(launch_large_proportion, sum(counts[:large]), widths[0], *arguments))
    run_side_by_side(all_of_them, logits.device)
    return _reduced(values, gradient, proportions, offsets, reduction)


def _empty_outputs(logits: Tensor, proportions: Tensor) -> tuple[Tensor, Tensor]:
    values = torch.empty(len(proportions), device=logits.device, dtype=torch.float32)
    return values, torch.empty(logits.shape, device=logits.device, dtype=torch.float32)


def _reduced(
    values: Tensor, gradient: Tensor, proportions: Tensor, offsets: Tensor, reduction: str
) -> tuple[Tensor, Tensor, Tensor]:
    if reduction == "none":
        return values, gradient, torch.empty((), device=values.device)  # not used: the cotangent is one per bag
    loss, scale = reduce_bags(values, proportions, offsets, mean=reduction == "mean")
    return loss, gradient, scale


def _shapes(logits: Tensor, proportions: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    """What both losses return, without computing it; `reduction` is the last of their arguments."""
    values, gradient = _empty_outputs(logits, proportions)
    scale = torch.empty((), device=logits.device, dtype=torch.float32)
    return values if rest[-1] == "none" else torch.empty_like(scale), gradient, scale


for _name, _operator in {"rot": _rot, "proportion_loss": _proportion_loss, "scale_gradient": scale_rows}.items():
    _LIBRARY.impl(_name, _operator, "CompositeExplicitAutograd")
for _name in ("rot", "proportion_loss"):
    torch.library.register_fake(f"bagwise::{_name}", _shapes, lib=_LIBRARY)
torch.library.register_fake(
    "bagwise::scale_gradient",
    lambda gradient, *rest: gradient.new_empty(gradient.shape, dtype=rest[-1]),
    lib=_LIBRARY,
)
