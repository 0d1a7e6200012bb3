"""Bags of similar size together: what a GPU kernel with fixed tiles is launched over."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class SizeClasses:
    """Every bag, the largest first, in classes of sizes up to a power of two.

    Attributes:
        bags: `[bags]` int32, the bags in that order, empty ones last.
        widths: the power of two that the sizes of each class are at most; no class is wider than the one before.
        counts: number of bags in each class.
    """

    bags: Tensor
    widths: list[int]
    counts: list[int]


def sort_by_size(sizes: np.ndarray, device: torch.device) -> SizeClasses:
    """Put bags of `sizes [bags]` into classes: 0 to 1 instances, 2, 3 to 4, 5 to 8, ..."""
    exponents = np.ceil(np.log2(np.maximum(sizes, 1))).astype(np.int64)
    bags = np.argsort(-exponents, kind="stable")  # bags of a class stay neighbours in memory
    present, counts = np.unique(-exponents, return_counts=True)
    return SizeClasses(
        bags=torch.from_numpy(bags.astype(np.int32)).to(device, non_blocking=True),
        widths=(2 ** (-present)).tolist(),
        counts=counts.tolist(),
    )
