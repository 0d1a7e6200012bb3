"""The paper's relaxed optimal-transport loss."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bagwise import functional as BF
from bagwise.bags.layout import BagLayout
from bagwise.bags.setting_checks import check_alpha, check_epsilon


@dataclass(frozen=True)
class ROT:
    """Cross-entropy to soft labels that balance the predictions against the proportions: `functional.rot`.

    Attributes:
        alpha: weight of the predictions; 1 - alpha is the weight of the proportions. Between 0 and 1.
        epsilon: softness of the labels, positive.
    """

    alpha: float = 0.5
    epsilon: float = 1.0

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        check_epsilon(self.epsilon)

    def loss(self, logits: Tensor, layout: BagLayout, proportions: Tensor) -> Tensor:
        """Return `functional.rot` of each bag, `[bags]`."""
        return BF.rot(logits, layout, proportions, alpha=self.alpha, epsilon=self.epsilon, reduction="none")
