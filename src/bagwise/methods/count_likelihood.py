"""The likelihood of each class's count."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bagwise import functional as BF
from bagwise.bags.layout import BagLayout


@dataclass(frozen=True)
class CountLikelihood:
    """Make each class's count in a bag likely, with independent instances: `functional.count_likelihood`."""

    def loss(self, logits: Tensor, layout: BagLayout, proportions: Tensor) -> Tensor:
        """Return `functional.count_likelihood` of each bag, `[bags]`."""
        return BF.count_likelihood(logits, layout, proportions, reduction="none")
