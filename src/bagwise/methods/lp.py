"""The paper's exact transport loss."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bagwise import functional as BF
from bagwise.bags.layout import BagLayout


@dataclass(frozen=True)
class TransportLP:
    """Cross-entropy to the cheapest labels that meet the proportions exactly: `functional.transport_lp`."""

    def loss(self, logits: Tensor, layout: BagLayout, proportions: Tensor) -> Tensor:
        """Return `functional.transport_lp` of each bag, `[bags]`."""
        return BF.transport_lp(logits, layout, proportions, reduction="none")
