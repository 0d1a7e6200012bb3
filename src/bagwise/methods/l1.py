"""Absolute differences of proportions."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bagwise import functional as BF
from bagwise.bags.layout import BagLayout


@dataclass(frozen=True)
class L1:
    """Match each bag's mean prediction to its proportions, by the sum of absolute differences."""

    def loss(self, logits: Tensor, layout: BagLayout, proportions: Tensor) -> Tensor:
        """Return `functional.proportion_loss` with divergence "l1"."""
        return BF.proportion_loss(logits, layout, proportions, divergence="l1", reduction="none")
