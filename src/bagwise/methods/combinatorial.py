"""The paper's combinatorial loss, exact for any number of classes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bagwise import functional as BF
from bagwise.bags.layout import BagLayout
from bagwise.bags.setting_checks import check_alpha, check_choice
from bagwise.functional.inputs import DIVERGENCES


@dataclass(frozen=True)
class Combinatorial:
    """Cross-entropy to the hard labels that best balance predictions and proportions.

    Attributes:
        alpha: weight of the predictions; 1 - alpha is the weight of the proportions. Between 0 and 1.
        divergence: how the labels' proportions are compared with the known ones: "kl", "l1" or "l2".
    """

    alpha: float = 0.5
    divergence: str = "kl"

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        check_choice("divergence", self.divergence, DIVERGENCES)

    def loss(self, logits: Tensor, layout: BagLayout, proportions: Tensor) -> Tensor:
        """Return `functional.combinatorial` of each bag, `[bags]`."""
        return BF.combinatorial(
            logits, layout, proportions, alpha=self.alpha, divergence=self.divergence, reduction="none"
        )
