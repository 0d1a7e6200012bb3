"""LLP-MM: moments of higher order."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bagwise import functional as BF
from bagwise.bags.layout import BagLayout
from bagwise.bags.setting_checks import check_count


@dataclass(frozen=True)
class LLPMM:
    """Match the moments of a bag's class counts, not only their mean: `functional.moment_matching`.

    Attributes:
        order: the highest moment; 1 is the method "kl". The cost grows as classes to this power: its authors have 8
            for 10 classes and 3 for 100, the default is affordable on a CPU.
    """

    order: int = 3

    def __post_init__(self) -> None:
        check_count("order", self.order)

    def loss(self, logits: Tensor, layout: BagLayout, proportions: Tensor) -> Tensor:
        """Return `functional.moment_matching` of each bag, `[bags]`."""
        return BF.moment_matching(logits, layout, proportions, order=self.order, reduction="none")
