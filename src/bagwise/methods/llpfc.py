"""LLPFC: bags as noisy labels."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from bagwise import functional as BF
from bagwise.bags.layout import BagLayout


@dataclass(frozen=True)
class LLPFC:
    """Tell the bags of a batch apart, by forward correction of label noise: `functional.forward_correction`.

    Learns from the differences between bags: give it about as many bags a batch as there are classes, or more.
    """

    compares_bags: ClassVar[bool] = True

    def loss(self, logits: Tensor, layout: BagLayout, proportions: Tensor) -> Tensor:
        """Return `functional.forward_correction`, and warn of a batch of one bag, from which nothing is learned."""
        if layout.num_bags == 1:
            warnings.warn(
                "method 'llpfc' learns from how the bags of a batch differ, but a batch holds only one bag, which "
                "teaches nothing. Make the batches larger (batch_instances, or batch_size of the estimator).",
                stacklevel=2,
            )
        return BF.forward_correction(logits, layout, proportions, reduction="none")
