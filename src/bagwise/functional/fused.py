"""Which calls go to the fused GPU kernels, and what they need of a layout."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

from bagwise.bags.layout import BagLayout

_HAS_TRITON = torch.version.cuda is not None and find_spec("triton") is not None  # not on ROCm
_KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# The kernels solve ROT by first-order steps in float32. Where the proportions are nearly hard constraints these are
# many, and a small epsilon multiplies the rounding of the logits: the reference solves those in float64 by Newton.
_LARGEST_BETA = 20.0
_SMALLEST_EPSILON = 0.05
# A bag has to fit on chip: up to so many classes, up to so many instances. The reference solves larger ones.
_ROT_TILES = ((16, 1024), (32, 512), (64, 256), (128, 128))


def has_kernels(logits: Tensor, layout: BagLayout) -> bool:
    """Whether the fused kernels take these arguments; float64 stays on the reference path."""
    return _HAS_TRITON and logits.is_cuda and logits.dtype in _KERNEL_DTYPES and layout.num_bags > 0


def has_rot_kernel(logits: Tensor, layout: BagLayout, alpha: float, epsilon: float) -> bool:
    """Whether the fused ROT kernel takes these bags and finds a plan right to 1e-5."""
    beta = (1 - alpha) / (alpha * epsilon)
    if not has_kernels(logits, layout) or beta > _LARGEST_BETA or epsilon < _SMALLEST_EPSILON:
        return False
    widest = layout.size_classes.widths[0]
    for most_classes, most_instances in _ROT_TILES:
        if logits.shape[1] <= most_classes:
            return widest <= most_instances
    return False


def fused_rot(
    logits: Tensor, layout: BagLayout, proportions: Tensor, alpha: float, epsilon: float, reduction: str
) -> Tensor:
    """`rot` of checked arguments, in two launches and one more for the gradient."""
    from bagwise.kernels import operators  # Triton exists only beside CUDA

    classes = layout.size_classes
    return operators.rot(
        logits,
        proportions,
        layout.bag_index,
        layout.order,
        layout.offsets,
        classes.bags,
        classes.widths,
        classes.counts,
        alpha,
        epsilon,
        reduction,
    )


def fused_proportion_loss(
    logits: Tensor, layout: BagLayout, proportions: Tensor, divergence: str, reduction: str
) -> Tensor:
    """`proportion_loss` (or "avg_kl") of checked arguments, in two launches and one more for the gradient."""
    from bagwise.kernels import operators

    classes = layout.size_classes
    return operators.proportion_loss(
        logits,
        proportions,
        layout.bag_index,
        layout.order,
        layout.offsets,
        classes.bags,
        classes.widths,
        classes.counts,
        divergence,
        reduction,
    )
