"""From the losses of the bags to the loss, and from the loss's cotangent to the gradient: one small launch each."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK_BAGS = 8_192
_BLOCK_ENTRIES = 4_096


def reduce_bags(values: Tensor, proportions: Tensor, offsets: Tensor, mean: bool) -> tuple[Tensor, Tensor]:
    """Return sum or mean of `values [bags]` over the bags that count, and what a cotangent has to be multiplied by."""
    loss = torch.empty((), device=values.device, dtype=torch.float32)
    scale = torch.empty((), device=values.device, dtype=torch.float32)
    block = min(_BLOCK_BAGS, max(32, triton.next_power_of_2(len(values))))
    _reduce_kernel[(1,)](
        values,
        proportions,
        offsets,
        loss,
        scale,
        len(values),
        proportions.stride(0),
        MEAN=mean,
        BLOCK=block,
        num_warps=max(1, block // 256),
    )
    return loss, scale


def scale_rows(gradient: Tensor, cotangent: Tensor, scale: Tensor, bag_index: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `gradient [instances, classes]` times the cotangent: `[bags]`, or a scalar that `scale` goes with."""
    scaled = torch.empty(gradient.shape, device=gradient.device, dtype=dtype)
    size = gradient.numel()
    if size:
        _scale_kernel[(triton.cdiv(size, _BLOCK_ENTRIES),)](
            gradient,
            cotangent,
            cotangent.stride(0) if cotangent.ndim else 0,  # of a sum over bags it is a view with stride 0
            scale,
            bag_index,
            scaled,
            size,
            NUM_CLASSES=gradient.shape[1],
            PER_BAG=cotangent.ndim == 1,
            BLOCK=_BLOCK_ENTRIES,
            num_warps=8,
        )
    return scaled


@triton.jit
def _reduce_kernel(
    values, proportions, offsets, loss, scale, num_bags, stride, MEAN: tl.constexpr, BLOCK: tl.constexpr
):
    total = tl.zeros([BLOCK], dtype=tl.float32)
    counted = tl.zeros([BLOCK], dtype=tl.int32)
    for begin in range(0, num_bags, BLOCK):
        bag = begin + tl.arange(0, BLOCK)
        exists = bag < num_bags
        total += tl.load(values + bag, mask=exists, other=0.0)
        if MEAN:
            z = tl.load(proportions + bag.to(tl.int64) * stride, mask=exists, other=float("nan"))
            start = tl.load(offsets + bag, mask=exists, other=0)
            stop = tl.load(offsets + bag + 1, mask=exists, other=0)
            counted += ((z == z) & (stop > start)).to(tl.int32)
    factor = 1.0
    if MEAN:
        factor = 1.0 / tl.maximum(tl.sum(counted, axis=0), 1).to(tl.float32)
    tl.store(loss, tl.sum(total, axis=0) * factor)
    tl.store(scale, factor)


@triton.jit
def _scale_kernel(
    gradient,
    cotangent,
    stride,
    scale,
    bag_index,
    scaled,
    size,
    NUM_CLASSES: tl.constexpr,
    PER_BAG: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    values = tl.load(gradient + place, mask=inside, other=0.0)
    if PER_BAG:
        bag = tl.load(bag_index + place // NUM_CLASSES, mask=inside, other=0)
        values *= tl.load(cotangent + bag * stride, mask=inside, other=0.0)
    else:
        values *= tl.load(cotangent) * tl.load(scale)
    tl.store(scaled + place, values, mask=inside)
