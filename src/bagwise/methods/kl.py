"""The paper's KL loss."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bagwise import functional as BF
from bagwise.bags.layout import BagLayout


@dataclass(frozen=True)
class KL:
    """Match each bag's mean prediction to its proportions, by cross-entropy: `functional.bag_kl`."""

    def loss(self, logits: Tensor, layout: BagLayout, proportions: Tensor) -> Tensor:
        """Return `functional.bag_kl` of each bag, `[bags]`."""
        return BF.bag_kl(logits, layout, proportions, reduction="none")
