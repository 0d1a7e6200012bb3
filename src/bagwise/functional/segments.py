"""Reductions over the instances of each bag, without padding and without a Python loop over bags."""

from __future__ import annotations

import torch
from torch import Tensor

from bagwise.bags.layout import BagLayout


def segment_sum(values: Tensor, layout: BagLayout) -> Tensor:
    """Sum `values [instances, classes]` within each bag; returns `[bags, classes]`, zeros for an empty bag."""
    if layout.common_size is not None:
        return _dense(values, layout).sum(dim=1)
    return values.new_zeros(layout.num_bags, values.shape[1]).index_add(0, layout.bag_index, values)


def segment_max(values: Tensor, layout: BagLayout) -> Tensor:
    """Largest of `values [instances, classes]` in each bag; returns `[bags, classes]`, -inf for an empty bag."""
    if layout.common_size is not None:
        return _dense(values, layout).amax(dim=1)
    lowest = values.new_full((layout.num_bags, values.shape[1]), -torch.inf)
    return lowest.scatter_reduce(0, layout.bag_index[:, None].expand_as(values), values, "amax")


def segment_logsumexp(values: Tensor, layout: BagLayout) -> Tensor:
    """log sum exp of `values [instances, classes]` within each bag; returns `[bags, classes]`.

    Where all values are -inf the result is -inf and the gradient is zero (not NaN).
    """
    shift = segment_max(values.detach(), layout)
    shift = torch.where(shift.isfinite(), shift, 0)
    total = segment_sum((values - expand(shift, layout)).exp(), layout)
    # log(0) has an infinite slope, which times a zero cotangent would be NaN: never take it
    impossible = total == 0  # not so where it is NaN, which must stay NaN
    return torch.where(impossible, -torch.inf, torch.where(impossible, 1, total).log() + shift)


def expand(values: Tensor, layout: BagLayout) -> Tensor:
    """Give every instance the row of its bag: `[bags, classes]` -> `[instances, classes]`."""
    return values.index_select(0, layout.bag_index)


def _dense(values: Tensor, layout: BagLayout) -> Tensor:
    return layout.in_bag_order(values).view(layout.num_bags, -1, values.shape[1])
