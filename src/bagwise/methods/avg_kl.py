"""The paper's baseline AvgKL."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bagwise import functional as BF
from bagwise.bags.layout import BagLayout


@dataclass(frozen=True)
class AvgKL:
    """Give every instance its bag's proportions as a soft label: `functional.avg_kl`. A baseline."""

    def loss(self, logits: Tensor, layout: BagLayout, proportions: Tensor) -> Tensor:
        """Return `functional.avg_kl` of each bag, `[bags]`."""
        return BF.avg_kl(logits, layout, proportions, reduction="none")
