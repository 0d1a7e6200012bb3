"""DSQ: squared differences of proportions, debiased."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from bagwise import functional as BF
from bagwise.bags.layout import BagLayout


@dataclass(frozen=True)
class DSQ:
    """Estimate the squared error of the instances from pairs of bags: `functional.debiased_squares`.

    Only for bags drawn at random from one population, several to a batch: one alone has nothing to be debiased by.
    """

    compares_bags: ClassVar[bool] = True

    def loss(self, logits: Tensor, layout: BagLayout, proportions: Tensor) -> Tensor:
        """Return `functional.debiased_squares` of each bag, `[bags]`."""
        return BF.debiased_squares(logits, layout, proportions, reduction="none")
