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
_MOST_CLASSES = 1024  # one instance has to fit on chip


def has_kernels(logits: Tensor, layout: BagLayout) -> bool:
    """Whether the fused kernels take these arguments; float64 stays on the reference path."""
    return _HAS_TRITON and logits.is_cuda and logits.dtype in _KERNEL_DTYPES and layout.num_bags > 0


def has_rot_kernel(logits: Tensor, layout: BagLayout, alpha: float, epsilon: float) -> bool:
    """Whether the fused ROT kernels find a plan right to 1e-5 for these bags."""
    beta = (1 - alpha) / (alpha * epsilon)
    in_float32 = beta <= _LARGEST_BETA and epsilon >= _SMALLEST_EPSILON
    return has_kernels(logits, layout) and in_float32 and logits.shape[1] <= _MOST_CLASSES


def fused_rot(
    logits: Tensor, layout: BagLayout, proportions: Tensor, alpha: float, epsilon: float, reduction: str
) -> Tensor:
    """`rot` of checked arguments: a launch for each few sizes of bags, one for the sum and one for the gradient."""
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
    """`proportion_loss` (or "avg_kl") of checked arguments, launched as in `fused_rot`."""
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
