"""Ordinary supervised learning, as bags of one instance."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bagwise import functional as BF
from bagwise.bags.layout import BagLayout
from bagwise.bags.validation import check_single_instances


@dataclass(frozen=True)
class Supervised:
    """Cross-entropy to the label of each instance, given as the proportions of a bag of one."""

    def loss(self, logits: Tensor, layout: BagLayout, proportions: Tensor) -> Tensor:
        """Return the cross-entropy of each bag, `[bags]`; every bag must hold exactly one instance."""
        check_single_instances(layout.common_size)
        return BF.avg_kl(logits, layout, proportions, reduction="none")
