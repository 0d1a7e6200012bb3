"""LLPFC: bags as noisy labels."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bagwise import functional as BF
from bagwise.bags.layout import BagLayout


@dataclass(frozen=True)
class LLPFC:
    """Tell the bags of a batch apart, by forward correction of label noise: `functional.forward_correction`.

    Learns from the differences between bags: give it about as many bags a batch as there are classes, or more.
    """

    def loss(self, logits: Tensor, layout: BagLayout, proportions: Tensor, *, reduction: str = "mean") -> Tensor:
        """Return `functional.forward_correction`."""
        return BF.forward_correction(logits, layout, proportions, reduction=reduction)
